"""``kanon operate``: changes a running stack. Each command says what it will do, and asks."""

import json
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli import serve_data
from kanon.cli.operate_directory import (
    Yes,
    ask,
    ask_to_forget,
    ask_to_unlist,
    backup,
    begin_there,
    delete_account,
    forget_tags,
    forget_there,
    import_,
    replay_there,
    retire_there,
    say_forgotten,
    unlist_there,
)
from kanon.cli.serve_data import ServiceDirectory
from kanon.cli.set_id import decoded
from kanon.cli.stacks import AwsProfile, Region, on_stack, on_stack_or_directory, stack_errors

if TYPE_CHECKING:
    from kanon.gate.storage.disk.control import ControlFile
    from kanon.operate.stacks import RunningStack
    from kanon.operate.suppressing import Suppressions

operate = typer.Typer(help="Change a running stack. Each command says what it will do, and asks.", no_args_is_help=True)

TypeAndSet = Annotated[
    str, typer.Argument(metavar="TYPE/SET", help="The type, and the set id as in the path of the API.")
]

for name, command in (
    ("import", import_),
    ("backup", backup),
    ("delete-account", delete_account),
    ("forget-tags", forget_tags),
):
    operate.command(name)(command)


@operate.command("api-key")
def api_key(
    data: ServiceDirectory,
    name: Annotated[str | None, typer.Option(help="Name of the new key; by default key-1, key-2, ...")] = None,
    revoke: Annotated[str | None, typer.Option(metavar="NAME", help="Revoke this key instead of making one.")] = None,
) -> None:
    """Make an API key of a service on one machine, and print it. The directory keeps only its SHA-256.

    Example: kanon operate api-key --data data
    """
    if name is not None and revoke is not None:
        raise typer.BadParameter("give --name for a new key, or --revoke, not both")
    serve_data.api_key(data, name, revoke)


@operate.command()
@on_stack_or_directory
def forget(
    stack: "RunningStack | Path",
    client: Annotated[str, typer.Option(help="The client, as in the rows of its joins.")],
    sets: Annotated[Path, typer.Option(metavar="FILE", help="The sets that it joined, one in each line.")],
    base64: Annotated[
        bool, typer.Option("--base64", help="The lines are set ids in base64url, as in the path of the API.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Forget that a client joined sets. No count changes, and so no answer.

    Example: kanon operate forget --data gate --client anna@example.com --sets her-searches.txt
    """
    if isinstance(stack, Path):
        forget_there(stack, client, sets, base64=base64, yes=yes)
        return
    from kanon.operate.forgetting import forget as forgetting

    ids = ask_to_forget(sets, base64=base64, yes=yes)
    say_forgotten(forgetting(stack, client, ids, stack.now()))


@operate.command()
@on_stack
def skip(stack: "RunningStack", yes: Yes = False) -> None:
    """Skip steps of slots that are too far behind, so that evaluation continues.

    Example: kanon operate skip --stack kanon-prod
    """
    from kanon.findings import moment
    from kanon.operate import skip as skipping
    from kanon.operate.changes import ChangeRefusedError

    found, period = skipping.gaps(stack, stack.now()), stack.evaluate.period
    if not found:
        raise ChangeRefusedError(
            "nothing was moved: no slot is behind by more than the outage allowance minus its reserve; evaluation"
            " catches up by itself and loses nothing"
        )
    for gap in found:
        typer.echo(
            f"slot {gap.slot}: to skip steps {gap.start} to {gap.first - 1}"
            f" ({moment(gap.start * period)} to {moment(gap.first * period)})"
        )
    typer.echo("Their joins are lost: for one window counts are too low, never too high. This cannot be undone.")
    ask("Skip them?", yes)
    skipping.skip(stack, found, stack.now())
    for gap in found:
        typer.echo(f"slot {gap.slot}: continues with step {gap.first} at the next message")


@operate.command()
@on_stack_or_directory
def retire(
    stack: "RunningStack | Path",
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="Name of the type.")],
    yes: Yes = False,
) -> None:
    """Permanently retire a type that is no longer configured. With --data, take it out and retire it.

    Example: kanon operate retire fledge --stack kanon-prod
    """
    if isinstance(stack, Path):
        retire_there(stack, type_name, yes=yes)
        return
    from kanon.gate import fingerprints
    from kanon.operate.changes import RETIRE, record_change, step_in_progress
    from kanon.operate.unlisting import end_lists

    recorded = stack.control.recorded("evaluate")
    if any(type_name in settings.read_types() for settings in (stack.join, stack.query, stack.evaluate)):
        raise typer.BadParameter("it is still configured: first deploy all functions without it", param_hint="TYPE")
    if not any(f"{fingerprints.TYPE}{type_name}" in known for known in (recorded, stack.control.recorded("join"))):
        raise typer.BadParameter("no such type was ever joined or evaluated", param_hint="TYPE")
    if f"{fingerprints.RETIRED}{type_name}" in recorded:
        if stack.list_bucket and end_lists(stack, type_name):
            typer.echo(f"Type {type_name} was retired before; its lists are gone now.")
            return
        raise typer.BadParameter(f"type {type_name} is already retired", param_hint="TYPE")
    typer.echo(f"Type {type_name}: its remaining rows are skipped until they expire. Its name can never be used again.")
    ask("Retire it?", yes)
    record_change(stack.control, RETIRE, step_in_progress(stack))
    fingerprints.retire(stack.control, type_name)
    if stack.list_bucket:
        end_lists(stack, type_name)
    typer.echo(f"Type {type_name} is retired; evaluation continues with the next message.")


@operate.command()
@on_stack
def repair(stack: "RunningStack", yes: Yes = False) -> None:
    """Empty the ranges of keys whose states cannot be read and cannot be computed again.

    Example: kanon operate repair --stack kanon-prod
    """
    from kanon.operate import repair as repairing

    found = repairing.damaged(stack)
    if not found:
        typer.echo("Every object of states can be read: nothing was changed.")
        return
    for place, damage in found.items():
        typer.echo(f"slot {place.slot}: {damage} cannot be read")
    if any(damage.unreadable for damage in found.values()):
        typer.echo(
            "First try `kanon operate replay`: it loses nothing. If a newer version was ever deployed here, deploy it"
            " again: it can read them. Otherwise the sets of parts are emptied: for one window their counts are too"
            " low. Statuses stay. Recovery can no longer start from earlier states of these slots."
        )
    else:
        typer.echo("The step is decided again from the log, with the same result: nothing is emptied.")
    ask("Repair them?", yes)
    repairing.repair(stack, found, stack.now())
    typer.echo("Done; evaluation continues with the next message.")


@operate.command()
@on_stack_or_directory
def new_generation(
    stack: "RunningStack | Path",
    new_key: Annotated[
        bool, typer.Option(help="With --data: draw a new noise key. The old one is deleted when no step needs it.")
    ] = False,
    original: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|none",
            help="With --data: the directory of which this one is a copy or an older state, which says what was"
            " suppressed and unlisted since; none if it is lost or this is no copy.",
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Begin a log generation after a table was restored or replaced, or a directory was copied or moved.

    Example: kanon operate new-generation --stack kanon-prod
    """
    if isinstance(stack, Path):
        begin_there(stack, new_key=new_key, original=original, yes=yes)
        return
    if new_key:
        raise typer.BadParameter("--new-key is for a directory: the guide for operators rotates the key of a stack")
    if original is not None:
        raise typer.BadParameter("--original is for a directory: a stack knows what is suppressed and unlisted")
    from kanon.operate.generation import begin, situation

    others = situation(stack).replaced
    typer.echo(f"Tables that do not belong to the log generation in force: {', '.join(others) or 'none'}.")
    typer.echo(
        "A new generation uses new noise from its first step on, and costs every join within a window of it more"
        " privacy (with restart after the crossing at most some delta). Steps that were not evaluated before it are"
        " skipped: their joins are lost. This cannot be undone."
    )
    ask("Begin a new log generation?", yes)
    entries = begin(stack, stack.now())
    typer.echo(f"It begins at step {entries[-1].from_step}. Nothing is evaluated until LogGenerations is deployed as")
    typer.echo(json.dumps([entry.model_dump() for entry in entries], separators=(",", ":")))


@operate.command()
@on_stack_or_directory
def replay(
    stack: "RunningStack | Path",
    from_: Annotated[
        int | None,
        typer.Option("--from", metavar="STEP", help="Begin with the states after this step; by default the oldest."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Evaluate again from states that are kept, and use the result if it equals the released answers.

    Example: kanon operate replay --from 472000 --stack kanon-prod
    """
    if isinstance(stack, Path):
        replay_there(stack, from_, yes=yes)
        return
    from kanon.operate import replay as replaying

    found = replaying.plan(stack, from_, stack.now())
    typer.echo(
        f"Steps {found.first} to {found.last} will be evaluated again, and every crossing compared with what was"
        " released. Joins and queries go on; evaluation waits. If nothing differs, evaluation continues from these"
        " states."
    )
    ask("Evaluate again?", yes)
    replaying.replay(stack, found, stack.now())
    typer.echo("Every released crossing is the same. Evaluation continues with the next message.")


@operate.command()
@on_stack_or_directory
def suppress(stack: "RunningStack | Path", place: TypeAndSet, yes: Yes = False) -> None:
    """Force a set to read false.

    Example: kanon operate suppress fledge/aGVsbG8 --stack kanon-prod
    """
    with _set(stack, place) as (statuses, key):
        typer.echo(
            "The set will read false until it is unsuppressed: from the next tick on, or immediately where no cache"
            " holds its answer. Its joins still count."
        )
        ask("Suppress it?", yes)
        statuses.suppress(key)
    typer.echo("The set is suppressed.")


@operate.command()
@on_stack_or_directory
def unlist(
    stack: "RunningStack | Path",
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="A listed type.", show_default=False)],
    value: Annotated[str, typer.Argument(help="The value.", show_default=False)],
    yes: Yes = False,
) -> None:
    """Take a value out of the lists of a type, past and future, for good. Its status stays as it is.

    Example: kanon operate unlist terms "a private name" --data data
    """
    if isinstance(stack, Path):
        found = unlist_there(stack, type_name, value, yes=yes)
    else:
        from kanon.operate import unlisting

        unlisting.check_listed(stack, type_name)
        ask_to_unlist(yes=yes)
        found = unlisting.unlist(stack, type_name, value)
    typer.echo(f"It is unlisted. Lists of the history that had it: {found:,}.")


@operate.command()
@on_stack_or_directory
def unsuppress(stack: "RunningStack | Path", place: TypeAndSet, yes: Yes = False) -> None:
    """Stop suppressing a set.

    Example: kanon operate unsuppress fledge/aGVsbG8 --stack kanon-prod
    """
    with _set(stack, place, of_any_type=True) as (statuses, key):
        typer.echo(
            "The set will show its own status: from the next tick on, or immediately where no cache holds its answer."
        )
        ask("Stop suppressing it?", yes)
        shown = statuses.show(key)
    if not shown:
        raise typer.BadParameter("this set is not suppressed", param_hint="TYPE/SET")
    typer.echo("The set is no longer suppressed.")


@operate.command()
@on_stack
def destroy_noise_key(
    stack: "RunningStack",
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as in NoiseKeys.")],
    yes: Yes = False,
) -> None:
    """Destroy an old noise key in all versions of its secret. It takes about 17 hours; you can interrupt it.

    Example: kanon operate destroy-noise-key 1 --stack kanon-prod
    """
    from kanon.operate.noise_key import PACE, destroy, holding, refuse_needed

    refuse_needed(stack, key_id)
    manager, arn = stack.client("secretsmanager"), stack.evaluate.noise_key_secret
    held = holding(manager, arn, key_id)
    typer.echo(
        f"Noise key {key_id} is no longer needed. Once it is destroyed, nobody can remove the noise from its answers."
        " This cannot be undone."
    )
    ask("Destroy it?", yes)

    def tell(written: int, left: int) -> None:
        typer.echo(
            f"{left} versions of the secret still hold the key; {written} of about 100 versions were written over them."
            f" The next one follows in {PACE // 60} minutes. You may interrupt and run the command again."
        )

    destroy(manager, arn, key_id, held, time.sleep, tell)
    typer.echo(f"No version of the secret holds key {key_id}.")


@operate.command("lister-key")
def lister_key_(
    stack: Annotated[str, typer.Option(help="Name of the stack. It need not exist yet.")],
    region: Region = None,
    profile: AwsProfile = None,
) -> None:
    """Make the key to which values of listed types are sealed, and print the parameters to deploy with.

    The private key is in a secret of the account. Run again, it prints the same.

    Example: kanon operate lister-key --stack kanon-prod
    """
    import secrets

    import boto3

    from kanon.operate.lister_key import lister_key

    with stack_errors(": it needs secretsmanager:CreateSecret, DescribeSecret and GetSecretValue"):
        client = boto3.Session(region_name=region, profile_name=profile).client("secretsmanager")
        key = lister_key(client, stack, lambda: secrets.token_urlsafe(48))
    typer.echo(f"ListerKey={key.public} ListerKeySecret={key.secret}")


@operate.command("issuer-key")
def issuer_key_(
    stack: Annotated[str, typer.Option(help="Name of the stack. It need not exist yet.")],
    new: Annotated[bool, typer.Option("--new", help="Make another one: the last one leaked.")] = False,
    region: Region = None,
    profile: AwsProfile = None,
) -> None:
    """Make the key of the issuer of credentials, and print the parameter to deploy with.

    The key is in a secret of the account. Run again without --new, it prints the same.

    Example: kanon operate issuer-key --stack kanon-prod
    """
    import secrets

    import boto3

    from kanon.operate.issuer import issuer_key

    with stack_errors(": it needs secretsmanager:CreateSecret and DescribeSecret"):
        client = boto3.Session(region_name=region, profile_name=profile).client("secretsmanager")
        arn = issuer_key(client, stack, lambda: secrets.token_urlsafe(48), new=new)
    typer.echo(f"IssuerKeySecret={arn}")


@operate.command()
@on_stack
def new_accounts(stack: "RunningStack", yes: Yes = False) -> None:
    """Go on with the table of accounts as it is, after it was restored or made again, or its key was.

    Nobody can enrol until no earlier join counts, because rows may be missing.

    Example: kanon operate new-accounts --stack kanon-prod
    """
    from kanon.findings import moment
    from kanon.operate.issuer import issuer_of, opens_at
    from kanon.operate.issuer import new_accounts as begin

    until = opens_at(issuer_of(stack), stack.now())
    typer.echo(
        f"Nobody will be able to enrol before {moment(until)}. Then everybody can, also who was deleted."
        " Credentials that were made stay valid. This cannot be undone."
    )
    ask("Take the table of accounts as it is?", yes)
    typer.echo(f"Accounts can enrol from {moment(begin(stack, stack.now()))} on.")


@operate.command()
@on_stack
def new_report_keys(stack: "RunningStack", yes: Yes = False) -> None:
    """Begin a new epoch of report keys, after the budget table was replaced or a private key leaked.

    Example: kanon operate new-report-keys --stack kanon-prod
    """
    from kanon.operate.report_tables import current_keys, renew_keys

    keys, replaced = current_keys(stack)
    state = "is not the one that the keys of reports were issued for" if replaced else "was not replaced"
    typer.echo(f"The table of budgets {state}. There are {len(keys.keys)} keys.")
    typer.echo(
        "All of them end now and are destroyed. Reports that are encrypted to them can never be opened again, and jobs"
        " that are not committed end with PRIVACY_BUDGET_ERROR; nothing is spent. Clients that keep public keys send"
        " unreadable reports for up to a day. This cannot be undone."
    )
    ask("Issue new keys?", yes)
    renew_keys(stack, keys, stack.now())
    typer.echo("The keys are destroyed. The first new key is published within five minutes.")


@operate.command()
@on_stack
def accept_report_jobs(stack: "RunningStack", yes: Yes = False) -> None:
    """Let jobs of reports run again, after the table of jobs was replaced.

    Example: kanon operate accept-report-jobs --stack kanon-prod
    """
    from kanon.operate.report_tables import accept_jobs, replaced_jobs

    seen = replaced_jobs(stack)
    typer.echo(
        "The table of jobs is not the one that the stack began with, and none of its jobs can commit any more. Budgets"
        " and keys do not change. If the table was restored from a copy, first find out who has that copy: it holds"
        " secrets of jobs."
    )
    ask("Accept the table?", yes)
    accept_jobs(stack, seen)
    typer.echo("Jobs run again. Create again the jobs that ended with PRIVACY_BUDGET_ERROR.")


@contextmanager
def _set(
    stack: "RunningStack | Path", place: str, *, of_any_type: bool = False
) -> "Iterator[tuple[Suppressions | ControlFile, bytes]]":
    """What suppresses the set of TYPE/SET, and its key; that of a directory also beside a running service.

    ``of_any_type``: the type may be retired.
    """
    from kanon.gate.names import set_key

    if isinstance(stack, Path):
        from kanon.gate.storage.disk.control import ControlFile
        from kanon.serving.directory import existing, stored_settings
        from kanon.serving.secret_files import pepper_of

        with closing(ControlFile(existing(stack))) as control:
            types = stored_settings(control).read_types()
            type_name, set_id = _type_and_set(place, None if of_any_type else types)
            yield control, set_key(pepper_of(stack), type_name, set_id)
        return
    from kanon.keys import fetch_secret
    from kanon.operate.suppressing import Suppressions

    type_name, set_id = _type_and_set(place, None if of_any_type else stack.evaluate.read_types())
    pepper = fetch_secret(stack.client("secretsmanager"), "set-pepper", stack.query.set_pepper_secret)
    yield Suppressions(stack), set_key(pepper, type_name, set_id)


def _type_and_set(place: str, types: "Collection[str] | None") -> tuple[str, bytes]:
    type_name, _, text = place.partition("/")
    if types is not None and type_name not in types:
        raise typer.BadParameter("give TYPE/SET with a type that is configured", param_hint="TYPE/SET")
    try:
        return type_name, decoded(text)
    except ValueError as error:
        raise typer.BadParameter(f"the set id {error}", param_hint="TYPE/SET") from error
