"""The ledger of budget spent on each data set: a chain of lines, each with the hash of the one before.

A spend is durable before anything is drawn, and its secret is durable before the spend. So an interrupted command can
be run again at no cost: it finds both and draws the same noise.
"""

import json
import secrets
from collections.abc import Callable, Container
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

from kanon.noise.bound import Bound
from kanon.noise.words import length_prefixed
from kanon.release.accounting import HalfOpenInterval, Period, look, most_spent, resolved, touched
from kanon.release.errors import InputError, LedgerError, OverBudgetError, SpecificationError
from kanon.release.stores import (
    BEGINNING,
    SECRET_BYTES,
    FileSecrets,
    FileStore,
    SecretStore,
    Store,
    hash_of,
    private_directory,
)
from kanon.release.tape import Tape, derived

COARSER = {"user": ("user",), "user-month": ("user", "user-month"), "user-day": ("user", "user-month", "user-day")}
"""The units whose releases count towards a unit: a guarantee for all rows of a user also covers those of one day."""

IN_A_TABLE = "dynamodb:"

NO_COPY = (
    "undo the change, or move the ledger away and enter all that was spent in a new one. Put no older copy in its"
    " place: it lacks later costs"
)

Entry = dict[str, Any]
"""A line of the ledger."""


@dataclass(frozen=True)
class Purchase:
    """A release before it is paid for.

    Attributes:
        dataset: name of the data, chosen by the operator.
        name: of the release; a new name always draws new noise.
        unit, period, epsilon, delta: its cost.
        specification, mechanism: digests of the specification and of the tables; None for a cost entered by hand.
        version: of the program; None for a cost entered by hand.
        user, time: the columns that make the unit. ``time`` is None if no time is read; both are None for a cost
            entered by hand, and for a release of a version that did not record them.
    """

    dataset: str
    name: str
    unit: str
    period: Period | None
    epsilon: Fraction
    delta: Fraction
    specification: str | None = None
    mechanism: str | None = None
    version: str | None = None
    user: str | None = None
    time: str | None = None


@dataclass(frozen=True, kw_only=True)
class Spend(Purchase):
    """A line of kind ``spend``. ``input``: the keyed digest of the bounded table; None for a cost entered by hand."""

    id: str
    input: str | None = None
    forgotten: bool = False


@dataclass(frozen=True)
class Account:
    """The spends and the budget of one dataset and unit.

    ``columns``: user and time column of the dataset's first release that names them; costs of other columns add up.
    """

    dataset: str
    unit: str
    spent: Bound
    budget: Bound | None
    columns: tuple[str | None, str | None] = (None, None)


class Ledger:
    """The spends and budgets in a store, and the secrets of the releases."""

    def __init__(self, store: Store, secret_store: SecretStore) -> None:
        self._store, self._secrets = store, secret_store

    @classmethod
    def at(cls, place: str | Path) -> "Ledger":
        """The ledger in a directory, created if missing, or in a DynamoDB table, ``dynamodb:NAME``.

        A table is reached with the credentials and the region of the environment.

        Raises:
            LedgerError: the directory cannot be used, or the environment names no region.
        """
        if not str(place).startswith(IN_A_TABLE):
            directory = private_directory(Path(place))
            return cls(FileStore(directory), FileSecrets(directory))
        from botocore.exceptions import BotoCoreError

        from kanon import aws
        from kanon.release.shared_stores import TableSecrets, TableStore

        try:
            client = aws.dynamodb()
        except BotoCoreError as error:
            raise LedgerError(f"no table can be reached: {error}") from error
        table = str(place).removeprefix(IN_A_TABLE)
        return cls(TableStore(client, table), TableSecrets(client, table))

    def dataset(self, text: str) -> str:
        """The name under which the ledger knows a dataset, or would enter it.

        Raises:
            SpecificationError: the ledger knows it by a name that looks like this one.
            LedgerError: the ledger is broken.
        """
        entries, _ = self._read()
        return resolved(text, {entry["dataset"]: None for entry in entries if "dataset" in entry})

    def refuse_unknown(self, dataset: str) -> None:
        """Refuse a dataset that the ledger does not have, if it has others.

        Raises:
            SpecificationError: no line of the ledger is about it; the message names the nearest one.
            LedgerError: the ledger is broken.
        """
        entries, _ = self._read()
        names = {look(entry["dataset"]): entry["dataset"] for entry in entries if "dataset" in entry}
        if names and look(dataset) not in names:
            (near,) = get_close_matches(look(dataset), names, 1, 0)
            raise SpecificationError(f"the ledger has no dataset {dataset!r}; the nearest name is {names[near]!r}")

    def sampling_secret(self, dataset: str, specification: str) -> bytes:
        """The secret that samples rows and groups; one for each dataset and specification."""
        name = sha256(length_prefixed(dataset.encode(), specification.encode())).hexdigest()
        return self._secret(f"sampling-{name}")

    def _secret(self, name: str) -> bytes:
        """The secret of this name, which is drawn if there is none. Durable when this returns."""
        self._secrets.keep(name, secrets.token_bytes(SECRET_BYTES))
        kept = self._secrets.find(name)
        if kept is None:
            raise LedgerError(f"the secret {name} was destroyed while it was written: try again")
        return kept

    def find(self, purchase: Purchase) -> Spend | None:
        """The spend of a release that was paid for earlier.

        Raises:
            LedgerError: the ledger is broken, or the release was forgotten.
            InputError: a version with other tables paid for it.
        """
        key = (purchase.dataset, purchase.specification, purchase.name)
        found = next((s for s in self.spends() if (s.dataset, s.specification, s.name) == key), None)
        if found is None:
            return None
        if found.forgotten:
            raise LedgerError(f"the secret of release {found.id} was destroyed: choose another --name, at a new cost")
        if found.mechanism != purchase.mechanism:
            raise InputError(f"version {found.version} paid for this release with other tables: choose another --name")
        return found

    def refuse_over_budget(self, purchase: Purchase) -> None:
        """Refuse a spend over any budget of the dataset.

        Raises:
            OverBudgetError: a budget does not allow it, or there are budgets and none for this unit.
            LedgerError: the ledger is broken.
        """
        entries, _ = self._read()
        _refuse(entries, purchase)

    def begin(self, purchase: Purchase, digest: Callable[[bytes], str]) -> tuple[Spend, Tape]:
        """Pay for a release, unless it is paid for already. Noise may be drawn after this returns.

        ``digest`` gives the keyed digest of the bounded table under a key.

        Raises:
            OverBudgetError: the budget does not allow it; nothing was spent.
            InputError: it was paid for with other data.
            LedgerError: the ledger is broken, or a paid release has lost its secret.
        """
        while (found := self.find(purchase)) is None:
            if (paid := self._paid(purchase, digest)) is not None:
                return paid
        secret = self._secrets.find(f"noise-{found.id}")
        if secret is None:
            raise LedgerError(f"the secret of release {found.id} is missing: choose another --name, at a new cost")
        if digest(derived(secret, "input")) != found.input:
            raise InputError(
                f"release {found.id} has this name but was made from other data: choose another --name, at a new cost"
            )
        return found, Tape(secret, found.id)

    def _paid(self, purchase: Purchase, digest: Callable[[bytes], str]) -> tuple[Spend, Tape] | None:
        """Write secret and spend; None if another process has written to the ledger since it was read."""
        entries, last = self._read()
        _refuse(entries, purchase)
        id_ = secrets.token_hex(16)
        secret = self._secret(f"noise-{id_}")
        spend = Spend(**vars(purchase), id=id_, input=digest(derived(secret, "input")))
        if self._append(_spend_json(spend), last):
            return spend, Tape(secret, id_)
        self._secrets.destroy(f"noise-{id_}")
        return None

    def add_spend(
        self, dataset: str, unit: str, period: Period | None, cost: Bound, note: str, *, past_budget: bool = False
    ) -> None:
        """Enter a cost that arose elsewhere, such as the service's.

        Raises:
            OverBudgetError: the budget does not allow it. With ``past_budget`` it is entered anyway.
        """
        id_ = secrets.token_hex(16)
        spend = Spend(self.dataset(dataset), note or "by hand", unit, period, cost.epsilon, cost.delta, id=id_)
        self._enter(_spend_json(spend), None if past_budget else spend)

    def set_budget(self, dataset: str, unit: str, budget: Bound) -> None:
        """Enter a budget; the last one of a dataset and unit counts."""
        self._enter({"event": "budget", "dataset": self.dataset(dataset), "unit": unit,
                     "epsilon": str(budget.epsilon), "delta": str(budget.delta)})  # fmt: skip

    def add_note(self, dataset: str, text: str) -> None:
        """Enter a remark."""
        self._enter({"event": "note", "dataset": self.dataset(dataset), "text": text})

    def forget(self, id_: str) -> None:
        """Destroy the secret of a release: afterwards nobody can repeat it or remove its noise.

        Raises:
            SpecificationError: the ledger has no release with this id.
        """
        found = next((spend for spend in self.spends() if spend.id == id_), None)
        if found is None or found.specification is None:
            raise SpecificationError(f"the ledger has no release {id_}")
        if not found.forgotten:
            self._enter({"event": "forget", "id": id_})
        self._secrets.destroy(f"noise-{id_}")

    def without_secret(self) -> list[str]:
        """The ids of releases that were paid for, were not forgotten, and have no secret."""
        made = [spend for spend in self.spends() if spend.specification and not spend.forgotten]
        return [spend.id for spend in made if self._secrets.find(f"noise-{spend.id}") is None]

    def head(self) -> str:
        """The hash of the last line. Keep a copy to detect removed lines later."""
        return self._read()[1]

    def spends(self, dataset: str | None = None) -> list[Spend]:
        """All spends in order, or those of a dataset under every name that looks like its name.

        Raises:
            LedgerError: the ledger is broken.
        """
        entries, _ = self._read()
        forgotten = {entry["id"] for entry in entries if entry["event"] == "forget"}
        own = entries if dataset is None else _own(entries, dataset)
        return [_spend(entry, forgotten) for entry in own if entry["event"] == "spend"]

    def accounts(self, dataset: str | None = None) -> list[Account]:
        """The account of each dataset and unit with a spend or a budget of its own. Names that look alike share it."""
        entries, _ = self._read()
        named = [e for e in entries if e["event"] in ("spend", "budget")]
        names = {look(entry["dataset"]): entry["dataset"] for entry in reversed(named)}
        pairs = {(names[look(entry["dataset"])], entry["unit"]) for entry in named}
        asked = None if dataset is None else look(dataset)
        return [_account(entries, one, unit) for one, unit in sorted(pairs) if asked in (None, look(one))]

    def _enter(self, entry: Entry, budgeted: Purchase | None = None) -> None:
        """Add a line, after a check of the budget for ``budgeted``."""
        while True:
            entries, last = self._read()
            if budgeted is not None:
                _refuse(entries, budgeted)
            if self._append(entry, last):
                return

    def _append(self, entry: Entry, last: str) -> bool:
        line = json.dumps({**entry, "previous": last}, separators=(",", ":"), sort_keys=True)
        return self._store.append(line, last)

    def _read(self) -> tuple[list[Entry], str]:
        """The lines as objects, after a check of the chain, and the hash of the last line."""
        entries, previous = [], BEGINNING
        for number, line in enumerate(self._store.lines(), 1):
            try:
                entry = json.loads(line)
                known = entry["event"] in ("spend", "budget", "forget", "note")
                chained = entry["previous"] == previous
            except (ValueError, TypeError, KeyError) as error:
                raise LedgerError(f"line {number} of the ledger is damaged: {NO_COPY}") from error
            if not known or not chained:
                raise LedgerError(f"line {number} of the ledger does not follow the one before: {NO_COPY}")
            previous = hash_of(line)
            entries.append(entry)
        return entries, previous


def _refuse(entries: list[Entry], purchase: Purchase) -> None:
    """Refuse a cost over any budget, or of a unit that no budget binds."""
    budgets = {entry["unit"] for entry in _own(entries, purchase.dataset) if entry["event"] == "budget"}
    if budgets and purchase.unit not in budgets:
        raise OverBudgetError(
            f"over budget: dataset {purchase.dataset} has a budget for unit {', '.join(sorted(budgets))}, which does"
            f" not limit unit {purchase.unit}: set one with `kanon ledger add --budget --unit {purchase.unit}`."
            " Nothing was drawn"
        )
    for unit, counted in COARSER.items():
        if purchase.unit not in counted:
            continue
        account = _account(entries, purchase.dataset, unit, purchase)
        budget = account.budget
        if budget and (account.spent.epsilon > budget.epsilon or account.spent.delta > budget.delta):
            before = _account(entries, purchase.dataset, unit).spent
            raise OverBudgetError(
                f"over budget: dataset {purchase.dataset}, unit {unit}: {before} of {budget} is spent, and this costs"
                f" {Bound(purchase.epsilon, purchase.delta)}. Nothing was drawn"
            )


def _spend_json(spend: Spend) -> Entry:
    told = {name: value for name, value in vars(spend).items() if name != "forgotten" and value is not None}
    texts: Entry = {name: str(told[name]) for name in ("period", "epsilon", "delta") if name in told}
    return {"event": "spend", **told, **texts}


def _spend(entry: Entry, forgotten: Container[str] = ()) -> Spend:
    try:
        return Spend(
            entry["dataset"], entry["name"], entry["unit"],
            Period.read(entry["period"]) if "period" in entry else None,
            Fraction(entry["epsilon"]), Fraction(entry["delta"]),
            entry.get("specification"), entry.get("mechanism"), entry.get("version"), entry.get("user"),
            entry.get("time"),
            id=entry["id"], input=entry.get("input"), forgotten=entry["id"] in forgotten,
        )  # fmt: skip
    except (KeyError, ValueError, TypeError) as error:
        raise LedgerError(f"a spend of the ledger is damaged: {NO_COPY}") from error


def _account(entries: list[Entry], dataset: str, unit: str, *more: Purchase) -> Account:
    """The account of a dataset and unit after further costs."""
    own = _own(entries, dataset)
    spends = [*(_spend(entry) for entry in own if entry["event"] == "spend"), *more]
    columns = (
        next((one.user for one in spends if one.user is not None), None),
        next((one.time for one in spends if one.time is not None), None),
    )
    costs = [(_touched(one, unit, columns), (one.epsilon, one.delta)) for one in spends if one.unit in COARSER[unit]]
    budgets = [entry for entry in own if entry["event"] == "budget" and entry["unit"] == unit]
    budget = Bound(Fraction(budgets[-1]["epsilon"]), Fraction(budgets[-1]["delta"])) if budgets else None
    return Account(dataset, unit, Bound(*most_spent(costs)), budget, columns)


def _own(entries: list[Entry], dataset: str) -> list[Entry]:
    """The lines of a dataset, under every name that looks like its name."""
    return [entry for entry in entries if "dataset" in entry and look(entry["dataset"]) == look(dataset)]


def _touched(one: Purchase, unit: str, columns: tuple[str | None, str | None]) -> tuple[HalfOpenInterval, ...] | None:
    """The days or months that a cost touches. Days by one column say nothing about days by another: such costs add up.

    For a cost entered by hand, its operator vouches for the columns.
    """
    return touched(one.period, unit) if one.specification is None or (one.user, one.time) == columns else None
