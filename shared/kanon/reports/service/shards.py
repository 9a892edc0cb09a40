"""The work of ``decrypt``: maps one shard of a job. It has the private keys, no budgets and no noise key."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING

from kanon.reports.acceptance import Rules
from kanon.reports.avro import Report, read_reports
from kanon.reports.errors import JobError
from kanon.reports.mapping import map_reports
from kanon.reports.service.messages import MapMessage, StageMessage
from kanon.reports.service.plan import Plan
from kanon.reports.service.requests import JobRequest
from kanon.reports.service.working import Worker
from kanon.reports.storage.objects import Stored
from kanon.reports.storage.report_jobs import ReportJobs, Row, State
from kanon.reports.storage.work import sources_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

IN_STATE = {"map": State.MAPPING, "remap": State.REMAPPING}


@dataclass(frozen=True, kw_only=True)
class Shards(Worker):
    """Mapping with its tables, buckets and keys.

    Attributes:
        keys: the private keys with these ids that still exist.
    """

    keys: Callable[[Sequence[str]], Mapping[str, "X25519PrivateKey"]]

    def run(self, message: MapMessage) -> list[StageMessage]:
        """Map a shard and record it. It may run any number of times, concurrently or late: the first record stands.

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
            return self._map(row, message)
        except JobError as error:
            self.fail(row, error)
            return [StageMessage(job=row.job)]

    def _map(self, row: Row, message: MapMessage) -> list[StageMessage]:
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
            selection = replace(selection, without=sources_of(manifest["without"]))
        if message.shard not in self.jobs.recorded(row.job, message.stage):
            rules = Rules(row.received_at, self.keys(plan.keys), request.report_to, request.reporting_site)
            mapped = map_reports(self._reports(request, plan.shards[message.shard]), rules, selection, skip)
            self.jobs.record(row.job, message.stage, message.shard, work.put_shard(mapped), self.clock())
        complete = self.jobs.recorded(row.job, message.stage).keys() >= expected
        now = self.jobs.read(row.job)
        goes_on = complete or now is None or now.state is not row.state
        return [StageMessage(job=row.job)] if goes_on else []

    def _reports(self, request: JobRequest, objects: Sequence[Stored]) -> Iterator[Report]:
        place = self.bucket(request.input_bucket)
        for one in objects:
            yield from read_reports(BytesIO(place.read(one.key, one.etag)))


def missing_shards(jobs: ReportJobs, row: Row, plan: Plan, manifest: Mapping[str, str] | None) -> list[MapMessage]:
    """The messages for the shards of the job's state that are not recorded."""
    stage = "map" if row.state is State.MAPPING else "remap"
    expected = range(len(plan.shards)) if manifest is None else sorted(map(int, manifest))
    recorded = jobs.recorded(row.job, stage)
    return [MapMessage(job=row.job, stage=stage, shard=shard) for shard in expected if shard not in recorded]
