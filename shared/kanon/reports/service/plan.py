"""The plan of a job: all inputs of its result, pinned before a report is read. Its digest seeds the noise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kanon.reports.avro import read_domain
from kanon.reports.errors import JobError
from kanon.reports.histogram import declared, divided, partitions_of, salt_of
from kanon.reports.job import Domain, JobRequest
from kanon.reports.mapping import Selection
from kanon.reports.noise import MECHANISM
from kanon.reports.storage.objects import ObjectStore, Stored, inputs
from kanon.reports.storage.report_jobs import JobRow
from kanon.reports.storage.work import Work

MOST_SHARDS = 1_000
MOST_OBJECTS = 100_000
MOST_OBJECT_BYTES = 256 << 20
SHARD_BYTES = 64 << 20
MOST_KEYS = 10**7
"""The largest number of declared keys: a worker holds all of them while it divides them into partitions."""
MOST_KEY_BYTES = 20 * MOST_KEYS
"""The largest size of their files together, in bytes: a key takes 17. It is checked before a file is read."""

Bucket = Callable[[str], ObjectStore]


@dataclass(frozen=True)
class Ring:
    """The public keys for reports, and the epoch of the budgets that they were issued for."""

    ids: tuple[str, ...]
    epoch: str


@dataclass(frozen=True)
class Plan:
    """A plan as stages read it.

    Attributes:
        value: as JSON.
        digest: SHA-256 of its canonical JSON, 32 bytes.
    """

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
        """The names of each partition's declared keys; None in discovery."""
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
        return Selection(request.filtering_ids, self.partitions, bytes.fromhex(self.value["salt"]), request.wanted)


def read_plan(work: Work, name: str) -> Plan:
    """A stored plan; its name ends with its digest."""
    return Plan(work.json(name), bytes.fromhex(name.rpartition("/")[2]))


@dataclass(frozen=True)
class Inputs:
    """What a job reads.

    Attributes:
        shards: the objects of each shard.
        keys: the declared keys, ascending, each once; None in discovery.
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


def write_plan(row: JobRow, request: JobRequest, ring: Ring, work: Work, inputs: Inputs) -> tuple[str, Plan]:
    """Write the plan of a job.

    Returns:
        The plan's name, and the plan.
    """
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
    name = work.put_json("plan", value)
    return name, read_plan(work, name)


def _objects(request: JobRequest, bucket: Bucket, received_at: int) -> list[Stored]:
    """The objects of all prefixes, each once, by name, without those that can hold no report of the job."""
    found = inputs(
        bucket(request.input_bucket),
        request.input_prefixes,
        MOST_OBJECTS,
        request.report_to,
        request.hours_at(received_at),
    )
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
