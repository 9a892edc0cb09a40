"""Ids in JSON and in paths: 1 to 64 bytes as base64. Texts of strangers in CSV."""

import binascii
import re
from typing import Any

MOST_ID_BYTES = 64

# 1 to 64 bytes: up to 20 full groups and a last one of 3, 2 or 1 byte, or 21 groups and 1 byte.
BASE64URL = "^(?:C{4}){0,20}C{2,4}$|^C{86}$".replace("C", "[A-Za-z0-9_-]")
BASE64 = "^(?:C{4}){0,20}(?:C{4}|C{3}=?|C{2}(?:==)?)$|^C{86}(?:==)?$".replace("C", "[0-9A-Za-z+/_-]")
_STANDARD = bytes.maketrans(b"-_", b"+/")


def decode_base64url(text: Any) -> bytes:
    """Decode base64url text without padding to 1 to 64 bytes.

    Raises:
        ValueError: the text is not of this form.
    """
    return _decode(text, BASE64URL, "base64url without padding")


def decode_base64(text: Any) -> bytes:
    """Decode base64 text to 1 to 64 bytes: standard or URL-safe alphabet, with or without padding.

    Raises:
        ValueError: the text is not of this form.
    """
    return _decode(text, BASE64, "base64")


def _decode(text: Any, pattern: str, form: str) -> bytes:
    if not isinstance(text, str) or not re.fullmatch(pattern, text):
        raise ValueError(f"must be {form} of 1 to {MOST_ID_BYTES} bytes")
    return binascii.a2b_base64(text.rstrip("=").encode().translate(_STANDARD) + b"==")


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def cell(text: str) -> str:
    """A text for a cell of CSV. One that a program for tables would execute gets an apostrophe before it."""
    return f"'{text}" if text.startswith(FORMULA) else text
