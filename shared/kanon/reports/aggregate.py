"""A whole job on local files: plan, map, match, reduce. ``summary`` writes its result."""

import hashlib
import json
import os
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from kanon.noise.words import NoiseKey
from kanon.reports.acceptance import Rules
from kanon.reports.account import Source, Unit, units
from kanon.reports.avro import read_domain, read_reports
from kanon.reports.errors import Counter, JobError, check_errors
from kanon.reports.histogram import Histogram, Sums, declared, divided, partitions_of, salt_of
from kanon.reports.mapping import Mapped, Selection, map_reports
from kanon.reports.noise import Randomness
from kanon.reports.parameters import Parameters
from kanon.reports.reducing import MECHANISM, Earlier, Noised, reduce_partition

LOCAL = "local"


@dataclass(frozen=True)
class Job:
    """A local job: inputs and parameters.

    Args:
        reports: files of reports, in order; each is one shard.
        domain: files of declared keys, ``None`` in discovery.
        parameters: what the job promises.
        rules: which reports count.
        filtering_ids: which contributions count.
        error_threshold: the largest percentage of reports in error.
        id: name of the job.
    """

    reports: tuple[Path, ...]
    domain: tuple[Path, ...] | None
    parameters: Parameters
    rules: Rules
    filtering_ids: tuple[int, ...] = (0,)
    error_threshold: Fraction = Fraction(10)
    id: str = LOCAL

    def __post_init__(self) -> None:
        if (self.domain is None) != (self.parameters.mode == "discover"):
            raise JobError("INVALID_JOB", "declared keys need a domain; discovery takes none")
        if not self.reports:
            raise JobError("INVALID_JOB", "no file of reports: name at least one")
        if not self.filtering_ids or not all(0 <= number < 1 << 64 for number in self.filtering_ids):
            raise JobError("INVALID_JOB", "give at least one filtering id, each from 0 to 2^64 - 1")


@dataclass(frozen=True)
class Secrets:
    """The secrets of the noise. The local tool draws both for each run and stores neither."""

    noise_key: NoiseKey = field(repr=False)
    job_secret: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> "Secrets":
        """From the operating system's random source."""
        return cls(NoiseKey(LOCAL, os.urandom(32)), os.urandom(32))


@dataclass(frozen=True)
class Outcome:
    """The result of a job. It holds exact sums: publish only the ``release()`` of its partitions.

    Args:
        partitions: the noisy sums.
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
    units: tuple[Unit, ...] = field(repr=False)
    seen: tuple[Histogram, ...] = field(repr=False)
    errors: Tally[Counter]
    reports: int
    accepted: int
    duplicates: int
    left_out: int = 0
    exact: bool = False

    def without_noise(self) -> "Outcome":
        """The outcome with exact sums, for tests. It has no privacy guarantee."""
        exact = (replace(partition, noise=np.zeros_like(partition.noise)) for partition in self.partitions)
        return replace(self, partitions=tuple(exact), exact=True)


def aggregate(job: Job, secrets: Secrets, processes: int = 1, *, undeclared: bool = False) -> Outcome:
    """Run a job.

    Args:
        job: the job.
        secrets: keys of the noise. The same secrets and job give the same bytes.
        processes: number of processes that map files; one process maps a whole file.
        undeclared: keep the sums of undeclared keys, too. They take memory for every key of the reports.

    Raises:
        JobError: an input cannot be read, too many reports are in error, or the job is invalid.
    """
    domain = None if job.domain is None else declared(read_domain(path) for path in job.domain)
    selection = _selection(job, domain, secrets)
    if not undeclared:
        selection = replace(selection, keys=domain)
    digest = hashlib.sha256(json.dumps(plan(job, selection), sort_keys=True).encode()).digest()
    mapped = _map_and_match(job, selection, processes)
    check_errors(mapped.errors, mapped.reports - mapped.left_out, job.error_threshold, "--error-threshold")
    randomness = Randomness(
        secrets.noise_key, LOCAL, job.id, secrets.job_secret, digest, job.parameters.mode
    )  # fmt: skip
    domains = [None] * selection.partitions if domain is None else divided(domain, selection.salt, selection.partitions)
    seen = [total.total() for total in mapped.partitions]
    reduced = [
        reduce_partition([seen[number]], domains[number], job.parameters, randomness, number)
        for number in range(selection.partitions)
    ]
    return Outcome(
        tuple(reduced),
        tuple(units(mapped.sources, selection.filtering_ids)),
        tuple(seen) if undeclared else (),
        mapped.errors,
        mapped.reports,
        mapped.accepted,
        mapped.duplicates,
        mapped.left_out,
    )


def plan(job: Job, selection: Selection) -> dict[str, Any]:
    """All inputs and parameters that decide the result, as JSON. Its digest goes into the noise's seed."""
    parameters, rules = job.parameters, job.rules
    return {
        "mechanism": MECHANISM,
        "job": job.id,
        "reports": [_described(path) for path in job.reports],
        "domain": None if job.domain is None else [_described(path) for path in job.domain],
        "mode": parameters.mode,
        "epsilon": str(parameters.epsilon),
        "delta": str(parameters.delta),
        "contribution_bound": parameters.contribution_bound,
        "threshold": parameters.threshold,
        "filtering_ids": list(selection.filtering_ids),
        "partitions": selection.partitions,
        "salt": selection.salt.hex(),
        "keys": None if rules.keys is None else sorted(rules.keys),
        "received_at": rules.received_at,
        "rules": [rules.attribution_report_to, rules.reporting_site, rules.check_age, rules.contribution_bound],
        "error_threshold": str(job.error_threshold),
    }


def _described(path: Path) -> list[Any]:
    try:
        with path.open("rb") as file:
            return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    except OSError as error:
        raise JobError("INPUT_DATA_READ_FAILED", f"{path} cannot be opened") from error


def _selection(job: Job, domain: NDArray[np.bytes_] | None, secrets: Secrets) -> Selection:
    size = sum(path.stat().st_size for path in job.reports if path.exists())
    partitions = partitions_of(domain, size)
    return Selection(tuple(sorted(set(job.filtering_ids))), partitions, salt_of(secrets.job_secret))


@dataclass
class _Mapped:
    """What all files of a job add up to. No histogram of a single file is kept."""

    partitions: tuple[Sums, ...]
    sources: frozenset[Source] = frozenset()
    errors: Tally[Counter] = field(default_factory=Tally)
    reports: int = 0
    accepted: int = 0
    duplicates: int = 0
    left_out: int = 0

    def add(self, mapped: Mapped) -> None:
        for total, part in zip(self.partitions, mapped.partitions, strict=True):
            total.add(part)
        self.sources |= mapped.sources
        self.errors += mapped.errors
        self.reports += mapped.reports
        self.accepted += len(mapped.report_ids)
        self.duplicates += mapped.duplicates
        self.left_out += mapped.left_out


def _map_and_match(job: Job, selection: Selection, processes: int) -> _Mapped:
    """Map and add up every file. If earlier files have some of its reports, it is mapped again without them."""
    rules = replace(job.rules, keys=None)  # key objects do not pickle
    raw = None if job.rules.keys is None else {name: key.private_bytes_raw() for name, key in job.rules.keys.items()}
    run = partial(_map_file, rules=rules, raw=raw, selection=selection)
    found, earlier = _Mapped(tuple(Sums() for _ in range(selection.partitions))), Earlier()
    workers = min(processes, len(job.reports))
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (run,)) if workers > 1 else None
    with pool or nullcontext():
        every = _in_order(pool, job.reports, 2 * workers) if pool else map(run, job.reports)
        for path, mapped in zip(job.reports, every, strict=True):
            skip = earlier.add(mapped.report_ids)
            found.add(run(path, skip) if skip else mapped)
    return found


def _in_order(pool: ProcessPoolExecutor, paths: Sequence[Path], ahead: int) -> Iterator[Mapped]:
    """The mapped files in their order. At most ``ahead`` of them wait."""
    waiting: deque[Future[Mapped]] = deque()
    for path in paths:
        waiting.append(pool.submit(_map_one, path))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


_of_process: list[Callable[[Path], Mapped]] = []
"""What a worker process does with each file: it gets keys and domain once."""


def _begin(run: Callable[[Path], Mapped]) -> None:
    _of_process.append(run)


def _map_one(path: Path) -> Mapped:
    return _of_process[0](path)


def _map_file(
    path: Path,
    skip: frozenset[bytes] = frozenset(),
    *,
    rules: Rules,
    raw: Mapping[str, bytes] | None,
    selection: Selection,
) -> Mapped:
    keys = None if raw is None else {name: X25519PrivateKey.from_private_bytes(key) for name, key in raw.items()}
    return map_reports(read_reports(path), replace(rules, keys=keys), selection, skip)


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
