"""Table Budgets: the budget left for each unit, and the amounts that jobs took.

A row holds the 24 hours of a day of one budget key and origin. Its item ``left`` has, for each charged hour, the
remaining epsilon (in thousandths) and delta (in 10^-15); a missing hour is full. One more item for each job has the
amount that it took. These items are the ledger, and make a repeated write harmless.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kanon.dynamo.batches import KEYS_A_CALL, Item, drain
from kanon.errors import ThrottledError
from kanon.reports.errors import JobError
from kanon.reports.job import Amount
from kanon.reports.shared_info import DAY, MAX_AGE, Unit

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

_ROW = {"#row": "row"}
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


class Budgets:
    """The budgets of all units."""

    def __init__(self, client: "DynamoDBClient", table: str, cap: Amount) -> None:
        self._client = client
        self.table = table
        self.cap = cap

    # Parts of a transaction.

    def take(self, charge: Charge, job: str, amount: Amount, claim: str) -> list[dict[str, Any]]:
        """Two writes: take the amount from each hour, and record it. Refused if an hour has less, or if recorded.

        ``claim`` distinguishes the job from an earlier one with its id that table ReportJobs has lost, and from itself
        with another plan.
        """
        pairs = [(f"e{hour:02}", ":e", ":ecap") for hour in charge.hours]
        values = {":e": _number(amount.epsilon), ":ecap": _number(self.cap.epsilon), ":ttl": _number(charge.expires)}
        if amount.delta:
            pairs += [(f"d{hour:02}", ":d", ":dcap") for hour in charge.hours]
            values |= {":d": _number(amount.delta), ":dcap": _number(self.cap.delta)}
        update = ", ".join(f"{name} = if_not_exists({name}, {cap}) - {part}" for name, part, cap in pairs)
        enough = " AND ".join(f"(attribute_not_exists({name}) OR {name} >= {part})" for name, part, _ in pairs)
        taken = {
            **self._key(charge.row, _taker(job, claim)),
            "epsilon": _number(amount.epsilon),
            "delta": _number(amount.delta),
            "hours": {"NS": [str(hour) for hour in charge.hours]},
            "ttl": _number(charge.expires),
        }
        return [
            {
                "Update": {
                    "TableName": self.table,
                    "Key": self._key(charge.row, LEFT),
                    "UpdateExpression": f"SET #ttl = :ttl, {update}",
                    "ConditionExpression": enough,
                    "ExpressionAttributeNames": {"#ttl": "ttl"},
                    "ExpressionAttributeValues": values,
                }
            },
            {"Put": {"TableName": self.table, "Item": taken, **IF_NOT_TAKEN}},
        ]

    def give_back(self, charge: Charge, job: str, amount: Amount, claim: str) -> list[dict[str, Any]]:
        """Two writes that undo :meth:`take`. Refused if the job did not take it, or has returned it."""
        pairs = [(f"e{hour:02}", ":e") for hour in charge.hours]
        values = {":e": _number(amount.epsilon)}
        if amount.delta:
            pairs += [(f"d{hour:02}", ":d") for hour in charge.hours]
            values[":d"] = _number(amount.delta)
        return [
            {
                "Update": {
                    "TableName": self.table,
                    "Key": self._key(charge.row, LEFT),
                    "UpdateExpression": "SET " + ", ".join(f"{name} = {name} + {part}" for name, part in pairs),
                    "ConditionExpression": " AND ".join(f"attribute_exists({name})" for name, _ in pairs),
                    "ExpressionAttributeValues": values,
                }
            },
            {"Delete": {"TableName": self.table, "Key": self._key(charge.row, _taker(job, claim)), **IF_TAKEN}},
        ]

    def put_witness(self, now: float) -> dict[str, Any]:
        """Write a new witness: a random item, which no other table has.

        Returns:
            A check that the witness is in the table. It conflicts with no other transaction.
        """
        witness = self._key(WITNESS + secrets.token_bytes(16), LEFT)
        self._client.put_item(TableName=self.table, Item={**witness, "ttl": _number(int(now) + WITNESS_KEPT)})
        return {"ConditionCheck": {"TableName": self.table, "Key": witness, **IF_TAKEN}}

    def same_epoch(self, epoch: str) -> dict[str, Any]:
        """A check of the epoch, for transactions that begin one. All of them conflict with each other."""
        return {
            "ConditionCheck": {
                "TableName": self.table,
                "Key": self._key(EPOCH, LEFT),
                "ConditionExpression": IF_SAME_EPOCH,
                "ExpressionAttributeValues": {":epoch": {"S": epoch}},
            }
        }

    # Reads.

    def left(self, rows: Iterable[bytes]) -> dict[bytes, dict[int, Amount]]:
        """The amount left in each charged hour of the rows, strongly consistent; a missing hour is full.

        Raises:
            ThrottledError: some rows were not answered after all attempts.
        """
        distinct = list(dict.fromkeys(rows))
        items = self._read([self._key(row, LEFT) for row in distinct])
        found: dict[bytes, dict[int, Amount]] = {row: {} for row in distinct}
        return found | {bytes(item["row"]["B"]): self._hours(item) for item in items}

    def held(self, charges: Sequence[Charge], job: str, claim: str) -> int:
        """The number of these rows that a job has taken with this claim, strongly consistent. At most 49 rows.

        Raises:
            ThrottledError: some rows were not answered after all attempts.
        """
        keys = [self._key(charge.row, _taker(job, claim)) for charge in charges]
        return len(self._read(keys))

    def taken(self, row: bytes) -> Iterator[tuple[str, tuple[int, ...], Amount]]:
        """The jobs that took from a row or hold a part of it: id, hours, amount per hour. Strongly consistent."""
        pages = self._client.get_paginator("query").paginate(
            TableName=self.table,
            ConsistentRead=True,
            KeyConditionExpression="#row = :row AND begins_with(#part, :job)",
            ExpressionAttributeNames={"#row": "row", "#part": "part"},
            ExpressionAttributeValues={":row": {"B": row}, ":job": {"S": JOB}},
        )
        for item in (item for page in pages for item in page["Items"]):
            amount = Amount(int(item["epsilon"]["N"]), int(item["delta"]["N"]))
            yield _job_of(item), tuple(sorted(map(int, item["hours"]["NS"]))), amount

    def holders(self) -> Iterator[tuple[bytes, str]]:
        """Every row of the table and every job that took from it. Reads the whole table, for operators."""
        pages = self._client.get_paginator("scan").paginate(
            TableName=self.table,
            FilterExpression="begins_with(#part, :job)",
            ProjectionExpression="#row, #part",
            ExpressionAttributeNames={"#row": "row", "#part": "part"},
            ExpressionAttributeValues={":job": {"S": JOB}},
        )
        for item in (item for page in pages for item in page["Items"]):
            yield bytes(item["row"]["B"]), _job_of(item)

    def epoch(self) -> str | None:
        """The epoch of this table, strongly consistent; None if it has none yet."""
        answer = self._client.get_item(TableName=self.table, Key=self._key(EPOCH, LEFT), ConsistentRead=True)
        return answer["Item"]["epoch"]["S"] if "Item" in answer else None

    def begin(self, epoch: str, instead_of: str | None = None) -> dict[str, Any]:
        """A write of the table's epoch. Refused unless the stored epoch is ``instead_of`` (None: no epoch)."""
        put = {"TableName": self.table, "Item": {**self._key(EPOCH, LEFT), "epoch": {"S": epoch}}}
        if instead_of is None:
            return {"Put": {**put, **IF_NOT_TAKEN}}
        values = {":epoch": {"S": instead_of}}
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

    @staticmethod
    def _key(row: bytes, part: str) -> dict[str, Any]:
        return {"row": {"B": row}, "part": {"S": part}}


def _taker(job: str, claim: str) -> str:
    return f"{JOB}{job}{BAR}{claim}"


def _job_of(item: Item) -> str:
    return str(item["part"]["S"]).removeprefix(JOB).partition(BAR)[0]


def _number(number: int) -> Mapping[str, str]:
    return {"N": str(number)}
