"""Reports in local files: a whole job over them, its written summary, and the rows of any such file as JSON.

A job runs the stages of the service, over objects and a job in the memory of this process. It has no budget to spend.
Each file of reports is a shard, or each few of them if there are more than a thousand.
"""

import hashlib
import os
import tempfile
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, Never, Self, cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from kanon.created import PRIVATE, SHARED, created, never
from kanon.dynamo.batches import chunks
from kanon.noise.words import NoiseKey
from kanon.reports.avro import (
    DebugFact,
    Report,
    kind_of,
    listed,
    part_names,
    read_debug_summary,
    read_domain,
    read_reports,
    read_summary,
    write_debug_summary,
)
from kanon.reports.errors import NOT_WRITTEN, Counter, JobError, ReportRefusedError
from kanon.reports.histogram import Histogram, declared, exact_sums
from kanon.reports.job import DEFAULT_ERROR_THRESHOLD, JobRequest, PrivacyParameters
from kanon.reports.mapping import Mapped
from kanon.reports.noise import Noised
from kanon.reports.payload import PayloadError, decode, open_sealed
from kanon.reports.processes import Each, Mapper, mapper_of
from kanon.reports.service.shards import MOST_SHARDS, Inputs, JobPlan, Ring, Shards, Worker, read_plan
from kanon.reports.service.stages import Stages, summary_of
from kanon.reports.shared_info import Rules, Unit, parse
from kanon.reports.storage.budgets import CommitOutcome
from kanon.reports.storage.disk import FileBudgets, ReportsFile
from kanon.reports.storage.objects import NameTakenError, ObjectStore, Stored
from kanon.reports.storage.report_jobs import JobRow, MapMessage, Message, StageMessage, State

LOCAL = "local"
"""The name of the local deployment, of its job, and of its budgets."""


@dataclass(frozen=True)
class Job:
    """A local job: inputs and parameters. ``domain`` is None in discovery; the error threshold is a percentage."""

    reports: tuple[Path, ...]
    domain: tuple[Path, ...] | None
    parameters: PrivacyParameters
    rules: Rules
    filtering_ids: tuple[int, ...] = (0,)
    error_threshold: Fraction = DEFAULT_ERROR_THRESHOLD
    id: str = LOCAL

    def __post_init__(self) -> None:
        if (self.domain is None) != (self.parameters.mode == "discover"):
            raise JobError("INVALID_JOB", "declared keys need a domain; discovery takes none")
        if not self.reports:
            raise JobError("INVALID_JOB", "no file of reports: name at least one")
        if not self.filtering_ids or not all(0 <= number < 1 << 64 for number in self.filtering_ids):
            raise JobError("INVALID_JOB", "give at least one filtering id, each from 0 to 2^64 - 1")

    @property
    def request(self) -> JobRequest:
        """The job as the stages read it."""
        return JobRequest(
            job=self.id,
            input_bucket=LOCAL,
            input_prefixes=(),
            output_bucket=LOCAL,
            output_prefix="summary",
            report_to=self.rules.attribution_report_to,
            reporting_site=self.rules.reporting_site,
            domain=None,
            parameters=self.parameters,
            filtering_ids=tuple(sorted(set(self.filtering_ids))),
            error_threshold=self.error_threshold,
            check_age=self.rules.check_age,
            report_bound=self.rules.contribution_bound,
        )

    @property
    def body(self) -> dict[str, Any]:
        """What else decides the result, as JSON: a part of the plan, whose digest goes into the noise's seed."""
        request = self.request
        return {
            "filtering_ids": list(request.filtering_ids),
            "keys": sorted(self.rules.keys),
            "rules": [request.report_to, request.reporting_site, request.check_age, request.report_bound],
            "error_threshold": str(self.error_threshold),
        }


@dataclass(frozen=True)
class NoiseSecrets:
    """The secrets of the noise. The local tool draws both for each run and stores neither."""

    noise_key: NoiseKey = field(repr=False)
    job_secret: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> "NoiseSecrets":
        """From the operating system's random source."""
        return cls(NoiseKey(LOCAL, os.urandom(32)), os.urandom(32))


@dataclass(frozen=True)
class JobOutcome:
    """The result of a job. It holds exact sums: publish only ``parts``, or the ``release()`` of the partitions.

    Args:
        partitions: the noisy sums.
        parts: the files of the summary, one for each partition.
        units: what the job charges.
        seen: exact sums of all keys of the reports, by partition, declared or not; empty unless they were asked for.
        errors: reports that were not accepted, by counter.
        reports: reports read.
        accepted: reports that count.
        duplicates: accepted reports that were dropped, because an earlier one has their id.
        left_out: reports of other origins than the job's.
        exact: whether the partitions have no noise, and so no guarantee.
    """

    partitions: tuple[Noised, ...] = field(repr=False)
    parts: tuple[bytes, ...] = field(repr=False)
    units: tuple[Unit, ...] = field(repr=False)
    seen: tuple[Histogram, ...] = field(repr=False)
    errors: Tally[Counter]
    reports: int
    accepted: int
    duplicates: int
    left_out: int = 0
    exact: bool = False

    def without_noise(self) -> "JobOutcome":
        """The outcome with exact sums, for tests. It has no privacy guarantee."""
        exact = tuple(replace(partition, noise=np.zeros_like(partition.noise)) for partition in self.partitions)
        return replace(self, partitions=exact, parts=tuple(map(summary_of, exact)), exact=True)


IN_MEMORY = 64 << 20
"""Bytes of objects in memory. Further ones are in a file without a name, which disappears with the process."""


class MemoryObjects(ObjectStore):
    """A bucket, until the end of a ``with`` block."""

    def __init__(self) -> None:
        self._file = cast("IO[bytes]", tempfile.SpooledTemporaryFile(IN_MEMORY))  # noqa: SIM115, closed by __exit__
        self._places: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def listed(self, prefix: str, most: int, wanted: Callable[[str], bool] = bool) -> list[Stored]:
        """The first objects under a prefix whose names are wanted, by name."""
        found = [Stored(key, size, "") for key, (_, size) in self._places.items() if key.startswith(prefix)]
        return sorted(one for one in found if wanted(one.key))[:most]

    def read(self, key: str, etag: str | None = None) -> bytes:  # noqa: ARG002, no object ever changes
        """The bytes of an object."""
        begins, size = self._places[key]
        self._file.seek(begins)
        return self._file.read(size)

    def put_new(self, key: str, body: bytes) -> None:
        """Write an object, unless it exists with the same bytes.

        Raises:
            NameTakenError: an object of this name has other bytes.
        """
        if key in self._places:
            if self.read(key) != body:
                raise NameTakenError("an object with other content has this name: choose another name")
            return
        self._places[key] = self._file.seek(0, 2), len(body)
        self._file.write(body)

    def delete_under(self, prefix: str) -> None:
        """Delete every object under a prefix."""
        self._places = {key: place for key, place in self._places.items() if not key.startswith(prefix)}


class MemoryJobs(ReportsFile):
    """Jobs in memory. They take no budget: the tool keeps no ledger."""

    def __init__(self) -> None:
        super().__init__(Path(), accept_older=True)
        self.path = Path(":memory:")

    def commit(self, job: str, charges: Any, amount: Any, claim: str, **values: Any) -> CommitOutcome:  # noqa: ARG002
        """Commit the job with these values."""
        row = self.read(job)
        if row is None:
            return CommitOutcome.LEFT
        moved = self.move(row, State.COMMITTED, row.received_at, committed_at=row.received_at, **values)
        return CommitOutcome.COMMITTED if moved else CommitOutcome.LEFT

    def abort(self, *_: Any) -> None:
        """Nothing is held."""


def aggregate(job: Job, secrets: NoiseSecrets, processes: int = 1, *, undeclared: bool = False) -> JobOutcome:
    """Run a job.

    Args:
        job: the job.
        secrets: keys of the noise. The same secrets and job give the same bytes.
        processes: number of processes that map files; one process maps a whole shard.
        undeclared: keep the sums of undeclared keys, too. They take memory for every key of the reports.

    Raises:
        JobError: an input cannot be read, too many reports are in error, or the job is invalid.
    """
    keys = None if job.domain is None else declared(read_domain(path) for path in job.domain)
    with closing(MemoryJobs()) as jobs, MemoryObjects() as work, MemoryObjects() as summaries:
        jobs.create(job.id, job.body, job.rules.received_at, secrets.job_secret)
        common: dict[str, Any] = {
            "jobs": jobs,
            "work": work,
            "bucket": lambda _: summaries,
            "request": lambda _: job.request,
            "clock": lambda: job.rules.received_at,
            "plans": {},
        }
        stages = _Stages(
            **common,
            budgets=FileBudgets(jobs, job.request.amount),
            committing=lambda _: jobs,
            ring=lambda: Ring(tuple(sorted(job.rules.keys)), LOCAL),
            noise_key=secrets.noise_key,
            deployment=LOCAL,
            collected="",
            threshold_name="--error-threshold",
            files=job.reports,
            keys=keys,
            undeclared=undeclared,
        )
        only = None if undeclared else keys
        with mapper_of(job.rules.keys, only, min(processes, len(job.reports))) as (mapper, each):
            shards = _Shards(**common, keys=lambda _: job.rules.keys, mapper=mapper)
            _work_off(StageMessage(job=job.id), stages, shards, each)
        row = jobs.read(job.id)
        assert row is not None
        counters = row.values["counters"]
        return JobOutcome(
            partitions=tuple(stages.parts),
            parts=tuple(summaries.read(one.key) for one in summaries.listed("", len(stages.parts))),
            units=tuple(stages.units),
            seen=tuple(stages.seen),
            errors=Tally(counters["errors"]),
            **{name: counters[name] for name in ("reports", "accepted", "duplicates", "left_out")},
        )


def _work_off(first: Message, stages: Stages, shards: Shards, each: Each) -> None:
    """Take messages from a queue until it is empty."""
    queue = deque([first])
    while queue:
        message = queue.popleft()
        if isinstance(message, StageMessage):
            queue += stages.run(message)
            continue
        maps = [message, *(one for one in queue if isinstance(one, MapMessage))]
        queue = deque(one for one in queue if isinstance(one, StageMessage))
        for sent in each(shards.run, maps):
            queue += sent


@dataclass(frozen=True, kw_only=True)
class _Local(Worker):
    """A worker that reads each plan once, and raises what ends its job."""

    plans: dict[str, JobPlan]

    def plan_of(self, row: JobRow) -> JobPlan:
        name = row.values["plan"]
        if name not in self.plans:
            self.plans[name] = read_plan(self.work_of(row), name)
        return self.plans[name]

    def fail(self, row: JobRow, error: JobError) -> Never:  # noqa: ARG002, there is one job
        raise error


@dataclass(frozen=True, kw_only=True)
class _Stages(_Local, Stages):
    """The stages of a local job. They keep its units, the noisy parts, and the exact sums of all keys if asked to."""

    files: Sequence[Path]
    keys: NDArray[np.bytes_] | None
    undeclared: bool
    units: list[Unit] = field(default_factory=list, repr=False)
    parts: list[Noised] = field(default_factory=list, repr=False)
    seen: list[Histogram] = field(default_factory=list, repr=False)

    def inputs(self, request: JobRequest, received_at: int) -> Inputs:  # noqa: ARG002, files have no hours
        a_shard = -(-len(self.files) // MOST_SHARDS)
        return Inputs([list(map(_stored, some)) for some in chunks(self.files, a_shard)], self.keys)

    def rows(self, charged: Sequence[Unit]) -> int:
        self.units.extend(charged)
        return 0

    def noised(self, row: JobRow, plan: JobPlan, part: int) -> Noised:
        self.parts.append(super().noised(row, plan, part))
        if self.undeclared:
            exact = self.parts[-1].exact
            self.seen.append(exact if self.keys is None else exact_sums(self.sums(row, part), None))
        return self.parts[-1]


def _stored(path: Path) -> Stored:
    try:
        with path.open("rb") as file:
            return Stored(str(path), path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise JobError("INPUT_DATA_READ_FAILED", f"{path} cannot be opened") from error


@dataclass(frozen=True, kw_only=True)
class _Shards(_Local, Shards):
    """The shards of a local job. Each is mapped in one piece: no other worker could continue it."""

    mapper: Mapper

    def mapped(
        self,
        request: JobRequest,
        plan: JobPlan,
        message: MapMessage,
        rules: Rules,
        skip: frozenset[bytes],
        has_time: Callable[[], bool],  # noqa: ARG002, there is always time
    ) -> Mapped | None:
        paths = [Path(one.key) for one in plan.shards[message.shard]]
        return self.mapper(message, paths, rules, plan.selection(request), skip)


def read_inputs(places: Sequence[Path]) -> tuple[Path, ...]:
    """The files of these places. A folder stands for all its ``.avro`` files, by name.

    Raises:
        JobError: a place does not exist, or a folder has no such file.
    """
    found: list[Path] = []
    for place in places:
        inside = sorted(place.glob("*.avro")) if place.is_dir() else [place]
        if not inside or not all(path.is_file() for path in inside):
            raise JobError("INPUT_DATA_READ_FAILED", f"{place} is neither a file nor a folder with .avro files")
        found += inside
    return tuple(found)


def write(
    outcome: JobOutcome, output: Path, *, debug: bool = False, may_replace: Callable[[Path], bool] = never
) -> list[Path]:
    """Write a summary, one file per partition.

    All files appear, or none. Only the owner can read files with exact sums.

    Args:
        outcome: the finished job.
        output: name of the summary, such as ``summary.avro``; parts are called ``summary-1-of-3.avro``.
        debug: write exact sums and noise too, to ``summary_debug-1-of-3.avro``. They are private. The job must have
            kept the sums of undeclared keys.
        may_replace: whether an existing file may be replaced.

    Raises:
        JobError: a file exists, or cannot be written (RESULT_WRITE_ERROR).
    """
    parts = len(outcome.partitions)
    places = [output.with_name(name) for name in part_names(output.name, parts)]
    debug_name = output.name.removesuffix(".avro") + "_debug" + ".avro" * output.name.endswith(".avro")
    debug_places = [output.with_name(name) for name in part_names(debug_name, parts)] if debug else []
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with created(may_replace) as create:
            for place, part in zip(places, outcome.parts, strict=True):
                with create(place, PRIVATE if outcome.exact else SHARED) as file:
                    file.write(part)
            exact = zip(debug_places, outcome.partitions, outcome.seen, strict=True) if debug else ()
            for place, partition, seen in exact:
                with create(place, PRIVATE) as file:
                    write_debug_summary(file, _debug(partition, seen))
    except FileExistsError as error:
        raise JobError(
            NOT_WRITTEN, f"{error.filename or error} exists already: choose another name for the output"
        ) from error
    except OSError as error:
        raise JobError(NOT_WRITTEN, f"{output} cannot be written: choose another name") from error
    return [*places, *debug_places]


def _debug(partition: Noised, seen: Histogram) -> Iterator[DebugFact]:
    """The keys with noise, and the undeclared keys of reports, which are not released and have no noise."""
    declared = partition.threshold is None
    noise = dict(zip(listed(partition.exact.keys), partition.noise.tolist(), strict=True))
    in_reports = dict(zip(listed(seen.keys), seen.sums.tolist(), strict=True))
    for key in sorted(noise.keys() | in_reports.keys()):
        tags = ("in_domain",) * (declared and key in noise) + ("in_reports",) * (key in in_reports)
        yield DebugFact(key, in_reports.get(key, 0), noise.get(key, 0), tags)


def lines(file: Path, keys: Mapping[str, X25519PrivateKey] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of an Avro file of any kind as JSON objects; buckets are hexadecimal. Private keys decrypt reports.

    Raises:
        JobError: the file cannot be read, or is of another kind.
    """
    match kind_of(file):
        case "AggregatableReport":
            rules = Rules(0, keys or {})
            for report in read_reports(file):
                yield _report(report, rules, shown=keys is not None)
        case "AggregationBucket":
            yield from ({"bucket": key.hex()} for key in listed(read_domain(file)))
        case "AggregatedFact":
            yield from ({"bucket": bucket.hex(), "metric": metric} for bucket, metric in read_summary(file))
        case "DebugAggregatedFact":
            for fact in read_debug_summary(file):
                yield fact._asdict() | {"bucket": fact.bucket.hex()}
        case _:
            raise JobError("INPUT_DATA_READ_FAILED", f"{file} holds neither reports, nor a domain, nor a summary")


def _report(report: Report, rules: Rules, *, shown: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"key_id": report.key_id, "payload_bytes": len(report.payload)}
    try:
        line["shared_info"] = {name: value for name, value in parse(report.shared_info)._asdict().items() if value}
        if shown:
            cleartext = open_sealed(report.payload, rules.key(report.key_id), report.shared_info)
            operation, contributions = decode(cleartext)
            line["operation"] = operation
            line["contributions"] = [
                {"bucket": f"{pair.bucket:032x}", "value": pair.value, "filtering_id": pair.filtering_id}
                for pair in contributions
                if pair.value
            ]
    except ReportRefusedError as error:
        line["error"] = str(error.counter)
    except PayloadError:
        line["error"] = str(Counter.REPORT_PARSING_ERROR)
    except JobError as error:
        line["error"] = error.code
    return line
