"""The files of reports: Avro, with the aggregation service's schemas.

Buckets are written as 16 bytes and read as 1 to 16 (``key1`` is the bucket 0x6b657931). Codec ``null`` is written;
``deflate`` is read as well. Only keys and summaries need numpy: the collector's ``store`` starts without it.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast
from zlib import decompressobj
from zlib import error as zlib_error

import fastavro
import fastavro.read
from fastavro.schema import SchemaParseException

from kanon.reports.errors import JobError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Schema = Any


def _record(name: str, **fields: Any) -> Schema:
    """The schema of a record, by the types of its fields."""
    listed_fields = [{"name": field, "type": kind} for field, kind in fields.items()]
    return fastavro.parse_schema({"type": "record", "name": name, "fields": listed_fields})


_TAGS = {"type": "array", "items": {"type": "enum", "name": "bucket_tags", "symbols": ["in_domain", "in_reports"]}}

REPORTS = _record("AggregatableReport", payload="bytes", key_id="string", shared_info="string")
DOMAIN = _record("AggregationBucket", bucket="bytes")
SUMMARY = _record("AggregatedFact", bucket="bytes", metric="long")
DEBUG_SUMMARY = _record("DebugAggregatedFact", bucket="bytes", unnoised_metric="long", noise="long", annotations=_TAGS)

MOST_KEYS = 10**8
"""Of one file. A worker of the service holds fewer."""
PathOrFile = Path | IO[bytes]
"""A path, or an open file."""
_ROWS = 4096
_BLOCK = 1 << 18
"""Bytes of a block of a written file."""
MOST_BLOCK = 16 << 20
"""Bytes of a compressed block when it is decompressed."""
MOST_RATIO = 32
"""Of a file's decompressed and compressed bytes, beyond those of one block. Sorted keys reach 12, reports 4."""
LEAST_REPORT = 64
"""Bytes of a row of a file of reports, on average, but for a few rows. Its shared_info alone has over 100."""
FEW_ROWS = 1000
MOST_FIELDS = 100
"""Of a row: fields of type null take no bytes, but time."""
_SIMPLE = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_TOO_LARGE = "it is too large when it is decompressed: write it with codec null, or in smaller files"
_SYNC = sha256(b"kanon/reports/avro/1").digest()[:16]
"""The sync marker between blocks. It is fixed, so that equal rows give equal bytes."""
COMPLEX, UNION, ENUMS = "complex", "union", "array of enum"


class _TooLargeError(Exception):
    """A file is much larger when it is decompressed."""


_BROKEN = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, OverflowError, MemoryError),
    *(RecursionError, zlib_error, SchemaParseException),
)
"""What fastavro raises for bytes that are not an Avro file."""


class Report(NamedTuple):
    """One line of a file of reports: ``payload`` is encrypted, ``shared_info`` the text as received."""

    payload: bytes
    key_id: str
    shared_info: str


class Fact(NamedTuple):
    """One line of a summary; ``bucket`` has 16 bytes."""

    bucket: bytes
    metric: int


class DebugFact(NamedTuple):
    """One line of a debug summary, which only the local tool writes: it shows exact sums."""

    bucket: bytes
    unnoised_metric: int
    noise: int
    annotations: tuple[str, ...]


def write_reports(at: PathOrFile, reports: Iterable[Report]) -> None:
    """Write a file of reports."""
    _write(at, REPORTS, (report._asdict() for report in reports))


def read_reports(at: PathOrFile) -> Iterator[Report]:
    """Read a file of reports, in order.

    Raises:
        JobError: the file is missing or not an Avro file of reports (INPUT_DATA_READ_FAILED).
    """
    return map(Report._make, map(itemgetter(*Report._fields), _rows(at, REPORTS, LEAST_REPORT)))


def write_domain(at: PathOrFile, keys: "NDArray[np.bytes_]") -> None:
    """Write a key domain; ``keys`` has 16 bytes an item."""
    _write(at, DOMAIN, ({"bucket": key} for key in listed(keys)))


def read_domain(at: PathOrFile, most: int = MOST_KEYS) -> "NDArray[np.bytes_]":
    """Read a key domain as it stands: unsorted, keys of 16 bytes, duplicates kept.

    Raises:
        JobError: the file cannot be read, or a bucket does not have 1 to 16 bytes (INPUT_DATA_READ_FAILED); there are
            more than ``most`` keys (INVALID_JOB).
    """
    keys = bytearray()
    for row in _rows(at, DOMAIN):
        bucket: bytes = row["bucket"]
        if not 1 <= len(bucket) <= 16:
            raise _unreadable(at, "a bucket of the domain does not have 1 to 16 bytes")
        keys += bucket.rjust(16, b"\0")
        if len(keys) > 16 * most:
            raise JobError("INVALID_JOB", f"a job declares at most {most:,} keys: split the domain")
    import numpy as np

    return np.frombuffer(keys, "S16")


def write_summary(at: PathOrFile, keys: "NDArray[np.bytes_]", metrics: "NDArray[np.int64]") -> None:
    """Write a summary in the given order."""
    _write(at, SUMMARY, _facts(keys, metrics))


def _facts(keys: "NDArray[np.bytes_]", metrics: "NDArray[np.int64]") -> Iterator[dict[str, Any]]:
    """The rows in one reused dictionary, few at a time, to stay in the processor's cache."""
    row: dict[str, Any] = {}
    for start in range(0, len(keys), _ROWS):
        piece = slice(start, start + _ROWS)
        for row["bucket"], row["metric"] in zip(listed(keys[piece]), metrics[piece].tolist(), strict=True):
            yield row


def read_summary(at: PathOrFile) -> list[Fact]:
    """Read a summary, in order; short buckets are padded to 16 bytes.

    Raises:
        JobError: the file is not a summary (INPUT_DATA_READ_FAILED).
    """
    return [Fact(row["bucket"].rjust(16, b"\0"), row["metric"]) for row in _rows(at, SUMMARY)]


def write_debug_summary(at: PathOrFile, facts: Iterable[DebugFact]) -> None:
    """Write a debug summary: exact sums and noise."""
    _write(at, DEBUG_SUMMARY, (fact._asdict() | {"annotations": list(fact.annotations)} for fact in facts))


def read_debug_summary(at: PathOrFile) -> list[DebugFact]:
    """Read a debug summary, in order.

    Raises:
        JobError: the file is not a debug summary (INPUT_DATA_READ_FAILED).
    """
    return [
        DebugFact(row["bucket"], row["unnoised_metric"], row["noise"], tuple(row["annotations"]))
        for row in _rows(at, DEBUG_SUMMARY)
    ]


def kind_of(at: PathOrFile) -> str:
    """The record type of a file, such as ``AggregatableReport``.

    Raises:
        JobError: the file is not an Avro file (INPUT_DATA_READ_FAILED).
    """
    try:
        with _opened(at, "rb") as file:
            schema = fastavro.reader(file).writer_schema
            return str(schema.get("name", "")) if isinstance(schema, dict) else ""
    except OSError as error:
        raise _unreadable(at, "it cannot be opened") from error
    except _BROKEN as error:
        raise _unreadable(at, "it is not an Avro file") from error


def part_names(prefix: str, parts: int) -> list[str]:
    """Names of the parts of one output: ``out.avro`` becomes ``out-01-of-12.avro``.

    The number is padded to the width of ``parts``, so that names sort as numbers do.
    """
    stem, suffix = (prefix[:-5], ".avro") if prefix.endswith(".avro") else (prefix, "")
    width = len(str(parts))
    return [f"{stem}-{part:0{width}}-of-{parts}{suffix}" for part in range(1, parts + 1)]


def listed(keys: "NDArray[np.bytes_]") -> list[bytes]:
    """The keys as ``bytes`` of 16. ``tolist`` alone would strip trailing zeros."""
    import numpy as np

    return cast("list[bytes]", np.ascontiguousarray(keys).view("V16").tolist())


def _write(at: PathOrFile, schema: Schema, rows: Iterable[dict[str, Any]]) -> None:
    with _opened(at, "wb") as file:
        fastavro.writer(file, schema, rows, codec="null", sync_interval=_BLOCK, sync_marker=_SYNC)


def _rows(at: PathOrFile, schema: Schema, least: int = 0) -> Iterator[dict[str, Any]]:
    """The rows of a file with this schema, which have at least ``least`` bytes on average, but for a few rows."""
    fields = _fields(schema)
    try:
        with _opened(at, "rb") as file:
            reader = fastavro.block_reader(file)
            if reader.codec not in {"null", "deflate"}:
                raise _unreadable(at, "its codec is not null or deflate")
            found = _fields(reader.writer_schema)
            if not fields.items() <= found.items():
                raise _unreadable(at, f"it lacks the fields {', '.join(fields)}")
            if complex_fields := [name for name in found if name not in fields and found[name] == COMPLEX]:
                # An array of nulls takes no bytes, so a short file may have any number of them.
                raise _unreadable(at, f"a field that is not needed has a complex type: leave out {complex_fields[0]}")
            if len(found) > MOST_FIELDS:
                raise _unreadable(at, f"it has more than {MOST_FIELDS} fields: leave out those that are not needed")
            decompressed = rows = 0
            block: Any
            for block in reader:
                decompressed += block.bytes_.getbuffer().nbytes
                rows += block.num_records
                if decompressed > MOST_BLOCK + MOST_RATIO * (block.offset + block.size):
                    raise _TooLargeError
                if (rows - FEW_ROWS) * least > decompressed:
                    raise _unreadable(at, f"its rows have less than {least} bytes each: leave out the empty ones")
                yield from block
    except _TooLargeError:
        raise _unreadable(at, _TOO_LARGE) from None
    except OSError as error:
        raise _unreadable(at, "it cannot be opened") from error
    except _BROKEN as error:
        raise _unreadable(at, "it is not an Avro file, or is incomplete") from error


def _fields(schema: Schema) -> dict[str, str]:
    """Names of a record's fields and the names of their types."""
    listed_fields = schema.get("fields", ()) if isinstance(schema, dict) else ()
    return {field["name"]: _type(field["type"]) for field in listed_fields if isinstance(field, dict)}


def _type(kind: Schema) -> str:
    """The name of a type."""
    if isinstance(kind, list):
        return COMPLEX if COMPLEX in map(_type, kind) else UNION
    if not isinstance(kind, dict):
        return kind if kind in _SIMPLE else COMPLEX
    if kind["type"] == "array" and isinstance(kind["items"], dict) and kind["items"]["type"] == "enum":
        return ENUMS
    return _type(kind["type"])


def _decompressed(file: IO[bytes]) -> BytesIO:
    """A block of codec deflate. fastavro itself would decompress a block of any size."""
    block = decompressobj(-15).decompress(cast("bytes", fastavro.schemaless_reader(file, "bytes")), MOST_BLOCK + 1)
    if len(block) > MOST_BLOCK:
        raise _TooLargeError
    return BytesIO(block)


fastavro.read.BLOCK_READERS["deflate"] = _decompressed


def _unreadable(at: PathOrFile, why: str) -> JobError:
    name = at if isinstance(at, Path) else "an input file"
    return JobError("INPUT_DATA_READ_FAILED", f"{name} cannot be used: {why}")


def _opened(at: PathOrFile, mode: str) -> AbstractContextManager[IO[bytes]]:
    return cast("IO[bytes]", at.open(mode)) if isinstance(at, Path) else nullcontext(at)
