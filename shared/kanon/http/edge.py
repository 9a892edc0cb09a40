"""Shared by the HTTP functions: decodes bodies and answers every error in one format.

Powertools routes, validates and generates OpenAPI. This module adds the error format of docs/reference/api.md and
relaxed JSON bodies, and it logs nothing of a request. It changes only the encoding and the content type of an event;
the resolver's deserialiser parses the body.
"""

import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import BaseModel

from kanon.dynamo.batches import is_throttle
from kanon.errors import (
    ConfigurationError,
    FingerprintMismatchError,
    KanonError,
    StaleError,
    ThrottledError,
    kind_and_place,
    reason,
)
from kanon.http.answers import (
    NOT_NOW,
    NOWHERE,
    STATUS_NAMES,
    ErrorAnswer,
    ErrorForm,
    GatewayAnswer,
    Problem,
    error_answer,
    own_form,
)
from kanon.http.bodies import OWN_BODIES, Bodies, RequestError, read_json, readable

if TYPE_CHECKING:
    from botocore.exceptions import BotoCoreError, ClientError

MOST_DETAILS = 10
OF_API_GATEWAY = (401, 403, 429, 500, 503)
"""Errors that may also come from API Gateway, in its own form."""
RETRY_AFTER = "5"
Security = list[dict[str, list[str]]]
SIGNED: Security = [{"signature": []}]
SIGNED_OR_TOKEN: Security = [*SIGNED, {"token": []}]
SIGNED_OR_TOKEN_OR_OPEN: Security = [*SIGNED_OR_TOKEN, {}]
"""Who may call a route, for OpenAPI. The template, or :mod:`kanon.serving.access`, decides it."""


def invalid(errors: Iterable[Any]) -> ErrorAnswer:
    """The answer to pydantic's errors: each field and its problem, without any value that was sent."""
    problems = [_problem(error) for error in islice(errors, MOST_DETAILS)]
    return error_answer(400, f"{problems[0].field}: {problems[0].reason}", *problems)


Content = TypeVar("Content", bound=BaseModel)


def json_answer(body: Content, headers: Mapping[str, str] | None = None) -> Response[Content]:
    """An answer with status 200."""
    return Response(200, "application/json", body, headers)


def described(
    answer: str, *codes: int, partly_later: bool = False, success: int = 200, errors: type[BaseModel] = ErrorAnswer
) -> dict[int, Any]:
    """The OpenAPI responses of a route: success, its own errors, and those of API Gateway."""
    answers: dict[int, Any] = {success: {"description": answer}}
    for code in sorted({*codes, 429, 500}):
        model = errors | GatewayAnswer if code in OF_API_GATEWAY else errors
        answers[code] = {"description": STATUS_NAMES[code], "content": {"application/json": {"model": model}}}
    for code in (503, *([200] if partly_later else [])):
        if code in answers:
            answers[code]["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}}
    return answers


class _Resolver(APIGatewayHttpResolver):
    """Keeps the request in itself. Powertools keeps it in a class, so two threads would see each other's request."""

    def _to_proxy_event(self, event: dict[str, Any]) -> Any:
        self.current_event = super()._to_proxy_event(event)  # type: ignore[assignment]  # of version 2.0
        return self.current_event


def resolver(logger: Logger, form: ErrorForm = own_form) -> APIGatewayHttpResolver:
    """A resolver that validates requests, reads relaxed JSON and answers every error in one form.

    One thread at a time may use it; threads with a resolver each do not disturb each other.
    """
    app = _Resolver(
        enable_validation=True,
        json_body_deserializer=read_json,
        debug=False,  # also against the environment: debug mode prints whole requests
    )
    app.exception_handler(Exception)(lambda error: _refusal(_translate(error, logger), form))
    return app


def _translate(error: Exception, logger: Logger) -> ErrorAnswer:
    """Turn an error into an answer and log it. No other code does either."""
    match error:
        case RequestError():
            return error.answer
        case RequestValidationError():
            return invalid(error.errors())
        case NotFoundError():
            return NOWHERE
        case ThrottledError() | StaleError():
            return NOT_NOW
        case FingerprintMismatchError():
            logger.error("fingerprint mismatch", reason=str(error))
            return NOT_NOW
        case ConfigurationError():
            logger.error("configuration refused", reason=str(error))
            return NOT_NOW
        case _ if isinstance(error, _aws_errors()):
            _log_call(error, logger)
            return NOT_NOW
        case _:
            # The text of an unexpected error may contain anything; log only its kind and place.
            logger.error("unexpected error", **kind_and_place(error))
            return error_answer(500, "internal error; the operator has been notified")


def _aws_errors() -> "tuple[type[ClientError | BotoCoreError], ...]":
    """The errors of AWS calls. None can occur before botocore is loaded, and a service without AWS never loads it."""
    loaded: Any = sys.modules.get("botocore.exceptions")
    return (loaded.ClientError, loaded.BotoCoreError) if loaded else ()


def _log_call(error: "ClientError | BotoCoreError", logger: Logger) -> None:
    """Log a failed AWS call, unless it was throttled."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        logger.error("call failed", kind=type(error).__name__)
    elif not is_throttle(error):
        # The message of the AWS service may contain a key; the operation and the code do not.
        logger.error("call refused", operation=error.operation_name, code=error.response["Error"]["Code"])


class Guard(Protocol):
    """Decides about a request before its body is read."""

    def check(self, event: Mapping[str, Any]) -> None:
        """Raises RequestError for a request to refuse."""


def handle(
    app: APIGatewayHttpResolver,
    event: dict[str, Any],
    context: LambdaContext | None,
    logger: Logger,
    guard: Guard | None = None,
    bodies: Bodies = OWN_BODIES,
    form: ErrorForm = own_form,
) -> dict[str, Any]:
    """Answer an API Gateway event (format 2.0).

    A request that the guard refuses (because it did not come through the edge, for example) or that has an unreadable
    body is refused before routing.
    """
    try:
        if guard is not None:
            guard.check(event)
        if event["requestContext"]["http"]["method"] == "POST":
            event = readable(event, bodies)
    except (RequestError, KanonError, *_aws_errors()) as error:
        return refused(error, logger, form)
    return app.resolve(event, context)  # type: ignore[arg-type]  # no route reads the context


def refused(error: Exception, logger: Logger, form: ErrorForm = own_form) -> dict[str, Any]:
    """The result of a function for an error, which is logged as those of routes are."""
    answer = _refusal(_translate(error, logger), form)
    return {"statusCode": answer.status_code, "headers": answer.headers, "body": answer.body}


def _refusal(body: ErrorAnswer, form: ErrorForm) -> Response[str]:
    headers = {"Cache-Control": "no-store"}
    if body.error.code in (429, 503):
        headers["Retry-After"] = RETRY_AFTER
    return Response(body.error.code, "application/json", form(body).model_dump_json(), headers)


def _problem(error: Mapping[str, Any]) -> Problem:
    location = error["loc"][1:] if error["loc"][:1] in (("body",), ("path",)) else error["loc"]
    no_object = error["type"] in ("model_type", "model_attributes_type")
    text = "Input should be an object" if no_object else reason(error)
    return Problem(field=".".join(map(str, location)) or "body", reason=text)
