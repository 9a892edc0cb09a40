"""The payload of a report: its cleartext, its encryption, and the keys.

The cleartext is CBOR ``{"data": [{"id", "value", "bucket"} ...], "operation": "histogram"}``.

Numbers are byte strings, big-endian and unsigned. Clients pad the list with bucket 0, value 0 to a fixed number
of slots, so that the length reveals nothing. Reports of one layout differ only in the bytes of their numbers:
``PayloadLayout`` reads a matrix of them at once; ``read_one`` reads every other report. Both agree on every input.

Anybody can send a report, so nothing but this form is read: no tags, no other or deeper values, no indefinite lengths
but those of maps, which the aggregation service's own tools write. Any report of an accepted size takes at most three
times as long as a good one of the largest size (``tests/integration/reports/test_hostile.py``).

Encryption to a public key of the service is HPKE (RFC 9180), base mode, one message. DHKEM(X25519, HKDF-SHA256),
HKDF-SHA256, ChaCha20-Poly1305, no associated data. ``info`` is ``aggregation_service`` followed by the text of
shared_info exactly as it was received: a report with a changed hour, origin or destination does not open.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple
from uuid import UUID

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from kanon.errors import Error
from kanon.hpke import SUITE
from kanon.reports.errors import Counter, ReportRefusedError

HISTOGRAM = "histogram"
BUCKET_BYTES, VALUE_BYTES, ID_BYTES = 16, 4, 8
MOST_SLOTS, MOST_UNUSUAL = 1000, 256
"""Pairs of a report at most: in a client's layout, and in any other form, which takes longer to read."""
_HEAD = b"\xa2\x64data"
"""A map of two entries, then the key ``data``."""
_OPERATION = b"\x69operation"
_TEXT = 0x60
"""The head of an empty text; that of a text of at most 23 bytes is larger by its length."""


class PayloadError(Error, ValueError):
    """The cleartext is not a report; the message names the invalid part."""


class Contribution(NamedTuple):
    """One pair of a report: ``bucket`` below 2^128, ``value`` below 2^32, ``filtering_id`` below 2^64."""

    bucket: int
    value: int
    filtering_id: int = 0


class Cleartext(NamedTuple):
    """The content of a report: its operation and its pairs, padding included."""

    operation: str
    contributions: tuple[Contribution, ...]


class Slots(NamedTuple):
    """The pairs of ``n`` reports of ``s`` slots each, padding included."""

    buckets: NDArray[np.bytes_]
    """(n, s), 16 bytes each."""
    values: NDArray[np.int64]
    """(n, s), below 2^32."""
    filtering_ids: NDArray[np.uint64]
    """(n, s)."""


@dataclass(frozen=True)
class PayloadLayout:
    """The layout of a client's payloads. It reads many cleartexts of this layout at once.

    Args:
        slots: number of pairs, padding included (20, 100, ... up to 1,000).
        id_bytes: length of the filtering id (1 to 8), ``None`` for no id (version 0.1).
    """

    slots: int
    id_bytes: int | None = 1

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= MOST_SLOTS:
            raise ValueError(f"a payload must have 1 to {MOST_SLOTS} slots, not {self.slots}")
        if self.id_bytes is not None and not 1 <= self.id_bytes <= ID_BYTES:
            raise ValueError(f"a filtering id must have 1 to 8 bytes, not {self.id_bytes}")

    @property
    def id_limit(self) -> int:
        """All filtering ids must be below this."""
        return 1 if self.id_bytes is None else 1 << 8 * self.id_bytes

    @cached_property
    def padding(self) -> bytes:
        """A cleartext of padding alone."""
        return _cleartext([_pair(Contribution(0, 0), self)] * self.slots)

    @property
    def length(self) -> int:
        """Length of the cleartext in bytes."""
        return len(self.padding)

    @cached_property
    def _fixed(self) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        """The positions of the bytes outside numbers, and these bytes."""
        largest = _pair(Contribution((1 << 128) - 1, (1 << 32) - 1, self.id_limit - 1), self)
        least, most = (np.frombuffer(text, np.uint8) for text in (self.padding, _cleartext([largest] * self.slots)))
        places = np.flatnonzero(least == most)
        return places, least[places]

    @cached_property
    def _numbers(self) -> np.dtype[np.void]:
        """The bytes of a pair: its numbers, and what stands before each."""
        head = [("map", "V5"), ("id", "u1", (self.id_bytes,)), ("key", "V7")] if self.id_bytes else [("map", "V8")]
        return np.dtype([*head, ("value", ">u4"), ("next", "V8"), ("bucket", f"S{BUCKET_BYTES}")])

    def matches(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """For each row of the matrix ``(n, length)``: whether all its fixed bytes are those of this layout."""
        places, fixed = self._fixed
        same: NDArray[np.bool_] = (rows[:, places] == fixed).all(axis=1)
        return same

    def read(self, rows: NDArray[np.uint8]) -> Slots:
        """Read the pairs of rows that match."""
        start = len(_HEAD) + len(_list_head(self.slots))
        body = rows[:, start : start + self.slots * self._numbers.itemsize]
        pairs = np.ascontiguousarray(body).view(self._numbers)
        ids = np.zeros((*pairs.shape, ID_BYTES), np.uint8)
        if self.id_bytes:
            ids[:, :, -self.id_bytes :] = pairs["id"]
        return Slots(pairs["bucket"], pairs["value"].astype(np.int64), ids.view(">u8")[:, :, 0].astype(np.uint64))


def encode(contributions: Sequence[Contribution], layout: PayloadLayout) -> bytes:
    """Write the cleartext of a report, padded to the layout's slots.

    Raises:
        PayloadError: more pairs than slots, or a number does not fit its field.
    """
    if len(contributions) > layout.slots:
        raise PayloadError(f"{len(contributions)} contributions do not fit into {layout.slots} slots")
    padding = [Contribution(0, 0)] * (layout.slots - len(contributions))
    return _cleartext([_pair(contribution, layout) for contribution in (*contributions, *padding)])


def _cleartext(pairs: Sequence[bytes]) -> bytes:
    return b"".join((_HEAD, _list_head(len(pairs)), *pairs, _OPERATION, b"\x69histogram"))


def _pair(contribution: Contribution, layout: PayloadLayout) -> bytes:
    bucket, value, filtering_id = contribution
    fits = 0 <= bucket < 1 << 128 and 0 <= value < 1 << 32 and 0 <= filtering_id < layout.id_limit
    if not fits:
        raise PayloadError("a bucket has 128 bits, a value 32 bits, a filtering id the bytes of the layout")
    written = b"\x65value" + _string(value, VALUE_BYTES) + b"\x66bucket" + _string(bucket, BUCKET_BYTES)
    if layout.id_bytes is None:
        return b"\xa2" + written
    return b"\xa3\x62id" + _string(filtering_id, layout.id_bytes) + written


def _string(number: int, size: int) -> bytes:
    return bytes([0x40 + size]) + number.to_bytes(size, "big")


def decode(cleartext: bytes) -> Cleartext:
    """Read a cleartext: buckets of 1 to 16 bytes, values of 1 to 4, ids of 1 to 8 or none, maps in any order.

    An operation other than ``histogram`` is read and left to the caller.

    Raises:
        PayloadError: the cleartext has another form, or too many pairs.
    """
    layout = layout_of(cleartext)
    matrix = np.frombuffer(cleartext, np.uint8)[None, :]
    if layout is not None and layout.matches(matrix)[0]:
        operation, (buckets, values, ids) = HISTOGRAM, layout.read(matrix)
    else:
        operation, (buckets, values, ids) = read_one(cleartext)
    numbers = [int.from_bytes(bucket, "big") for bucket in np.ascontiguousarray(buckets[0]).view("V16").tolist()]
    return Cleartext(
        operation, tuple(map(Contribution._make, zip(numbers, values[0].tolist(), ids[0].tolist(), strict=True)))
    )


def read_one(cleartext: bytes) -> tuple[str, Slots]:
    """The operation and the pairs of a cleartext of at most 256 pairs, of any layout.

    Raises:
        PayloadError: the cleartext has another form, or too many pairs.
    """
    if len(cleartext) > MOST_BYTES or cleartext[:1] not in (b"\xa2", b"\xbf"):
        raise PayloadError("the payload is too long, or not a map of two entries")
    if cleartext[:1] == b"\xbf" and not cleartext.endswith(b"\xff"):
        raise PayloadError("the payload has no end")
    entries = cleartext[1:-1] if cleartext[:1] == b"\xbf" else cleartext[1:]
    if entries.startswith(_OPERATION):
        after = len(_OPERATION)
        end = after + 1 + max(0, int.from_bytes(entries[after : after + 1], "big") - _TEXT)
        operation, data = entries[after:end], entries[end:]
    else:
        data, _, operation = entries.rpartition(_OPERATION)
    slots, head = _slots(data[5:8].ljust(3, b"\xff"))
    if data[:5] != b"\x64data" or not head or slots > MOST_UNUSUAL:
        raise PayloadError(f"the payload lacks the list `data` of at most {MOST_UNUSUAL} pairs")
    return _text(operation), _read_pairs(data[5 + head :], slots)


def _text(item: bytes) -> str:
    if not item or item[0] - _TEXT != len(item) - 1 or len(item) > 24:
        raise PayloadError("the payload lacks the text `operation` of at most 23 bytes")
    try:
        return item[1:].decode()
    except UnicodeDecodeError:
        raise PayloadError("the operation is not UTF-8") from None


def _strings(most: int) -> bytes:
    """A pattern of byte strings of 1 to ``most`` bytes."""
    return b"|".join(b"\\x%02x.{%d}" % (0x40 + size, size) for size in range(most, 0, -1))


# Three groups take id, value and bucket, in any order. The possessive repetition never goes back.
_PAIR = re.compile(
    rb"([\xa2\xa3\xbf])(?:\x62id(%b)|\x65value(%b)|\x66bucket(%b)){2,3}+(\xff?)"
    % (_strings(ID_BYTES), _strings(VALUE_BYTES), _strings(BUCKET_BYTES)),
    re.DOTALL,
)
_FORMS = {(b"\xa2", False, b""), (b"\xa3", True, b""), (b"\xbf", False, b"\xff"), (b"\xbf", True, b"\xff")}
"""The head of a map, whether it has an id, and its end."""


def _read_pairs(body: bytes, slots: int) -> Slots:
    found = _PAIR.findall(body)
    heads, ids, values, buckets, ends = zip(*found, strict=True) if found else ((),) * 5
    # An entry that is there twice takes the place of another one, or is missing in the sum of the lengths.
    complete = b"" not in values and b"" not in buckets and {*zip(heads, map(bool, ids), ends, strict=True)} <= _FORMS
    named = len(b"\x65value\x66bucket") * slots + len(b"\x62id") * (slots - ids.count(b""))
    read = sum(len(b"".join(fields)) for fields in (heads, ids, values, buckets, ends))
    if not complete or len(found) != slots or named + read != len(body):
        raise PayloadError("a contribution is not a map of `bucket`, `value` and perhaps `id`, in bytes of their sizes")
    return Slots(
        np.frombuffer(_padded(buckets, BUCKET_BYTES), f"S{BUCKET_BYTES}")[None, :],
        np.frombuffer(_padded(values, VALUE_BYTES), ">u4").astype(np.int64)[None, :],
        np.frombuffer(_padded(ids, ID_BYTES), ">u8").astype(np.uint64)[None, :],
    )


def _padded(items: Sequence[bytes], size: int) -> bytes:
    """Byte strings without their heads, each padded to ``size`` bytes."""
    return b"".join([item[1:].rjust(size, b"\0") for item in items])


def _list_head(slots: int) -> bytes:
    if slots < 24:
        return bytes([0x80 + slots])
    return bytes([0x98, slots]) if slots < 256 else b"\x99" + slots.to_bytes(2, "big")


def layout_of(cleartext: bytes) -> PayloadLayout | None:
    """The layout with the first bytes and the length of a cleartext; ``None`` if they fit none.

    ``PayloadLayout.matches`` checks the other bytes.
    """
    slots, list_head = _slots(cleartext[len(_HEAD) : len(_HEAD) + 3])
    pair = cleartext[len(_HEAD) + list_head :][:5]
    if pair[:1] == b"\xa2":
        id_bytes = None
    elif pair[:4] == b"\xa3\x62id" and 0x41 <= pair[-1] <= 0x48:
        id_bytes = pair[-1] - 0x40
    else:
        return None
    if not 0 < slots <= MOST_SLOTS:
        return None
    layout = _layout(slots, id_bytes)
    return layout if layout.length == len(cleartext) else None


_layout = lru_cache(maxsize=64)(PayloadLayout)


def _slots(head: bytes) -> tuple[int, int]:
    """Number of items of a list and length of its head; (0, 0) for any other item."""
    match head[0] if len(head) == 3 else 0:
        case small if 0x80 <= small <= 0x97:
            return small - 0x80, 1
        case 0x98:
            return head[1], 2
        case 0x99:
            return int.from_bytes(head[1:3], "big"), 3
    return 0, 0


MOST_BYTES = PayloadLayout(MOST_SLOTS, ID_BYTES).length
"""Bytes of the longest cleartext."""


# -------------------------------------------------------------------------------------------------- encryption
PREFIX = b"aggregation_service"
OVERHEAD = 48
"""Bytes that encryption adds: a key (32) before the cleartext, a tag (16) behind it."""


def seal(cleartext: bytes, key: X25519PublicKey, shared_info: str) -> bytes:
    """Encrypt a payload. The result is random, and ``OVERHEAD`` longer."""
    return SUITE.encrypt(cleartext, key, info=PREFIX + shared_info.encode())


def open_sealed(wire: bytes, key: X25519PrivateKey, shared_info: str) -> bytes:
    """Decrypt a payload under the text of shared_info as received.

    Raises:
        ReportRefusedError: it is too long, or does not open: another key, another shared_info, or changed bytes.
    """
    if len(wire) > MOST_BYTES + OVERHEAD:
        raise ReportRefusedError(Counter.REPORT_PARSING_ERROR)
    try:
        return SUITE.decrypt(wire, key, info=PREFIX + shared_info.encode())
    except InvalidTag:
        raise ReportRefusedError(Counter.DECRYPTION_ERROR) from None


MOST_PUBLIC_KEYS = 5


class KeyDocumentError(Error, ValueError):
    """A key document is invalid; the message says what to change."""


@dataclass(frozen=True)
class EncryptionKey:
    """A key that clients encrypt to, and its id (a UUID)."""

    id: str
    key: X25519PublicKey


def public_document(keys: Mapping[str, X25519PrivateKey]) -> str:
    """The published JSON: ``{"keys": [{"id": uuid, "key": base64 of 32 bytes}]}``, 1 to 5 keys."""
    if not 1 <= len(keys) <= MOST_PUBLIC_KEYS:
        raise KeyDocumentError(f"1 to {MOST_PUBLIC_KEYS} keys must be published, not {len(keys)}")
    return _document({key_id: key.public_key().public_bytes_raw() for key_id, key in keys.items()})


def private_document(keys: Mapping[str, X25519PrivateKey]) -> str:
    """The JSON of the local tool's key file: the same form with private keys. Its holder can decrypt reports."""
    return _document({key_id: key.private_bytes_raw() for key_id, key in keys.items()})


def public_keys(document: str) -> list[EncryptionKey]:
    """Read published keys, in their order.

    Raises:
        KeyDocumentError: wrong form, no key or more than five, an id twice, or a key that is not 32 bytes.
    """
    keys = _keys(document)
    if len(keys) > MOST_PUBLIC_KEYS:
        raise KeyDocumentError(f"a document must have at most {MOST_PUBLIC_KEYS} public keys, not {len(keys)}")
    return [EncryptionKey(key_id, X25519PublicKey.from_public_bytes(raw)) for key_id, raw in keys.items()]


def private_keys(document: str) -> dict[str, X25519PrivateKey]:
    """Read a key file of the local tool.

    Raises:
        KeyDocumentError: wrong form, no key, an id twice, or a key that is not 32 bytes.
    """
    return {key_id: X25519PrivateKey.from_private_bytes(raw) for key_id, raw in _keys(document).items()}


def _document(keys: Mapping[str, bytes]) -> str:
    entries = [{"id": key_id, "key": base64.b64encode(raw).decode()} for key_id, raw in keys.items()]
    return json.dumps({"keys": entries}, indent=1)


def _keys(document: str) -> dict[str, bytes]:
    try:
        listed = json.loads(document)["keys"]
        entries = [(str(UUID(entry["id"])), base64.b64decode(entry["key"], validate=True)) for entry in listed]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise KeyDocumentError('a key document is {"keys": [{"id": UUID, "key": base64 of 32 bytes}]}') from error
    if not entries:
        raise KeyDocumentError("the key document holds no key: make one with `kanon reports keys`")
    if any(len(raw) != 32 for _, raw in entries):
        raise KeyDocumentError("a key must be 32 bytes in base64")
    if len(dict(entries)) < len(entries):
        raise KeyDocumentError("two keys have the same id: give each its own")
    return dict(entries)
