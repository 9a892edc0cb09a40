"""The edge: what both HTTP functions share. Makes bodies readable, answers errors in one form.

Powertools routes, validates and describes (OpenAPI). What this module adds is the error form of
docs/api.md, the bodies real clients send, and that nothing of a request is ever logged. Such bodies are read by the
resolver's own deserialiser: what the event holds is normalised only in its encoding and its content type.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.event_handler.openapi.params import Path
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel, BeforeValidator, WithJsonSchema

from kanon.dynamo.batches import is_throttle
from kanon.errors import FingerprintMismatchError, ThrottledError
from kanon.gate.models import BASE64URL, TYPE_NAME, Error, ErrorAnswer, GatewayAnswer, Problem, decode_base64url

MOST_BODY_BYTES = 1 << 20
MOST_RELAXED_CHARACTERS = 1 << 13
MOST_DETAILS = 10
RETRY_AFTER = "5"

# An HTTP API answers 401, 403 and 429 itself, in a form of its own (docs/api.md).
STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}

TypeInPath = Annotated[
    str,
    Path(
        alias="type",
        pattern=TYPE_NAME,
        description="A type of this deployment",
        examples=["fledge"],
    ),
]
SetInPath = Annotated[
    bytes,
    BeforeValidator(decode_base64url),
    WithJsonSchema({"type": "string", "pattern": BASE64URL, "examples": ["c2V0IG9uZQ"]}),
    Path(alias="set", description="The set id, 1 to 64 bytes, as base64url without padding"),
]


def error_answer(code: int, message: str, *details: Problem) -> ErrorAnswer:
    """The one form of an error; the message says what to change and names no set or client."""
    status = STATUS_NAMES[code]
    error = Error(code=code, status=status, message=message, details=list(details))
    return ErrorAnswer(error=error)


NOWHERE = error_answer(404, "no such path or method: GET /openapi.json describes them")
UNKNOWN_TYPE = error_answer(
    404,
    "no such type: GET /v1/types lists those of this deployment",
    Problem(field="type", reason="unknown"),
)
NOT_LOGGED = error_answer(503, "this join is not in the log; repeat it after the time in Retry-After")
NOT_NOW = error_answer(503, "the service cannot do this now; repeat the request after the time in Retry-After")


class RequestError(Exception):
    """A request that is answered with an error."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.error.message)
        self.answer = answer


def invalid(errors: Iterable[Any]) -> ErrorAnswer:
    """The answer to pydantic's errors: each field with what is wrong, nothing of what was sent."""
    problems = [_problem(error) for error, _ in zip(errors, range(MOST_DETAILS), strict=False)]
    return error_answer(400, f"{problems[0].field}: {problems[0].reason}", *problems)


Body = TypeVar("Body", bound=BaseModel)


def json_answer(body: Body, headers: Mapping[str, str] | None = None) -> Response[Body]:
    """A good answer."""
    return Response(200, "application/json", body, headers)


def described(answer: str, *codes: int, partly_later: bool = False) -> dict[int, Any]:
    """The answers of a route for its description: the good one, the errors it may give, and API Gateway's own."""
    answers: dict[int, Any] = {200: {"description": answer}}
    for code in sorted({*codes, 429, 500}):
        model = GatewayAnswer if code in (403, 429) else ErrorAnswer
        answers[code] = {"description": STATUS_NAMES[code], "content": {"application/json": {"model": model}}}
    for code in (503, *([200] if partly_later else [])):
        if code in answers:
            answers[code]["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}}
    return answers


def resolver(logger: Logger) -> APIGatewayHttpResolver:
    """A resolver that validates, reads relaxed bodies and answers every error in the one form."""
    app = APIGatewayHttpResolver(
        enable_validation=True,
        json_body_deserializer=read_json,
        debug=False,  # whatever the environment says: it would print whole requests
    )
    app.exception_handler(Exception)(lambda error: _refusal(_translated(error, logger)))
    return app


def _translated(error: Exception, logger: Logger) -> ErrorAnswer:
    """The one place where an error becomes an answer, and the one that logs it."""
    match error:
        case RequestError():
            return error.answer
        case RequestValidationError():
            return invalid(error.errors())
        case NotFoundError():
            return NOWHERE
        case ThrottledError():
            return NOT_NOW
        case FingerprintMismatchError():
            logger.error("fingerprint mismatch", reason=str(error))
            return NOT_NOW
        case ClientError():
            if not is_throttle(error):
                # The text of the service's message may name a key; operation and code do not.
                code = error.response["Error"]["Code"]
                logger.error("call refused", operation=error.operation_name, code=code)
            return NOT_NOW
        case BotoCoreError():
            logger.error("call failed", kind=type(error).__name__)
            return NOT_NOW
        case _:
            # The text of an unforeseen error may hold anything; only its kind and place are told.
            logger.error("unforeseen error", kind=type(error).__name__, place=_place(error))
            return error_answer(500, "internal error; the operator has been told")


def handle(app: APIGatewayHttpResolver, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answer an API Gateway event (format 2.0); an unreadable body goes no further."""
    if event["requestContext"]["http"]["method"] == "POST":
        try:
            event = _readable(event)
        except RequestError as error:
            answer = _refusal(error.answer)
            return {
                "statusCode": answer.status_code,
                "headers": answer.headers,
                "body": answer.body,
            }
    return app.resolve(event, context)


def read_json(text: str) -> dict[str, Any]:
    """The object of a body: JSON, or JSON as some real clients write it (bare keys, single quotes).

    Raises:
        RequestError: 400, saying what is wrong.
    """
    try:
        try:
            body = _parsed(text)
        except json.JSONDecodeError:
            if len(text) > MOST_RELAXED_CHARACTERS:
                raise
            strict = _RELAXED.sub(_strict, text)
            if strict == text:
                raise
            body = _parsed(strict)
    except RecursionError:
        raise _unreadable("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _unreadable(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except _NotJSONError as error:
        raise _unreadable(str(error)) from None
    except ValueError:
        raise _unreadable("a number has too many digits") from None
    # Validation would silently take the first entry of a list.
    if not isinstance(body, dict):
        problem = Problem(field="body", reason="not an object")
        raise RequestError(error_answer(400, "the body must be a JSON object", problem))
    return body


class _NotJSONError(ValueError):
    """What json lets pass: the message is ours."""


def _parsed(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise _NotJSONError("a key is given twice")
    return entries


def _no_constant(_: str) -> Any:
    raise _NotJSONError("NaN and Infinity are not JSON")


def _unreadable(reason: str) -> RequestError:
    problem = Problem(field="body", reason=reason)
    return RequestError(error_answer(400, f"the body is not valid JSON: {reason}", problem))


# "Strings" pass as they are, 'text' and key: are put into double quotes. No branch backtracks.
_RELAXED = re.compile(
    r""" "(?:[^"\\]|\\.)*+"? | '([^'"\\]*+)' | ([A-Za-z_]\w*+)(\s*:)? """,
    re.DOTALL | re.VERBOSE | re.ASCII,
)


def _strict(token: re.Match[str]) -> str:
    quoted, word, colon = token.groups()
    if quoted is not None:
        return f'"{quoted}"'
    return f'"{word}"{colon}' if colon else token[0]


def _readable(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event with its body as text, of the one content type the resolver takes.

    Raises:
        RequestError: 400, 413 or 415.
    """
    text = event.get("body") or ""
    encoded = bool(event.get("isBase64Encoded"))
    if len(text) > (MOST_BODY_BYTES * 4 // 3 + 4 if encoded else MOST_BODY_BYTES):
        raise _too_large()
    headers = event.get("headers") or {}
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in ("", "application/json"):
        raise RequestError(error_answer(415, "send the body as Content-Type: application/json"))
    try:
        data = base64.b64decode(text, validate=True) if encoded else text.encode()
        text = data.decode()
    except ValueError:
        problem = Problem(field="body", reason="not UTF-8")
        message = "the body is not UTF-8 text; send JSON in UTF-8"
        raise RequestError(error_answer(400, message, problem)) from None
    if len(data) > MOST_BODY_BYTES:
        raise _too_large()
    plain = {"body": text, "isBase64Encoded": False}
    return {**event, **plain, "headers": {**headers, "content-type": "application/json"}}


def _too_large() -> RequestError:
    message = f"the body is larger than {MOST_BODY_BYTES} bytes; split the request"
    return RequestError(error_answer(413, message))


def _refusal(body: ErrorAnswer) -> Response[str]:
    headers = {"Cache-Control": "no-store"}
    if body.error.code in (429, 503):
        headers["Retry-After"] = RETRY_AFTER
    return Response(body.error.code, "application/json", body.model_dump_json(), headers)


def _problem(error: Mapping[str, Any]) -> Problem:
    location = error["loc"][1:] if error["loc"][:1] in (("body",), ("path",)) else error["loc"]
    reason = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] in ("model_type", "model_attributes_type"):
        reason = "Input should be an object"
    return Problem(field=".".join(map(str, location)) or "body", reason=reason)


def _place(error: BaseException) -> str:
    """Where an error was raised, without any value."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "unknown" if trace is None else f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}"
