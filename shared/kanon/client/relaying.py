"""Calls through a relay (Oblivious HTTP): it learns who calls, the service what is called, nobody both.

It needs the extra ``relay``. A call is a generator that yields each outer request and is sent its answer. Clients with
and without ``async`` run it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kanon.client import waiting
from kanon.client.answers import Request, of, read_types, reading, request
from kanon.client.auth import Auth, Headers
from kanon.client.connection import TIMEOUT, Connection, HttpAnswer, Reply, address, no_answer
from kanon.client.errors import KeyChangedError, KeysDifferError, RefusedError, UnexpectedAnswerError

try:
    from kanon.gateway.binary_http import (
        BinaryHttpError,
        BinaryRequest,
        padded,
        read_response,
        write_request,
    )
    from kanon.gateway.hpke import SealedError
    from kanon.gateway.oblivious import (
        GATEWAY_PATH,
        KEYS_PATH,
        REQUEST_TYPE,
        STEP_FIELD,
        Exchange,
        KeyConfig,
        read_config,
        seal_request,
    )
except ImportError as missing:
    raise ImportError(f"{missing.name} is missing: pip install 'kanon-dp[relay]'", name=missing.name) from missing

KEPT = 12 * 3600.0
"""Seconds for which a key is held. A service takes it for a day after its week: so after a wait of as long, too."""
_JOINS = re.compile(r"POST /v1(?:/types/[^/]+/sets/[^/]+:join|:batchJoin)")
_ENROLMENTS = re.compile("(?:POST|DELETE) /v1/credentials")
_KEYS, _GATEWAY, _TYPES = request("GET", KEYS_PATH), request("POST", GATEWAY_PATH), request("GET", "/v1/types")

_T = TypeVar("_T")


class Outer(NamedTuple):
    """A request to the relay, or to the service itself."""

    to_relay: bool
    request: Request

    @property
    def headers(self) -> Headers:
        """The headers that its body needs."""
        return {"Content-Type": REQUEST_TYPE} if self.request.body else {}


Outers = Generator[Outer, Reply, _T]


@dataclass
class Relaying:
    """The state of a client that calls through a relay.

    Attributes:
        service: the address of the service.
        auth: adds a token to the inner request. The service can link all requests of a token.
        clock: seconds that never go back.
        now: unix seconds; a join names the step of it.
    """

    service: str
    auth: Auth | None = None
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _config: tuple[KeyConfig, float] | None = field(default=None, repr=False)
    _period: int | None = None

    def __post_init__(self) -> None:
        self._authority = address(self.service).netloc.rpartition("@")[2]

    def call(self, method: str, path: str, body: bytes, headers: Headers) -> Outers[Reply]:
        """The answer of the service, or that of a relay that is busy. ``GET KEYS_PATH`` gets the key alone."""
        if path == KEYS_PATH:
            key = yield from self._key()
            return HttpAnswer(200, [], b"{}") if isinstance(key, KeyConfig) else key
        is_join = _JOINS.fullmatch(f"{method} {path}") is not None
        if is_join or _ENROLMENTS.fullmatch(f"{method} {path}"):
            if self._period is None:
                types = yield from self._sealed("GET", "/v1/types", b"", {}, is_join=is_join)
                if types.status != 200:
                    return types
                self._period = _period(types)
            headers = {**headers, STEP_FIELD: str(waiting.join_step(self.now(), self._period))}
        if self.auth is not None:
            headers = self.auth(method, self.service + path, body, headers)
        reply = yield from self._sealed(method, path, body, headers, is_join=is_join)
        if (method, path) == (_TYPES.method, _TYPES.path) and reply.status == 200:
            self._period = _period(reply)  # a join asks for nothing else
        return reply

    def _sealed(self, method: str, path: str, body: bytes, headers: Headers, *, is_join: bool) -> Outers[Reply]:
        """Send an inner request. If the relay says that it does not open, get the key again, and send it once more.

        A join takes the key that is held, and does not get it again: the service sees the address of who gets it, and
        could choose the join beside which it sees one.
        """
        fields = tuple((name.lower(), value) for name, value in headers.items())
        message = padded(write_request(BinaryRequest(method, "https", self._authority, path, fields, body)))
        reply: Reply | None = None
        for last in (False, True):
            held = self._config
            config = held[0] if is_join and held is not None else (yield from self._key())
            if not isinstance(config, KeyConfig):
                return config
            sealed, exchange = seal_request(message, config)
            reply = yield Outer(to_relay=True, request=_GATEWAY._replace(body=sealed))
            if reply.status == 200:
                return _opened(reply, exchange)
            if reply.status in waiting.REPEATED:
                return reply
            if reply.status != 400 or last:
                break
            self._config = config, 0.0  # it is over, but joins that wait must not ask for the next one
            if is_join:
                raise KeyChangedError
        assert reply is not None
        raise _refused(_GATEWAY.name, reply)

    def _key(self) -> Outers[KeyConfig | Reply]:
        """The key, as the relay and the service show it; or the answer of one that is busy.

        Raises:
            KeysDifferError: they show two keys.
        """
        held = self._config
        if held is not None and self.clock() < held[1]:
            return held[0]
        replies = []
        for to_relay in (True, False):
            reply = yield Outer(to_relay, _KEYS)
            if reply.status in waiting.REPEATED:
                return reply
            if reply.status != 200:
                raise _refused(_KEYS.name, reply)
            replies.append(reply)
        if replies[0].body != replies[1].body:
            raise KeysDifferError
        with reading(_KEYS):
            config = read_config(replies[0].body)
        self._config = config, self.clock() + KEPT
        return config


def _opened(reply: Reply, exchange: Exchange) -> HttpAnswer:
    try:
        found = read_response(exchange.open(reply.body))
    except (SealedError, BinaryHttpError) as error:
        raise UnexpectedAnswerError(
            f"{_GATEWAY.name}: {error}: check that the address is a relay's, and that it changes no bytes"
        ) from None
    return HttpAnswer(found.status, list(found.fields), found.content)


def _period(reply: Reply) -> int:
    with reading(_TYPES):
        first, *_ = read_types(_TYPES, reply)
        return of(int, first["period"])


def _refused(call: str, reply: Reply) -> RefusedError:
    return RefusedError(
        call,
        reply.status,
        None,
        "the relay, or the service behind it, refuses: check the address of the relay, and ask who runs it",
        None,
    )


class RelayedConnection:
    """Connections to a relay and, for the key alone, to the service. It is called like a ``Connection``.

    Args:
        service: the address of the service.
        relay: the address of the relay.
        auth, now: as for ``Relaying``.

    Raises:
        ValueError: one of them is no address.
    """

    def __init__(self, service: str, relay: str, auth: Auth | None, now: Callable[[], float] = time.time) -> None:
        self._relaying = Relaying(service.rstrip("/"), auth, now=now)
        self._relay, self._service = Connection(relay), Connection(service)
        self._process, self._key = os.getpid(), threading.Lock()

    def __call__(self, method: str, path: str, body: bytes, headers: Headers, within: float | None) -> Reply:
        """Send a request through the relay.

        Raises:
            KeysDifferError: the service may single out this client.
            NoAnswerError: the relay or the service did not answer in time.
        """
        if path != KEYS_PATH:
            return self._sent(method, path, body, headers, within)
        if self._process != os.getpid():  # the lock of the parent process may be held for ever
            self._process, self._key = os.getpid(), threading.Lock()
        if not self._key.acquire(timeout=TIMEOUT if within is None else within):
            raise no_answer(self._relaying.service, TimeoutError("timed out"))
        try:  # after the threads that ask for the key: the service must not count the joins that wait for it
            return self._sent(method, path, body, headers, within)
        finally:
            self._key.release()

    def _sent(self, method: str, path: str, body: bytes, headers: Headers, within: float | None) -> Reply:
        outers = self._relaying.call(method, path, body, headers)
        try:
            outer = next(outers)
            while True:
                connection = self._relay if outer.to_relay else self._service
                outer = outers.send(connection(*outer.request, outer.headers, within))
        except StopIteration as done:
            reply: Reply = done.value
            return reply

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
        self._relay.close()
        self._service.close()
