"""The Python client of the gate's HTTP API. It needs only the standard library."""

from kanon.client.client import (
    HASHES_A_CALL,
    HASHES_A_SIGNED_CALL,
    JOINS_A_CALL,
    Answers,
    Client,
    Join,
    Status,
    encoded,
    set_id,
)
from kanon.client.connection import Connection, Headers, HttpAnswer, Transport
from kanon.client.errors import (
    ApiError,
    NoAnswerError,
    PartlyRefusedError,
    RefusedError,
    UnexpectedAnswerError,
)

__all__ = [
    "HASHES_A_CALL",
    "HASHES_A_SIGNED_CALL",
    "JOINS_A_CALL",
    "Answers",
    "ApiError",
    "Client",
    "Connection",
    "Headers",
    "HttpAnswer",
    "Join",
    "NoAnswerError",
    "PartlyRefusedError",
    "RefusedError",
    "Status",
    "Transport",
    "UnexpectedAnswerError",
    "encoded",
    "set_id",
]
