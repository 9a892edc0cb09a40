"""The plan of a job, and the work of ``decrypt``, which maps one of its shards.

The plan has all inputs of a job's result, pinned before a report is read. Its digest seeds the noise. ``decrypt`` has
the private keys, no budgets and no noise key. ``aggregate`` uses the same plan, places of a job, and end of a job that
fails.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kanon.reports.avro import LEAST_REPORT, Report, read_domain, read_reports
from kanon.reports.errors import JobError
from kanon.reports.histogram import KEY, declared, divided, partitions_of, salt_of
from kanon.reports.job import MOST_KEYS, Domain, JobRequest
from kanon.reports.mapping import Mapped, Selection, map_reports
from kanon.reports.noise import MECHANISM
from kanon.reports.shared_info import ReportSource, Rules
from kanon.reports.storage.objects import ObjectStore, Stored, inputs
from kanon.reports.storage.report_jobs import (
    BEFORE_COMMIT,
    PIECES,
    STAGES,
    JobRow,
    JobsTable,
    MapMessage,
    StageMessage,
    State,
)
from kanon.reports.storage.work import WorkFolder, sources_of

if TYPE_CHECKING:
    from aws_lambda_powertools import Metrics
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


MOST_SHARDS = 1_000
MOST_OBJECTS = 100_000
MOST_OBJECT_BYTES = 256 << 20
SHARD_BYTES = 64 << 20
MOST_KEY_BYTES = 20 * MOST_KEYS
"""The largest size of their files together, in bytes: a key takes 17. It is checked before a file is read."""

Bucket = Callable[[str], ObjectStore]


@dataclass(frozen=True)
class Ring:
    """The public keys for reports, and the epoch of the budgets that they were issued for."""

    ids: tuple[str, ...]
    epoch: str


@dataclass(frozen=True)
class JobPlan:
    """A plan as stages read it: JSON, and the SHA-256 of its canonical form, 32 bytes."""

    value: Mapping[str, Any]
    digest: bytes

    @cached_property
    def shards(self) -> list[list[Stored]]:
        """The objects of each shard."""
        return [[Stored(*one) for one in shard] for shard in self.value["shards"]]

    @property
    def partitions(self) -> int:
        """The number of parts of the summary."""
        return int(self.value["partitions"])

    @property
    def domain(self) -> list[str | None]:
        """The names of each partition's keys; None in discovery."""
        return self.value["domain"] or [None] * self.partitions

    @property
    def epoch(self) -> str:
        """The epoch of the budgets that this job spends from."""
        return str(self.value["epoch"])

    @property
    def keys(self) -> tuple[str, ...]:
        """The ids of the private keys that may open reports."""
        return tuple(self.value["keys"])

    def selection(self, request: JobRequest) -> Selection:
        """Which contributions count."""
        return Selection(request.filtering_ids, self.partitions, bytes.fromhex(self.value["salt"]))


def read_plan(work: WorkFolder, name: str) -> JobPlan:
    """A stored plan; its name ends with its digest."""
    return JobPlan(work.json(name), bytes.fromhex(name.rpartition("/")[2]))


@dataclass(frozen=True)
class Inputs:
    """What a job reads.

    Attributes:
        shards: the objects of each shard.
        keys: the keys to release, ascending, each once; None in discovery.
    """

    shards: list[list[Stored]]
    keys: NDArray[np.bytes_] | None


def inputs_of(request: JobRequest, bucket: Bucket, received_at: int) -> Inputs:
    """The inputs of a job as they are now.

    Raises:
        JobError: they cannot be used; the message says what to change.
    """
    shards = _shards(_objects(request, bucket, received_at))
    return Inputs(shards, None if request.domain is None else _declared(request.domain, bucket))


def write_plan(row: JobRow, request: JobRequest, ring: Ring, work: WorkFolder, inputs: Inputs) -> str:
    """Write the plan of a job. Returns its name."""
    if row.secret is None:
        raise JobError("INTERNAL_ERROR", "the job has no secret: create a new job")
    shards, keys, salt = inputs.shards, inputs.keys, salt_of(row.secret)
    parameters = request.parameters
    partitions = partitions_of(keys, sum(one.size for shard in shards for one in shard))
    value = {
        "mechanism": MECHANISM,
        "job": row.job,
        "received_at": row.received_at,
        "request": row.request,
        "shards": [[[one.key, one.size, one.etag] for one in shard] for shard in shards],
        "domain": None if keys is None else [work.put_keys(some) for some in divided(keys, salt, partitions)],
        "mode": request.mode,
        "epsilon": str(parameters.epsilon),
        "delta": str(parameters.delta),
        "contribution_bound": parameters.contribution_bound,
        "threshold": parameters.threshold,
        "partitions": partitions,
        "salt": salt.hex(),
        "keys": sorted(ring.ids),
        "epoch": ring.epoch,
    }
    return work.put_json("plan", value)


def _objects(request: JobRequest, bucket: Bucket, received_at: int) -> list[Stored]:
    """The objects of all prefixes, each once, by name, without those that can hold no report of the job."""
    found = inputs(bucket(request.input_bucket), request, received_at, MOST_OBJECTS)
    if any(one.size > MOST_OBJECT_BYTES for one in found):
        raise JobError("INVALID_JOB", "an object of reports is larger than 256 MiB: write smaller files of reports")
    return found


def _shards(objects: Sequence[Stored]) -> list[list[Stored]]:
    """Whole objects, in order, about 64 MiB a shard."""
    shards: list[list[Stored]] = []
    size = SHARD_BYTES
    for one in objects:
        if size + one.size > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(one)
        size += one.size
    if len(shards) > MOST_SHARDS:
        raise JobError(
            "INVALID_JOB",
            f"a job reads at most {MOST_SHARDS:,} shards of {SHARD_BYTES >> 20} MiB: split it by scheduled_from and"
            " scheduled_before, so that no hour is charged twice, or by prefix",
        )
    return shards


def _declared(domain: Domain, bucket: Bucket) -> NDArray[np.bytes_]:
    """The declared keys, a set: in ascending order, each once."""
    place = bucket(domain.bucket)
    objects = place.listed(domain.prefix, MOST_OBJECTS)
    if sum(one.size for one in objects) > MOST_KEY_BYTES:
        raise JobError("INVALID_JOB", f"a job declares at most {MOST_KEYS:,} keys: split the domain")
    return declared((read_domain(BytesIO(place.read(one.key, one.etag)), MOST_KEYS) for one in objects), MOST_KEYS)


KEY_BYTES = 16
"""The first bytes of SHA-256 of a value: its key in reports."""


def released_keys(digests: Iterable[bytes], values: int) -> NDArray[np.bytes_]:
    """The keys of a list that the gate has released, by the SHA-256 of its values: in ascending order, each once.

    Raises:
        JobError: it has more or fewer values.
    """
    found = np.frombuffer(b"".join(digest[:KEY_BYTES] for digest in digests), KEY)
    if len(found) != values:
        raise list_gone()
    return np.unique(found)


def list_gone() -> JobError:
    """The error of a job whose list cannot be read as it was on its receipt."""
    return JobError(
        "INPUT_DATA_READ_FAILED",
        "the list of the job was replaced, or a value of it was unlisted, before the job was planned: create a new job",
    )


UNPUBLISHED = "UNPUBLISHED"
"""Told of a committed job whose summary could not be written. The job stays open."""
COUNTED = {"SUCCESS": "JobsFinished", "SUCCESS_WITH_ERRORS": "JobsFinished", UNPUBLISHED: "PublicationsFailed"}
"""The metric of a return code; of the others it is JobsRefused."""
NOTHING_SPENT = "Nothing was spent."


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker on jobs with its tables and buckets.

    Attributes:
        bucket: a bucket of inputs and outputs by its name.
        clock: unix seconds.
        ended: called with the return code if a run ends its job, and if its summary cannot be published.
    """

    jobs: JobsTable
    work: ObjectStore
    bucket: Bucket
    request: Callable[[JobRow], JobRequest]
    clock: Callable[[], float]
    ended: Callable[[str], None] = lambda _: None

    def work_of(self, row: JobRow) -> WorkFolder:
        """The folder of a job in the work bucket."""
        return WorkFolder(self.work, row.job)

    def plan_of(self, row: JobRow) -> JobPlan:
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
        if STAGES.get(row.state) != message.stage:
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
        skip, without = frozenset[bytes](), frozenset[ReportSource]()
        expected = set(range(len(plan.shards)))
        if message.stage == "remap":
            manifest = work.json(row.values["manifest"])
            skips = manifest["skips"]
            expected = set(map(int, skips))
            if message.shard not in expected:
                return []
            skip = frozenset(work.ids(skips[str(message.shard)]).view("V16").tolist())
            without = sources_of(manifest["without"])
        if message.shard not in self.jobs.recorded(row.job, message.stage):
            rules = replace(request.rules(row.received_at, self.keys(plan.keys)), without=without)
            mapped = self.mapped(request, plan, message, rules, skip, has_time)
            if mapped is None:
                return []
            self.jobs.record(row.job, message.stage, message.shard, work.put_shard(mapped), self.clock())
        complete = self.jobs.recorded(row.job, message.stage).keys() >= expected
        now = self.jobs.read(row.job)
        goes_on = complete or now is None or now.state is not row.state
        return [StageMessage(job=row.job)] if goes_on else []

    def mapped(
        self,
        request: JobRequest,
        plan: JobPlan,
        message: MapMessage,
        rules: Rules,
        skip: frozenset[bytes],
        has_time: Callable[[], bool],
    ) -> Mapped | None:
        """Map a shard piece by piece, and record each piece but the last. A worker continues after the recorded ones.

        Returns:
            The result of the shard; None if there is no time left, or if another worker has recorded the next piece.
        """
        work, selection = WorkFolder(self.work, message.job), plan.selection(request)
        stage = f"{PIECES}#{message.stage}#{message.shard:06}"
        recorded = self.jobs.recorded(message.job, stage)
        done = [work.mapped(recorded[number]) for number in sorted(recorded)]
        place = self.bucket(request.input_bucket)
        files = (BytesIO(place.read(one.key, one.etag)) for one in plan.shards[message.shard])
        reports = chain.from_iterable(map(read_reports, files))
        left = [*islice(reports, (counted := sum(piece.reports for piece in done)), counted + 1)]
        while left or not done:
            seen = skip.union(*(piece.report_ids.view("V16").tolist() for piece in done))
            done.append(map_reports(_piece(chain(left, reports)), rules, selection, seen))
            left = [*islice(reports, 1)]
            if left:
                name = work.put_shard(done[-1])
                if self.jobs.record(message.job, stage, len(done) - 1, name, self.clock()) != name or not has_time():
                    return None
        return Mapped.merged(done)


def _piece(reports: Iterable[Report]) -> Iterator[Report]:
    """The next reports, up to the size of a piece."""
    size = 0
    for report in reports:
        yield report
        size += max(LEAST_REPORT, len(report.payload) + len(report.shared_info))
        if size >= PIECE_BYTES:
            return
