"""Contributions leave encrypted, within their budget, and every attempt has the same bytes."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.client import (
    Background,
    Client,
    HttpAnswer,
    NoAnswerError,
    UnexpectedAnswerError,
    UnknownTypeError,
    bucket_of,
    value_id,
)
from kanon.reports.clients.devices import Windows
from kanon.reports.payload import decode, open_sealed, public_document
from tests.unit.reports import made

KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))
DOCUMENT = public_document({made.KEY_ID: KEY})
WINDOWS = Windows("https://shop.example", contribution_bound=100)


class Collector:
    """Publishes a key and keeps reports; the first attempts of each find nobody."""

    def __init__(self, failures: int = 0, document: str = DOCUMENT) -> None:
        self.failures, self.document, self.max_age = failures, document, 600
        self.attempts: list[bytes] = []
        self.refused: bytes | None = None
        self.keys = 0

    def __call__(self, method: str, path: str, body: bytes, headers: Any) -> HttpAnswer:
        if method == "GET":
            self.keys += 1
            return HttpAnswer(200, [("Cache-Control", f"public, max-age={self.max_age}")], self.document.encode())
        assert (method, path, headers) == ("POST", "/v1/reports", {"Content-Type": "application/json"})
        self.attempts.append(body)
        if len(self.attempts) <= self.failures:
            raise NoAnswerError("down")
        if body == self.refused:
            return HttpAnswer(400, [], b"{}")
        return HttpAnswer(200, [], b"{}")

    def opened(self) -> list[tuple[int, int]]:
        """The pairs of the last report that are not padding."""
        report = json.loads(self.attempts[-1])
        (payload,) = report["aggregation_service_payloads"]
        clear = decode(open_sealed(base64.b64decode(payload["payload"]), KEY, report["shared_info"]))
        return [(pair.bucket, pair.value) for pair in clear.contributions if pair.value]


def client_of(collector: Collector, **options: Any) -> Client:
    return Client(collector, reports=WINDOWS, sleep=lambda _: None, **options)


def test_a_contribution_arrives_encrypted_with_the_key_of_its_value() -> None:
    collector = Collector()
    assert client_of(collector).contribute("a value", 7) is True
    assert collector.opened() == [(bucket_of("a value"), 7)]
    info = json.loads(json.loads(collector.attempts[0])["shared_info"])
    assert (info["api"], info["reporting_origin"]) == ("kanon", "https://shop.example")


def test_every_attempt_sends_the_same_bytes_and_two_reports_have_two_ids() -> None:
    collector = Collector(failures=3)
    client = client_of(collector, deadline=1000.0)
    client.contribute("v", 1)
    assert len(collector.attempts) == 4
    assert len(set(collector.attempts)) == 1
    client.contribute("v", 1)
    ids = {json.loads(json.loads(body)["shared_info"])["report_id"] for body in collector.attempts}
    assert len(ids) == 2


def test_the_sender_repeats_the_same_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kanon.client.background.waiting.wait", lambda *_: 0.001)
    collector = Collector(failures=3)
    with Background(client_of(collector)) as background:
        assert background.contribute("v", 1)
        assert background.flush(10)
    assert (len(collector.attempts), len(set(collector.attempts))) == (4, 1)


def test_what_exceeds_the_budget_of_the_window_is_an_empty_report_of_the_same_length() -> None:
    collector = Collector()
    client = client_of(collector)
    client._calls.now = lambda: 1_800_000_000.0
    assert [client.contribute("v", amount) for amount in (60, 41, 40)] == [True, False, True]
    assert len({len(body) for body in collector.attempts}) == 1
    client.contribute("v", 1)
    assert collector.opened() == []
    client._calls.now = lambda: 1_800_000_600.0  # the next window
    assert client.contribute("v", 100) is True


def test_public_keys_are_kept_for_their_max_age_and_no_longer() -> None:
    collector = Collector()
    client, now = client_of(collector), [1_800_000_000.0]
    client._calls.now = lambda: now[0]
    for after, fetched in ((0, 1), (599, 1), (1, 2)):
        now[0] += after
        client.contribute("v", 1)
        assert collector.keys == fetched


def test_a_contribution_that_waits_for_keys_is_of_the_window_in_which_it_is_encrypted() -> None:
    collector = Collector()
    client, now = client_of(collector), 1_800_000_000.0
    client._calls.now = lambda: now
    waiting = client._calls.seal("v", 1)
    attempt = next(waiting)
    now += 600.0
    client.contribute("v", 1)
    with pytest.raises(StopIteration) as sealed:
        waiting.send(collector(*attempt.make(), {}))
    (report, fits) = sealed.value.value
    assert (report.scheduled, fits) == ((now + 600) * 1000, True)


@pytest.mark.parametrize("document", ["", "[]", '{"keys": []}', '{"keys": [{"id": "x", "key": ""}]}'])
def test_a_wrong_document_of_keys_is_unexpected(document: str) -> None:
    collector = Collector(document=document)
    with pytest.raises(UnexpectedAnswerError, match="public-keys"):
        client_of(collector).contribute("v", 1)
    assert collector.attempts == []


@pytest.mark.parametrize("amount", [-1, 2**32])
def test_an_amount_that_no_report_can_hold_is_refused(amount: int) -> None:
    with pytest.raises(ValueError, match="0 to 4294967295"):
        client_of(Collector()).contribute("v", amount)


def test_a_client_without_an_origin_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="give it reports=Windows"):
        Client(Collector()).contribute("v", 1)


def test_due_reports_are_sent_and_the_others_and_those_not_accepted_are_kept_unchanged() -> None:
    collector = Collector(failures=2)
    client = client_of(collector)
    reports = [client.seal(f"v{n}", 1)[0] for n in range(3)]
    due = reports[0].scheduled
    assert client.send_due(reports, due - 1) == reports
    assert collector.attempts == []
    assert client.send_due(reports, due) == reports  # without an answer the others are not tried
    assert collector.attempts == [reports[0].body]
    assert client.send_due(reports, due) == reports
    assert client.send_due(reports, due) == []
    assert collector.attempts[2:] == [report.body for report in reports]


def test_a_report_that_is_refused_does_not_keep_the_others_from_being_sent() -> None:
    collector = Collector()
    client = client_of(collector)
    first, second = (client.seal(value, 1)[0] for value in "ab")
    collector.refused = first.body
    assert client.send_due([first, second], second.scheduled) == [first]
    assert collector.attempts == [first.body, second.body]


# A listed type: the join goes along

FEW = Windows("https://shop.example", contribution_bound=100, sparsity=2)
NOW = 1_800_000_000
END, LENGTH = (NOW + 600) * 1000, 600_000


class Service(Collector):
    """A collector with a listed type, a type that is not listed, and joins that it may refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.joins: list[tuple[str, Any]] = []
        self.asked: list[str] = []
        self.answer_to_joins: HttpAnswer | None = HttpAnswer(200, [], b"{}")

    def __call__(self, method: str, path: str, body: bytes, headers: Any) -> HttpAnswer:
        self.asked.append(f"{method} {path}")
        if path == "/v1/types":
            types = [{"type": "terms", "period": 3600, "listed": True}, {"type": "ids", "period": 3600}]
            return HttpAnswer(200, [], json.dumps({"types": types}).encode())
        if not path.endswith(":join"):
            return super().__call__(method, path, body, headers)
        self.joins.append((path, json.loads(body)))
        if self.answer_to_joins is None:
            raise NoAnswerError("down")
        return self.answer_to_joins


def listed_client(
    service: Service, sleep: Callable[[Any], None] = lambda _: None, windows: Windows = FEW, **options: Any
) -> Client:
    client = Client(service, reports=windows, sleep=sleep, **options)
    client._calls.now = lambda: float(NOW)
    return client


def test_a_contribution_to_a_listed_type_joins_its_value_once_in_a_window_and_always_reports() -> None:
    service = Service()
    client = listed_client(service)
    made = [client.seal_with_join("terms", value, amount, "c") for value, amount in (("a", 40), ("a", 40), ("b", 40))]
    assert [(fits, [one.once for one in some]) for some, fits in made] == [
        (True, [False, True]), (True, [False]), (False, [False])
    ]  # fmt: skip
    pending = [one for some, _ in made for one in some]
    assert client.send_due(pending, END - 1) == pending
    assert service.joins == service.attempts == []
    assert client.send_due(pending, END + LENGTH) == []
    assert service.joins == [
        (f"/v1/types/terms/sets/{value_id('a')}:join", {"client": "c", "value": "a"}),
    ]
    assert len(service.attempts) == 3
    assert not [asked for asked in service.asked if "query" in asked or "released" in asked or "ranges" in asked]
    client._calls.now = lambda: NOW + 600.0  # the next window
    again, fits = client.seal_with_join("terms", "a", 40, "c")
    assert (fits, [one.once for one in again]) == (True, [False, True])


@pytest.mark.parametrize(("amount", "joins"), [(0, False), (101, False), (100, True)])
def test_an_empty_report_joins_nothing(amount: int, joins: bool) -> None:
    made, _ = listed_client(Service()).seal_with_join("terms", "a", amount, "c")
    assert [one.once for one in made] == [False, True][: 1 + joins]


def test_no_window_joins_more_than_its_limit() -> None:
    client = listed_client(Service())
    made = [client.seal_with_join("terms", f"v{n}", 1, "c")[0] for n in range(5)]
    assert sum(one.once for some in made for one in some) == 2
    assert sum(not one.once for some in made for one in some) == 5


def test_join_and_report_are_sent_after_independent_delays_behind_the_window() -> None:
    service = Service()
    pairs = [listed_client(service).seal_with_join("terms", "a", 1, "c")[0] for _ in range(200)]
    delays = [[one.scheduled - END for one in pair] for pair in pairs]
    assert all(0 <= delay < LENGTH for pair in delays for delay in pair)
    reports, joins = (sorted(pair[n] for pair in delays) for n in range(2))
    for of_one in (reports, joins):
        assert of_one[0] < LENGTH // 4 < of_one[100] < 3 * LENGTH // 4 < of_one[-1]
    earlier = sum(report < join for report, join in delays)
    assert 50 < earlier < 150
    assert service.attempts == []


def test_a_join_is_not_sent_again_and_its_report_is() -> None:
    service = Service()
    client, impatient = (listed_client(service, sleep, deadline=1000.0) for sleep in (lambda _: None, pytest.fail))
    pending = client.seal_with_join("terms", "a", 1, "c")[0]
    service.answer_to_joins = None
    service.failures = 1
    assert impatient.send_due(list(reversed(pending)), END + LENGTH) == pending[:1]  # nobody was there
    assert client.send_due(pending[:1], END + LENGTH) == []
    assert len(service.joins) == 1
    assert len(set(service.attempts)) == 1


@pytest.mark.parametrize(("status", "kept"), [(429, True), (503, False), (500, False), (400, False)])
def test_only_a_join_that_nobody_looked_at_is_kept(status: int, kept: bool) -> None:
    service = Service()
    client = listed_client(service, pytest.fail, deadline=1000.0)
    (_, join) = client.seal_with_join("terms", "a", 1, "c")[0]
    service.answer_to_joins = HttpAnswer(status, [], b"{}")
    assert client.send_due([join], END + LENGTH) == ([join] if kept else [])
    assert len(service.joins) == 1


def test_what_does_not_fit_a_listed_type_is_refused_before_anything_is_sent() -> None:
    service = Service()
    with pytest.raises(ValueError, match="has no limit of joins: give Windows"):
        listed_client(service, windows=WINDOWS).seal_with_join("terms", "a", 1, "c")
    with pytest.raises(ValueError, match="'ids' is not listed: use contribute"):
        listed_client(service).seal_with_join("ids", "a", 1, "c")
    with pytest.raises(ValueError, match="1 to 512 bytes"):
        listed_client(service).seal_with_join("terms", "a" * 513, 1, "c")
    with pytest.raises(UnknownTypeError):
        listed_client(service).seal_with_join("words", "a", 1, "c")
    assert service.joins == service.attempts == []
