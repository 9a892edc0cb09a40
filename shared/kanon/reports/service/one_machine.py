"""Reports of one machine: the stages and the rotation of the service, worked off by one worker over a directory.

Budgets and jobs are in one file, so a commit is one transaction without holds, and the budgets are always those that
the keys were issued for. A worker that stops anywhere continues at its next start: it asks each open job what is left
to do, as the sweep does on AWS.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kanon.reports.errors import JobError
from kanon.reports.job import Amount
from kanon.reports.service.rotation import NO_KEYS_MESSAGE, Rotation, new_epoch
from kanon.reports.service.shards import Ring, Shards
from kanon.reports.service.stages import Stages
from kanon.reports.service.storing import ReportBatch
from kanon.reports.shared_info import DAY
from kanon.reports.storage.budgets import Charge, CommitOutcome
from kanon.reports.storage.disk import NAME, FileBudgets, FileRing, FolderObjects, ReportsFile
from kanon.reports.storage.key_ring import StoredRing
from kanon.reports.storage.report_jobs import MapMessage, Message, StageMessage, State

REPORTS_KEPT, WORK_KEPT = 97 * DAY, 31 * DAY
"""Seconds until a report, and the work of a job, is deleted: as the rules of the buckets on AWS."""
A_BATCH = 5_000
"""Reports that are read at once to be written into objects."""


@dataclass(frozen=True)
class FileSpending:
    """The commit of jobs of one directory. :class:`~kanon.reports.storage.budgets.Committing` has its contract.

    Attributes:
        epoch: of the keys that the job's plan names.
        clock: unix seconds.
    """

    budgets: FileBudgets
    epoch: str
    clock: Callable[[], float]

    def commit(self, job: str, charges: Sequence[Charge], amount: Amount, claim: str, **values: Any) -> CommitOutcome:
        """Take the amount from every hour of the charges, and commit the job with these values; or do neither."""
        now, file = self.clock(), self.budgets.file
        with file.changing():
            row, ring = file.read(job), FileRing(file).read()
            if row is None or row.state is not State.COMMITTING:
                return CommitOutcome.LEFT
            if now >= row.deadline:
                return CommitOutcome.LATE
            if ring is None or ring.epoch != self.epoch:
                return CommitOutcome.REPLACED
            if file.has_taken(charges, job, claim):
                return CommitOutcome.SPENT
            if not self._is_enough(charges, amount):
                return CommitOutcome.EXHAUSTED
            file.take(charges, job, claim, amount)
            file.move(row, State.COMMITTED, now, committed_at=int(now), **values)
        file.remember()
        return CommitOutcome.COMMITTED

    def abort(self, job: str, charges: Sequence[Charge], amount: Amount, claim: str) -> CommitOutcome | None:  # noqa: ARG002
        """Nothing is held, so nothing is returned: None, SPENT if the job has committed before, or LEFT."""
        if self.budgets.file.has_taken(charges, job, claim):
            return CommitOutcome.SPENT
        row = self.budgets.file.read(job)
        return None if row is not None and row.state is State.ABORTING else CommitOutcome.LEFT

    def _is_enough(self, charges: Sequence[Charge], amount: Amount) -> bool:
        left, cap = self.budgets.left(charge.row for charge in charges), self.budgets.cap
        return all(amount.within(left[charge.row].get(hour, cap)) for charge in charges for hour in charge.hours)


@dataclass(frozen=True)
class FileEpoch:
    """The epoch of a directory: its ring and its budgets are one file, so they always belong together."""

    file: ReportsFile

    @property
    def ring(self) -> FileRing:
        """The key ring."""
        return FileRing(self.file)

    def is_of(self, keys: StoredRing) -> bool:  # noqa: ARG002, see above
        """Always."""
        return True

    def begin(self) -> None:
        """Write the first ring."""
        self.ring.change(None, StoredRing(new_epoch(), NAME, jobs_id=NAME))

    def accept_jobs(self, seen: StoredRing) -> bool:  # noqa: ARG002, see above
        """The jobs are in the same file."""
        return True

    def opening(self, now: float) -> Ring:
        """The ids of the keys that open reports.

        Raises:
            JobError: there are no keys yet.
        """
        keys = self.ring.read()
        if keys is None:
            raise JobError("INTERNAL_ERROR", NO_KEYS_MESSAGE)
        return Ring(tuple(key.id for key in keys.opening(now)), keys.epoch)


@dataclass(frozen=True)
class ReportsWorker:
    """The worker of a directory: on its folders of reports and of intermediate results, its jobs, and its keys."""

    file: ReportsFile
    collected: FolderObjects
    work: FolderObjects
    stages: Stages
    shards: Shards
    rotation: Rotation[FileEpoch]

    def store(self, now: float) -> None:
        """Write the reports that have arrived into objects. One that is written twice counts once in a job.

        Those that arrive meanwhile wait for the next time: jobs do not wait for them.
        """
        left = self.file.arrivals()
        while left > 0 and (arrived := self.file.arrived(A_BATCH)):
            left -= len(arrived)
            batch = ReportBatch()
            for number, message in arrived.items():
                batch.add(str(number), message)
            for file in batch.files(now):
                self.collected.put_new(file.key, file.body)
            self.file.stored(arrived)

    def work_off(self, has_time: Callable[[], bool], failed: Callable[[Exception], None]) -> None:
        """Take every open job as far as it goes, oldest first.

        Args:
            has_time: whether to go on. What is recorded by then is not done again.
            failed: is told an error that stopped a job. The others go on, and it is tried again the next time.
        """
        for job in self.file.unfinished():
            try:
                self._take_on(job, has_time)
            except Exception as error:  # noqa: BLE001, told
                failed(error)

    def _take_on(self, job: str, has_time: Callable[[], bool]) -> None:
        queue = deque[Message](self.stages.resumed(job))
        while queue and has_time():
            message = queue.popleft()
            if isinstance(message, MapMessage):
                queue += self.shards.run(message, has_time)
            else:
                queue += self.stages.run(message, has_time)
        row = self.file.read(job)
        if row is not None and row.state is State.FINISHED:
            self.stages.run(StageMessage(job=job))  # deletes its work
            self.file.forget_work(job)
            self.file.forget_secrets()
            self.file.close_job(job)

    def expire(self, now: float) -> None:
        """Delete what nobody needs any more."""
        self.file.expire(now)
        self.collected.forget_before(now - REPORTS_KEPT)
        self.work.forget_before(now - WORK_KEPT)
