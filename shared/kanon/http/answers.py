"""The forms of answers and bodies: camelCase on the wire, and one form for every error."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

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


class Body(BaseModel):
    """What a client sends. Fields it does not list are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)

    def __repr_args__(self) -> list[Any]:
        return []  # Powertools puts every body into a text for its debug log


class Answer(BaseModel):
    """What the service answers."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Problem(Answer):
    """What is wrong with one field."""

    field: str
    reason: str


class Error(Answer):
    """Why a request was refused and what to change."""

    code: int
    status: str
    message: str
    details: list[Problem]


class ErrorAnswer(Answer):
    """The one form of an error."""

    error: Error


class GatewayAnswer(Answer):
    """What API Gateway answers in front of the service: to a request not signed, or above the rates."""

    message: str


def error_answer(code: int, message: str, *details: Problem) -> ErrorAnswer:
    """The one form of an error; the message says what to change and names no set or client."""
    status = STATUS_NAMES[code]
    error = Error(code=code, status=status, message=message, details=list(details))
    return ErrorAnswer(error=error)


NOWHERE = error_answer(404, "no such path or method: GET /openapi.json describes them")
NOT_NOW = error_answer(503, "the service cannot do this now; repeat the request after the time in Retry-After")
