"""``kanon ledger``: shows the budget spent on each data set, and what is left."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kanon.cli.errors import CommandError
from kanon.cli.options import Json, refuse_unused
from kanon.cli.release import exact, release_errors, spent
from kanon.cli.screen import plain, show_json

if TYPE_CHECKING:
    from kanon.noise.bound import Bound
    from kanon.release.ledger import Account, Ledger, Spend

ledger = typer.Typer(help="Show and change the ledger of budget spent by releases.", no_args_is_help=True)

LedgerLocation = Annotated[str, typer.Option("--ledger", help="Directory of the ledger, or dynamodb:TABLE.")]
DEFAULT = "kanon-ledger"


@ledger.command()
@release_errors()
def show(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset.", show_default=False)] = None,
    location: LedgerLocation = DEFAULT,
    as_json: Json = False,
) -> None:
    """Show what was spent on each dataset and unit, and every release.

    Example: kanon ledger show --dataset joins
    """
    from kanon.noise.bound import Bound

    kept = _opened(location)
    if dataset is not None:
        kept.refuse_unknown(dataset)
    accounts = kept.accounts(dataset)
    spends = kept.spends(dataset)
    if as_json:
        show_json({"accounts": list(map(_account_json, accounts)), "releases": list(map(_spend_json, spends))})
        return
    if not accounts:
        typer.echo("Nothing is spent, and no budget is set.")
    for account in accounts:
        typer.echo(spent(account))
    for spend in spends:
        period = f", period {spend.period}" if spend.period else ""
        cost = Bound(spend.epsilon, spend.delta)
        state = ", forgotten" if spend.forgotten else ""
        line = f"{spend.id}  {spend.dataset}, unit {spend.unit}{period}: {cost}, name {spend.name[:40]}{state}"
        typer.echo(f"  {plain(line)}")


@ledger.command()
@release_errors()
def add(
    context: typer.Context,
    dataset: Annotated[str, typer.Option(help="Name of the data.")],
    epsilon: Annotated[str | None, typer.Option(help="Epsilon spent elsewhere.", show_default=False)] = None,
    delta: Annotated[str, typer.Option(help="Delta spent elsewhere.")] = "0",
    unit: Annotated[str, typer.Option(help="user, user-day or user-month.")] = "user",
    period: Annotated[
        str | None,
        typer.Option(
            "--days", help="Days (UTC, by the dataset's column of time) of the cost: 2026-01 or 2026-01-05..2026-01-09."
        ),
    ] = None,
    note: Annotated[str, typer.Option(help="Origin of the cost, or a remark.")] = "",
    budget: Annotated[
        bool, typer.Option("--budget", help="Set the budget of the dataset and unit, instead of a cost.")
    ] = False,
    past_budget: Annotated[bool, typer.Option("--past-budget", help="Enter a cost even if it is over budget.")] = False,
    location: LedgerLocation = DEFAULT,
) -> None:
    """Enter a cost that arose elsewhere (for the service's see `kanon plan`), a budget, or a remark.

    A budget is for one dataset and unit; the last one entered is in force. Exit status 4: the cost is over budget.

    Example: kanon ledger add --dataset joins --epsilon 2.25 --delta 4e-6 --note service
    """
    from kanon.noise.bound import Bound
    from kanon.release.accounting import Period
    from kanon.release.ledger import Ledger
    from kanon.release.spec import UNITS

    if unit not in UNITS:
        raise CommandError(f"--unit must be one of {', '.join(UNITS)}")
    if epsilon is None:
        if not note or budget:
            raise CommandError("give --epsilon and --delta, or a --note")
        refuse_unused(context, ("delta", "unit", "period", "past_budget"), "on a remark: give --epsilon for a cost")
        Ledger.at(location).add_note(dataset, note)
        return
    figures = Bound(exact(epsilon, "--epsilon"), exact(delta, "--delta"))
    if figures.epsilon < 0 or not 0 <= figures.delta <= 1:
        raise CommandError("--epsilon must be at least 0, --delta from 0 to 1")
    if budget:
        refuse_unused(context, ("period", "note", "past_budget"), "on a budget: leave it out")
    kept = Ledger.at(location)
    if budget:
        kept.set_budget(dataset, unit, figures)
    else:
        kept.add_spend(dataset, unit, Period.read(period) if period else None, figures, note, past_budget=past_budget)
    for account in kept.accounts(dataset):
        typer.echo(spent(account))


@ledger.command()
@release_errors()
def verify(location: LedgerLocation = DEFAULT) -> None:
    """Check the chain of hashes and the secret of every release. Exit status 6: the ledger is damaged.

    Example: kanon ledger verify --ledger kanon-ledger
    """
    kept = _opened(location)
    missing = kept.without_secret()
    if missing:
        raise CommandError(
            f"{len(missing)} releases have lost their secret and cannot be repeated: {', '.join(missing)}", 6
        )
    typer.echo(f"{len(kept.spends())} spends, the chain is whole; its last hash is {kept.head()}.")


@ledger.command()
@release_errors()
def forget(
    release: Annotated[str, typer.Argument(help="Id of the release.")], location: LedgerLocation = DEFAULT
) -> None:
    """Destroy the secret of a release. Then nobody can repeat the release or remove its noise.

    Example: kanon ledger forget 3
    """
    _opened(location).forget(release)
    typer.echo(f"Release {release} is forgotten. Its cost remains.")


def _opened(location: str) -> "Ledger":
    from kanon.release.ledger import Ledger

    if not location.startswith("dynamodb:") and not Path(location).is_dir():
        raise CommandError(f"there is no ledger {location}")
    return Ledger.at(location)


def _bound_json(bound: "Bound | None") -> dict[str, str] | None:
    return {"epsilon": str(bound.epsilon), "delta": str(bound.delta)} if bound else None


def _account_json(account: "Account") -> dict[str, Any]:
    return {
        "dataset": account.dataset, "unit": account.unit,
        "spent": _bound_json(account.spent), "budget": _bound_json(account.budget),
    }  # fmt: skip


def _spend_json(spend: "Spend") -> dict[str, Any]:
    return {
        "id": spend.id, "dataset": spend.dataset, "unit": spend.unit, "name": spend.name,
        "period": str(spend.period) if spend.period else None,
        "epsilon": str(spend.epsilon), "delta": str(spend.delta), "forgotten": spend.forgotten,
    }  # fmt: skip
