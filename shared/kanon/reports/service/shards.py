"""The work of ``decrypt``: maps one shard of a job. It has the private keys, no budgets and no noise key.

Also what it shares with ``aggregate``: the places of a job, and the end of a job that fails.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from kanon.reports.avro import LEAST_REPORT, Report, read_reports
from kanon.reports.errors import JobError
from kanon.reports.job import JobRequest
from kanon.reports.mapping import Mapped, Selection, map_reports
from kanon.reports.service.plan import Bucket, Plan, read_plan
from kanon.reports.storage.objects import ObjectStore, Stored
from kanon.reports.storage.report_jobs import BEFORE_COMMIT, PIECES, JobRow, JobsTable, MapMessage, StageMessage, State
from kanon.reports.storage.work import Work, sources_of

if TYPE_CHECKING:
    from aws_lambda_powertools import Metrics
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


UNPUBLISHED = "UNPUBLISHED"
"""Told of a committed job whose summary could not be written. The job stays open."""
COUNTED = {"SUCCESS": "JobsFinished", "SUCCESS_WITH_ERRORS": "JobsFinished", UNPUBLISHED: "PublicationsFailed"}
"""The metric of a return code; of the others it is JobsRefused."""
NOTHING_SPENT = "Nothing was spent."


def untold(_: object) -> None:
    """Tell nobody."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker on jobs with its tables and buckets.

    Attributes:
        jobs: the jobs.
        work: the work bucket.
        bucket: a bucket of inputs and outputs by its name.
        request: reads the stored request of a job.
        clock: unix seconds.
        ended: called with the return code if a run ends its job, and if its summary cannot be published.
        failed: called with an error that ends a job before its commit.
    """

    jobs: JobsTable
    work: ObjectStore
    bucket: Bucket
    request: Callable[[JobRow], JobRequest]
    clock: Callable[[], float]
    ended: Callable[[str], None] = untold
    failed: Callable[[JobError], None] = untold

    def work_of(self, row: JobRow) -> Work:
        """The folder of a job in the work bucket."""
        return Work(self.work, row.job)

    def plan_of(self, row: JobRow) -> Plan:
        """The plan of a job."""
        return read_plan(self.work_of(row), row.values["plan"])

    def fail(self, row: JobRow, error: JobError) -> bool:
        """End a job that has not begun to commit: nothing is spent. If it has left its state meanwhile, another worker
        decides.

        Returns:
            Whether this call ended it.
        """
        if row.state not in BEFORE_COMMIT:
            return False
        self.failed(error)
        told: dict[str, Any] = {"code": error.code, "message": f"{error}. {NOTHING_SPENT}"}
        if error.errors is not None:
            told["counters"] = {"errors": dict(sorted(error.errors.items()))}
        ended = self.jobs.move(row, State.FINISHED, self.clock(), **told)
        if ended:
            self.ended(error.code)
        return ended


def count_outcome(metrics: "Metrics", code: str) -> None:
    """Count a job that has ended with this return code, or is unpublished. A crash just before the count loses it."""
    metrics.add_metric(COUNTED.get(code, "JobsRefused"), "Count", 1)


IN_STATE = {"map": State.MAPPING, "remap": State.REMAPPING}
PIECE_BYTES = 16 << 20
"""Bytes of the reports that a worker maps before it records what it has: about ten seconds, even of hostile ones."""


@dataclass(frozen=True, kw_only=True)
class Shards(Worker):
    """Mapping with its tables, buckets and keys.

    Attributes:
        keys: the private keys with these ids that still exist.
    """

    keys: Callable[[Sequence[str]], Mapping[str, "X25519PrivateKey"]]

    def run(self, message: MapMessage, has_time: Callable[[], bool] = lambda: True) -> list[StageMessage]:
        """Map a shard and record it. It may run any number of times, concurrently or late: the first record stands.

        Args:
            message: which shard.
            has_time: whether there is time for one more piece. The first one always begins. Without time, the sweep
                sends the message again.

        Returns:
            The message for the next stage, if every shard is recorded or the job has ended. In the second case the
            message leads to the deletion of its work.
        """
        row = self.jobs.read(message.job)
        if row is None:
            return []
        if row.state is not IN_STATE[message.stage]:
            return [StageMessage(job=row.job)] if row.state is State.FINISHED else []
        try:
            return self._map(row, message, has_time)
        except JobError as error:
            self.fail(row, error)
            return [StageMessage(job=row.job)]

    def _map(self, row: JobRow, message: MapMessage, has_time: Callable[[], bool]) -> list[StageMessage]:
        work, plan = self.work_of(row), self.plan_of(row)
        if message.shard >= len(plan.shards):
            return []
        request = self.request(row)
        selection, skip = plan.selection(request), frozenset[bytes]()
        expected = set(range(len(plan.shards)))
        if message.stage == "remap":
            manifest = work.json(row.values["manifest"])
            skips = manifest["skips"]
            expected = set(map(int, skips))
            if message.shard not in expected:
                return []
            skip = frozenset(work.ids(skips[str(message.shard)]).view("V16").tolist())
            wanted = replace(selection.wanted, without=sources_of(manifest["without"]))
            selection = replace(selection, wanted=wanted)
        if message.shard not in self.jobs.recorded(row.job, message.stage):
            mapped = self.mapped(row, plan, message, selection, skip, has_time)
            if mapped is None:
                return []
            self.jobs.record(row.job, message.stage, message.shard, work.put_shard(mapped), self.clock())
        complete = self.jobs.recorded(row.job, message.stage).keys() >= expected
        now = self.jobs.read(row.job)
        goes_on = complete or now is None or now.state is not row.state
        return [StageMessage(job=row.job)] if goes_on else []

    def mapped(
        self,
        row: JobRow,
        plan: Plan,
        message: MapMessage,
        selection: Selection,
        skip: frozenset[bytes],
        has_time: Callable[[], bool],
    ) -> Mapped | None:
        """Map a shard piece by piece, and record each piece but the last. A worker continues after the recorded ones.

        Returns:
            The result of the shard; None if there is no time left, or if another worker has recorded the next piece.
        """
        request, work = self.request(row), self.work_of(row)
        rules = request.rules(row.received_at, self.keys(plan.keys))
        stage = f"{PIECES}#{message.stage}#{message.shard:06}"
        recorded = self.jobs.recorded(row.job, stage)
        done = [work.mapped(recorded[number]) for number in sorted(recorded)]
        reports = self._reports(request, plan.shards[message.shard])
        left = [*islice(reports, (counted := sum(piece.reports for piece in done)), counted + 1)]
        while left or not done:
            seen = skip.union(*(piece.report_ids.view("V16").tolist() for piece in done))
            done.append(map_reports(_piece(chain(left, reports)), rules, selection, seen))
            left = [*islice(reports, 1)]
            if left:
                name = work.put_shard(done[-1])
                if self.jobs.record(row.job, stage, len(done) - 1, name, self.clock()) != name or not has_time():
                    return None
        return Mapped.merged(done)

    def _reports(self, request: JobRequest, objects: Sequence[Stored]) -> Iterator[Report]:
        place = self.bucket(request.input_bucket)
        for one in objects:
            yield from read_reports(BytesIO(place.read(one.key, one.etag)))


def _piece(reports: Iterable[Report]) -> Iterator[Report]:
    """The next reports, up to the size of a piece."""
    size = 0
    for report in reports:
        yield report
        size += max(LEAST_REPORT, len(report.payload) + len(report.shared_info))
        if size >= PIECE_BYTES:
            return


def missing_shards(jobs: JobsTable, row: JobRow, plan: Plan, manifest: Mapping[str, str] | None) -> list[MapMessage]:
    """The messages for the shards of the job's state that are not recorded."""
    stage = "map" if row.state is State.MAPPING else "remap"
    expected = range(len(plan.shards)) if manifest is None else sorted(map(int, manifest))
    recorded = jobs.recorded(row.job, stage)
    return [MapMessage(job=row.job, stage=stage, shard=shard) for shard in expected if shard not in recorded]
