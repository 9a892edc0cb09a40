"""``kanon explain``: explains why a set reads false, to operators who may read the tables."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.errors import CommandError
from kanon.cli.options import Json
from kanon.cli.screen import new_table, screen, show_json
from kanon.cli.set_id import decoded
from kanon.cli.stacks import AwsProfile, Region, StackName, Url, find, stack_errors

if TYPE_CHECKING:
    from kanon.operate.explain import Explanation


def explain(
    type_name: Annotated[str, typer.Option("--type", metavar="TYPE", help="Name of the type.")],
    set_id: Annotated[
        str, typer.Option("--set", metavar="ID", help="The set id as in the path of the API: base64url.")
    ],
    stack: StackName = None,
    region: Region = None,
    profile: AwsProfile = None,
    url: Url = None,
    joins: Annotated[
        bool,
        typer.Option(
            "--show-joins", help="Also say whether clients joined, and in which step. NOT private: do not publish."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Explain why a set reads false, step by step, without any count; exit with 2 if it cannot be read.

    It reads the tables, so it needs permissions that the role of query does not have.

    Example: kanon explain --stack kanon --type fledge --set aGVsbG8
    """
    from kanon.errors import UndecodableMembersError
    from kanon.operate.explain import PERMISSIONS
    from kanon.operate.explain import explain as explained

    try:
        id_ = decoded(set_id)
    except ValueError as error:
        raise typer.BadParameter(f"the set id {error}", param_hint="--set") from error
    with stack_errors(f": the command needs {PERMISSIONS}"):
        try:
            found = find(stack, region, profile, url)
            told = explained(found, type_name, id_, found.now(), joins=joins)
        except UndecodableMembersError as error:
            raise CommandError("the state of this set cannot be read: see kanon operate repair") from error
    _show(told, joins=joins, as_json=as_json)


NOT_PRIVATE = "This says whether clients joined the set, and when. It is not differentially private: do not publish it."
LEFT_OUT = "Whether clients joined the set is left out, because it is not private: --show-joins shows it."


def _show(told: "Explanation", *, joins: bool, as_json: bool) -> None:
    note = NOT_PRIVATE if joins else LEFT_OUT
    if as_json:
        show_json({"kAnonymous": told.status, "note": note, "findings": list(map(asdict, told.findings))})
        return
    from kanon.operate.explain import Effect

    styles = {Effect.FALSE: "bold red", Effect.WAIT: "yellow"}
    table = new_table("question", "reply", "seen", "what to do")
    for finding in told.findings:
        table.add_row(finding.question, finding.reply, finding.seen, finding.advice, style=styles.get(finding.reply))
    console = screen()
    reads = {True: "reads true", False: "reads false", None: "has no answer: query answers 503"}
    console.print(f"The set {reads[told.status]}.")
    console.print(table)
    console.print(note, soft_wrap=True)
