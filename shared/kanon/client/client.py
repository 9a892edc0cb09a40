"""The calls of the gate's API, as docs/reference/api.md describes them."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote

from kanon.client.connection import Connection, Reply, Transport
from kanon.client.errors import PartlyRefusedError, RefusedError, UnexpectedAnswerError

JOINS_A_CALL = 500
HASHES_A_CALL = 100
"""The default limit of hashes in a query without a signature."""
HASHES_A_SIGNED_CALL = 1000

_T = TypeVar("_T")


def set_id(name: str) -> str:
    """The id of a set with this name: its SHA-256 in base64url without padding."""
    return encoded(sha256(name.encode()).digest())


def encoded(raw: bytes) -> str:
    """A set id of 1 to 64 bytes in the encoding of the API: base64url without padding."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class Join(NamedTuple):
    """A client joins a set. ``set`` in base64url; ``client`` as text, or a short identifier as a number."""

    type: str
    set: str
    client: str | int


class Place(NamedTuple):
    """A set of a type. ``set`` in base64url."""

    type: str
    set: str


@dataclass(frozen=True)
class Status:
    """Whether one set is k-anonymous.

    ``step`` is the step of the answer, ``None`` before the first evaluation. The answer does not change before
    ``next_update`` (ISO 8601).
    """

    k_anonymous: bool
    step: int | None
    next_update: str


@dataclass(frozen=True)
class Answers:
    """Which of many sets are k-anonymous.

    ``step`` is the step of the answers: the earliest one, if a new step became visible between two calls; ``None``
    before the first evaluation, or if no set was queried. ``unknown_types``: the queried types that the service does
    not have. Their sets are never k-anonymous.
    """

    k_anonymous: frozenset[Place]
    step: int | None
    unknown_types: frozenset[str] = frozenset()


class Client:
    """Calls the service at an address, or through your own transport.

    Joins and queries may be repeated without harm. The client itself never repeats an answered call.

    >>> with Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
    ...     client.join("fledge", set_id("a shared value"), "client-1")
    ...     client.status("fledge", set_id("a shared value")).k_anonymous
    False

    Every call raises an ``ApiError``: ``RefusedError`` for an error of the service, ``NoAnswerError`` without an
    answer, ``UnexpectedAnswerError`` for an answer of another form.
    """

    def __init__(self, service: str | Transport) -> None:
        self._transport: Transport = Connection(service) if isinstance(service, str) else service

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if isinstance(self._transport, Connection):
            self._transport.close()

    # Joining

    def join(self, type_: str, set_: str, client: str | int) -> None:
        """Join one set as one client."""
        self.call("POST", f"{_path(type_, set_)}:join", _client(client))

    def join_all(self, joins: Iterable[Join]) -> None:
        """Send joins, 500 per call.

        Raises:
            PartlyRefusedError: some of them were refused; the others were accepted.
        """
        results = self.batch_join(joins)
        if refused := {n: error for n, error in enumerate(results) if error is not None}:
            raise PartlyRefusedError(refused, len(results))

    def batch_join(self, joins: Iterable[Join]) -> list[RefusedError | None]:
        """Send joins, 500 per call. Returns for each of them ``None`` if it was accepted, or its error."""
        results: list[RefusedError | None] = []
        for some in _groups(joins, JOINS_A_CALL):
            entries = [{"type": type_, "set": set_, **_client(client)} for type_, set_, client in some]
            reply = self._send("POST", "/v1:batchJoin", {"joins": entries})
            answer = _json("POST /v1:batchJoin", reply)
            with _reading("POST /v1:batchJoin"):
                errors = [entry.get("error") for entry in answer["results"]]
                results += [e if e is None else _refused("POST /v1:batchJoin", reply, e) for e in errors]
                if len(errors) != len(some):
                    raise ValueError(f"{len(errors)} results for {len(some)} joins")
        return results

    # Querying

    def query(self, sets: Iterable[tuple[str, str]]) -> Answers:
        """Which of these sets, given as (type, set), are k-anonymous; 100 per call."""
        return self._ask("/v1:query", "setsForType", sets, HASHES_A_CALL)

    def batch_query(self, sets: Iterable[tuple[str, str]]) -> Answers:
        """The same query, signed by the transport; 1,000 per call."""
        return self._ask("/v1:batchQuery", "setsForType", sets, HASHES_A_SIGNED_CALL)

    def validate_hashes(self, sets: Iterable[tuple[str, str]]) -> Answers:
        """The same query in the format of Bidding and Auction servers."""
        return self._ask("/v1:validateHashes", "sets", sets, HASHES_A_CALL)

    def _ask(self, path: str, field: str, sets: Iterable[tuple[str, str]], at_once: int) -> Answers:
        true: set[Place] = set()
        steps: list[int | None] = []
        unknown: set[str] = set()
        for some in _groups(sets, at_once):
            by_type: dict[str, list[str]] = defaultdict(list)
            for type_, set_ in some:
                by_type[type_].append(set_)
            asked = [{"type": type_, "hashes": hashes} for type_, hashes in by_type.items()]
            answer = self.call("POST", path, {field: asked})
            with _reading(f"POST {path}"):
                true.update(Place(e["type"], hash_) for e in answer["kAnonymousSets"] for hash_ in e["hashes"])
                steps.append(_step(answer))
                unknown.update(_of(list, answer.get("unknownTypes", [])))
        return Answers(frozenset(true), _earliest(steps), frozenset(unknown))

    def status(self, type_: str, set_: str) -> Status:
        """Whether one set is k-anonymous."""
        answer = self.call("GET", _path(type_, set_))
        with _reading(f"GET {_path(type_, set_)}"):
            return Status(_of(bool, answer["kAnonymous"]), _step(answer), _of(str, answer["nextUpdate"]))

    def types(self) -> list[dict[str, Any]]:
        """The types and their guarantees; docs/reference/api.md lists the fields."""
        answer = self.call("GET", "/v1/types")
        with _reading("GET /v1/types"):
            return [_of(dict, type_) for type_ in _of(list, answer["types"])]

    def type(self, name: str) -> dict[str, Any]:
        """One type."""
        return self.call("GET", f"/v1/types/{quote(name, safe='')}")

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Make any call of the API and return its JSON object. ``body`` is sent as JSON; ``None`` for no body."""
        return _json(f"{method} {path}", self._send(method, path, body))

    def _send(self, method: str, path: str, body: object) -> Reply:
        if body is None:
            return self._transport(method, path, b"", {})
        return self._transport(method, path, json.dumps(body).encode(), {"Content-Type": "application/json"})


def _path(type_: str, set_: str) -> str:
    return f"/v1/types/{quote(type_, safe='')}/sets/{quote(set_, safe='')}"


def _client(client: str | int) -> dict[str, str | int]:
    return {"client": client} if isinstance(client, str) else {"shortClientIdentifier": client}


def _groups(values: Iterable[_T], size: int) -> Iterator[Sequence[_T]]:
    remaining = iter(values)
    while group := list(islice(remaining, size)):
        yield group


def _json(call: str, reply: Reply) -> dict[str, Any]:
    """The JSON object of an answer that is a success; any other answer raises its error."""
    try:
        answer = json.loads(reply.body)
    except ValueError:
        answer = None
    fields = answer if isinstance(answer, dict) else {}
    if not 200 <= reply.status < 300:
        raise _refused(call, reply, fields.get("error", fields))
    with _reading(call):
        return _of(dict, answer)


def _refused(call: str, reply: Reply, error: Any) -> RefusedError:
    """The error of a call, or of one join of a batch. An error of the gateway itself has only a message."""
    with _reading(call):
        code = _of(int, error.get("code", reply.status))
        retry_after = next((value for name, value in reply.headers if name.lower() == "retry-after"), "")
        wait = int(retry_after) if code in (429, 503) and retry_after.isdecimal() else None
        return RefusedError(call, code, error.get("status"), error.get("message", "no reason given"), wait)


@contextmanager
def _reading(call: str) -> Iterator[None]:
    """Turn the errors of parsing an answer into ``UnexpectedAnswerError``."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnexpectedAnswerError(
            f"{call}: the answer does not have the form of this API ({type(error).__name__}: {error}): "
            "check that the address is the service's"
        ) from error


def _of(kind: type[_T], value: Any) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} expected")
    return value


def _step(answer: Mapping[str, Any]) -> int | None:
    return None if answer["step"] is None else _of(int, answer["step"])


def _earliest(steps: Sequence[int | None]) -> int | None:
    known = [step for step in steps if step is not None]
    return min(known) if known and len(known) == len(steps) else None
