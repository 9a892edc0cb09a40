"""The sender in a thread of its own: bounded, never waiting, ending with the program and with a fork."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import pytest

from kanon.client import Background, Bearer, Client, HttpAnswer, Join, NoAnswerError, value_id
from kanon.client.background import LATE, STEP, _Item
from kanon.client.errors import ApiError
from tests.paths import ROOT

TYPES = {"types": [{"type": "terms", "period": 3600}, {"type": "words", "period": 3600, "listed": True}]}


class Service:
    """Accepts joins in memory; ``gate`` holds every request back while it is clear."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.status, self.failures = 200, 0
        self.asked: list[tuple[str, Any]] = []

    def __call__(self, method: str, path: str, body: bytes, headers: Any) -> HttpAnswer:
        assert self.gate.wait(30)
        if path == "/v1/types":
            return HttpAnswer(200, [], json.dumps(TYPES).encode())
        if self.failures:
            self.failures -= 1
            raise NoAnswerError("down")
        asked = json.loads(body)
        self.asked.append((path, asked))
        answer: Any = {}
        if path == "/v1:batchJoin":
            answer = {"results": [{} for _ in asked["joins"]]}
        if path == "/v1:query":
            answer = {"kAnonymousSets": asked["setsForType"], "step": 1, "nextUpdate": ""}
        return HttpAnswer(self.status, [("Cache-Control", "max-age=600")], json.dumps(answer).encode())

    @property
    def joined(self) -> set[str]:
        return {path.split("/")[-1].partition(":")[0] for path, _ in self.asked if path.endswith(":join")}


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kanon.client.background.waiting.wait", lambda *_: 0.001)


def client_of(service: Service, *, authenticated: bool = False, hides: bool = False) -> Client:
    client = Client(service)
    client.authenticated, client.hides = authenticated, hides
    return client


def test_joins_are_sent_one_by_one_or_in_batches_with_auth(service: Service) -> None:
    with Background(client_of(service)) as background:
        assert [background.join("terms", f"v{n}", "c") for n in range(5)] == [True] * 5
    assert service.joined == {value_id(f"v{n}") for n in range(5)}
    service.gate.clear()
    with Background(client_of(service, authenticated=True)) as background:
        for n in range(700):
            background.join("terms", f"v{n}", "c")
        service.gate.set()
    sizes = [len(asked["joins"]) for path, asked in service.asked if path == "/v1:batchJoin"]
    assert sum(sizes) == 700
    assert len(sizes) <= 3
    assert background.dropped.total() == 0


@pytest.mark.parametrize("authenticated", [False, True])
def test_a_join_of_a_listed_type_sends_its_value(service: Service, *, authenticated: bool) -> None:
    with Background(client_of(service, authenticated=authenticated)) as background:
        background.join("words", "v", "c")
    ((_, asked),) = service.asked
    assert (asked["joins"][0] if authenticated else asked)["value"] == "v"


def test_no_caller_waits_and_a_full_queue_drops_with_a_word(service: Service) -> None:
    told: list[tuple[str, int]] = []
    service.gate.clear()
    background = Background(client_of(service), capacity=100, dropped=lambda *drop: told.append(drop))
    began = time.monotonic()
    taken = [background.join("terms", f"v{n}", "c") for n in range(1000)]
    assert time.monotonic() - began < 5  # the service answers nothing
    assert taken == [True] * 100 + [False] * 900
    service.gate.set()
    background.close()
    assert (background.dropped, sum(count for _, count in told)) == ({"full": 900}, 900)
    assert len(service.joined) == 100
    assert background.join("terms", "late", "c") is False
    assert background.dropped == {"full": 900, "closed": 1}


def test_what_fails_is_sent_again_and_dropped_when_it_is_late(service: Service) -> None:
    service.failures = 3
    with Background(client_of(service)) as background:
        background.join("terms", "v", "c")
        assert background.flush(10)
    assert service.joined == {value_id("v")}
    service.failures = 10**9
    background = Background(client_of(service), keep=0.05)
    background.join("terms", "v", "c")
    assert background.flush(10)
    assert background.dropped == {"late": 1}
    background.close()


def test_after_two_failures_in_a_row_the_others_wait_too(service: Service) -> None:
    """Each attempt may last until its deadline, and ``Retry-After`` is for all of them."""
    background = Background(client_of(service))
    items = [_Item(0.0, 0.0, join=Join("terms", f"v{n}", "c")) for n in range(9)]
    service.failures = 100
    assert background._send(items).items == items
    assert service.failures == 98
    service.failures = 1
    assert background._send(items).items == items[:1]
    assert len(service.joined) == 8


def test_refusals_and_unknown_types_are_reported_and_the_thread_goes_on(service: Service) -> None:
    told: list[str] = []

    def report(reason: str, _: int) -> None:
        told.append(reason)
        raise RuntimeError("of the callback")

    background = Background(client_of(service), dropped=report)
    service.status = 400
    background.join("terms", "v", "c")
    background.flush(10)
    service.status = 200
    background.join("termz", "v", "c")
    background.flush(10)
    background.join("terms", "good", "c")
    background.close()
    assert told == ["refused", "unknown type"]
    assert value_id("good") in service.joined


def test_an_auth_function_that_raises_loses_one_item_and_not_the_thread(service: Service) -> None:
    def raising(*arguments: Any) -> HttpAnswer:
        if background.dropped.total() < 1:
            raise KeyError("token")
        return service(*arguments)

    background = Background(Client(raising))
    background.join("terms", "v", "c")
    background.flush(10)
    background.join("terms", "w", "c")
    background.close()
    assert background.dropped == {"failed": 1}
    assert service.joined == {value_id("w")}


def test_a_question_is_asked_once_and_its_answer_is_kept(service: Service) -> None:
    client = client_of(service)
    service.gate.clear()
    with Background(client, capacity=2) as background:
        for _ in range(50):
            assert background.ask("terms", "a")
        assert background.ask("terms", "b")
        assert client.known("terms", "a") is None
        service.gate.set()
        assert background.flush(10)
        assert client.known("terms", "a") is True
    hashes = [hash_ for _, asked in service.asked for entry in asked["setsForType"] for hash_ in entry["hashes"]]
    assert sorted(hashes) == sorted([value_id("a"), value_id("b")])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda background: background.join("terms", "\ud800", "c"), "surrogate"),
        (lambda background: background.contribute("v", -1), "0 to 4294967295"),
        (lambda background: background.contribute("v", 1), "sends no reports"),
    ],
)
def test_what_can_never_be_sent_is_refused_at_once(
    service: Service, call: Callable[[Background], Any], message: str
) -> None:
    with Background(client_of(service)) as background, pytest.raises(ValueError, match=message):
        call(background)


def test_what_is_no_value_is_refused_at_once_and_never_shown(service: Service) -> None:
    no_value: Any = 5
    with Background(client_of(service)) as background:
        assert [background.shown("terms", text) for text in (no_value, "\ud800")] == ["other", "other"]
        with pytest.raises(TypeError, match="a value is text or bytes, not int"):
            background.join("terms", no_value, "c")
    assert service.asked == []


@pytest.mark.parametrize("options", [{"capacity": 0}, {"keep": -1.0}, {"at_exit": float("nan")}, {"spread": -1.0}])
def test_options_that_make_no_sense_are_refused(service: Service, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1; keep, at_exit and spread are seconds"):
        Background(client_of(service), **options)


def test_closing_ends_in_time_and_counts_what_it_lost(service: Service) -> None:
    service.failures = 10**9
    background = Background(client_of(service))
    for n in range(10):
        background.join("terms", f"v{n}", "c")
    began = time.monotonic()
    background.close(0.2)
    assert time.monotonic() - began < 5
    assert background.dropped == {"exit": 10}


PROGRAM = """
import json, os, sys
from kanon.client import Background, Client, HttpAnswer

def service(method, path, body, headers):
    if path == "/v1/types":
        return HttpAnswer(200, [], json.dumps({"types": [{"type": "terms", "period": 60}]}).encode())
    os.write(1, f"{who} {json.loads(body)['client']}\\n".encode())
    return HttpAnswer(200, [], b"{}")

who = "parent"
background = Background(Client(service))
background.join("terms", "v", "before")
if os.fork() == 0:
    who = "child"
    background.join("terms", "v", "in the child")
    sys.exit()
os.wait()
background.join("terms", "v", "after")
"""


def test_the_queue_is_sent_at_the_end_of_the_program_and_of_a_forked_one() -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "shared")}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == ["child in the child", "parent after", "parent before"]


def test_drops_are_told_at_once_then_at_most_once_a_minute_and_at_the_end(service: Service) -> None:
    told: list[tuple[str, int]] = []
    background = Background(client_of(service), dropped=lambda *drop: told.append(drop))
    for _ in range(5):
        background.join("termz", "v", "c")
        background.flush(10)
    background.ask("termz", "w")
    background.flush(10)
    assert (told, background.dropped) == ([("unknown type", 1)], {"unknown type": 6})
    background.close()
    assert told == [("unknown type", 1), ("unknown type", 5)]


def test_what_is_dropped_meanwhile_is_told_without_another_call(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kanon.client.background.TOLD_EVERY", 0.05)
    told: list[int] = []
    second = threading.Event()

    def report(_: str, count: int) -> None:
        told.append(count)
        if sum(told) == 3:
            second.set()

    background = Background(client_of(service), dropped=report)
    for _ in range(3):
        background.join("termz", "v", "c")
        background.flush(10)
    assert second.wait(10)
    background.close()
    assert sum(told) == 3


def test_a_failed_sender_names_no_value_in_the_log(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    service.status = 400
    with Background(client_of(service)) as background:
        background.join("terms", "v", "client-1")
        background.flush(10)
    assert caplog.messages == ["1 dropped: refused"]


def test_auth_objects_hide_their_secret() -> None:
    bearer = Bearer("secret")
    assert "secret" not in repr(bearer)
    assert bearer("GET", "u", b"", {"A": "b"}) == {"A": "b", "Authorization": "Bearer secret"}
    tokens = iter(["one", "two"])
    renewed = Bearer(lambda: next(tokens))
    assert [renewed("GET", "u", b"", {})["Authorization"] for _ in range(2)] == ["Bearer one", "Bearer two"]
    with pytest.raises(ValueError, match="authenticates itself"):
        Client(Service(), auth=bearer)
    assert issubclass(NoAnswerError, ApiError)


def test_through_a_relay_each_join_is_sent_by_itself_at_its_own_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(service, authenticated=True, hides=True)
    client._sleep = lambda seconds: pytest.fail(f"it waited {seconds} s more")
    moments = iter([0.0, 0.9, 0.0, 0.5])
    monkeypatch.setattr("kanon.client.background.waiting.chance", lambda: next(moments))
    told: list[tuple[str, int]] = []
    background = Background(client, dropped=lambda *what: told.append(what))
    for value in ("now", "in 54 minutes", "also now", "in half an hour"):
        background.join("terms", value, "c")
    background.close()
    assert [path for path, _ in service.asked] == [
        f"/v1/types/terms/sets/{value_id(value)}:join" for value in ("now", "also now")
    ]
    assert told == [("exit", 2)]


def test_a_join_that_could_not_be_sent_gets_another_time(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage all that wait would be sent at once."""
    moments = chain([0.0, 0.0, 0.9], repeat(0.0))  # when two joins are sent, and the first one again
    monkeypatch.setattr("kanon.client.background.waiting.chance", lambda: next(moments))
    told: list[tuple[str, int]] = []
    background = Background(client_of(service, hides=True), dropped=lambda *what: told.append(what))
    service.gate.clear()
    service.failures = 1
    for value in ("fails", "is sent"):
        background.join("terms", value, "c")
    service.gate.set()
    background.close()
    assert service.joined == {value_id("is sent")}
    assert told == [("exit", 1)]


def test_a_join_that_missed_its_time_gets_another_one(service: Service) -> None:
    background, now = Background(client_of(service), spread=60), time.monotonic()
    missed = _Item(now, now - LATE - 1, join=Join("terms", "v", "c"))
    waiting = _Item(now, now - LATE - 1, waits=True, join=Join("terms", "v", "c"))
    background._items += [missed, waiting]
    old = _Item(now - STEP, now - LATE - 1, join=Join("terms", "v", "c"))
    background._items.append(old)
    assert background._due() == [missed, waiting, old]  # for `close`, which waits for what is being sent
    background._draw_again()
    assert background._due() == [waiting]
    assert old not in background._items
    assert background.dropped == {"late": 1}
    assert now <= missed.due <= time.monotonic() + 60
    background._items.clear()


def test_the_thread_does_not_send_what_missed_its_time(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kanon.client.background.waiting.chance", lambda: 0.9)
    background, now = Background(client_of(service), spread=60), time.monotonic()
    background._items.append(_Item(now, now - LATE - 1, join=Join("terms", "v", "c")))
    background.ask("terms", "v")
    background.close()
    assert not service.joined
    assert background.dropped == {"exit": 1}


def test_a_hidden_client_joins_one_by_one_also_at_once(service: Service) -> None:
    service.gate.clear()
    background = Background(client_of(service, authenticated=True, hides=True), spread=0)
    for number in range(3):
        background.join("terms", f"v{number}", "c")
    service.gate.set()
    background.close()
    assert len(service.joined) == 3


def test_one_join_without_a_client_is_refused_and_takes_no_other_one_along(service: Service) -> None:
    with Background(client_of(service, authenticated=True)) as background:
        background.join("terms", "one", "c")
        with pytest.raises(ValueError, match="give a client"):
            background.join("terms", "two")
    assert not background.dropped


def test_a_hidden_client_asks_about_one_value_a_query(service: Service) -> None:
    service.gate.clear()
    background = Background(client_of(service, hides=True))
    for value in ("one", "two", "three"):
        background.ask("terms", value)
    service.gate.set()
    background.close()
    assert [len(asked["setsForType"][0]["hashes"]) for _, asked in service.asked] == [1, 1, 1]


def test_a_join_whose_time_comes_is_sent_without_another_call(service: Service) -> None:
    background = Background(client_of(service), spread=0.02)
    for number in range(5):
        background.join("terms", f"v{number}", "c")
    assert background.flush(30)
    assert len(service.joined) == 5
    background.close()
