"""The Python client of the HTTP API (docs/guides/python-client.md). It needs only the standard library.

``kanon.client.asynchronous`` has the client for ``async`` programs, ``kanon.client.signing`` the signature of AWS,
``kanon.client.relaying`` what calls through a relay.
"""

from kanon.client.answers import Answers, Join, ListedValue, Released, SetOfType, Status
from kanon.client.auth import Auth, Bearer, Headers
from kanon.client.background import OTHER, Background
from kanon.client.calls import HASHES_A_CALL, HASHES_A_SIGNED_CALL, JOINS_A_CALL
from kanon.client.client import Client
from kanon.client.connection import Connection, HttpAnswer, Transport
from kanon.client.errors import (
    ApiError,
    KeyChangedError,
    KeysDifferError,
    NoAnswerError,
    PartlyRefusedError,
    RefusedError,
    UnexpectedAnswerError,
    UnknownTypeError,
)
from kanon.client.values import SetId, Value, bucket_of, encoded, value_id

__all__ = [
    "HASHES_A_CALL",
    "HASHES_A_SIGNED_CALL",
    "JOINS_A_CALL",
    "OTHER",
    "Answers",
    "ApiError",
    "Auth",
    "Background",
    "Bearer",
    "Client",
    "Connection",
    "Headers",
    "HttpAnswer",
    "Join",
    "KeyChangedError",
    "KeysDifferError",
    "ListedValue",
    "NoAnswerError",
    "PartlyRefusedError",
    "RefusedError",
    "Released",
    "SetId",
    "SetOfType",
    "Status",
    "Transport",
    "UnexpectedAnswerError",
    "UnknownTypeError",
    "Value",
    "bucket_of",
    "encoded",
    "value_id",
]
