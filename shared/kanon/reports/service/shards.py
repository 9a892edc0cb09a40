"""The work of ``decrypt``: maps one shard of a job. It has the private keys, no budgets and no noise key."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain, islice
from typing import TYPE_CHECKING

from kanon.reports.avro import LEAST_REPORT, Report, read_reports
from kanon.reports.errors import JobError
from kanon.reports.job import JobRequest
from kanon.reports.mapping import Mapped, Selection, map_reports
from kanon.reports.service.messages import MapMessage, StageMessage
from kanon.reports.service.plan import Plan
from kanon.reports.service.working import Worker
from kanon.reports.storage.objects import Stored
from kanon.reports.storage.report_jobs import PIECES, Jobs, Row, State
from kanon.reports.storage.work import sources_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

IN_STATE = {"map": State.MAPPING, "remap": State.REMAPPING}
PIECE_BYTES = 16 << 20
"""Bytes of the reports that a worker maps before it records what it has: about ten seconds, even of hostile ones."""


@dataclass(frozen=True, kw_only=True)
class Shards(Worker):
    """Mapping with its tables, buckets and keys.

    Attributes:
        keys: the private keys with these ids that still exist; None if payloads are cleartext (local tool only).
    """

    keys: Callable[[Sequence[str]], Mapping[str, "X25519PrivateKey"] | None]

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

    def _map(self, row: Row, message: MapMessage, has_time: Callable[[], bool]) -> list[StageMessage]:
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
        row: Row,
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


def missing_shards(jobs: Jobs, row: Row, plan: Plan, manifest: Mapping[str, str] | None) -> list[MapMessage]:
    """The messages for the shards of the job's state that are not recorded."""
    stage = "map" if row.state is State.MAPPING else "remap"
    expected = range(len(plan.shards)) if manifest is None else sorted(map(int, manifest))
    recorded = jobs.recorded(row.job, stage)
    return [MapMessage(job=row.job, stage=stage, shard=shard) for shard in expected if shard not in recorded]
