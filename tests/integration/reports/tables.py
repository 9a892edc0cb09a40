"""Fresh tables of reports on an engine."""

import itertools
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from kanon.reports.job import Amount
from kanon.reports.shared_info import Unit
from kanon.reports.storage.budgets import Budgets, Committing
from kanon.reports.storage.report_jobs import ReportJobs, State
from tests.integration.gate.tables import Running
from tests.small_pages import expect_consistent_reads

CAP = Amount.of(Fraction(64), Fraction(1, 10**7))
EPOCH = "the first"
CLAIM = "0" * 32
NOW = 1_700_000_000
KEYS = {"ReportJobs": {"job": "S", "part": "S"}, "Budgets": {"row": "B", "part": "S"}}
KEY_TYPES = ("HASH", "RANGE")
_numbers = itertools.count()


@dataclass
class ReportTables:
    """Jobs and budgets, watched and with a clock that a test sets."""

    client: Any
    names: dict[str, str]
    now: float = NOW
    calls: list[str] = field(default_factory=list)

    @property
    def jobs(self) -> ReportJobs:
        return ReportJobs(self.client, self.names["ReportJobs"])

    @property
    def budgets(self) -> Budgets:
        return Budgets(self.client, self.names["Budgets"], CAP)

    def in_force(self, epoch: str) -> bool:
        return self.budgets.epoch() == epoch

    def committing(self, epoch: str = EPOCH) -> Committing:
        return Committing(self.client, self.jobs, self.budgets, lambda: self.in_force(epoch), lambda: self.now)

    def job(self, name: str, state: State = State.COMMITTING) -> str:
        """A job in a state, as its stages would have left it."""
        assert self.jobs.create(name, {}, int(self.now), bytes(32))
        order = [State.MAPPING, State.MATCHING, State.REDUCING, State.COMMITTING, State.ABORTING]
        for to in order[: order.index(state) + 1]:
            row = self.jobs.read(name)
            assert row is not None
            assert self.jobs.move(row, to, self.now)
        return name

    def copy(self, job: str) -> dict[str, Any]:
        """The row of a job as a backup has it."""
        key = {"job": {"S": job}, "part": {"S": "job"}}
        item: dict[str, Any] = self.client.get_item(TableName=self.names["ReportJobs"], Key=key, ConsistentRead=True)[
            "Item"
        ]
        return item

    def put_back(self, copy: dict[str, Any]) -> None:
        """Restore the row of a job, and list it as unfinished."""
        listed = {"job": {"S": "|open"}, "part": copy["job"], "received_at": copy["received_at"]}
        for item in (copy, listed):
            self.client.put_item(TableName=self.names["ReportJobs"], Item=item)

    def state(self, job: str) -> State:
        row = self.jobs.read(job)
        assert row is not None
        return row.state

    def spent(self, unit: Unit) -> Amount:
        """The spent budget of a unit, after a comparison with the ledger."""
        left = self.budgets.left([unit.row])[unit.row].get(unit.hour % 24, CAP)
        gone = Amount(CAP.epsilon - left.epsilon, CAP.delta - left.delta)
        ledger = Amount(0, 0)
        for _, hours, took in self.budgets.taken(unit.row):
            if unit.hour % 24 in hours:
                ledger = ledger + took
        assert gone == ledger
        return gone

    def replace_budgets(self, epoch: str | None) -> None:
        """Put another table in the place of the budgets: empty, with or without an epoch."""
        replace_table(self.client, self.names["Budgets"])
        if epoch is not None:
            self.client.transact_write_items(TransactItems=[self.budgets.begin(epoch)])


def _create(client: Any, table: str, keys: dict[str, str]) -> None:
    """Create a table with a partition key, and a sort key if there are two."""
    client.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in zip(keys, KEY_TYPES, strict=False)],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind in keys.items()],
        BillingMode="PAY_PER_REQUEST",
    )


def create_control(client: Any, table: str) -> None:
    """Create table Control."""
    _create(client, table, {"name": "S"})


def replace_table(client: Any, table: str) -> None:
    """Delete a table and create it again, empty."""
    old = client.describe_table(TableName=table)["Table"]
    same = {part: old[part] for part in ("KeySchema", "AttributeDefinitions")}
    client.delete_table(TableName=table)
    client.create_table(TableName=table, BillingMode="PAY_PER_REQUEST", **same)


def fresh_tables(running: Running) -> ReportTables:
    """New, empty tables; the budgets have their epoch."""
    client, number = running.client(), next(_numbers)
    expect_consistent_reads(client)
    names = {table: f"reports-{number}-{table}" for table in KEYS}
    for table, keys in KEYS.items():
        _create(client, names[table], keys)
    tables = ReportTables(client, names)
    client.transact_write_items(TransactItems=[tables.budgets.begin(EPOCH)])
    client.meta.events.register_last("after-call.dynamodb", lambda model, **_: tables.calls.append(model.name))
    return tables


def unit(number: int = 0, hour: int = 5) -> Unit:
    """A unit; different numbers are in different rows."""
    return Unit(f"key {number}", "https://report.test", NOW // 3600 // 24 * 24 + hour)
