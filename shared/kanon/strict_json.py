"""A JSON parser that refuses what Python's parser also accepts: duplicate keys, NaN and Infinity."""

import json
from typing import Any


class NotJSONError(ValueError):
    """A text that Python's parser accepts and this one refuses; the message says why."""


def parse(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        NotJSONError: a key is given twice, or a number is NaN or infinite.
        json.JSONDecodeError: the text is not JSON.
        RecursionError, ValueError: it is nested too deeply, or a number has too many digits.
    """
    return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise NotJSONError("a key is given twice")
    return entries


def _no_constant(_: str) -> Any:
    raise NotJSONError("NaN and Infinity are not JSON")
