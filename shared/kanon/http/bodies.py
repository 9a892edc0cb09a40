"""Parsing of request bodies: JSON or relaxed JSON, in any encoding that API Gateway passes on."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kanon import strict_json
from kanon.errors import Error
from kanon.http.answers import ErrorAnswer, Problem, error_answer

MOST_BODY_BYTES = 1 << 20
MOST_RELAXED_CHARACTERS = 1 << 13
JSON_ONLY = re.compile("application/json|")
JSON_AS_TEXT = re.compile("application/json|text/plain|")
ANY_JSON = re.compile(r"(application|text)/([\w.-]+\+)?(x-)?json|")


@dataclass(frozen=True)
class Bodies:
    """The limits of a function's bodies.

    Attributes:
        most: bytes.
        media_types: the allowed content types, without parameters; empty if there is none.
        if_larger: what to do about a larger body.
    """

    most: int = MOST_BODY_BYTES
    media_types: re.Pattern[str] = JSON_ONLY
    if_larger: str = "split the request"

    def refuse_larger(self, size: int) -> None:
        """Check a number of bytes.

        Raises:
            RequestError: 413.
        """
        if size > self.most:
            raise RequestError(error_answer(413, f"the body is larger than {self.most} bytes; {self.if_larger}"))


OWN_BODIES = Bodies()
JOIN_BODIES = Bodies(media_types=JSON_AS_TEXT)
"""A page sends text/plain without asking first (a preflight request). Joins that need a key or a token have a header
for it, about which a browser asks in any case."""


class RequestError(Error):
    """A request that is answered with an error."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.error.message)
        self.answer = answer


def read_json(text: str) -> dict[str, Any]:
    """Parse a body as a JSON object. Bare keys and single quotes are accepted, since some real clients send them.

    Raises:
        RequestError: 400, with the reason.
    """
    try:
        try:
            body = strict_json.parse(text)
        except json.JSONDecodeError:
            if len(text) > MOST_RELAXED_CHARACTERS:
                raise
            strict = _RELAXED.sub(_strict, text)
            if strict == text:
                raise
            body = strict_json.parse(strict)
    except RecursionError:
        raise _unreadable("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _unreadable(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except strict_json.NotJSONError as error:
        raise _unreadable(str(error)) from None
    except ValueError:
        raise _unreadable("a number has too many digits") from None
    # Validation would silently take the first entry of a list.
    if not isinstance(body, dict):
        raise _bad_body("the body must be a JSON object", "not an object")
    return body


def _unreadable(reason: str) -> RequestError:
    return _bad_body(f"the body is not valid JSON: {reason}", reason)


def _bad_body(message: str, reason: str) -> RequestError:
    return RequestError(error_answer(400, message, Problem(field="body", reason=reason)))


# "Strings" stay as they are; 'text' and key: get double quotes. No branch backtracks.
_RELAXED = re.compile(
    r""" "(?:[^"\\]|\\.)*+"? | '([^'"\\]*+)' | ([A-Za-z_]\w*+)(\s*:)? """,
    re.DOTALL | re.VERBOSE | re.ASCII,
)


def _strict(token: re.Match[str]) -> str:
    quoted, word, colon = token.groups()
    if quoted is not None:
        return f'"{quoted}"'
    return f'"{word}"{colon}' if colon else token[0]


def readable(event: Mapping[str, Any], bodies: Bodies = OWN_BODIES) -> dict[str, Any]:
    """The event with its body decoded to text and the one content type that the resolver accepts.

    Raises:
        RequestError: 400, 413 or 415.
    """
    text = event.get("body") or ""
    encoded = bool(event.get("isBase64Encoded"))
    bodies.refuse_larger(len(text) * 3 // 4 - 3 if encoded else len(text))
    headers = event.get("headers") or {}
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not bodies.media_types.fullmatch(media_type):
        raise RequestError(error_answer(415, "send the body as Content-Type: application/json"))
    try:
        data = base64.b64decode(text, validate=True) if encoded else text.encode()
        text = data.decode()
    except ValueError:
        raise _bad_body("the body is not UTF-8 text; send JSON in UTF-8", "not UTF-8") from None
    bodies.refuse_larger(len(data))
    plain = {"body": text, "isBase64Encoded": False}
    return {**event, **plain, "headers": {**headers, "content-type": "application/json"}}
