"""Repetitions, deadlines and kept answers, through both clients, on answers made by hand. Time is a value."""

import asyncio
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx2
import pytest

from kanon.client import (
    ApiError,
    Client,
    HttpAnswer,
    Join,
    NoAnswerError,
    PartlyRefusedError,
    RefusedError,
    UnknownTypeError,
    asynchronous,
    calls,
    value_id,
)
from kanon.client.asynchronous import AsyncClient

TYPES = {"types": [{"type": "terms", "period": 3600}]}
BUSY = {"error": {"code": 503, "status": "UNAVAILABLE", "message": "later"}}
Told = tuple[int, dict[str, str], Any] | Exception


class World:
    """A clock, a service that gives prepared answers, and what it was asked when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        self.time, self.chance, self.answers = 0.0, 0.5, list[Told]()
        self.asked: list[tuple[float, str, bytes]] = []
        self.types: list[dict[str, Any]] = TYPES["types"]
        self._patch, self._kind = monkeypatch, kind

    def told(self, *answers: Told) -> None:
        self.answers += answers

    def client(self, **options: Any) -> Any:
        """The client as a function: name and arguments of a call to its result."""
        clients: dict[str, Callable[..., Any]] = {"sync": self._sync, "async": self._async}
        client = clients[self._kind](options)
        client._calls.clock, client._calls.random = lambda: self.time, lambda: self.chance
        client._calls.now = lambda: 1_800_000_000 + self.time

        def call(name: str, *arguments: Any, **named: Any) -> Any:
            result = getattr(client, name)(*arguments, **named)
            return asyncio.run(result) if inspect.isawaitable(result) else result

        return call

    def _sync(self, options: Any) -> Client:
        return Client(self._transport, sleep=self._wait, **{"deadline": 30.0, **options})

    def _async(self, options: Any) -> AsyncClient:
        async def sleep(seconds: float) -> None:
            self._wait(seconds)

        async def answer(request: httpx2.Request) -> httpx2.Response:
            try:
                told = self._transport(request.method, request.url.raw_path.decode(), request.content, {})
            except NoAnswerError as error:
                raise httpx2.ConnectError(str(error)) from error
            return httpx2.Response(told.status, headers=told.headers, content=told.body)

        self._patch.setattr(asynchronous.anyio, "sleep", sleep)
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        return AsyncClient("http://127.0.0.1", http=http, **options)

    def _wait(self, seconds: float) -> None:
        self.time += seconds

    def _transport(self, method: str, path: str, body: bytes, headers: Any) -> HttpAnswer:
        if path == "/v1/types":
            return HttpAnswer(200, [], json.dumps({"types": self.types}).encode())
        self.asked.append((self.time, f"{method} {path}", body))
        told = self.answers.pop(0)
        if isinstance(told, Exception):
            raise told
        return HttpAnswer(told[0], list(told[1].items()), json.dumps(told[2]).encode())

    @property
    def times(self) -> list[float]:
        return [time for time, _, _ in self.asked]


@pytest.fixture(params=["sync", "async"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, request.param)


def answer(values: Sequence[str] = (), max_age: int | None = 1800, **fields: Any) -> Told:
    hashes = [value_id(value) for value in values]
    body = {"kAnonymousSets": [{"type": "terms", "hashes": hashes}], "step": 7, "nextUpdate": "", **fields}
    return 200, {} if max_age is None else {"Cache-Control": f"max-age={max_age}"}, body


# Repetitions


def test_a_call_is_repeated_with_growing_jitter_and_the_same_bytes(world: World) -> None:
    world.told(NoAnswerError("down"), (500, {}, {}), (429, {}, {}), (200, {}, {}))
    world.client()("join", "terms", "v", "c")
    assert world.times == [0, 0.5, 1.5, 3.5]
    assert len({(call, body) for _, call, body in world.asked}) == 1


def test_jitter_is_full_and_comes_on_top_of_retry_after(world: World) -> None:
    world.told((503, {"Retry-After": "7"}, BUSY), (503, {"Retry-After": "7"}, BUSY), (200, {}, {}))
    client, world.chance = world.client(), 0.0
    client("join", "terms", "v", "c")
    assert world.times == [0, 7, 14]


@pytest.mark.parametrize(("told", "error"), [((503, {}, BUSY), RefusedError), (NoAnswerError("down"), NoAnswerError)])
def test_no_call_outlasts_its_deadline(world: World, told: Told, error: type[ApiError]) -> None:
    world.told(*[told] * 20)
    with pytest.raises(error):
        world.client(deadline=10.0)("join", "terms", "v", "c")
    assert world.times == [0, 0.5, 1.5, 3.5, 7.5]


def test_a_call_that_would_wait_beyond_its_deadline_ends_at_once(world: World) -> None:
    world.told((429, {"Retry-After": "60"}, {}))
    with pytest.raises(RefusedError, match="repeat the call after 60 s"):
        world.client(deadline=10.0)("join", "terms", "v", "c")
    assert world.time == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 415])
def test_a_refusal_is_not_repeated(world: World, status: int) -> None:
    world.told((status, {}, {}))
    with pytest.raises(RefusedError):
        world.client()("join", "terms", "v", "c")
    assert len(world.asked) == 1


def test_only_a_free_call_with_get_is_repeated(world: World) -> None:
    world.told((503, {}, BUSY))
    with pytest.raises(RefusedError):
        world.client()("call", "POST", "/v1alpha/createJob", {})
    world.told((503, {}, BUSY), (200, {}, {"a": 1}))
    assert world.client()("call", "GET", "/v1/budget") == {"a": 1}


def test_of_a_batch_only_joins_that_were_not_logged_are_repeated(world: World) -> None:
    bad = {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "client: too long"}}
    world.told((200, {"Retry-After": "1"}, {"results": [{}, BUSY, bad, BUSY]}), (200, {}, {"results": [{}, BUSY]}),
               (200, {}, {"results": [{}]}))  # fmt: skip
    with pytest.raises(PartlyRefusedError, match="1 of 4 joins were refused, first number 2") as found:
        world.client()("join_many", [Join("terms", f"v{n}", "c") for n in range(4)])
    assert found.value.refused.keys() == {2}
    sent = [[join["set"] for join in json.loads(body)["joins"]] for _, _, body in world.asked]
    assert sent == [[value_id(f"v{n}") for n in numbers] for numbers in ([0, 1, 2, 3], [1, 3], [3])]
    assert world.times == [0, 1.5, 2.5]


@pytest.mark.parametrize("later", [NoAnswerError("down"), (400, {}, {})])
def test_what_a_batch_has_logged_stays_so_if_the_rest_fails(world: World, later: Told) -> None:
    world.told((200, {}, {"results": [{}, BUSY]}), *[later] * 9)
    with pytest.raises(PartlyRefusedError, match=r"1 of 2 joins were refused, first number 1: .*503"):
        world.client()("join_many", [Join("terms", f"v{n}", "c") for n in range(2)])


def test_a_batch_ends_at_its_deadline_too(world: World) -> None:
    world.told(*[(200, {"Retry-After": "4"}, {"results": [BUSY]})] * 9)
    with pytest.raises(PartlyRefusedError):
        world.client(deadline=10.0)("join_many", [Join("terms", "v", "c")])
    assert world.times == [0, 4.5, 9.5]


# Kept answers


def test_an_answer_is_kept_until_the_next_update_and_a_part_of_the_spread(world: World) -> None:
    client = world.client()
    world.told(answer(["a"]), answer())
    assert client("is_shared", "terms", ["a", "b"]) == {"a"}
    world.time = 1800 + 0.5 * 360 - 0.001  # a tenth of a step of 3,600 s
    assert client("is_shared", "terms", ["b", "a", "a"]) == {"a"}
    assert client("known", "terms", "a") is True
    assert client("known", "terms", "b") is False
    assert client("known", "terms", "c") is None
    world.time += 0.001
    assert client("known", "terms", "a") is None
    assert client("is_shared", "terms", ["a"]) == frozenset()
    assert len(world.asked) == 2


def test_only_values_without_a_kept_answer_are_asked_100_a_call(world: World) -> None:
    client = world.client(spread=0.0)
    world.told(answer(), answer(), answer(["150"]))
    client("is_shared", "terms", ["0"])
    assert client("is_shared", "terms", map(str, range(151))) == {"150"}
    sizes = [len(json.loads(body)["setsForType"][0]["hashes"]) for _, _, body in world.asked]
    assert sizes == [1, 100, 50]


def test_the_age_of_an_answer_counts_and_without_max_age_nothing_is_kept(world: World) -> None:
    client = world.client(spread=0.0)
    _, headers, body = answer(["a"])  # type: ignore[misc]
    world.told((200, {**headers, "Age": "1700"}, body))
    client("is_shared", "terms", ["a"])
    world.time = 99.0
    assert client("known", "terms", "a") is True
    world.time = 100.0
    assert client("known", "terms", "a") is None
    world.told(answer(["a"], max_age=None))
    assert client("is_shared", "terms", ["a"]) == {"a"}
    assert client("known", "terms", "a") is None


def test_an_old_answer_never_stands_in_for_a_failed_call(world: World) -> None:
    client = world.client(spread=0.0, deadline=0.0)
    world.told(answer(["a"]), NoAnswerError("down"))
    client("is_shared", "terms", ["a"])
    world.time = 1800.0
    with pytest.raises(NoAnswerError):
        client("is_shared", "terms", ["a"])


def test_the_oldest_kept_answers_go_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_KEPT", 2)
    client = world.client()
    for value in "abc":
        world.told(answer([value]))
        client("is_shared", "terms", [value])
    assert [client("known", "terms", value) for value in "abc"] == [None, True, True]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("join", ("terms", "v", "c")),
        ("is_shared", ("terms", ["v"])),
        ("query", ([("terms", "AA")],)),
        ("batch_query", ([("terms", "AA")],)),
        ("status", ("terms", "AA")),
    ],
)
def test_a_404_is_an_unknown_type_if_the_service_lists_it_no_longer(
    world: World, call: str, arguments: tuple[Any, ...]
) -> None:
    client = world.client()
    for types, error in ((TYPES["types"], RefusedError), ([{"type": "term", "period": 60}], UnknownTypeError)):
        world.told((404, {}, {"error": {"code": 404, "status": "NOT_FOUND", "message": "no such type"}}))
        world.types = types
        with pytest.raises(error):
            client(call, *arguments)


def test_a_misspelt_private_is_refused_and_sends_nothing(world: World) -> None:
    with pytest.raises(ValueError, match="private is True, False or"):
        world.client()("is_shared", "terms", ["a"], private="ALL")
    assert world.asked == []


@pytest.mark.parametrize("options", [{"deadline": -1.0}, {"spread": -0.1}, {"deadline": float("nan")}])
def test_seconds_below_zero_are_refused(world: World, options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give 0 or more"):
        world.client(**options)


def test_both_clients_have_the_same_calls() -> None:
    def names(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}

    assert names(Client) - names(AsyncClient) == {"check_reports", "validate_hashes"}
    assert names(AsyncClient) <= names(Client)
    for name in names(AsyncClient) - {"close"}:
        ours, theirs = inspect.signature(getattr(Client, name)), inspect.signature(getattr(AsyncClient, name))
        assert ours == theirs, name
