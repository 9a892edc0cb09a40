"""The commit protocol of reports as a small model, explored in every interleaving.

Two jobs, two rows; each chunk of a job is one row, so that all but the last are holds. A job has two workers. A step
is one call to the tables; between two steps of a worker any other worker may take any number of steps, and a worker may
crash and begin anew. After the deadline the rows expire: what was left and what was taken are forgotten, as the
table's time to live does. At any time another table may take the place of this one: it was created again, or restored
from a backup of which the model expects the worst, that it is empty. A summary that nobody could publish until then may
be given up: its budget stays spent.

Before its last transaction a worker writes a *witness*, an item of its own, and then reads whether the table is still
the one that its job names. The last transaction names the witness. No transaction names the epoch itself: two of them
would conflict on it.

If the first job has a second plan, an earlier row of it may be put back once, by a restore or by hand: from while it
commits or aborts, or from before its plan, so that it gets another plan and with it another claim. (The service also
refuses to commit on a restored table. This model shows that the claims alone keep the budget.)

A worker reads its clock, signs its request and sends it as one step: AWS refuses a request that arrives minutes after
it was signed, and rows expire days after the deadline. A restored table has no witness: between the witness and the
last transaction are seconds, and no restore is that fast.

Worlds are tuples: an exploration compares some hundred thousand of them.

The model is written from the design, not from the product's code. ``tests/integration/reports/test_committing.py``
tests ``kanon.reports.storage.budgets`` against the tables.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

CAP = 1
"""Each row's budget. A job asks for all of it."""
SPENT = ("COMMITTED", "GIVEN UP")
"""The states of a job that has spent its budget for good."""


class Flaw(Enum):
    """A way to get the protocol wrong; the model must find each."""

    NO_CHECK_IN_A_HOLD = "a hold does not check that its job is still committing"
    REFUND_WITHOUT_CONDITION = "a refund does not ask whether the part is held"
    RESULT_BEFORE_COMMIT = "the result is published when all holds are there"
    ABORT_BY_STATES = "a short row is taken as spent if its holder has not aborted yet"
    NO_DEADLINE = "no write names the deadline"
    NO_EPOCH = "the last write names no witness, and nobody reads the epoch"
    NO_WITNESS = "the epoch is read before the last write, which names no witness"
    EPOCH_BEFORE_WITNESS = "the epoch is read first, then the witness is written"
    ONE_WITNESS_A_JOB = "two workers of a job write the same witness"
    WITNESS_IN_THE_HOLDS = "the holds name a witness, and the last write does not"
    OLD_WITNESS = "a restored table has the witness of a worker that waits"
    CLAIM_WITHOUT_PLAN = "a job that is planned again has the same claim"
    ABORT_WITHOUT_A_LOOK = "an abort returns holds without looking whether the last chunk is held"


class Job(NamedTuple):
    """What the tables hold of a job, and what became of it.

    Attributes:
        plan: the number of its plan; a worker of the job may have read an earlier one.
        commits: the plans whose result was committed, in order; history.
        restored: whether a row of it was put back.
    """

    state: str = "COMMITTING"
    published: bool = False
    plan: int = 0
    commits: tuple[int, ...] = ()
    restored: bool = False


class Worker(NamedTuple):
    """A worker of a job: what it does next, and at which of the job's rows."""

    job: int
    plan: int = 0
    does: str = "load"
    at: int = 0
    seen: frozenset[int] = frozenset()
    """The holders whose states it has still to read."""
    spent: int = 0
    witness: bool = False
    """Whether the table has its witness."""


class World(NamedTuple):
    """A state of everything.

    Attributes:
        left: what is left of each row.
        taken: (job, claim, row).
        spent: per row, what committed jobs have really spent; history, not stored anywhere.
        late: whether the deadline has passed, and whether the rows have expired.
        replaced: whether it is another table, and not the one that the jobs name.
    """

    jobs: tuple[Job, ...]
    workers: tuple[Worker, ...]
    left: tuple[int, ...]
    taken: frozenset[tuple[int, int, int]]
    spent: tuple[int, ...]
    late: str = "in time"
    replaced: bool = False


@dataclass(frozen=True)
class Model:
    """The rows of each job, rows that a committed job has spent before, and a flaw or none.

    A row that starts spent was taken by job 9, which is committed. ``workers`` is how many each job has. ``replanned``
    is the rows of the first job in its second plan; None if no row is put back.
    """

    rows: tuple[tuple[int, ...], ...]
    begin_spent: frozenset[int] = frozenset()
    flaw: Flaw | None = None
    workers: tuple[int, ...] = (2, 2)
    replanned: tuple[int, ...] | None = None

    @cached_property
    def start(self) -> World:
        """Both jobs are about to commit."""
        spent = tuple(int(row in self.begin_spent) for row in range(2))
        return World(
            tuple(Job() for _ in self.rows),
            tuple(Worker(job) for job in range(len(self.rows)) for _ in range(self.workers[job])),
            tuple(CAP - used for used in spent),
            frozenset((9, 0, row) for row in self.begin_spent),
            spent,
        )

    def next(self, world: World) -> Iterator[World]:
        """Every world one step later."""
        if world.late == "in time":
            yield world._replace(late="deadline")
        elif world.late == "deadline":
            yield _emptied(world)._replace(late="expired")
        if not world.replaced:
            yield self._replaced(world)
        if self.replanned is not None and not world.jobs[0].restored:
            for state, plan in (("COMMITTING", 0), ("ABORTING", 0), ("COMMITTING", 1)):
                yield _job(world, 0, state=state, plan=plan, restored=True)
        for number, worker in enumerate(world.workers):
            if worker.does != "load":
                yield _with(world, number, Worker(worker.job))  # a crash
            yield from self._step(world, number, worker)

    def _step(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        job = world.jobs[worker.job]
        rows = self.rows_of(worker)
        match worker.does:
            case "load":
                doing = {"COMMITTING": "take", "ABORTING": "look back", "COMMITTED": "publish"}.get(job.state)
                if doing:
                    yield _with(world, number, Worker(worker.job, job.plan, doing))
            case "take" if self._asks_first(worker, rows):
                first = self.flaw is Flaw.EPOCH_BEFORE_WITNESS
                yield _with(world, number, worker._replace(does="read" if first else "write"))
            case "take" | "commit":
                yield self._take(world, number, worker, rows)
            case "write":  # its witness
                doing = "commit" if self.flaw is Flaw.EPOCH_BEFORE_WITNESS else "read"
                yield _with(world, number, worker._replace(does=doing, witness=True))
            case "read":  # whether the table is the one that the job names
                doing = "write" if self.flaw is Flaw.EPOCH_BEFORE_WITNESS else "commit"
                yield _with(world, number, worker._replace(does="abort" if world.replaced else doing))
            case "look":
                holders = frozenset(who for who, _, held in world.taken if held == rows[worker.at]) - {worker.job}
                yield _with(world, number, worker._replace(does="ask", seen=holders, spent=0))
            case "ask":
                yield self._ask(world, number, worker, rows)
            case "abort":
                moved = _job(world, worker.job, state="ABORTING") if job.state == "COMMITTING" else world
                yield _with(moved, number, Worker(worker.job))
            case "look back":
                spent = self.holds(world, worker, rows[-1]) and self.flaw is not Flaw.ABORT_WITHOUT_A_LOOK
                yield _with(world, number, worker._replace(does="end ABORTING" if spent else "return"))
            case "end COMMITTING" | "end ABORTING":  # the job has committed before
                ended = _job(world, worker.job, state="ENDED") if worker.does == f"end {job.state}" else world
                yield _with(ended, number, Worker(worker.job))
            case "return":
                yield self._return(world, number, worker, rows)
            case "publish":  # the worker has read that its job is committed, perhaps long ago
                if world.late == "expired" and job.state == "COMMITTED":
                    yield _with(_job(world, worker.job, state="GIVEN UP"), number, Worker(worker.job))
                yield _with(_job(world, worker.job, published=True), number, Worker(worker.job))

    def rows_of(self, worker: Worker) -> tuple[int, ...]:
        """The rows of the plan that a worker has read."""
        return self.rows[worker.job] if worker.plan == 0 or self.replanned is None else self.replanned

    def claim_of(self, worker: Worker) -> int:
        """What distinguishes the parts that a job takes."""
        return 0 if self.flaw is Flaw.CLAIM_WITHOUT_PLAN else worker.plan

    def holds(self, world: World, worker: Worker, row: int) -> bool:
        """Whether the worker's job holds a row by its claim."""
        return (worker.job, self.claim_of(worker), row) in world.taken

    def _take(self, world: World, number: int, worker: Worker, rows: tuple[int, ...]) -> World:
        """One transaction: a hold, or the commit with the last row."""
        job, row = world.jobs[worker.job], rows[worker.at]
        last = worker.at == len(rows) - 1
        unchecked = self.flaw is Flaw.NO_CHECK_IN_A_HOLD and not last
        if job.state != "COMMITTING" and not unchecked:
            return _with(world, number, Worker(worker.job))
        if world.late != "in time" and self.flaw is not Flaw.NO_DEADLINE and not unchecked:
            return _with(world, number, Worker(worker.job, worker.plan, "abort"))
        if last and not self._is_same_table(world, worker):
            return _with(world, number, Worker(worker.job, worker.plan, "abort"))
        if self.holds(world, worker, row):
            doing = worker._replace(does="end COMMITTING") if last else worker._replace(at=worker.at + 1)
            return _with(world, number, doing)
        if world.left[row] < CAP:
            return _with(world, number, worker._replace(does="look", witness=False))
        world = world._replace(
            left=_changed(world.left, row, -CAP), taken=world.taken | {(worker.job, self.claim_of(worker), row)}
        )  # fmt: skip
        if not last:
            doing = worker._replace(at=worker.at + 1)
            if self.flaw is Flaw.RESULT_BEFORE_COMMIT and worker.at == len(rows) - 2:
                doing = Worker(worker.job, worker.plan, "publish")
            return _with(world, number, doing)
        spent = world.spent
        for held in rows:
            spent = _changed(spent, held, CAP)
        commits = (*job.commits, worker.plan)
        world = _job(world._replace(spent=spent), worker.job, state="COMMITTED", commits=commits)
        return _with(world, number, Worker(worker.job))

    def _asks_first(self, worker: Worker, rows: tuple[int, ...]) -> bool:
        """Whether the worker writes a witness and reads the epoch before the transaction at its row."""
        if self.flaw is Flaw.NO_EPOCH:
            return False
        return worker.at == (0 if self.flaw is Flaw.WITNESS_IN_THE_HOLDS else len(rows) - 1)

    def _is_same_table(self, world: World, worker: Worker) -> bool:
        """Whether the last transaction finds the witness that it names."""
        if self.flaw in (Flaw.NO_EPOCH, Flaw.NO_WITNESS, Flaw.WITNESS_IN_THE_HOLDS):
            return True
        if self.flaw is Flaw.ONE_WITNESS_A_JOB:
            return any(other.witness for other in world.workers if other.job == worker.job)
        return worker.witness

    def _replaced(self, world: World) -> World:
        """Another table in the place of this one, empty and without a witness."""
        workers = world.workers
        if self.flaw is not Flaw.OLD_WITNESS:
            workers = tuple(sorted((worker._replace(witness=False) for worker in workers), key=_order))
        return _emptied(world)._replace(workers=workers, replaced=True)

    def _ask(self, world: World, number: int, worker: Worker, rows: tuple[int, ...]) -> World:
        """Read the state of one holder; at the end decide."""
        if not worker.seen:
            aborts = worker.spent + CAP > CAP
            return _with(world, number, Worker(worker.job, worker.plan, "abort" if aborts else "load"))
        holder = min(worker.seen)
        state = "COMMITTED" if holder == 9 else world.jobs[holder].state
        counts = state in SPENT
        if self.flaw is Flaw.ABORT_BY_STATES:
            counts = state in (*SPENT, "COMMITTING")
        spent = worker.spent + CAP * counts
        return _with(world, number, worker._replace(seen=worker.seen - {holder}, spent=spent))

    def _return(self, world: World, number: int, worker: Worker, rows: tuple[int, ...]) -> World:
        """One transaction: a part comes back; after the last one the job is finished."""
        if worker.at == len(rows) - 1:  # only the commit takes the last row
            if world.jobs[worker.job].state == "ABORTING":
                world = _job(world, worker.job, state="REFUSED")
            return _with(world, number, Worker(worker.job))
        row = rows[worker.at]
        held = self.holds(world, worker, row)
        aborting = world.jobs[worker.job].state == "ABORTING"
        if aborting and (held or self.flaw is Flaw.REFUND_WITHOUT_CONDITION):
            world = world._replace(
                left=_changed(world.left, row, CAP),
                taken=world.taken - {(worker.job, self.claim_of(worker), row)},
            )  # fmt: skip
        return _with(world, number, worker._replace(at=worker.at + 1))

    def wrong(self, world: World) -> str | None:
        """What is wrong in a world, in words."""
        if any(spent > CAP for spent in world.spent):
            return "a row is spent twice"
        for row, left in enumerate(world.left):
            if left + CAP * sum(held == row for _, _, held in world.taken) != CAP:
                return "what is left and what is taken do not add up"
            if left + world.spent[row] > CAP and world.late != "expired" and not world.replaced:
                return "the budget of a released result came back"
        for number, job in enumerate(world.jobs):
            if job.published and not job.commits:
                return "a result was published without its budget"
            if job.state == "REFUSED" and not job.restored and any(who == number for who, _, _ in world.taken):
                return "a refused job keeps budget"
            if job.state not in SPENT and not job.restored and (number, 0, self.rows[number][-1]) in world.taken:
                return "the last chunk of a job is held, and the job is not committed"
            in_force = world.late == "in time" and not world.replaced
            if job.state in ("ABORTING", "REFUSED") and in_force and not world.jobs[0].restored:
                others = [world.spent[row] for row in self.rows[number]]
                if all(spent + CAP <= CAP for spent in others):
                    return "a job is refused that committed spending admits"
        return None

    def explore(self) -> tuple[int, str | None]:
        """The number of worlds, and what is wrong in the first wrong one."""
        seen, waiting = {self.start}, [self.start]
        before: dict[World, list[World]] = {}
        while waiting:
            world = waiting.pop()
            if (problem := self.wrong(world)) is not None:
                return len(seen), problem
            for later in self.next(world):
                before.setdefault(later, []).append(world)
                if later not in seen:
                    seen.add(later)
                    waiting.append(later)
        return len(seen), None if _all_can_end(seen, before) else "a job can never end"


def _all_can_end(worlds: set[World], before: dict[World, list[World]]) -> bool:
    """Whether every world can reach one in which each job is published, given up, refused or ended."""
    ends = ("GIVEN UP", "REFUSED", "ENDED")
    able = {w for w in worlds if all(job.published or job.state in ends for job in w.jobs)}
    waiting = list(able)
    while waiting:
        for earlier in before.get(waiting.pop(), ()):
            if earlier not in able:
                able.add(earlier)
                waiting.append(earlier)
    return able == worlds


def _emptied(world: World) -> World:
    """The table without what was left and what was taken."""
    return world._replace(left=tuple(CAP for _ in world.left), taken=frozenset())


def _with(world: World, number: int, worker: Worker) -> World:
    """The worker's next state. Workers of one job are alike, so they are kept in one order."""
    workers = (*world.workers[:number], worker, *world.workers[number + 1 :])
    return world._replace(workers=tuple(sorted(workers, key=_order)))


def _order(worker: Worker) -> tuple[int, int, str, int, tuple[int, ...], int, bool]:
    seen = tuple(sorted(worker.seen))
    return worker.job, worker.plan, worker.does, worker.at, seen, worker.spent, worker.witness


def _job(world: World, number: int, **changes: Any) -> World:
    job = world.jobs[number]._replace(**changes)
    return world._replace(jobs=(*world.jobs[:number], job, *world.jobs[number + 1 :]))


def _changed(numbers: tuple[int, ...], at: int, by: int) -> tuple[int, ...]:
    return (*numbers[:at], numbers[at] + by, *numbers[at + 1 :])
