"""``kanon explain``: explains why a set reads false, to operators who may read the tables."""

from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.screen import screen, show_json
from kanon.cli.stacks import Profile, Region, Stack, Url, find

if TYPE_CHECKING:
    from kanon.operate.explain import Explanation


def explain(
    type_name: Annotated[str, typer.Option("--type", metavar="TYPE", help="Name of the type.")],
    set_id: Annotated[
        str, typer.Option("--set", metavar="ID", help="The set id as in the path of the API: base64url.")
    ],
    stack: Stack = None,
    region: Region = None,
    profile: Profile = None,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain why a set reads false, step by step, without any count; exit with 2 if it cannot be read.

    It reads the tables, so it needs permissions that the role of query does not have.

    Example: kanon explain --stack kanon --type fledge --set aGVsbG8
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from kanon import clock
    from kanon.errors import KanonError, UndecodableMembersError
    from kanon.http.encoding import decode_base64url
    from kanon.operate.explain import PERMISSIONS
    from kanon.operate.explain import explain as explained
    from kanon.operate.stacks import reason

    try:
        id_ = decode_base64url(set_id)
    except ValueError as error:
        raise typer.BadParameter(f"the set id {error}", param_hint="--set") from error
    try:
        told = explained(find(stack, region, profile, url), type_name, id_, clock.now())
    except UndecodableMembersError as error:
        typer.echo("kanon explain: the state of this set cannot be read: see kanon operate repair", err=True)
        raise typer.Exit(2) from error
    except KanonError as error:
        needed = f"\nThe command needs {PERMISSIONS}." if isinstance(error.__cause__, ClientError) else ""
        typer.echo(f"kanon explain: {error}{needed}", err=True)
        raise typer.Exit(2) from error
    except (BotoCoreError, ClientError) as error:
        needed = f"\nThe command needs {PERMISSIONS}." if isinstance(error, ClientError) else ""
        typer.echo(f"kanon explain: {reason(error)}{needed}", err=True)
        raise typer.Exit(2) from error
    _show(told, as_json=as_json)


def _show(told: "Explanation", *, as_json: bool) -> None:
    if as_json:
        findings = [
            {"question": f.question, "reply": f.reply, "seen": f.seen, "advice": f.advice} for f in told.findings
        ]
        show_json({"kAnonymous": told.status, "findings": findings})
        return
    from rich.table import Table

    from kanon.operate.explain import Reply

    styles = {Reply.FALSE: "bold red", Reply.WAIT: "yellow"}
    table = Table("question", "reply", "seen", "what to do")
    for finding in told.findings:
        table.add_row(finding.question, finding.reply, finding.seen, finding.advice, style=styles.get(finding.reply))
    console = screen()
    console.print(f"The set reads {'true' if told.status else 'false'}.")
    console.print(table)
