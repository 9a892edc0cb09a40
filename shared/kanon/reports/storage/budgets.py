"""Table Budgets: the budget left for each unit, the amounts that jobs took, and the commit by which they take it.

A row holds the 24 hours of a day of one budget key and origin. Its item ``left`` has, for each charged hour, the
remaining epsilon (in thousandths) and delta (in 10^-15); a missing hour is full. One more item for each job has the
amount that it took. These items are the ledger, and make a repeated write harmless.

*The commit*: a job spends its budget and its result becomes final, in one transaction or after holds.

A chunk is one transaction over at most 49 rows. All chunks but the last one are *holds*: they take budget while the
job's row says COMMITTING. The last one takes the rest and moves the job to COMMITTED. Chunks go in ascending order of
their rows, so two jobs cannot wait for each other.

Every transaction names the job's state. Otherwise a slow worker's hold could take a chunk again that an abort has
returned. The check also names the deadline: rows may expire afterwards.

A budget table that was created again or restored would refill budgets. So before its last transaction a worker writes
a *witness*, a random item of its own. Then it reads the epoch and the id of the table. The transaction names the
witness, so it goes to the table that the worker has read about. It does not name the epoch itself: DynamoDB cancels a
transaction that names an item of another one in progress, and all jobs would name that item.

A claim commits once. A job's row that was put back from a copy meets the rows that it took before. If it holds the last
chunk, or a part of a chunk, it has committed: it commits no more and returns nothing.

Timeline of a conflict, rows r1 < r2, where r2 has enough for one of two jobs:

    job A   hold r1 ................. commit r2 -----> committed
    job B             hold r1 ................. r2 refused: A has committed there -> abort, r1 returned
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from kanon.dynamo.batches import KEYS_A_CALL, Item, chunks, drain
from kanon.dynamo.tables import KeyedTable, bound, item_of
from kanon.dynamo.transactions import all_or_none
from kanon.errors import ThrottledError
from kanon.reports.errors import JobError
from kanon.reports.job import Amount, written
from kanon.reports.shared_info import DAY, HOUR, MAX_AGE, ReportSource, Unit, units
from kanon.reports.storage.report_jobs import ReportJobs, State

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

ROWS_A_CHUNK = 49
"""Two writes for each row, one for the job and one for the witness: 100 items, the most of one transaction."""
MOST_ROWS = 30_000

REPORT_AGE, ONE_JOB, SLACK = MAX_AGE, DAY, 7 * DAY
"""A row may expire when no job can accept a report of its day: after 90 days (its age) + 1 day (a job) + 7 days."""

LEFT, JOB = "left", "job#"
BAR = "|"
"""Between the id of a job, which has no bar, and its claim."""
EPOCH, WITNESS = b"epoch", b"witness"

WITNESS_KEPT = DAY
"""Seconds until a witness expires. It is needed for the seconds of one transaction."""

_ROW, _TTL = {"#row": "row"}, {"#ttl": "ttl"}
IF_NOT_TAKEN: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(#row)", "ExpressionAttributeNames": _ROW}
IF_TAKEN: dict[str, Any] = {"ConditionExpression": "attribute_exists(#row)", "ExpressionAttributeNames": _ROW}
IF_SAME_EPOCH = "epoch = :epoch"


@dataclass(frozen=True, order=True)
class Charge:
    """The hours of one row from which a job takes the same amount.

    Attributes:
        row: name of the row, 32 bytes.
        day: days since 1970.
        hours: 0 to 23, ascending.
    """

    row: bytes
    day: int
    hours: tuple[int, ...]

    @property
    def expires(self) -> int:
        """When the row may expire, unix seconds."""
        return (self.day + 1) * DAY + REPORT_AGE + ONE_JOB + SLACK


def charges(units: Iterable[Unit]) -> list[Charge]:
    """The rows of units, in ascending order of their names."""
    hours: dict[tuple[bytes, int], set[int]] = {}
    for unit in units:
        hours.setdefault((unit.row, unit.hour // 24), set()).add(unit.hour % 24)
    return sorted(Charge(row, day, tuple(sorted(found))) for (row, day), found in hours.items())


def rows_charged(units: Iterable[Unit]) -> int:
    """The number of rows that a job with these units charges.

    Raises:
        JobError: they are too many for one job.
    """
    rows = len(charges(units))
    if rows > MOST_ROWS:
        raise JobError(
            "INVALID_JOB",
            f"the reports belong to {rows:,} rows of budget, and a job charges at most {MOST_ROWS:,}: ask for fewer"
            " days, or name the attribution_destinations",
        )
    return rows


class BudgetsLeft(Protocol):
    """What is left of budgets, wherever they are. :class:`Budgets` says what each method promises."""

    @property
    def cap(self) -> Amount:
        """The budget of each hour."""

    def left(self, rows: Iterable[bytes]) -> dict[bytes, dict[int, Amount]]:
        """The amount left in each charged hour of the rows."""

    def taken(self, row: bytes) -> Iterator[tuple[str, tuple[int, ...], Amount]]:
        """The jobs that took from a row."""


class Budgets(KeyedTable):
    """The budgets of all units."""

    def __init__(self, client: "DynamoDBClient", table: str, cap: Amount) -> None:
        super().__init__(client, table)
        self.table = table
        self.cap = cap

    # Parts of a transaction.

    def take(self, charge: Charge, job: str, amount: Amount, claim: str) -> list[dict[str, Any]]:
        """Two writes: take the amount from each hour, and record it. Refused if an hour has less, or if recorded.

        ``claim`` distinguishes the job from an earlier one with its id that table ReportJobs has lost, and from itself
        with another plan.
        """
        pairs, values = _parts(charge, amount)
        caps = bound(ecap=self.cap.epsilon) | (bound(dcap=self.cap.delta) if amount.delta else {})
        update = ", ".join(f"{name} = if_not_exists({name}, {part}cap) - {part}" for name, part in pairs)
        enough = " AND ".join(f"(attribute_not_exists({name}) OR {name} >= {part})" for name, part in pairs)
        values |= caps | bound(ttl=charge.expires)
        took = item_of(epsilon=amount.epsilon, delta=amount.delta, ttl=charge.expires)
        hours = {"hours": {"NS": [str(hour) for hour in charge.hours]}}
        item = {**self._key((charge.row, _taker(job, claim))), **took, **hours}
        return [
            self._part((charge.row, LEFT), f"SET #ttl = :ttl, {update}", enough, values, ExpressionAttributeNames=_TTL),
            {"Put": {"TableName": self.table, "Item": item, **IF_NOT_TAKEN}},
        ]

    def give_back(self, charge: Charge, job: str, amount: Amount, claim: str) -> list[dict[str, Any]]:
        """Two writes that undo :meth:`take`. Refused if the job did not take it, or has returned it."""
        pairs, values = _parts(charge, amount)
        update = "SET " + ", ".join(f"{name} = {name} + {part}" for name, part in pairs)
        charged = " AND ".join(f"attribute_exists({name})" for name, _ in pairs)
        return [
            self._part((charge.row, LEFT), update, charged, values),
            {"Delete": {"TableName": self.table, "Key": self._key((charge.row, _taker(job, claim))), **IF_TAKEN}},
        ]

    def put_witness(self, now: float) -> dict[str, Any]:
        """Write a new witness: a random item, which no other table has.

        Returns:
            A check that the witness is in the table. It conflicts with no other transaction.
        """
        witness = self._key((WITNESS + secrets.token_bytes(16), LEFT))
        self._client.put_item(TableName=self.table, Item=witness | item_of(ttl=int(now) + WITNESS_KEPT))
        return {"ConditionCheck": {"TableName": self.table, "Key": witness, **IF_TAKEN}}

    def same_epoch(self, epoch: str) -> dict[str, Any]:
        """A check of the epoch, for transactions that begin one. All of them conflict with each other."""
        return {
            "ConditionCheck": {
                "TableName": self.table,
                "Key": self._key((EPOCH, LEFT)),
                "ConditionExpression": IF_SAME_EPOCH,
                "ExpressionAttributeValues": bound(epoch=epoch),
            }
        }

    # Reads.

    def left(self, rows: Iterable[bytes]) -> dict[bytes, dict[int, Amount]]:
        """The amount left in each charged hour of the rows, strongly consistent; a missing hour is full.

        Raises:
            ThrottledError: some rows were not answered after all attempts.
        """
        distinct = list(dict.fromkeys(rows))
        items = self._read([self._key((row, LEFT)) for row in distinct])
        found: dict[bytes, dict[int, Amount]] = {row: {} for row in distinct}
        return found | {bytes(item["row"]["B"]): self._hours(item) for item in items}

    def held(self, charges: Sequence[Charge], job: str, claim: str) -> int:
        """The number of these rows that a job has taken with this claim, strongly consistent. At most 49 rows.

        Raises:
            ThrottledError: some rows were not answered after all attempts.
        """
        return len(self._read([self._key((charge.row, _taker(job, claim))) for charge in charges]))

    def taken(self, row: bytes) -> Iterator[tuple[str, tuple[int, ...], Amount]]:
        """The jobs that took from a row or hold a part of it: id, hours, amount per hour. Strongly consistent."""
        pages = self._client.get_paginator("query").paginate(
            TableName=self.table,
            ConsistentRead=True,
            KeyConditionExpression="#row = :row AND begins_with(#part, :job)",
            ExpressionAttributeNames={"#row": "row", "#part": "part"},
            ExpressionAttributeValues=bound(row=row, job=JOB),
        )
        for item in (item for page in pages for item in page["Items"]):
            amount = Amount(int(item["epsilon"]["N"]), int(item["delta"]["N"]))
            yield _job_of(item), tuple(sorted(map(int, item["hours"]["NS"]))), amount

    def holders(self) -> Iterator[tuple[bytes, str]]:
        """Every row of the table and every job that took from it. Reads the whole table, for operators."""
        for item in self._scan(
            FilterExpression="begins_with(#part, :job)",
            ProjectionExpression="#row, #part",
            ExpressionAttributeNames={"#row": "row", "#part": "part"},
            ExpressionAttributeValues=bound(job=JOB),
        ):
            yield bytes(item["row"]["B"]), _job_of(item)

    def epoch(self) -> str | None:
        """The epoch of this table, strongly consistent; None if it has none yet."""
        item = self._item((EPOCH, LEFT))
        return item["epoch"]["S"] if item else None

    def begin(self, epoch: str, instead_of: str | None = None) -> dict[str, Any]:
        """A write of the table's epoch. Refused unless the stored epoch is ``instead_of`` (None: no epoch)."""
        put = {"TableName": self.table, "Item": self._key((EPOCH, LEFT)) | item_of(epoch=epoch)}
        if instead_of is None:
            return {"Put": {**put, **IF_NOT_TAKEN}}
        values = bound(epoch=instead_of)
        return {"Put": {**put, "ConditionExpression": IF_SAME_EPOCH, "ExpressionAttributeValues": values}}

    def _read(self, keys: list[Any]) -> list[Item]:
        """The items with these keys, strongly consistent."""
        found: list[Item] = []

        def ask(wanted: Sequence[Any]) -> list[Any]:
            asked: Any = {self.table: {"Keys": wanted, "ConsistentRead": True}}
            answer = self._client.batch_get_item(RequestItems=asked)
            found.extend(answer["Responses"].get(self.table, []))
            return list(answer.get("UnprocessedKeys", {}).get(self.table, {"Keys": []})["Keys"])

        if drain(keys, KEYS_A_CALL, ask):
            raise ThrottledError("table Budgets did not answer for all rows in any attempt: send the request again")
        return found

    def _hours(self, item: Item) -> dict[int, Amount]:
        hours = sorted({int(name[1:]) for name in item if name[0] in "ed" and name[1:].isdigit()})
        return {
            hour: Amount(
                int(item.get(f"e{hour:02}", {"N": self.cap.epsilon})["N"]),
                int(item.get(f"d{hour:02}", {"N": self.cap.delta})["N"]),
            )
            for hour in hours
        }

    def _key(self, key: tuple[bytes, str]) -> Item:
        row, part = key
        return item_of(row=row, part=part)


def _parts(charge: Charge, amount: Amount) -> tuple[list[tuple[str, str]], Item]:
    """The attributes of the hours, each with the placeholder of its part of the amount; and the placeholders."""
    parts = {"e": amount.epsilon} | ({"d": amount.delta} if amount.delta else {})
    names = [(f"{part}{hour:02}", f":{part}") for part in parts for hour in charge.hours]
    return names, bound(**parts)


def _taker(job: str, claim: str) -> str:
    return f"{JOB}{job}{BAR}{claim}"


def _job_of(item: Item) -> str:
    return str(item["part"]["S"]).removeprefix(JOB).partition(BAR)[0]


# -------------------------------------------------------------------------------------------------- the commit
ATTEMPTS = 16
"""Of one transaction: jobs that charge the same rows meet there."""
MOST_EXHAUSTED = 1_000
"""The largest number of units named when a job is refused."""


class CommitOutcome(Enum):
    """The result of a commit."""

    COMMITTED = "committed"
    LEFT = "left"
    """The job has left COMMITTING: another worker committed it, or is aborting it."""
    EXHAUSTED = "exhausted"
    """A unit has less budget than the job asks for, by committed jobs alone. The job must abort."""
    LATE = "late"
    """The deadline has passed. The job must abort."""
    WAIT = "wait"
    """A unit is held by a job that may yet abort. Try again later."""
    REPLACED = "replaced"
    """The budget table is not the one on which the stack's keys were issued. The job must abort."""
    SPENT = "spent"
    """The job has committed before: its row was put back from a copy. It must end, and keep what it took."""


class Spending(Protocol):
    """What the stages need of budgets, wherever they are; :class:`Committing` says what commit and abort promise."""

    def commit(self, job: str, charges: Sequence[Charge], amount: Amount, claim: str, **values: Any) -> CommitOutcome:
        """Take the amount and commit the job, or do neither."""

    def abort(self, job: str, charges: Sequence[Charge], amount: Amount, claim: str) -> CommitOutcome | None:
        """Return what the job holds."""


@dataclass(frozen=True)
class Committing:
    """A commit with its tables.

    Attributes:
        in_force: whether the budget table is now the one on which the job's keys were issued.
        clock: unix seconds.
    """

    client: Any
    jobs: ReportJobs
    budgets: Budgets
    in_force: Callable[[], bool]
    clock: Callable[[], float]

    def commit(self, job: str, charges: Sequence[Charge], amount: Amount, claim: str, **values: Any) -> CommitOutcome:
        """Take the amount from every hour of the charges, and commit the job with these values; or do neither.

        It may be called again after any crash, and by several workers at once.

        Args:
            job: the job, in state COMMITTING.
            charges: ascending.
            amount: from each hour.
            claim: distinguishes the job from an earlier one with its id.
            values: recorded in the job's row with the commit.
        """
        *holds, last = list(chunks(charges, ROWS_A_CHUNK)) or [()]
        for part in holds:
            state = self.jobs.still(job, State.COMMITTING, self.clock())
            refused = all_or_none(self.client, [state, *self._takes(part, job, amount, claim)], ATTEMPTS)
            if refused is not None and (stopped := self._why(job, part, amount, claim, *refused)) is not None:
                return stopped
        same_table = self.budgets.put_witness(self.clock())
        if not self.in_force():
            return CommitOutcome.REPLACED
        state = self.jobs.commit(job, self.clock(), **values)
        refused = all_or_none(self.client, [state, same_table, *self._takes(last, job, amount, claim)], ATTEMPTS)
        if refused is None:
            return CommitOutcome.COMMITTED
        left, witness, *taken = refused
        if left is None and witness is not None:
            return CommitOutcome.REPLACED
        return self._why(job, last, amount, claim, left, *taken) or CommitOutcome.SPENT

    def abort(self, job: str, charges: Sequence[Charge], amount: Amount, claim: str) -> CommitOutcome | None:
        """Return what the job holds. It may be called again after any crash.

        If a chunk is not held (never taken, or already returned), its transaction is refused as a whole.

        Returns:
            None if everything is returned; LEFT if the job is not ABORTING, SPENT if it has committed before.
        """
        *holds, last = list(chunks(charges, ROWS_A_CHUNK)) or [()]
        if self.budgets.held(last, job, claim):  # only the commit takes the last chunk
            return CommitOutcome.SPENT
        for part in holds:
            returned = [write for charge in part for write in self.budgets.give_back(charge, job, amount, claim)]
            refused = all_or_none(self.client, [self.jobs.still(job, State.ABORTING), *returned], ATTEMPTS)
            if refused is not None and refused[0] is not None:
                return CommitOutcome.LEFT
        return None

    def _takes(self, part: Sequence[Charge], job: str, amount: Amount, claim: str) -> list[dict[str, Any]]:
        return [write for charge in part for write in self.budgets.take(charge, job, amount, claim)]

    def _why(
        self, job: str, part: Sequence[Charge], amount: Amount, claim: str, state: Item | None, *taken: Item | None
    ) -> CommitOutcome | None:
        """The reason for a refused chunk; None if the job holds all of it already."""
        if state is not None:
            in_commit = state.get("state", {}).get("S") == State.COMMITTING
            return CommitOutcome.LATE if in_commit else CommitOutcome.LEFT
        if any(item is not None for item in taken[1::2]):  # the job's own items: one transaction wrote them all
            return None if self.budgets.held(part, job, claim) == len(part) else CommitOutcome.SPENT
        short = [charge for charge, item in zip(part, taken[0::2], strict=True) if item is not None]
        return (
            CommitOutcome.EXHAUSTED
            if any(self._exhausted(charge, job, amount) for charge in short)
            else CommitOutcome.WAIT
        )

    def _exhausted(self, charge: Charge, job: str, amount: Amount) -> bool:
        """Whether committed jobs alone leave too little. They never return budget."""
        spent = dict.fromkeys(charge.hours, Amount(0, 0))
        for other, hours, took in list(self.budgets.taken(charge.row)):
            if other != job and self._committed(other):
                spent |= {hour: spent[hour] + took for hour in hours if hour in spent}
        return not all((used + amount).within(self.budgets.cap) for used in spent.values())

    def _committed(self, job: str) -> bool:
        row = self.jobs.read(job)
        return row is not None and row.committed


def exhausted(budgets: BudgetsLeft, units: Sequence[Unit], amount: Amount) -> list[tuple[Unit, Amount]]:
    """The units with less left than the amount, and what is left, strongly consistent. Spends nothing."""
    left = budgets.left([unit.row for unit in units])
    found = []
    for unit in units:
        has = left[unit.row].get(unit.hour % 24, budgets.cap)
        if not amount.within(has):
            found.append((unit, has))
    return found


def named_exhausted(
    budgets: BudgetsLeft,
    sources: Collection[ReportSource],
    filtering_ids: Sequence[int],
    amount: Amount,
    most: int = MOST_EXHAUSTED,
) -> list[dict[str, Any]]:
    """The first units that are short of budget, in the aggregation service's shape, with what is left of each."""
    of_unit = {unit: (source, number) for source in sources for number in filtering_ids
               for unit in units([source], [number])}  # fmt: skip
    found = []
    for unit, left in exhausted(budgets, sorted(of_unit), amount)[:most]:
        source, filtering_id = of_unit[unit]
        fields = {
            "api": source.api,
            "attribution_destination": source.attribution_destination,
            "reporting_origin": source.reporting_origin,
            "scheduled_report_time": float(source.hour * HOUR),
            "source_registration_time": source.source_registration_time,
            "version": source.version,
        }
        found.append(
            {
                "aggregateable_input_budget_id": {
                    "filtering_id": filtering_id,
                    "relevant_shared_info": {name: value for name, value in fields.items() if value is not None},
                },
                "epsilon_left": written(left.exact[0]),
                "delta_left": written(left.exact[1]),
                "jobs": sorted(job for job, hours, _ in budgets.taken(unit.row) if unit.hour % 24 in hours),
            }
        )
    return found
