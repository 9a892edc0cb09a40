"""The commit: a job spends its budget and its result becomes final, in one transaction or after holds.

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

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from kanon.dynamo.batches import Item, chunks
from kanon.dynamo.transactions import all_or_none
from kanon.reports.job import Amount, written
from kanon.reports.shared_info import HOUR, ReportSource, Unit, units
from kanon.reports.storage.budgets import ROWS_A_CHUNK, Budgets, BudgetsLeft, Charge
from kanon.reports.storage.report_jobs import ReportJobs, State

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

    @property
    def budgets(self) -> BudgetsLeft:
        """What is left."""


@dataclass(frozen=True)
class Committing:
    """A commit with its tables.

    Attributes:
        client: a DynamoDB client.
        jobs: the jobs.
        budgets: the budgets.
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
