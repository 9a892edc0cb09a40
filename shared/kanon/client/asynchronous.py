"""The client for ``async`` programs, over httpx2: the extra ``async``. Its calls are those of ``Client``."""

from __future__ import annotations

from collections.abc import Iterable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kanon.client.answers import Answers, Join, Released, Request, Status
from kanon.client.auth import Auth, Headers
from kanon.client.calls import (
    DEADLINE,
    GATEWAY_KEYS,
    HASHES_A_CALL,
    HASHES_A_SIGNED_CALL,
    Attempt,
    Calls,
    Private,
    Steps,
    check_options,
)
from kanon.client.connection import TIMEOUT, HttpAnswer, Reply, address, no_answer
from kanon.client.errors import NoAnswerError, RefusedError
from kanon.client.values import Value

try:
    import anyio
    import httpx2
except ImportError as missing:
    raise ImportError(f"{missing.name} is missing: pip install 'kanon-dp[async]'", name=missing.name) from missing

if TYPE_CHECKING:
    from kanon.client.anonymous import Anonymous
    from kanon.client.relaying import Outers, Relaying
    from kanon.reports.clients.devices import Windows
    from kanon.reports.clients.encrypt import Outgoing

_T = TypeVar("_T")


class AsyncClient:
    """``Client`` for asyncio and trio; arguments, results and errors are the same. Tasks may share it.

    Args:
        service: the address, ``https://host``.
        auth, deadline, spread, reports, relay, anonymous: as for ``Client``.
        http: your own client, for example with another transport; it stays open. Let it keep no cookies: they would
            link the calls.
    """

    def __init__(
        self,
        service: str,
        *,
        auth: Auth | None = None,
        deadline: float = DEADLINE,
        spread: float | None = None,
        reports: Windows | None = None,
        relay: str | None = None,
        anonymous: Anonymous | None = None,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        check_options(service, auth, reports, relay, anonymous)
        for url in (service, service if relay is None else relay):
            address(url)
        self._url, self._auth = service.rstrip("/"), auth
        self._relay = (relay or "").rstrip("/")
        self._relaying = None if relay is None else _relaying(self._url, auth)
        self._http, self._own = http or httpx2.AsyncClient(cookies=_no_cookies()), http is None
        self._calls = Calls(deadline, spread, reports, anonymous, relay is not None)
        self._key = anyio.Lock()
        """Held by the join that asks for the key: the service must not count those that wait for it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._own:
            await self._http.aclose()

    async def join(
        self, type_: str, value: Value, client: str | int | None = None, *, delay: float | None = None
    ) -> None:
        """``Client.join``."""
        await self._run(self._calls.join(type_, value, client, delay))

    async def prepare(self, type_: str) -> None:
        """``Client.prepare``."""
        await self._run(self._calls.prepare(type_))

    async def join_prepared(self, type_: str, value: Value, client: str | int | None = None) -> None:
        """``Client.join_prepared``."""
        await self._run(self._calls.join_prepared(type_, value, client))

    async def join_many(self, joins: Iterable[Join]) -> None:
        """``Client.join_many``."""
        await self._run(self._calls.join_many(joins))

    async def is_shared(self, type_: str, values: Iterable[Value], *, private: Private = False) -> frozenset[Value]:
        """``Client.is_shared``."""
        return await self._run(self._calls.is_shared(type_, values, private))

    async def released(self, type_: str) -> Released:
        """``Client.released``."""
        return await self._run(self._calls.released(type_))

    def known(self, type_: str, value: Value) -> bool | None:
        """``Client.known``."""
        return self._calls.known(type_, value)

    async def contribute(self, value: Value, amount: int) -> bool:
        """``Client.contribute``."""
        return await self._run(self._calls.contribute(value, amount))

    async def seal(self, value: Value, amount: int) -> tuple[Outgoing, bool]:
        """``Client.seal``."""
        return await self._run(self._calls.seal(value, amount))

    async def seal_with_join(
        self, type_: str, value: Value, amount: int, client: str | int
    ) -> tuple[list[Outgoing], bool]:
        """``Client.seal_with_join``."""
        return await self._run(self._calls.seal_with_join(type_, value, amount, client))

    async def send(self, report: Outgoing) -> None:
        """``Client.send``."""
        await self._run(self._calls.send(report))

    async def send_due(self, pending: Iterable[Outgoing], now: int) -> list[Outgoing]:
        """``Client.send_due``."""
        return await self._run(self._calls.send_due(pending, now))

    async def batch_join(self, joins: Iterable[Join]) -> list[RefusedError | None]:
        """``Client.batch_join``."""
        return await self._run(self._calls.batch_join(joins))

    async def query(self, sets: Iterable[tuple[str, str]]) -> Answers:
        """``Client.query``."""
        return await self._run(self._calls.query("/v1:query", "setsForType", sets, HASHES_A_CALL))

    async def batch_query(self, sets: Iterable[tuple[str, str]]) -> Answers:
        """``Client.batch_query``."""
        return await self._run(self._calls.query("/v1:batchQuery", "setsForType", sets, HASHES_A_SIGNED_CALL))

    async def status(self, type_: str, set_: str) -> Status:
        """``Client.status``."""
        return await self._run(self._calls.status(type_, set_))

    async def types(self) -> list[dict[str, Any]]:
        """``Client.types``."""
        return await self._run(self._calls.types())

    async def type(self, name: str) -> dict[str, Any]:
        """``Client.type``."""
        return await self._run(self._calls.type(name))

    async def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """``Client.call``."""
        return await self._run(self._calls.call(method, path, body))

    async def _run(self, steps: Steps[_T]) -> _T:
        try:
            attempt = next(steps)
            while True:
                try:
                    reply = await self._try(attempt)
                except NoAnswerError as error:
                    attempt = steps.throw(error)
                else:
                    attempt = steps.send(reply)
        except StopIteration as done:
            result: _T = done.value
            return result

    async def _try(self, attempt: Attempt) -> Reply:
        if attempt.after:
            await anyio.sleep(attempt.after)
        asked = attempt.make()
        headers = asked.headers
        if self._relaying is not None:
            through = self._alone if asked == GATEWAY_KEYS else self._through
            return await through(self._relaying.call(*asked, headers), attempt.within)
        if self._auth is not None:
            headers = self._auth(asked.method, self._url + asked.path, asked.body, headers)
        return await self._send(self._url, asked, headers, attempt.within)

    async def _alone(self, outers: Outers[Reply], within: float | None) -> Reply:
        """Ask for the key after the others that do: they may have got it."""
        try:
            with anyio.fail_after(TIMEOUT if within is None else within):
                async with self._key:
                    return await self._through(outers, within)
        except TimeoutError as error:
            raise no_answer(self._relay, error) from error

    async def _through(self, outers: Outers[Reply], within: float | None) -> Reply:
        """Send the requests of a call through the relay."""
        try:
            outer = next(outers)
            while True:
                to = self._relay if outer.to_relay else self._url
                outer = outers.send(await self._send(to, outer.request, outer.headers, within))
        except StopIteration as done:
            reply: Reply = done.value
            return reply

    async def _send(self, to: str, asked: Request, headers: Headers, within: float | None) -> HttpAnswer:
        seconds = TIMEOUT if within is None else min(within, TIMEOUT)
        try:
            with anyio.fail_after(seconds):
                reply = await self._http.request(
                    asked.method, to + asked.path, content=asked.body or None, headers=headers, timeout=seconds,
                    follow_redirects=False,
                )  # fmt: skip
        except (TimeoutError, OSError, httpx2.HTTPError) as error:
            raise no_answer(to, error) from error
        return HttpAnswer(reply.status_code, reply.headers.multi_items(), reply.content)


def _relaying(service: str, auth: Auth | None) -> Relaying:
    from kanon.client.relaying import Relaying  # it needs an extra

    return Relaying(service, auth)


def _no_cookies() -> CookieJar:
    """A jar that takes no cookie: one would link the joins of a client."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))
