"""The client over the standard library."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kanon.client.answers import Answers, Join, Released, Status
from kanon.client.auth import Auth
from kanon.client.calls import (
    DEADLINE,
    HASHES_A_CALL,
    HASHES_A_SIGNED_CALL,
    Attempt,
    Calls,
    Private,
    Steps,
    check_options,
)
from kanon.client.connection import Connection, Reply, Transport
from kanon.client.errors import NoAnswerError, RefusedError
from kanon.client.values import Value

if TYPE_CHECKING:
    from kanon.client.anonymous import Anonymous
    from kanon.client.relaying import RelayedConnection
    from kanon.reports.clients.devices import Windows
    from kanon.reports.clients.encrypt import Outgoing

_T = TypeVar("_T")


class Client:
    """Calls the service at an address, or through your own transport. Threads may share it.

    Every call may be repeated without harm. After 429, 5xx or no answer the client repeats it: it waits for
    ``Retry-After`` and a random time, until the deadline.

    Args:
        service: the address, ``https://host``, or a transport. A transport is called once for each call, unless there
            is a ``deadline``.
        auth: a ``Bearer`` with a token or an API key, a ``SigV4``, or another function of this form.
        deadline: seconds for one call of the API, its repetitions included; 0: no call is repeated.
        spread: an answer is kept until the next update and a random part of so many seconds longer, so that clients do
            not all ask in the same second. Twice the number of clients, divided by the rate of the route, is right;
            without it a tenth of a step.
        reports: for ``contribute``: ``kanon.reports.clients.devices.Windows`` with your origin.
        relay: the address of a relay, for joins and queries that hide your address from the service (Oblivious HTTP,
            the extra ``relay``; docs/guides/relay.md). ``KeysDifferError``: the service may single out this client.
        anonymous: ``kanon.client.anonymous.Anonymous``, a credential for types that need one (experimental). It takes
            the place of ``auth``.
        sleep: waits the given number of seconds.

    Every call raises an ``ApiError``: ``UnknownTypeError`` for a type that the service does not have,
    ``RefusedError`` for another error of the service, ``NoAnswerError`` without an answer, ``UnexpectedAnswerError``
    for an answer of another form.

    >>> with Client(service) as client:  # an address, such as "http://127.0.0.1:8000"
    ...     client.join("fledge", "a shared value", "client-1")
    ...     "a shared value" in client.is_shared("fledge", ["a shared value", "a rare one"])
    False
    """

    def __init__(
        self,
        service: str | Transport,
        *,
        auth: Auth | None = None,
        deadline: float | None = None,
        spread: float | None = None,
        reports: Windows | None = None,
        relay: str | None = None,
        anonymous: Anonymous | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not isinstance(service, str) and auth is not None:
            raise ValueError("a transport authenticates itself: give it the auth object")
        check_options(service, auth, reports, relay, anonymous)
        self._connection = _connection(service, relay, auth)
        self._transport = service
        usual = DEADLINE if isinstance(service, str) else 0.0
        self.hides = relay is not None or anonymous is not None
        """Whether its joins hide an address or a client. Then ``Background`` sends them at random times, one by one."""
        self._calls = Calls(usual if deadline is None else deadline, spread, reports, anonymous, relay is not None)
        self._sleep = sleep
        self.authenticated = auth is not None
        """Whether it may send batches everywhere."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()

    # Values

    def join(self, type_: str, value: Value, client: str | int | None = None, *, delay: float | None = None) -> None:
        """Join the set of a value as one client, or without one with the credential.

        Args:
            type_: the name of the type.
            value: names the set.
            client: an id of the client.
            delay: seconds to wait before it is sent; with 0, joins in a row show that they have one sender. Left out,
                it is a random part of a step through a relay and with a credential, otherwise 0. ``Background`` can
                wait in place of the program.
        """
        self._run(self._calls.join(type_, value, client, delay))

    def prepare(self, type_: str) -> None:
        """Ask for what a later ``join_prepared`` needs. Through a relay the service sees the address that asks."""
        self._run(self._calls.prepare(type_))

    def join_prepared(self, type_: str, value: Value, client: str | int | None = None) -> None:
        """Join now and once, without asking for anything else first: ``prepare`` was called at another time.

        Raises:
            KeyChangedError: prepare again.
        """
        self._run(self._calls.join_prepared(type_, value, client))

    def join_many(self, joins: Iterable[Join]) -> None:
        """Send joins, at most 500 per call. Most services ask who calls.

        Raises:
            PartlyRefusedError: some of them were refused; the others were accepted.
        """
        self._run(self._calls.join_many(joins))

    def is_shared(self, type_: str, values: Iterable[Value], *, private: Private = False) -> frozenset[Value]:
        """Those of the values that the crowd shares; 100 per call. Answers are kept until they may change.

        With ``private`` no value is sent: range files of the listed type are read, and looked into here. ``True``
        reads the files in which the values would be, so the service learns some bits of each; ``"all"`` reads all.
        """
        return self._run(self._calls.is_shared(type_, values, private))

    def released(self, type_: str) -> Released:
        """All values of a listed type that the crowd shares."""
        return self._run(self._calls.released(type_))

    def known(self, type_: str, value: Value) -> bool | None:
        """The kept answer of ``is_shared`` for one value; None if there is none that still holds. It asks nobody."""
        return self._calls.known(type_, value)

    def contribute(self, value: Value, amount: int) -> bool:
        """Add to the sum of a value, in an encrypted report.

        Returns:
            False if the budget of the window is used up: then the report has no contribution.
        """
        return self._run(self._calls.contribute(value, amount))

    def seal(self, value: Value, amount: int) -> tuple[Outgoing, bool]:
        """The encrypted report of ``contribute``, to be sent later, and whether it has the contribution."""
        return self._run(self._calls.seal(value, amount))

    def seal_with_join(self, type_: str, value: Value, amount: int, client: str | int) -> tuple[list[Outgoing], bool]:
        """The encrypted report of ``seal`` for a listed type, with the join of its value. Give both to ``send_due``.

        It asks for no answer about the value. Both are due after the end of the window, each after a delay of its own
        of up to a window. The first contribution to a value in a window joins; an empty report does not. ``Windows``
        needs a ``sparsity``, the most joins of a window.
        """
        return self._run(self._calls.seal_with_join(type_, value, amount, client))

    def send(self, report: Outgoing) -> None:
        """Send an encrypted report. Sent twice, it counts once."""
        self._run(self._calls.send(report))

    def send_due(self, pending: Iterable[Outgoing], now: int) -> list[Outgoing]:
        """Send the reports and joins that are due at ``now``, in milliseconds.

        Returns:
            Those to keep, unchanged: not due, or not accepted. Of joins only those that were refused with 429.
        """
        return self._run(self._calls.send_due(pending, now))

    def check_reports(self) -> None:
        """Check that it can encrypt reports.

        Raises:
            ValueError: it has no parameters for them.
            ImportError: a library is missing; the message names the extra.
        """
        self._calls.check_reports()

    # The calls of the API: ids of sets in base64url

    def batch_join(self, joins: Iterable[Join]) -> list[RefusedError | None]:
        """Send joins, at most 500 per call. Returns for each of them ``None`` if it was accepted, or its error."""
        return self._run(self._calls.batch_join(joins))

    def query(self, sets: Iterable[tuple[str, str]]) -> Answers:
        """Which of these sets, given as (type, set), are k-anonymous; 100 per call."""
        return self._run(self._calls.query("/v1:query", "setsForType", sets, HASHES_A_CALL))

    def batch_query(self, sets: Iterable[tuple[str, str]]) -> Answers:
        """The same query for callers with a signature or a token; 1,000 per call."""
        return self._run(self._calls.query("/v1:batchQuery", "setsForType", sets, HASHES_A_SIGNED_CALL))

    def validate_hashes(self, sets: Iterable[tuple[str, str]]) -> Answers:
        """The same query in the format of Bidding and Auction servers."""
        return self._run(self._calls.query("/v1:validateHashes", "sets", sets, HASHES_A_CALL))

    def status(self, type_: str, set_: str) -> Status:
        """Whether one set is k-anonymous."""
        return self._run(self._calls.status(type_, set_))

    def types(self) -> list[dict[str, Any]]:
        """The types and their guarantees; docs/reference/api.md lists the fields."""
        return self._run(self._calls.types())

    def type(self, name: str) -> dict[str, Any]:
        """One type."""
        return self._run(self._calls.type(name))

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Make any call of the API and return its JSON object. ``body`` is sent as JSON; ``None`` for no body."""
        return self._run(self._calls.call(method, path, body))

    def _run(self, steps: Steps[_T]) -> _T:
        try:
            attempt = next(steps)
            while True:
                try:
                    reply = self._try(attempt)
                except NoAnswerError as error:
                    attempt = steps.throw(error)
                else:
                    attempt = steps.send(reply)
        except StopIteration as done:
            result: _T = done.value
            return result

    def _try(self, attempt: Attempt) -> Reply:
        if attempt.after:
            self._sleep(attempt.after)
        asked = attempt.make()
        if self._connection is not None:
            return self._connection(*asked, asked.headers, attempt.within)
        assert not isinstance(self._transport, str)
        return self._transport(*asked, asked.headers)


def _connection(
    service: str | Transport, relay: str | None, auth: Auth | None
) -> Connection | RelayedConnection | None:
    """The connection to the service, which the client closes; None for another transport."""
    if not isinstance(service, str):
        return service if isinstance(service, Connection) else None
    if relay is None:
        return Connection(service, auth=auth)
    from kanon.client.relaying import RelayedConnection  # it needs an extra

    return RelayedConnection(service, relay, auth)
