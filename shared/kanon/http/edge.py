"""The edge: what both HTTP functions share. Makes bodies readable, answers errors in one form.

Powertools routes, validates and describes (OpenAPI). What this module adds is the error form of
docs/api.md, the bodies real clients send, and that nothing of a request is ever logged. Such bodies are read by the
resolver's own deserialiser: what the event holds is normalised only in its encoding and its content type.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel

from kanon.dynamo.batches import is_throttle
from kanon.errors import FingerprintMismatchError, ThrottledError
from kanon.http.answers import NOT_NOW, NOWHERE, STATUS_NAMES, ErrorAnswer, GatewayAnswer, Problem, error_answer
from kanon.http.bodies import RequestError, read_json, readable

MOST_DETAILS = 10
RETRY_AFTER = "5"


def invalid(errors: Iterable[Any]) -> ErrorAnswer:
    """The answer to pydantic's errors: each field with what is wrong, nothing of what was sent."""
    problems = [_problem(error) for error, _ in zip(errors, range(MOST_DETAILS), strict=False)]
    return error_answer(400, f"{problems[0].field}: {problems[0].reason}", *problems)


Content = TypeVar("Content", bound=BaseModel)


def json_answer(body: Content, headers: Mapping[str, str] | None = None) -> Response[Content]:
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
            event = readable(event)
        except RequestError as error:
            answer = _refusal(error.answer)
            return {
                "statusCode": answer.status_code,
                "headers": answer.headers,
                "body": answer.body,
            }
    return app.resolve(event, context)


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
