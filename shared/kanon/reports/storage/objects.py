"""Objects: pinned reads, writes that never overwrite, listings; and the names of stored reports.

``reports/kanon/2026/02/01/07/2a/2026013122-2026020106-<sha256>.avro``: api, hour of storing, bucket of the origin,
first and last scheduled hour, content. The first five parts spread a day's reports, the others let a plan skip
objects that can hold no report of a job. Objects of earlier versions lack the bucket and the scheduled hours; nothing
is known of them, so no plan skips one.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from kanon.dynamo.batches import chunks
from kanon.errors import KanonError
from kanon.reports.errors import JobError
from kanon.reports.shared_info import HOUR

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_s3 import S3Client

    from kanon.reports.job import JobRequest


DELETES_A_CALL = 1000
ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})
CHANGED = frozenset({"PreconditionFailed", "412"})
FORBIDDEN = frozenset({"AccessDenied", "403", "Forbidden"})
NO_BUCKET = frozenset({"NoSuchBucket"})


class NameTakenError(KanonError):
    """An object with other content has this name. It was not overwritten."""


class UnwritableError(KanonError):
    """The bucket does not exist, or may not be written."""


@dataclass(frozen=True, order=True)
class Stored:
    """An object that a listing or a plan names.

    Attributes:
        key: its name.
        size: bytes.
        etag: S3's hash of its content.
    """

    key: str
    size: int
    etag: str


class ObjectStore(ABC):
    """A bucket, wherever it is."""

    @abstractmethod
    def listed(self, prefix: str, most: int, wanted: Callable[[str], bool] = bool) -> list[Stored]:
        """The objects under a prefix whose names are wanted, by name.

        Raises:
            JobError: there are more than ``most``, or the bucket cannot be read.
        """

    @abstractmethod
    def read(self, key: str, etag: str | None = None) -> bytes:
        """The bytes of an object, which must still have the etag if one is given.

        Raises:
            JobError: it is missing, has changed, or may not be read.
        """

    @abstractmethod
    def put_new(self, key: str, body: bytes) -> None:
        """Write an object, unless it exists with the same bytes.

        Raises:
            NameTakenError: an object of this name has other bytes.
            UnwritableError: the bucket does not exist, or may not be written.
        """

    @abstractmethod
    def delete_under(self, prefix: str) -> None:
        """Delete every object under a prefix. It may be called again."""


class Objects(ObjectStore):
    """A bucket of S3."""

    def __init__(self, client: "S3Client", bucket: str) -> None:
        self._client = client
        self.bucket = bucket
        self._error: type[ClientError] = client.exceptions.ClientError

    def listed(self, prefix: str, most: int, wanted: Callable[[str], bool] = bool) -> list[Stored]:
        """The objects under a prefix whose names are wanted, by name."""
        found: list[Stored] = []
        try:
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                items = [one for one in page.get("Contents", ()) if not one["Key"].endswith("/")]
                found += [Stored(one["Key"], one["Size"], one["ETag"]) for one in items if wanted(one["Key"])]
                if len(found) > most:
                    raise too_many(most)
        except self._error as error:
            raise _unreadable(error, "the bucket") from error
        return sorted(found)

    def read(self, key: str, etag: str | None = None) -> bytes:
        """The bytes of an object, which must still have this etag."""
        pinned: Any = {} if etag is None else {"IfMatch": etag}
        try:
            return self._client.get_object(Bucket=self.bucket, Key=key, **pinned)["Body"].read()
        except self._error as error:
            raise _unreadable(error, "an object") from error

    def found(self, key: str) -> bytes | None:
        """The bytes of an object; None if there is none."""
        try:
            return self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        except self._error as error:
            if _code(error) in ABSENT:
                return None
            raise

    def put_new(self, key: str, body: bytes) -> None:
        """Write an object, unless it exists with the same bytes."""
        try:
            same = self.put_once(key, body) or self.found(key) == body
        except self._error as error:
            if _code(error) not in FORBIDDEN | NO_BUCKET:
                raise
            raise UnwritableError("the bucket does not exist, or may not be written") from error
        if not same:
            raise NameTakenError("an object with other content has this name: choose another name")

    def put_once(self, key: str, body: bytes) -> bool:
        """Write an object, unless one of this name exists. This needs no permission to read.

        Returns:
            Whether it was written.
        """
        try:
            self._client.put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")
        except self._error as error:
            if _code(error) not in CHANGED:
                raise
            return False
        return True

    def delete_under(self, prefix: str) -> None:
        """Delete every object under a prefix. It may be called again."""
        for keys in chunks(list(self._keys(prefix)), DELETES_A_CALL):
            answer = self._client.delete_objects(
                Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
            )
            if answer.get("Errors"):
                raise RuntimeError(f"{len(answer['Errors'])} objects were not deleted; repeat it")

    def _keys(self, prefix: str) -> Iterator[str]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
            yield from (item["Key"] for item in page.get("Contents", ()))


def inputs(place: ObjectStore, request: "JobRequest", received_at: int, most: int) -> list[Stored]:
    """The objects under any prefix of a job that may hold a report of it, by name, each once.

    Raises:
        JobError: there is none, there are more than ``most``, or the bucket cannot be read.
    """
    wanted = partial(may_hold, report_to=request.report_to, hours=request.hours_at(received_at))
    found = sorted({one for prefix in request.input_prefixes for one in place.listed(prefix, most, wanted)})
    if not found:
        raise JobError(
            "INPUT_DATA_READ_FAILED",
            "there is no object under the prefix of the reports, or none for their origin and hours: change it",
        )
    if len(found) > most:
        raise too_many(most)
    return found


def too_many(most: int) -> JobError:
    """The error for more objects than a job reads."""
    return JobError("INVALID_JOB", f"there are more than {most:,} objects under the prefixes: take fewer at once")


def missing(what: str, *, changed: bool) -> JobError:
    """The error for an object or a bucket that is not there, or for an object that has changed."""
    why = "has changed since the job began" if changed else "does not exist"
    return JobError("INPUT_DATA_READ_FAILED", f"{what} of the input {why}: create a new job")


def _code(error: "ClientError") -> str:
    return error.response["Error"]["Code"]


def _unreadable(error: "ClientError", what: str) -> Exception:
    """The JobError for a permanent error of S3; other errors are returned unchanged."""
    code = _code(error)
    if code in ABSENT | CHANGED | NO_BUCKET:
        return missing(what, changed=code in CHANGED)
    if code in FORBIDDEN:
        return JobError(
            "PERMISSION_ERROR", f"{what} of the input may not be read: list its bucket in the parameter ReportBuckets"
        )
    return error


BUCKETS = 64
_NAME = re.compile(r"reports/[a-z-]+/\d{4}/\d\d/\d\d/\d\d/([0-9a-f]{2})/(\d{10})-(\d{10})-[0-9a-f]{64}\.avro")


def bucket_of(origin: str) -> str:
    """One of 64 buckets, as two hexadecimal digits. So strangers' reports share no object with most origins."""
    return f"{sha256(origin.encode()).digest()[0] % BUCKETS:02x}"


def name_of(api: str, stored_at: float, bucket: str, scheduled: Iterable[int], body: bytes) -> str:
    """The name of an object of reports; ``stored_at`` and their ``scheduled`` times are Unix seconds."""
    hours = sorted(scheduled)
    span = f"{_hour(hours[0])}-{_hour(hours[-1])}"
    folder = datetime.fromtimestamp(stored_at, UTC).strftime("%Y/%m/%d/%H")
    return f"reports/{api}/{folder}/{bucket}/{span}-{sha256(body).hexdigest()}.avro"


def may_hold(name: str, report_to: str | None, hours: range) -> bool:
    """Whether an object may hold a report of an origin (None for any) that is scheduled in one of these hours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return True
    bucket, first, last = match.groups()
    timely = last >= _hour(max(0, hours[0]) * HOUR) and first <= _hour(hours[-1] * HOUR)
    return timely and (report_to is None or bucket == bucket_of(report_to))


def _hour(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%d%H")
