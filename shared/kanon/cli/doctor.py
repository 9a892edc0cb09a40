"""``kanon doctor``: checks the health of a running stack, or of a directory, and prints what to do."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.errors import needs
from kanon.cli.options import Json, refuse_unused
from kanon.cli.screen import cell, new_table, pages, screen, show_json, working
from kanon.cli.stacks import AwsProfile, Region, StackName, Url, find, stack_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanon.findings import Finding


def doctor(
    context: typer.Context,
    stack: StackName = None,
    region: Region = None,
    profile: AwsProfile = None,
    url: Url = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Check this directory of `kanon serve --data` instead.")
    ] = None,
    secrets: Annotated[bool, typer.Option("--secrets", help="Also read the secrets and compare them.")] = False,
    as_json: Json = False,
) -> None:
    """Check the health of a running stack; exit with 1 if something is wrong, 2 if it cannot be checked.

    Example: kanon doctor --stack kanon-prod --secrets
    """
    if data is None:
        findings = _of_stack(stack, region, profile, url, secrets=secrets)
    else:
        refuse_unused(context, ("stack", "region", "profile", "url", "secrets"), "with --data: name one of them only")
        findings = _of_directory(data)
    wrong = any(finding.wrong for finding in findings)
    if as_json:
        entries = [
            {"check": f.check, "verdict": f.verdict, "seen": f.seen, "advice": pages(f.advice), "page": pages(f.page)}
            for f in findings
        ]
        show_json({"wrong": wrong, "findings": entries})
    else:
        _show(findings)
    if wrong:
        raise typer.Exit(1)


def _of_stack(
    stack: str | None, region: str | None, profile: str | None, url: str | None, *, secrets: bool
) -> "list[Finding]":
    from kanon.errors import ConfigurationError
    from kanon.operate.doctor import examine, unusable

    with stack_errors(": docs/guides/operate.md#kanon-doctor names the permissions"):
        try:
            with working("checking the stack"):
                found = find(stack, region, profile, url)
                return examine(found, found.now(), secrets=secrets)
        except ConfigurationError as error:
            return [unusable(error)]


@needs("serve")
def _of_directory(data: Path) -> "list[Finding]":
    from kanon import clock
    from kanon.serving.doctor import examine_directory

    with working("checking the directory"):
        return examine_directory(data, clock.now())


def _show(findings: "Sequence[Finding]") -> None:
    from kanon.findings import Verdict

    styles = {Verdict.FAIL: "bold red", Verdict.WARN: "yellow", Verdict.NOT_SEEN: "dim"}
    table = new_table("check", "verdict", "seen", "what to do")
    for finding in findings:
        advice = "\n".join(part for part in (finding.advice, finding.page) if part)
        table.add_row(
            finding.check, finding.verdict, cell(pages(finding.seen)), pages(advice), style=styles.get(finding.verdict)
        )
    screen().print(table)
