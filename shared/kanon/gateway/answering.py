"""The gateway: decrypts a request, lets the service answer it, and encrypts the answer.

Nothing of the outer request goes on: neither headers nor address. Of the inner one go method, path, body and a
few headers. A request that does not open is refused outside; all other errors are inside, with status 200 outside.

A recorded request can be sent again. So what changes something names its step, and is refused when that is over.
"""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from kanon import clock
from kanon.gateway.binary_http import (
    BinaryHttpError,
    BinaryRequest,
    BinaryResponse,
    padded,
    read_request,
    write_response,
)
from kanon.gateway.epochs import Epochs
from kanon.gateway.hpke import SealedError
from kanon.gateway.oblivious import (
    GATEWAY_PATH,
    KEYS_PATH,
    KEYS_TYPE,
    REQUEST_TYPE,
    RESPONSE_TYPE,
    STEP_FIELD,
    open_request,
)
from kanon.http.answers import NOWHERE, ErrorAnswer, Problem, error_answer
from kanon.http.bodies import MOST_BODY_BYTES

PASSED_ON = frozenset({"content-type", "authorization"})
_STEP = re.compile("[0-9]{1,12}")

HttpEvent = dict[str, Any]
HttpResult = dict[str, Any]
"""A request and an answer in format 2.0 of API Gateway."""

NOT_OBLIVIOUS = error_answer(415, f"send the body as Content-Type: {REQUEST_TYPE}")
TOO_LARGE = error_answer(413, f"the body is larger than {MOST_BODY_BYTES} bytes; split the request")
NOT_OPENED = error_answer(
    400, f"the request does not open: get the key again from {KEYS_PATH}", Problem(field="body", reason="not opened")
)
WRONG_STEP = error_answer(
    400,
    f"through the gateway this request must name its step as {STEP_FIELD}: send it again with the current step, and"
    " check the clock",
    Problem(field=STEP_FIELD, reason="not the current step"),
)


@dataclass(frozen=True)
class Gateway:
    """Answers the two paths of the gateway.

    Attributes:
        epochs: its keys.
        period: the length of a step in seconds.
        stepped: the requests that must name a step, as method, space and path.
        others: the other ones that go on.
        passed_on: the headers of an inner request that go on.
    """

    epochs: Epochs
    period: int
    stepped: re.Pattern[str]
    others: re.Pattern[str]
    passed_on: frozenset[str] = PASSED_ON

    def has(self, path: str) -> bool:
        """Whether a path is one of the gateway's."""
        return path in (KEYS_PATH, GATEWAY_PATH)

    def answer(self, event: Mapping[str, Any], service: Callable[[HttpEvent], HttpResult]) -> HttpResult:
        """The answer to an outer request; ``service`` answers the inner one."""
        method, path = event["requestContext"]["http"]["method"], event["rawPath"]
        if path == KEYS_PATH and method in ("GET", "HEAD"):
            return self._keys(clock.now())
        if path == GATEWAY_PATH and method == "POST":
            return self._opened(event, service)
        return _refusal(NOWHERE)

    def _keys(self, now: float) -> HttpResult:
        cached = f"public, max-age={clock.cacheable(now)}"
        return _binary(self.epochs.current(now).encode(), KEYS_TYPE, cached)

    def _opened(self, event: Mapping[str, Any], service: Callable[[HttpEvent], HttpResult]) -> HttpResult:
        """Decrypt, answer and encrypt."""
        now = clock.now()
        media_type = event["headers"].get("content-type", "").partition(";")[0].strip().lower()
        if media_type != REQUEST_TYPE:
            return _refusal(NOT_OBLIVIOUS)
        text = event.get("body") or ""
        body = base64.b64decode(text) if event.get("isBase64Encoded") else text.encode()
        if len(body) > MOST_BODY_BYTES:
            return _refusal(TOO_LARGE)
        try:
            message, exchange = open_request(body, lambda key_id: self.epochs.opening(key_id, now))
        except SealedError:
            return _refusal(NOT_OPENED)
        answer = padded(write_response(self._inner(message, now, service)))
        return _binary(exchange.seal(answer), RESPONSE_TYPE, "no-store")

    def _inner(self, message: bytes, now: float, service: Callable[[HttpEvent], HttpResult]) -> BinaryResponse:
        try:
            request = read_request(message)
        except BinaryHttpError as error:
            return _response(_refusal(error_answer(400, f"the inner request is not binary HTTP: {error}")))
        path, _, query = request.path.partition("?")
        path = unquote(path)
        asked = f"{request.method} {path}"
        if self.stepped.fullmatch(asked):
            if not self._in_time(request, now):
                return _response(_refusal(WRONG_STEP))
        elif not self.others.fullmatch(asked):
            return _response(_refusal(NOWHERE))
        return _response(service(_event(request, path, query, self.passed_on)))

    def _in_time(self, request: BinaryRequest, now: float) -> bool:
        """Whether a request names its step, and is in time."""
        named = [value for name, value in request.fields if name == STEP_FIELD]
        return (
            len(named) == 1 and _STEP.fullmatch(named[0]) is not None and clock.in_time(int(named[0]), now, self.period)
        )


def _event(request: BinaryRequest, path: str, query: str, passed_on: frozenset[str]) -> HttpEvent:
    """The event of an inner request. A header that occurs twice is joined with commas, as API Gateway does."""
    headers: dict[str, str] = {}
    for name, value in request.fields:
        if name in passed_on:
            headers[name] = f"{headers[name]},{value}" if name in headers else value
    return {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": query,
        "queryStringParameters": dict(parse_qsl(query, keep_blank_values=True)),
        "headers": headers,
        "requestContext": {"stage": "$default", "http": {"method": request.method, "path": path}},
        "body": base64.b64encode(request.content).decode(),
        "isBase64Encoded": True,
    }


def _response(result: HttpResult) -> BinaryResponse:
    fields = tuple((str(name).lower(), str(value)) for name, value in (result.get("headers") or {}).items())
    return BinaryResponse(int(result["statusCode"]), fields, (result.get("body") or "").encode())


def _binary(content: bytes, media_type: str, cached: str) -> HttpResult:
    headers = {"Content-Type": media_type, "Cache-Control": cached}
    return {"statusCode": 200, "headers": headers, "body": base64.b64encode(content).decode(), "isBase64Encoded": True}


def _refusal(answer: ErrorAnswer) -> HttpResult:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    return {"statusCode": answer.error.code, "headers": headers, "body": answer.model_dump_json()}
