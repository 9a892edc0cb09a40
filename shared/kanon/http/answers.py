"""Models of request bodies and answers: camelCase on the wire, and one format for every error."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel

from kanon.errors import meant

# API Gateway itself answers 401, 403 and 429, and some 500 and 503, in its own format (docs/reference/api.md).
STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


STORED: dict[str, Any] = {"stored": True}
"""The context of validation for a stored body. Earlier versions accepted unknown fields: they are ignored."""


class Body(BaseModel):
    """A request body, or an object in it. Unknown fields are errors: a misspelt one must not count as left out."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any, info: ValidationInfo) -> Any:
        names = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = [name for name in value if name not in names] if isinstance(value, dict) else []
        if unknown and info.context == STORED:
            return {name: value[name] for name in names if name in value}
        if unknown:
            raise ValueError(unknown_field(unknown[0], names))
        return value

    def __repr_args__(self) -> list[Any]:
        return []  # Powertools formats every body for its debug log


def unknown_field(name: str, names: Sequence[str]) -> str:
    """What to change about an unknown field. Its name is a part of the request, so it is not repeated."""
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"a field is unknown{meant(name, names)}: give only {listed} there"


class AnswerBody(BaseModel):
    """An answer of the service."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Problem(AnswerBody):
    """The problem of one field."""

    field: str
    reason: str


class Error(AnswerBody):
    """Why a request was refused and what to change."""

    code: int
    status: str
    message: str
    details: list[Problem]


class ErrorAnswer(AnswerBody):
    """An error in the one format of the service."""

    error: Error


ErrorForm = Callable[[ErrorAnswer], BaseModel]
"""The error format of a function."""


def own_form(answer: ErrorAnswer) -> BaseModel:
    """The form of docs/reference/api.md."""
    return answer


class GatewayAnswer(AnswerBody):
    """The answer of API Gateway to a request that is not signed or exceeds the rate limits."""

    message: str


def error_answer(code: int, message: str, *details: Problem) -> ErrorAnswer:
    """An error answer. The message says what to change and names no set or client."""
    status = STATUS_NAMES[code]
    error = Error(code=code, status=status, message=message, details=list(details))
    return ErrorAnswer(error=error)


def wrong_field(field: str, reason: str) -> ErrorAnswer:
    """The answer to a request of which one field is wrong."""
    return error_answer(400, f"{field}: {reason}", Problem(field=field, reason=reason))


UNKNOWN_CALLER = error_answer(401, "send a valid key or token of this service as Authorization: Bearer ...")
NOWHERE = error_answer(404, "no such path or method: GET /openapi.json describes them")
NOT_NOW = error_answer(503, "the service is temporarily unavailable; retry after the time in Retry-After")
