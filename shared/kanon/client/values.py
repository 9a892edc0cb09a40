"""Ids of values: how a text or bytes become the id of a set, and a key of reports.

The canonical form of a value is its bytes. A text is its UTF-8, and nothing is changed: no Unicode normalisation, no
trimming, no lower case. ``"Hello"``, ``"hello"`` and ``"hello "`` are three values. Bring values that shall be equal
into one spelling first, for example with ``unicodedata.normalize("NFC", text).strip()``. The vectors in
``clients/vectors.json`` hold for every client.
"""

from __future__ import annotations

import base64
from hashlib import sha256

Value = str | bytes


class SetId(str):
    """The id of a set as the API writes it: base64url without padding. A client uses it as it is."""

    __slots__ = ()


def value_id(value: Value) -> SetId:
    r"""The id of the set of a value: the SHA-256 of its bytes. An id stays as it is.

    >>> value_id("a shared value")
    'H0OtbvVmpDJHQ_w4WZR5xPbapwWiG_SPN2njLYl-hvA'
    >>> value_id("é") == value_id("é".encode()) != value_id("e\u0301")
    True

    Raises:
        ValueError: the text has no UTF-8.
        TypeError: the value is neither text nor bytes.
    """
    return value if isinstance(value, SetId) else encoded(sha256(_bytes(value)).digest())


def bucket_of(value: Value) -> int:
    """The key of a value in reports: the first 16 bytes of its SHA-256, as a number.

    >>> f"{bucket_of('hello'):032x}"
    '2cf24dba5fb0a30e26e83b2ac5b9e29e'

    Raises:
        ValueError: the text has no UTF-8.
        TypeError: the value is neither text nor bytes.
    """
    return int.from_bytes(sha256(_bytes(value)).digest()[:16], "big")


def encoded(raw: bytes) -> SetId:
    """A set id of 1 to 64 bytes in the encoding of the API.

    >>> encoded(b"set one")
    'c2V0IG9uZQ'
    """
    return SetId(base64.urlsafe_b64encode(raw).decode().rstrip("="))


def decoded(id_: SetId) -> bytes:
    """The bytes of a set id.

    Raises:
        ValueError: it is not base64url.
    """
    return base64.b64decode(id_ + "=" * (-len(id_) % 4), altchars=b"-_", validate=True)


def _bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise TypeError(f"a value is text or bytes, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError("a value has half of a surrogate pair, which no UTF-8 can hold: send the bytes") from None
