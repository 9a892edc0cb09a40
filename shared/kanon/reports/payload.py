"""The cleartext of a report: CBOR ``{"data": [{"id", "value", "bucket"} ...], "operation": "histogram"}``.

Numbers are byte strings, big-endian and unsigned. Clients pad the list with bucket 0, value 0 to a fixed number
of slots, so that the length reveals nothing. Reports of one layout differ only in the bytes of their numbers:
``Template`` reads a matrix of them at once; every other report goes through ``cbor2`` (``decode``). Both agree on every
input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import cbor2
import numpy as np
from numpy.typing import NDArray

HISTOGRAM = "histogram"
BUCKET_BYTES, VALUE_BYTES, ID_BYTES = 16, 4, 8
_HEAD = b"\xa2\x64data"
"""A map of two entries, then the key ``data``."""


_LEAST_PAIR = 36
"""Bytes of a pair without an id."""


class PayloadError(ValueError):
    """The cleartext is not a report; the message names the invalid part."""


class Contribution(NamedTuple):
    """One pair of a report: ``bucket`` below 2^128, ``value`` below 2^32, ``filtering_id`` below 2^64."""

    bucket: int
    value: int
    filtering_id: int = 0


class Payload(NamedTuple):
    """The content of a report: its operation and its pairs, padding included."""

    operation: str
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True)
class Layout:
    """The layout of a client's payloads.

    Args:
        slots: number of pairs, padding included (20, 100, ... up to 65,535).
        id_bytes: length of the filtering id (1 to 8), ``None`` for no id (version 0.1).
    """

    slots: int
    id_bytes: int | None = 1

    def __post_init__(self) -> None:
        if not 1 <= self.slots < 1 << 16:
            raise ValueError(f"a payload must have 1 to 65535 slots, not {self.slots}")
        if self.id_bytes is not None and not 1 <= self.id_bytes <= ID_BYTES:
            raise ValueError(f"a filtering id must have 1 to 8 bytes, not {self.id_bytes}")

    @property
    def id_limit(self) -> int:
        """All filtering ids must be below this."""
        return 1 if self.id_bytes is None else 1 << 8 * self.id_bytes

    @cached_property
    def length(self) -> int:
        """Length of the cleartext in bytes."""
        return len(encode((), self))


def encode(contributions: Sequence[Contribution], layout: Layout) -> bytes:
    """Write the cleartext of a report, padded to the layout's slots.

    Raises:
        PayloadError: more pairs than slots, or a number does not fit its field.
    """
    if len(contributions) > layout.slots:
        raise PayloadError(f"{len(contributions)} contributions do not fit into {layout.slots} slots")
    padding = [Contribution(0, 0)] * (layout.slots - len(contributions))
    pairs = [_pair(contribution, layout) for contribution in (*contributions, *padding)]
    return cbor2.dumps({"data": pairs, "operation": HISTOGRAM})


def _pair(contribution: Contribution, layout: Layout) -> dict[str, bytes]:
    bucket, value, filtering_id = contribution
    fits = 0 <= bucket < 1 << 128 and 0 <= value < 1 << 32 and 0 <= filtering_id < layout.id_limit
    if not fits:
        raise PayloadError("a bucket has 128 bits, a value 32 bits, a filtering id the bytes of the layout")
    written = {"value": value.to_bytes(VALUE_BYTES, "big"), "bucket": bucket.to_bytes(BUCKET_BYTES, "big")}
    return written if layout.id_bytes is None else {"id": filtering_id.to_bytes(layout.id_bytes, "big")} | written


def decode(cleartext: bytes) -> Payload:
    """Read a cleartext: buckets of 1 to 16 bytes, values of 1 to 4, ids of 1 to 8 or none, maps in any order.

    Entries of other names are ignored. An operation other than ``histogram`` is read and left to the caller.

    Raises:
        PayloadError: the cleartext has a wrong form.
    """
    try:
        report = cbor2.loads(cleartext, allow_duplicate_keys=False, strict_hashable_types=True)
    except (cbor2.CBORDecodeError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise PayloadError("the payload is not CBOR") from error
    if not isinstance(report, dict):
        raise PayloadError("the payload is not a map")
    data, operation = report.get("data"), report.get("operation")
    if not isinstance(data, list) or not isinstance(operation, str):
        raise PayloadError("the payload lacks the list `data` or the text `operation`")
    return Payload(operation, tuple(_contribution(pair) for pair in data))


def _contribution(pair: object) -> Contribution:
    if not isinstance(pair, dict):
        raise PayloadError("a contribution is not a map")
    bucket = _number(pair.get("bucket"), BUCKET_BYTES)
    value = _number(pair.get("value"), VALUE_BYTES)
    return Contribution(bucket, value, _number(pair["id"], ID_BYTES) if "id" in pair else 0)


def _number(field: object, most: int) -> int:
    if not isinstance(field, bytes) or not 1 <= len(field) <= most:
        raise PayloadError(f"a number of a contribution is not a byte string of 1 to {most} bytes")
    return int.from_bytes(field, "big")


class Slots(NamedTuple):
    """The pairs of ``n`` reports of ``s`` slots each, padding included."""

    buckets: NDArray[np.bytes_]
    """(n, s), 16 bytes each."""
    values: NDArray[np.int64]
    """(n, s), below 2^32."""
    filtering_ids: NDArray[np.uint64]
    """(n, s)."""


@dataclass(frozen=True)
class Template:
    """Reads many cleartexts of one layout at once."""

    layout: Layout

    @cached_property
    def _fixed(self) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        """A mask of the bytes outside numbers, and these bytes as words, padded to a multiple of 8."""
        mask = np.full((1, self.layout.length), 255, np.uint8)
        for field in self._fields:
            self._pairs(mask)[:, :, field] = 0
        empty = np.frombuffer(encode((), self.layout), np.uint8)[None, :]
        return mask, _masked(empty, mask)

    @cached_property
    def _body(self) -> slice:
        """The span of the pairs: after the heads of map and list, before ``operation``."""
        start = len(_HEAD) + len(_list_head(self.layout.slots))
        return slice(start, start + self.layout.slots * self._pair_length)

    @property
    def _pair_length(self) -> int:
        return _LEAST_PAIR if self.layout.id_bytes is None else _LEAST_PAIR + 4 + self.layout.id_bytes

    def matches(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """For each row of the matrix ``(n, length)``: whether all its fixed bytes are those of this layout."""
        mask, fixed = self._fixed
        same: NDArray[np.bool_] = (_masked(rows, mask) == fixed).all(axis=1)
        return same

    def read(self, rows: NDArray[np.uint8]) -> Slots:
        """Read the pairs of rows that match."""
        pairs = self._pairs(rows)
        ids, values, buckets = (np.ascontiguousarray(pairs[:, :, field]) for field in self._fields)
        wide = np.zeros((*ids.shape[:2], ID_BYTES), np.uint8)
        if self.layout.id_bytes:
            wide[:, :, -self.layout.id_bytes :] = ids
        return Slots(
            buckets.view(f"S{BUCKET_BYTES}")[:, :, 0],
            values.view(">u4")[:, :, 0].astype(np.int64),
            wide.view(">u8")[:, :, 0].astype(np.uint64),
        )

    def _pairs(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return rows[:, self._body].reshape(len(rows), self.layout.slots, self._pair_length)

    @cached_property
    def _fields(self) -> tuple[slice, slice, slice]:
        """The positions of id, value and bucket in a pair."""
        bucket = self._pair_length - BUCKET_BYTES
        value = bucket - len(b"\x66bucket\x50") - VALUE_BYTES
        identifier = value - len(b"\x65value\x44")
        return slice(identifier - (self.layout.id_bytes or 0), identifier), slice(value, value + 4), slice(bucket, None)


def _masked(rows: NDArray[np.uint8], mask: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The masked rows as words of 8 bytes, padded with zeros: numpy compares them much faster than bytes."""
    padded = np.zeros((len(rows), -(-rows.shape[1] // 8) * 8), np.uint8)
    np.bitwise_and(rows, mask, out=padded[:, : rows.shape[1]])
    return padded.view(np.uint64)


def _list_head(slots: int) -> bytes:
    return cbor2.dumps([0] * slots)[:-slots]


def template_of(cleartext: bytes) -> Template | None:
    """The template for the first bytes and the length of a cleartext; ``None`` if they fit no layout.

    ``Template.matches`` checks the other bytes.
    """
    slots, list_head = _slots(cleartext[len(_HEAD) : len(_HEAD) + 3])
    pair = cleartext[len(_HEAD) + list_head :][:5]
    if pair[:1] == b"\xa2":
        id_bytes = None
    elif pair[:4] == b"\xa3\x62id" and 0x41 <= pair[-1] <= 0x48:
        id_bytes = pair[-1] - 0x40
    else:
        return None
    if not 0 < slots * _LEAST_PAIR <= len(cleartext):
        return None
    template = _template(slots, id_bytes)
    return template if template.layout.length == len(cleartext) else None


@lru_cache(maxsize=64)
def _template(slots: int, id_bytes: int | None) -> Template:
    return Template(Layout(slots, id_bytes))


def _slots(head: bytes) -> tuple[int, int]:
    """Number of items of a list and length of its head; (0, 0) for any other item."""
    match head[0] if len(head) == 3 else 0:
        case small if 0x81 <= small <= 0x97:
            return small - 0x80, 1
        case 0x98:
            return head[1], 2
        case 0x99:
            return int.from_bytes(head[1:3], "big"), 3
    return 0, 0
