"""The Python clients through a relay: what the relay and the service see, and when a client stops."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import product
from typing import Any

import pytest

from kanon.client import (
    Background,
    Bearer,
    Client,
    Join,
    KeyChangedError,
    KeysDifferError,
    NoAnswerError,
    PartlyRefusedError,
    RefusedError,
    SetId,
    UnexpectedAnswerError,
    UnknownTypeError,
)
from kanon.client.asynchronous import AsyncClient
from kanon.client.relaying import KEPT, RelayedConnection, Relaying
from kanon.client.waiting import join_step
from kanon.clock import WEEK
from kanon.gateway.epochs import Epochs
from kanon.keys import Secret
from kanon.reports.clients.devices import Windows
from tests.integration.gateway.relayed import Relay, answer
from tests.integration.serving.machine import PERIOD, Machine
from tests.paths import ROOT

SET = SetId("aGVsbG8")
MOST_WORDS = 600


@pytest.fixture
def relay(served: Machine) -> Iterator[Relay]:
    with closing(Relay(served.server.url)) as made:
        yield made


def _at(relaying: Relaying, served: Machine) -> None:
    relaying.now = lambda: served.now


@contextmanager
def client_of(served: Machine, relay: Relay, **how: Any) -> Iterator[Client]:
    auth = how.pop("auth", Bearer(served.key))
    with Client(served.server.url, relay=relay.url, auth=auth, sleep=lambda _: None, **how) as client:
        _at(client._connection._relaying, served)  # type: ignore[union-attr]
        yield client


def _joins(served: Machine) -> int:
    return served.directory.log.count(int(served.now // PERIOD))


def test_every_call_goes_through_the_relay(served: Machine, relay: Relay) -> None:
    with client_of(served, relay) as client:
        for number in range(200):
            client.join("fledge", SET, f"client-{number}")
        client.join_many([Join("fledge", f"value {number}", "me") for number in range(3)])
        assert _joins(served) == 203
        served.evaluate()
        assert client.is_shared("fledge", [SET, "rare"]) == {SET}
        assert client.status("fledge", SET).k_anonymous
        assert client.query([("fledge", SET)]).k_anonymous == {("fledge", SET)}
        assert client.batch_query([("fledge", SET)]).k_anonymous == {("fledge", SET)}
        assert client.validate_hashes([("fledge", SET)]).k_anonymous == {("fledge", SET)}
        assert client.type("fledge") == client.types()[0]
    assert relay.paths[0] == "/v1/proxy/keys"
    assert set(relay.paths[1:]) == {"/v1/gateway"}


def test_the_relay_sees_no_set_and_all_joins_and_queries_have_one_length(served: Machine, relay: Relay) -> None:
    with client_of(served, relay) as client:
        client.join("fledge", SET, "me")
        client.join("fledge", "a longer value", "somebody else")
        client.is_shared("fledge", ["a longer value"])
    bodies = [body for _, path, body in relay.seen if path == "/v1/gateway"]
    assert len({len(body) for body in bodies}) == 1
    assert len(set(bodies)) == len(bodies) > 3
    for secret in (b"fledge", SET.encode(), b"hello", served.key.encode(), b"kanon-step"):
        assert not any(secret in body for body in bodies)


def test_the_service_itself_is_asked_for_its_key_alone(
    served: Machine, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(served, relay) as client:
        direct: list[tuple[str, ...]] = []
        inside = client._connection._service  # type: ignore[union-attr]
        monkeypatch.setattr(
            client._connection, "_service", lambda *asked: (direct.append(asked[:2]), inside(*asked))[1]
        )
        client.join("fledge", SET, "me")
        client.types()
        assert direct == [("GET", "/v1/proxy/keys")]
        monkeypatch.undo()


def test_two_keys_stop_the_client_before_it_sends_anything(served: Machine, relay: Relay) -> None:
    other = Epochs(Secret.derived("gateway", "of one client")).current(served.now).encode()
    with client_of(served, relay) as client:
        for _ in range(2):
            relay.answers = [answer(200, other, "application/ohttp-keys")]
            with pytest.raises(KeysDifferError, match="nothing was sent"):
                client.join("fledge", SET, "me")
        assert set(relay.paths) == {"/v1/proxy/keys"}
        client.join("fledge", SET, "me")
        assert _joins(served) == 1


def test_a_key_that_is_no_key_stops_the_client(served: Machine, relay: Relay) -> None:
    with client_of(served, relay) as client:
        client._connection._service = client._connection._relay  # type: ignore[union-attr]
        relay.answers = [answer(200, b"a key"), answer(200, b"a key")]
        with pytest.raises(UnexpectedAnswerError, match="41 bytes"):
            client.types()


def test_a_new_key_is_fetched_when_the_old_one_does_not_open_any_more(served: Machine, relay: Relay) -> None:
    with client_of(served, relay) as client:
        client.types()
        served.now += 2 * WEEK
        client.types()
    assert relay.paths == [*["/v1/proxy/keys", "/v1/gateway"], *["/v1/gateway", "/v1/proxy/keys", "/v1/gateway"]]


def test_a_join_whose_key_has_changed_fails_and_shows_no_address(served: Machine, relay: Relay) -> None:
    """A service could refuse the join that interests it, to see who asks for the new key."""
    with client_of(served, relay) as client:
        client.join("fledge", SET, "me")
        before, served.now = len(relay.seen), served.now + 2 * WEEK
        with pytest.raises(KeyChangedError, match="join again"):
            client.join("fledge", SET, "me")
        with pytest.raises(KeyChangedError):
            client.join_prepared("fledge", SET, "another that waited")
        assert relay.paths[before:] == ["/v1/gateway"] * 2
        waited: list[tuple[float, int]] = []
        client._sleep = lambda seconds: waited.append((seconds, len(relay.seen)))
        client.join("fledge", SET, "me")
        assert relay.paths[before + 2 :] == ["/v1/proxy/keys", "/v1/gateway"]
        assert [seen for _, seen in waited] == [before + 3]
    assert _joins(served) == 1


def test_the_service_sees_an_address_before_the_wait_and_never_beside_a_join(served: Machine, relay: Relay) -> None:
    told, clock = list[str](), 0.0

    def sleep(_seconds: float) -> None:
        nonlocal clock
        clock += KEPT
        told.append("wait")

    with client_of(served, relay) as client:
        connection = client._connection
        assert isinstance(connection, RelayedConnection)
        inside = connection._service
        connection._service = lambda *asked: (told.append("address"), inside(*asked))[1]  # type: ignore[assignment]
        client._sleep, connection._relaying.clock = sleep, lambda: clock
        for number in range(3):
            client.join("fledge", SET, f"client-{number}")
            assert told == ["address", "wait"]
            told.clear()
        with Background(client, spread=0.01) as background:
            background.join("fledge", SET, "me")
            assert background.flush(30)
        assert told == ["address"]
        connection._service = inside
    assert _joins(served) == 4


def test_a_busy_relay_is_asked_again_and_one_that_refuses_is_not(served: Machine, relay: Relay) -> None:
    with client_of(served, relay) as client:
        relay.answers = [answer(503), None, answer(429), answer(502)]
        client.join("fledge", SET, "me")
        assert _joins(served) == 1
        asked = len(relay.seen)
        for status in (403, 404, 413):
            relay.answers = [answer(status)]
            with pytest.raises(RefusedError, match=f"POST /v1/gateway: {status}: the relay, or the service"):
                client.join("fledge", SET, "me")
            asked += 1
            assert len(relay.seen) == asked
        relay.answers = [answer(400), answer(404)]
        with pytest.raises(RefusedError, match=r"GET /v1/proxy/keys: 404: .* ask who runs it"):
            client.types()
        relay.answers = [None, answer(400), None, answer(400)]
        with pytest.raises(RefusedError, match="POST /v1/gateway: 400: the relay, or the service"):
            client.types()


@pytest.mark.parametrize("body", [b"", b"x" * 500])
def test_a_relay_that_changes_bytes_is_noticed(served: Machine, relay: Relay, body: bytes) -> None:
    with client_of(served, relay) as client:
        client.types()
        relay.answers = [answer(200, body, "message/ohttp-res")]
        with pytest.raises(UnexpectedAnswerError, match="changes no bytes"):
            client.types()


def test_errors_of_the_service_are_those_without_a_relay(served: Machine, relay: Relay) -> None:
    with client_of(served, relay) as client:
        with pytest.raises(UnknownTypeError, match="did you mean 'fledge'"):
            client.join("flegde", SET, "me")
        with pytest.raises(PartlyRefusedError, match="1 of 2 joins"):
            client.join_many([Join("fledge", SET, "me"), Join("fledge", SET, "")])
    with client_of(served, relay, auth=None) as client, pytest.raises(RefusedError, match="401 UNAUTHENTICATED"):
        client.join("fledge", SET, "me")


def test_no_answer_is_told_with_the_address_of_who_gave_none(served: Machine, relay: Relay) -> None:
    relay.close()
    with client_of(served, relay, deadline=0) as client, pytest.raises(NoAnswerError, match=relay.url):
        client.types()


@pytest.mark.parametrize("period", [60, 300, 3600, 86_400])
def test_clocks_may_differ_by_a_minute(period: int) -> None:
    """In the rule of ``Gateway``, for steps of a minute by half a minute."""
    most = min(60, period // 2)
    for now in range(10 * period - 200, 10 * period + 200):
        for skew in (-most, -1, 0, 1, most):
            behind = now // period - join_step(now + skew, period)
            assert behind == 0 or (behind == 1 and now % period < 120)


def test_a_relay_takes_an_address_and_no_reports(served: Machine) -> None:
    with pytest.raises(ValueError, match="address of the service, not a transport"):
        Client(lambda *_: None, relay="http://127.0.0.1:1")  # type: ignore[arg-type,return-value]
    windows = Windows("https://a.example")
    with pytest.raises(ValueError, match="reports go through no relay"):
        Client(served.server.url, relay="http://127.0.0.1:1", reports=windows)
    with pytest.raises(ValueError, match="reports go through no relay"):
        AsyncClient(served.server.url, relay="http://127.0.0.1:1", reports=windows)
    for kind, relay in product((Client, AsyncClient), ("", "relay.example")):
        with pytest.raises(ValueError, match="is not an address"):
            kind(served.server.url, relay=relay)


def test_each_join_waits_for_a_random_part_of_a_step(served: Machine, relay: Relay) -> None:
    """A burst would link the sets of a client. It names the step in which it is sent."""
    draws, waited = iter([0.25, 0.99, 0.5, 0.0]), list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        served.now += seconds

    with client_of(served, relay) as client:
        client._sleep, client._calls.random = sleep, lambda: next(draws)
        for number in range(3):
            client.join("fledge", SET, f"client-{number}")
        assert waited == [0.25 * PERIOD, 0.99 * PERIOD, 0.5 * PERIOD]
        assert _joins(served) == 2  # one of them a step later
        client.join("fledge", SET, "another", delay=0)
        client.is_shared("fledge", [SET])
        assert len(waited) == 3
        with pytest.raises(ValueError, match="delay is a number of seconds"):
            client.join("fledge", SET, "another", delay=-1)
    with Client(served.server.url, auth=Bearer(served.key), sleep=sleep) as client:
        client.join("fledge", SET, "without a relay")
        client.join("fledge", SET, "later", delay=7)
    assert waited[3:] == [7]


def test_a_join_in_the_background_whose_key_has_changed_is_sent_at_another_time(served: Machine, relay: Relay) -> None:
    with client_of(served, relay, deadline=0) as client, Background(client, spread=0.01) as background:
        relay.answers = [None, None, answer(400)]  # key, types, join
        background.join("fledge", SET, "me")
        assert background.flush(30)
    assert not background.dropped
    assert relay.paths[2:] == ["/v1/gateway", "/v1/proxy/keys", "/v1/gateway"]
    assert _joins(served) == 1


def test_a_join_that_has_waited_is_still_repeated(served: Machine, relay: Relay) -> None:
    with client_of(served, relay) as client:
        client.join("fledge", SET, "another", delay=0)
        client._calls.clock = client._calls.now = lambda: served.now
        client._sleep = lambda seconds: setattr(served, "now", served.now + seconds)
        client._calls.random = lambda: 0.5
        relay.answers = [answer(503)]
        client.join("fledge", SET, "me")
        assert not relay.answers
    assert _joins(served) == 1  # a step later


def test_after_a_failure_a_join_waits_at_random_whatever_the_service_says(served: Machine, relay: Relay) -> None:
    """After an outage those that wait would come at once; and a service could name one time for all of them."""
    busy = answer(503) | {"headers": {"Retry-After": "7"}}
    with client_of(served, relay) as client:
        client.join("fledge", SET, "another", delay=0)
        waited: list[float] = []
        client._sleep = waited.append
        draws = iter([0.25, 0.0, 0.5, 0.0, 0.0, 0.75, 0.0])  # between them those of shorter waits
        client._calls.random, client._calls.clock = lambda: next(draws), lambda: sum(waited)
        relay.answers = [busy, busy]
        client.join("fledge", SET, "me")
        assert waited == [0.25 * PERIOD, 0.5 * PERIOD, 0.75 * PERIOD]
        client._calls.random, client._calls.clock = lambda: 0.5, lambda: served.now
        client._sleep = lambda seconds: setattr(served, "now", served.now + seconds)
        relay.answers, began = [busy] * 100, served.now
        with pytest.raises(RefusedError, match="503"):
            client.join("fledge", SET, "me")
        assert served.now - began <= 2 * PERIOD
        relay.answers = []
    with client_of(served, relay, deadline=0) as client:
        client.join("fledge", SET, "another", delay=0)
        relay.answers = [busy]
        with pytest.raises(RefusedError, match="503"):
            client.join("fledge", SET, "me")


def test_nobody_can_tell_when_a_client_joins_next(
    served: Machine, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random._urandom", lambda number: b"\xff" * number)  # what the system gives
    with client_of(served, relay) as client:
        assert client._calls.random() == 1 - 2**-53


def test_the_async_client_does_the_same(served: Machine, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def run() -> None:
        async with AsyncClient(served.server.url, relay=f"{relay.url}/", auth=Bearer(served.key)) as client:
            _at(client._relaying, served)  # type: ignore[arg-type]
            client._calls.random = lambda: 0.25
            monkeypatch.setattr("kanon.client.asynchronous.anyio.sleep", sleep)
            await client.join("fledge", SET, "me")
            await client.join("fledge", SET, "me", delay=0)
            assert waited == [0.25 * PERIOD]
            assert await client.is_shared("fledge", [SET]) == frozenset()
            relay.answers = [answer(403), answer(400), answer(200, b"another key")]
            with pytest.raises(RefusedError, match="403"):
                await client.types()
            with pytest.raises(KeysDifferError):
                await client.types()

    asyncio.run(run())
    assert _joins(served) == 1
    assert set(relay.paths) == {"/v1/proxy/keys", "/v1/gateway"}


def test_the_guide_is_short() -> None:
    assert len((ROOT / "docs/guides/relay.md").read_text().split()) <= MOST_WORDS


@pytest.mark.parametrize("kind", ["tasks", "threads"])
def test_joins_that_need_a_key_at_one_time_ask_for_it_once(served: Machine, relay: Relay, kind: str) -> None:
    async def run() -> None:
        async with AsyncClient(served.server.url, relay=relay.url, auth=Bearer(served.key)) as client:
            _at(client._relaying, served)  # type: ignore[arg-type]
            await asyncio.gather(*(client.join("fledge", f"value {n}", "me", delay=0.01) for n in range(5)))

    if kind == "tasks":
        asyncio.run(run())
    else:
        with client_of(served, relay) as client, ThreadPoolExecutor(5) as pool:
            list(pool.map(lambda n: client.join("fledge", f"value {n}", "me", delay=0.01), range(5)))
    assert _joins(served) == 5
    assert relay.paths.count("/v1/proxy/keys") == 1
