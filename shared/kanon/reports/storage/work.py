"""The work bucket: intermediate results of stages. It holds exact sums; only ``decrypt`` and ``aggregate`` read it.

Every object is named by the SHA-256 of its content, so different results get different objects. Table ReportJobs holds
these names, and other roles read it. So exact sums and parts of a summary begin with 32 random bytes: nobody can check
a guess of their content against a name.
"""

import json
import secrets
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kanon.reports.errors import Counter
from kanon.reports.histogram import KEY, Histogram
from kanon.reports.mapping import Mapped
from kanon.reports.shared_info import ReportSource
from kanon.reports.storage.objects import ObjectStore

BLIND_BYTES = 32
"""Random bytes in front of an object whose name must not tell its content."""


@dataclass(frozen=True)
class Shard:
    """The description of a mapped shard: all but its sums and the ids of its reports."""

    partitions: list[str]
    ids: str
    sources: frozenset[ReportSource]
    errors: Tally[Counter]
    reports: int
    accepted: int
    duplicates: int
    left_out: int


@dataclass(frozen=True)
class WorkFolder:
    """The folder of one job."""

    objects: ObjectStore
    job: str

    @property
    def folder(self) -> str:
        """Its prefix. It is hexadecimal, because a job's id may contain a slash."""
        return f"{sha256(self.job.encode()).hexdigest()}/"

    def put_json(self, kind: str, value: Any) -> str:
        """Write a value. Returns its name."""
        body = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        return self._put(kind, body)

    def json(self, name: str) -> Any:
        """A value by its name."""
        return json.loads(self.objects.read(name))

    def put_shard(self, mapped: Mapped) -> str:
        """Write a mapped shard. Returns the name of its description."""
        partitions = [self._put_blinded("sums", histogram.tobytes()) for histogram in mapped.partitions]
        ids = self._put("ids", mapped.report_ids.tobytes())
        return self.put_json(
            "map",
            {
                "partitions": partitions,
                "ids": ids,
                "sources": sources_as_json(mapped.sources),
                "errors": dict(sorted(mapped.errors.items())),
                "reports": mapped.reports,
                "accepted": len(mapped.report_ids),
                "duplicates": mapped.duplicates,
                "left_out": mapped.left_out,
            },
        )

    def shard(self, name: str) -> Shard:
        """The description of a mapped shard."""
        value = self.json(name)
        errors = Tally({Counter(counter): count for counter, count in value["errors"].items()})
        return Shard(**{**value, "sources": sources_of(value["sources"]), "errors": errors})

    def mapped(self, name: str) -> Mapped:
        """A mapped shard with its sums and ids."""
        shard = self.shard(name)
        sums = tuple(map(self.sums, shard.partitions))
        counts = shard.reports, shard.duplicates, shard.left_out
        return Mapped(sums, self.ids(shard.ids), shard.sources, shard.errors, *counts)

    def ids(self, name: str) -> NDArray[np.bytes_]:
        """Ids of reports, or declared keys, 16 bytes each."""
        return np.frombuffer(self.objects.read(name), KEY)

    def put_ids(self, ids: Iterable[bytes]) -> str:
        """Write ids of reports. Returns the name."""
        return self._put("ids", b"".join(sorted(ids)))

    def sums(self, name: str) -> Histogram:
        """The sums of one partition of one shard."""
        return Histogram.frombuffer(self._blinded(name))

    def put_keys(self, keys: NDArray[np.bytes_]) -> str:
        """Write the declared keys of one partition. Returns the name."""
        return self._put("domain", keys.tobytes())

    def put_part(self, body: bytes) -> str:
        """Write one part of the summary, which is not final yet. Returns the name."""
        return self._put_blinded("staged", body)

    def part(self, name: str) -> bytes:
        """One part of the summary.

        Raises:
            RuntimeError: it is not what its name says.
        """
        return bytes(self._blinded(name))

    def _put(self, kind: str, body: bytes) -> str:
        """Write an object under the SHA-256 of its content. Returns the name. Writing it again changes nothing."""
        name = f"{self.folder}{kind}/{sha256(body).hexdigest()}"
        self.objects.put_new(name, body)
        return name

    def _put_blinded(self, kind: str, body: bytes) -> str:
        return self._put(kind, secrets.token_bytes(BLIND_BYTES) + body)

    def _blinded(self, name: str) -> memoryview:
        body = self.objects.read(name)
        if sha256(body).hexdigest() != name.rpartition("/")[2]:
            raise RuntimeError("the content of an object of the work bucket does not match its name")
        return memoryview(body)[BLIND_BYTES:]

    def forget_sums(self) -> None:
        """Delete everything but the parts of the summary. It may be called again."""
        for kind in ("plan", "map", "sums", "ids", "domain", "manifest", "units"):
            self.objects.delete_under(f"{self.folder}{kind}/")

    def forget(self) -> None:
        """Delete everything. It may be called again."""
        self.objects.delete_under(self.folder)


def sources_of(value: Iterable[Sequence[Any]]) -> frozenset[ReportSource]:
    """Stored sources."""
    return frozenset(
        ReportSource(api, version, origin, destination or None, None if registered == -1 else registered, hour)
        for api, version, origin, destination, registered, hour in value
    )


def sources_as_json(sources: Iterable[ReportSource]) -> list[list[Any]]:
    """Sources as they are stored. "" and -1 stand for missing fields, which do not sort."""
    return sorted(
        [api, version, origin, destination or "", -1 if registered is None else registered, hour]
        for api, version, origin, destination, registered, hour in sources
    )
