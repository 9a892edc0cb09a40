"""Strict JSON: no duplicate keys, no NaN or Infinity, no number that is rounded to an integer."""

import json
from decimal import Decimal, InvalidOperation
from typing import Any

from kanon.errors import Error


class NotJSONError(Error, ValueError):
    """A text that Python's parser accepts and this one refuses; the message says why."""


def parse(text: str) -> Any:
    """Parse a JSON text.

    Raises:
        NotJSONError: a key is given twice, or a number is NaN, infinite, or not exactly the integer that it is read as.
        json.JSONDecodeError: the text is not JSON.
        RecursionError, ValueError: it is nested too deeply, or a number has too many digits.
    """
    return json.loads(
        text, object_pairs_hook=without_duplicates, parse_constant=no_constant, parse_float=_exact_if_whole
    )


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For ``object_pairs_hook``.

    Raises:
        NotJSONError: a key is given twice.
    """
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise NotJSONError("a key is given twice")
    return entries


def no_constant(_: str) -> Any:
    """For ``parse_constant``: always raises NotJSONError."""
    raise NotJSONError("NaN and Infinity are not JSON")


def _exact_if_whole(text: str) -> float:
    """The float of a number. 0.999... with more digits than a float holds is not the integer 1."""
    number = float(text)
    if number.is_integer() and not _is_whole(text):
        raise NotJSONError("a number has too many digits")
    return number


def _is_whole(text: str) -> bool:
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent of more digits than Decimal takes
        return False
    return exact == exact.to_integral_value()
