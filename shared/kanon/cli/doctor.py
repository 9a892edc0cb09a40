"""``kanon doctor``: checks the health of a running stack and says what to do."""

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit
from uuid import uuid4

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanon.operate.doctor import Finding
    from kanon.operate.stacks import RunningStack


def doctor(
    stack: Annotated[str | None, typer.Option(help="Name of the deployed stack.")] = None,
    region: Annotated[str | None, typer.Option(help="Its region; by default the shell's.")] = None,
    profile: Annotated[str | None, typer.Option(help="AWS profile; by default the shell's.")] = None,
    url: Annotated[
        str, typer.Option(help="Without --stack: the URL of `kanon serve` on this machine.")
    ] = "http://127.0.0.1:8000",
    secrets: Annotated[bool, typer.Option("--secrets", help="Read the secrets and compare them too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    skip: Annotated[
        bool, typer.Option("--skip", help="Skip steps of slots that are too far behind, so that they continue.")
    ] = False,
    retire: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Permanently retire a type that is no longer configured.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Reset the counts of sets whose Members item cannot be decoded.")
    ] = False,
    new_generation: Annotated[
        bool, typer.Option("--new-generation", help="Begin a log generation after a table was restored or replaced.")
    ] = False,
    suppress: Annotated[str | None, typer.Option(metavar="TYPE/SET", help="Force a set to read false.")] = None,
    unsuppress: Annotated[str | None, typer.Option(metavar="TYPE/SET", help="Stop suppressing a set.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a change.")] = False,
) -> None:
    """Check the health of a running stack; exit with 1 if something is wrong, 2 if it cannot be checked."""
    from botocore.exceptions import BotoCoreError, ClientError

    from kanon import clock
    from kanon.errors import ConfigurationError, KanonError
    from kanon.operate.doctor import Finding, Section, Verdict, examine
    from kanon.operate.stacks import reason

    changes: list[Callable[[RunningStack], None]] = [
        *([partial(_skip, yes=yes)] if skip else []),
        *([partial(_retire, type_name=retire, yes=yes)] if retire is not None else []),
        *([partial(_repair, yes=yes)] if repair else []),
        *([partial(_new_generation, yes=yes)] if new_generation else []),
        *([partial(_suppress, place=suppress)] if suppress is not None else []),
        *([partial(_unsuppress, place=unsuppress)] if unsuppress is not None else []),
    ]
    if len(changes) + (as_json or secrets) > 1:
        raise typer.BadParameter(
            "--skip, --retire, --repair, --new-generation, --suppress, --unsuppress, and --json or --secrets exclude"
            " each other"
        )
    if stack is None and (region or profile):
        raise typer.BadParameter("--region and --profile are for a deployed stack: name it with --stack")
    if urlsplit(url).scheme != "http" or urlsplit(url).hostname not in ("127.0.0.1", "localhost"):
        raise typer.BadParameter("give the URL of a stack on this machine: http://127.0.0.1:PORT", param_hint="--url")
    try:
        found = _find(stack, region, profile, url)
        if changes:
            changes[0](found)
            return
        findings = examine(found, clock.now(), secrets=secrets)
    except ConfigurationError as error:
        advice = "undo the change and deploy"
        findings = [Finding("environment", Verdict.FAIL, str(error), advice, Section.EVALUATION_STOPPED)]
    except KanonError as error:
        typer.echo(f"kanon doctor: {error}", err=True)
        raise typer.Exit(2) from error
    except (BotoCoreError, ClientError) as error:
        permissions = ": docs/guides/operate.md#kanon-doctor names the permissions"
        typer.echo(f"kanon doctor: {reason(error)}{permissions if isinstance(error, ClientError) else ''}", err=True)
        raise typer.Exit(2) from error
    wrong = any(finding.wrong for finding in findings)
    if as_json:
        entries = [
            {"check": f.check, "verdict": f.verdict, "seen": f.seen, "advice": f.advice, "page": f.page}
            for f in findings
        ]
        typer.echo(json.dumps({"wrong": wrong, "findings": entries}, indent=2))
    else:
        _show(findings)
    if wrong:
        raise typer.Exit(1)


def _find(stack: str | None, region: str | None, profile: str | None, url: str) -> "RunningStack":
    import boto3

    from kanon.operate.stacks import deployed_stack, local_stack

    if stack is None:
        return local_stack(url)
    return deployed_stack(stack, boto3.Session(region_name=region, profile_name=profile))


def _show(findings: "Sequence[Finding]") -> None:
    from rich.console import Console
    from rich.table import Table

    from kanon.operate.doctor import Verdict

    styles = {Verdict.FAIL: "bold red", Verdict.WARN: "yellow", Verdict.NOT_SEEN: "dim"}
    table = Table("check", "verdict", "seen", "what to do")
    for finding in findings:
        advice = "\n".join(part for part in (finding.advice, finding.page) if part)
        table.add_row(finding.check, finding.verdict, finding.seen, advice, style=styles.get(finding.verdict))
    Console().print(table)


def _skip(stack: "RunningStack", *, yes: bool) -> None:
    from kanon import clock
    from kanon.operate.doctor import moment
    from kanon.operate.skip import SkipRefusedError, gaps, skip

    found, period = gaps(stack, clock.now()), stack.evaluate.period
    if not found:
        raise SkipRefusedError(
            "nothing was moved: no slot is behind by more than the outage allowance minus its reserve; evaluation"
            " catches up by itself and loses nothing"
        )
    for gap in found:
        typer.echo(
            f"slot {gap.slot}: to skip steps {gap.start} to {gap.first - 1}"
            f" ({moment(gap.start * period)} to {moment(gap.first * period)})"
        )
    typer.echo("Their joins are lost: for one window counts are too low, never too high. This cannot be undone.")
    if not yes:
        typer.confirm("Skip them?", abort=True)
    skip(stack, found, f"doctor {uuid4()}", clock.now())
    for gap in found:
        typer.echo(f"slot {gap.slot}: continues with step {gap.first} at the next message")


def _retire(stack: "RunningStack", type_name: str, *, yes: bool) -> None:
    from kanon.gate.fingerprints import RETIRED, TYPE, retire

    recorded = stack.control.recorded("evaluate")
    if any(type_name in settings.read_types() for settings in (stack.join, stack.query, stack.evaluate)):
        raise typer.BadParameter("it is still configured: first deploy all functions without it", param_hint="--retire")
    if f"{TYPE}{type_name}" not in recorded:
        raise typer.BadParameter("no such type was ever evaluated", param_hint="--retire")
    if f"{RETIRED}{type_name}" in recorded:
        raise typer.BadParameter("it is already retired", param_hint="--retire")
    typer.echo(f"Type {type_name}: its remaining rows are skipped until they expire. Its name can never be used again.")
    if not yes:
        typer.confirm("Retire it?", abort=True)
    retire(stack.control, type_name)
    typer.echo(f"Type {type_name} is retired; evaluation continues with the next message.")


def _repair(stack: "RunningStack", *, yes: bool) -> None:
    from kanon.operate.repair import damage, repair

    found = damage(stack)
    if not found.items:
        typer.echo("Every Members item can be decoded: nothing was changed.")
        return
    typer.echo(f"{len(found.items)} Members items cannot be decoded. A reset makes counts too low for one window.")
    if found.newer:
        typer.echo(
            f"{found.newer} of them have the format of a newer version. If one was ever deployed here, stop and deploy"
            " it again: it can decode them, and nothing is lost."
        )
    if not yes:
        typer.confirm("Reset them?", abort=True)
    repair(stack, found)
    typer.echo("Done; evaluation continues with the next message.")


def _new_generation(stack: "RunningStack", *, yes: bool) -> None:
    from kanon import clock
    from kanon.operate.generation import begin, situation

    others = situation(stack).replaced
    typer.echo(f"Tables that are not those of the log generation in force: {', '.join(others) or 'none'}.")
    typer.echo(
        "A new generation uses new noise from its first step on, and costs every join within a window of it more"
        " privacy. Steps that were not evaluated before it are skipped: their joins are lost. This cannot be undone."
    )
    if not yes:
        typer.confirm("Begin a new log generation?", abort=True)
    entries = begin(stack, f"doctor {uuid4()}", clock.now())
    typer.echo(f"It begins at step {entries[-1].from_step}. Nothing is evaluated until LogGenerations is deployed as")
    typer.echo(json.dumps([entry.model_dump() for entry in entries], separators=(",", ":")))


def _suppress(stack: "RunningStack", place: str) -> None:
    _, key = _set(stack, place, "--suppress")
    stack.statuses.suppress(key)
    typer.echo("The set reads false from the next tick on, until it is unsuppressed.")


def _unsuppress(stack: "RunningStack", place: str) -> None:
    from kanon import clock
    from kanon.gate.mechanism.steps import step_at

    window, key = _set(stack, place, "--unsuppress")
    last_true = step_at(clock.now(), stack.schedule.period) + window
    if not stack.statuses.show(key, stack.schedule.expiry(last_true)):
        raise typer.BadParameter("it is not suppressed", param_hint="--unsuppress")
    typer.echo("The set is no longer suppressed from the next tick on.")


def _set(stack: "RunningStack", place: str, option: str) -> tuple[int, bytes]:
    """The window of the type, and the key of the set, that TYPE/SET names."""
    from kanon.gate.names import set_key
    from kanon.http.encoding import decode_base64url
    from kanon.keys import fetch_secret

    type_name, _, text = place.partition("/")
    types = stack.evaluate.read_types()
    if type_name not in types:
        raise typer.BadParameter("give TYPE/SET with a type that is configured", param_hint=option)
    try:
        set_id = decode_base64url(text)
    except ValueError as error:
        raise typer.BadParameter(f"the set id {error}", param_hint=option) from error
    pepper = fetch_secret(stack.client("secretsmanager"), "set-pepper", stack.query.set_pepper_secret)
    return types[type_name].parameters.window, set_key(pepper, type_name, set_id)
