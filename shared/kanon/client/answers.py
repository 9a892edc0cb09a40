"""Requests and answers of the API as data: docs/reference/api.md describes them. Nothing here sends."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from kanon.client import ranges
from kanon.client.auth import Headers
from kanon.client.connection import Reply
from kanon.client.errors import RefusedError, UnexpectedAnswerError
from kanon.client.ranges import MOST_BITS, Ranges
from kanon.client.values import SetId, Value, value_id
from kanon.client.waiting import retry_after

_T = TypeVar("_T")
_NAMED = re.compile(r"(/sets/|/ranges/\d+/)[^:/]+")
MOST_VALUE_BYTES = 512


class Join(NamedTuple):
    """A client joins the set of a value. ``client`` as text, a short identifier as a number, or None: a credential."""

    type: str
    value: Value
    client: str | int | None


class SetOfType(NamedTuple):
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
    before the first evaluation, or if no set was queried.
    """

    k_anonymous: frozenset[SetOfType]
    step: int | None


class ListedValue(NamedTuple):
    """A value that the crowd shares, and the step since which it is true."""

    value: str
    since: int


@dataclass(frozen=True)
class Released:
    """The values of a listed type that the crowd shares.

    ``step`` is the step of the list, ``None`` before the first one.
    """

    values: tuple[ListedValue, ...]
    step: int | None


class Request(NamedTuple):
    """A call of the API; every attempt sends the same bytes."""

    method: str
    path: str
    body: bytes = b""

    @property
    def headers(self) -> Headers:
        """The headers that its body needs."""
        return {"Content-Type": "application/json"} if self.body else {}

    @property
    def name(self) -> str:
        """Method and path, for messages. They do not name a set: logs keep messages."""
        path = _NAMED.sub(r"\1...", self.path.partition("?")[0])
        return f"{self.method} {path}"


def request(method: str, path: str, body: object = None) -> Request:
    """A request with a JSON body; ``None`` for no body."""
    return Request(method, path, b"" if body is None else json.dumps(body).encode())


def path_of(type_: str, set_: str) -> str:
    """The path of a set."""
    return f"/v1/types/{quote(type_, safe='')}/sets/{quote(set_, safe='')}"


def client_field(client: str | int) -> dict[str, str | int]:
    """How a join names its client."""
    return {"client": client} if isinstance(client, str) else {"shortClientIdentifier": client}


def join_request(type_: str, value: Value, client: Mapping[str, Any], *, listed: bool) -> Request:
    """The request of one join. ``client`` is how it names the client; that of a listed type carries the value."""
    path = f"{path_of(type_, value_id(value))}:join"
    return request("POST", path, {**client, **value_field(value, listed=listed)})


def batch_entry(join: Join, *, listed: bool) -> dict[str, str | int]:
    """A join in the body of ``batchJoin``.

    Raises:
        ValueError: it names no client.
    """
    if join.client is None:
        raise ValueError(f"type {join.type!r}: each join of a batch needs a client")
    named = {"type": join.type, "set": value_id(join.value), **client_field(join.client)}
    return {**named, **value_field(join.value, listed=listed)}


def value_field(value: Value, *, listed: bool) -> dict[str, str]:
    """How a join of a listed type names its value; nothing for another type.

    Raises:
        ValueError: it is no text of 1 to 512 bytes.
    """
    if not listed:
        return {}
    if isinstance(value, SetId):
        raise ValueError("this type is listed: give the value itself, not the id of its set")
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise ValueError("this type is listed: its values are texts in UTF-8") from None
    if not 1 <= len(text.encode()) <= MOST_VALUE_BYTES:
        raise ValueError(f"this type is listed: its values have 1 to {MOST_VALUE_BYTES} bytes")
    return {"value": text}


def read_object(call: Request, reply: Reply) -> dict[str, Any]:
    """The JSON object of an answer that is a success; any other answer raises its error."""
    try:
        answer = json.loads(reply.body)
    except (ValueError, RecursionError):
        answer = None
    fields = answer if isinstance(answer, dict) else {}
    if not 200 <= reply.status < 300:
        error = fields.get("error", fields)
        known = error if isinstance(error, dict) else {}  # a proxy may have another form
        raise _refused(call, reply, {**known, "code": reply.status})
    with reading(call):
        return of(dict, answer)


def read_nothing(call: Request, reply: Reply) -> None:
    """An answer that says only that the request was accepted."""
    answer = read_object(call, reply)
    with reading(call):
        only(answer, ())


def read_batch(call: Request, reply: Reply, sent: int) -> list[RefusedError | None]:
    """For each join of a batch ``None`` or its error."""
    answer = read_object(call, reply)
    with reading(call):
        results = of(list, only(answer, ("results",))["results"])
        if len(results) != sent:
            raise ValueError(f"{len(results)} results for {sent} joins")
        errors = [only(result, (), ("error",)).get("error") for result in results]
        return [None if error is None else _refused(call, reply, error) for error in errors]


def read_query(call: Request, reply: Reply, asked: Mapping[str, Collection[str]]) -> tuple[set[SetOfType], int | None]:
    """The sets that are k-anonymous, and the step."""
    answer = read_object(call, reply)
    with reading(call):
        only(answer, ("kAnonymousSets", "step", "nextUpdate"))
        entries = [only(entry, ("type", "hashes")) for entry in of(list, answer["kAnonymousSets"])]
        if {entry["type"] for entry in entries} != set(asked):
            raise ValueError("other types than those that were asked")
        true = {SetOfType(entry["type"], hash_) for entry in entries for hash_ in of(list, entry["hashes"])}
        if any(hash_ not in asked.get(type_, ()) for type_, hash_ in true):
            raise ValueError("a set that was not asked")
        return true, _step(answer)


def read_status(call: Request, reply: Reply) -> Status:
    """The status of one set."""
    answer = read_object(call, reply)
    with reading(call):
        only(answer, ("kAnonymous", "step", "nextUpdate"))
        return Status(of(bool, answer["kAnonymous"]), _step(answer), of(str, answer["nextUpdate"]))


def read_released(call: Request, reply: Reply) -> tuple[list[ListedValue], int | None, str | None]:
    """The values of a page, their step, and where the next page begins."""
    answer = read_object(call, reply)
    with reading(call):
        only(answer, ("type", "step", "nextUpdate", "values", "next"))
        values = [only(entry, ("value", "since")) for entry in of(list, answer["values"])]
        following = answer["next"]
        listed = [ListedValue(of(str, entry["value"]), of(int, entry["since"])) for entry in values]
        return listed, _step(answer), None if following is None else of(str, following)


def read_pointer(call: Request, reply: Reply) -> tuple[int | None, int]:
    """Step and prefix bits of the newest range files."""
    answer = read_object(call, reply)
    with reading(call):
        only(answer, ("type", "step", "nextUpdate", "prefixBits", "count"))
        step = _step(answer)
        bits = 0 if step is None else of(int, answer["prefixBits"])
        if not 0 <= bits <= MOST_BITS:
            raise ValueError("so many bits have no files")
        return step, bits


def read_range(call: Request, reply: Reply, type_: str, of_list: Ranges) -> bytes:
    """The hashes of a range file."""
    if not 200 <= reply.status < 300:
        read_object(call, reply)
    with reading(call):
        return ranges.read(reply.body, type_, of_list)


def read_types(call: Request, reply: Reply) -> list[dict[str, Any]]:
    """The descriptions of the types."""
    answer = read_object(call, reply)
    with reading(call):
        types = of(list, only(answer, ("types",))["types"])
        for type_ in types:
            of(str, of(dict, type_)["type"])
            of(int, type_["period"])
        return types


def earliest(steps: Sequence[int | None]) -> int | None:
    """The earliest step; ``None`` if one of them is."""
    known = [step for step in steps if step is not None]
    return min(known) if known and len(known) == len(steps) else None


def _refused(call: Request, reply: Reply, error: Any) -> RefusedError:
    """The error of a call, or of one join of a batch. An error of the gateway itself has only a message."""
    with reading(call):
        code = of(int, error.get("code", reply.status))
        wait = retry_after(reply.headers) if code in (429, 503) else None
        return RefusedError(call.name, code, error.get("status"), error.get("message") or "no reason given", wait)


@contextmanager
def reading(call: Request) -> Iterator[None]:
    """Turn the errors of parsing an answer into ``UnexpectedAnswerError``."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnexpectedAnswerError(
            f"{call.name}: the answer does not have the form of this API ({type(error).__name__}: {error}): "
            "check that the address is the service's, and that this client is not older than the service"
        ) from error


def only(answer: Any, needed: Collection[str], others: Collection[str] = ()) -> dict[str, Any]:
    """An object with these fields and no other ones."""
    fields = of(dict, answer)
    if unknown := sorted(fields.keys() - {*needed, *others}):
        raise ValueError(f"unknown field {unknown[0]!r}")
    if missing := [name for name in needed if name not in fields]:
        raise ValueError(f"no field {missing[0]!r}")
    return fields


def of(kind: type[_T], value: Any) -> _T:
    """The value, which must be of this kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} expected")
    return value


def _step(answer: Mapping[str, Any]) -> int | None:
    return None if answer["step"] is None else of(int, answer["step"])
