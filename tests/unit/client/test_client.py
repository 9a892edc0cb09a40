"""The HTTP client, on answers made by hand and on the local stack."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kanon.client import (
    Answers,
    Client,
    Headers,
    HttpAnswer,
    Join,
    PartlyRefusedError,
    RefusedError,
    SetId,
    Status,
    UnexpectedAnswerError,
    UnknownTypeError,
    encoded,
)
from kanon.http.bodies import MOST_BODY_BYTES
from kanon.local import Stack

SETS = [encoded(bytes([n])) for n in range(3)]
BUSY = {"error": {"code": 503, "status": "UNAVAILABLE", "message": "the service cannot do this now"}}
BAD = {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "set: must be base64"}}


TYPES = {"types": [{"type": name, "period": 3600} for name in ("a", "b", "fledge")]}
A = SetId("AA")


class Service:
    """Answers by a function of the request's body, and keeps what was sent. It has some types."""

    def __init__(self, answer: Callable[[Any], Any], status: int = 200, headers: Headers | None = None) -> None:
        self.answer, self.status, self.headers = answer, status, headers or {}
        self.types: Any = TYPES
        self.sent: list[tuple[str, str, Any, Headers]] = []

    def __call__(self, method: str, path: str, body: bytes, headers: Headers) -> HttpAnswer:
        asked = json.loads(body) if body else None
        self.sent.append((method, path, asked, headers))
        if path == "/v1/types":
            self.sent.pop()
            return HttpAnswer(200, [], json.dumps(self.types).encode())
        told = self.answer(asked)
        content = told if isinstance(told, bytes) else json.dumps(told).encode()
        return HttpAnswer(self.status, list(self.headers.items()), content)


# What is sent


def test_a_join_names_the_client_as_text_or_as_a_number() -> None:
    service = Service(lambda _: {})
    Client(service).join("fledge", SetId("aGVsbG8"), "2")
    Client(service).join("fledge", SetId("a/b"), 2)
    json_body = {"Content-Type": "application/json"}
    assert service.sent == [
        ("POST", "/v1/types/fledge/sets/aGVsbG8:join", {"client": "2"}, json_body),
        ("POST", "/v1/types/fledge/sets/a%2Fb:join", {"shortClientIdentifier": 2}, json_body),
    ]


def test_joins_go_500_a_call_and_every_one_gets_its_result() -> None:
    service = Service(lambda body: {"results": [{} if int(j["client"]) % 400 else BAD for j in body["joins"]]})
    results = Client(service).batch_join(Join("a", A, str(n)) for n in range(1200))
    assert [len(body["joins"]) for _, _, body, _ in service.sent] == [500, 500, 200]
    assert [n for n, error in enumerate(results) if error is not None] == [0, 400, 800]
    assert service.sent[0][2]["joins"][1] == {"type": "a", "set": "AA", "client": "1"}


def test_a_batch_with_the_longest_values_is_not_too_large() -> None:
    service = Service(lambda sent: {"results": [{} for _ in sent["joins"]]})
    service.types = {"types": [{"type": "a", "period": 3600, "listed": True}]}
    with Client(service) as client:
        client.join_many([Join("a", "\x01" * 508 + f"{n:04}", "\x01" * 256) for n in range(500)])
    assert max(len(json.dumps(body)) for _, _, body, _ in service.sent) < MOST_BODY_BYTES // 2


def test_an_empty_list_of_joins_makes_no_call() -> None:
    service = Service(lambda _: {})
    assert Client(service).batch_join([]) == []
    Client(service).join_many([])
    assert service.sent == []


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("query", "/v1:query", "setsForType"),
        ("validate_hashes", "/v1:validateHashes", "sets"),
        ("batch_query", "/v1:batchQuery", "setsForType"),
    ],
)
def test_queries_go_100_a_call_by_type_and_signed_ones_1000(method: str, path: str, field: str) -> None:
    def answer(body: Any) -> Any:
        told = [{"type": entry["type"], "hashes": entry["hashes"][:1]} for entry in body[field]]
        return {"kAnonymousSets": told, "step": 4, "nextUpdate": "2027-01-15T10:30:00Z"}

    service = Service(answer)
    most = 1000 if method == "batch_query" else 100
    asked = [("ab"[n % 2], str(n)) for n in range(most + 1)]
    answers = getattr(Client(service), method)(asked)
    assert answers == Answers(frozenset({("a", "0"), ("b", "1"), ("a", str(most))}), 4)
    assert [(sent[0], sent[1]) for sent in service.sent] == [("POST", path)] * 2
    sizes = [[len(entry["hashes"]) for entry in body[field]] for _, _, body, _ in service.sent]
    assert sizes == [[most // 2, most // 2], [1]]


NONE = {"kAnonymousSets": [{"type": "a", "hashes": []}], "step": 1, "nextUpdate": ""}


@pytest.mark.parametrize(
    ("steps", "expected"), [([7, 7], 7), ([8, 7], 7), ([7, 8], 7), ([None, 7], None), ([7, None], None)]
)
def test_answers_of_two_calls_are_of_the_earlier_step(steps: list[int | None], expected: int | None) -> None:
    following = iter(steps)
    service = Service(lambda _: {**NONE, "step": next(following)})
    assert Client(service).query(("a", str(n)) for n in range(101)).step == expected


def test_an_empty_query_makes_no_call() -> None:
    service = Service(lambda _: {})
    assert Client(service).query([]) == Answers(frozenset(), None)
    assert service.sent == []


# What is refused


def test_an_error_of_the_service_has_its_code_message_and_retry_after() -> None:
    client = Client(Service(lambda _: BUSY, 503, {"retry-after": "2"}))
    with pytest.raises(RefusedError) as found:
        client.join("fledge", A, "1")
    error = found.value
    assert (error.code, error.status, error.message) == (503, "UNAVAILABLE", "the service cannot do this now")
    assert error.retry_after == 2
    assert str(error) == (
        "POST /v1/types/fledge/sets/...:join: 503 UNAVAILABLE: "
        "the service cannot do this now; repeat the call after 2 s"
    )


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}])
def test_a_retry_after_without_seconds_gives_no_seconds(headers: Headers) -> None:
    with pytest.raises(RefusedError) as found:
        Client(Service(lambda _: BUSY, 503, headers)).type("a")
    assert found.value.retry_after is None


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"message": "Forbidden"}, "GET /v1/types/a: 403: Forbidden"),
        (b"<html>", "GET /v1/types/a: 403: no reason given"),
        ([], "GET /v1/types/a: 403: no reason given"),
        ({"error": "Forbidden"}, "GET /v1/types/a: 403: no reason given"),
        ({"error": {"code": "denied", "message": None}}, "GET /v1/types/a: 403: no reason given"),
    ],
)
def test_an_error_of_the_gateway_has_no_status_name(told: Any, message: str) -> None:
    with pytest.raises(RefusedError) as found:
        Client(Service(lambda _: told, 403)).type("a")
    assert (found.value.code, found.value.status, str(found.value)) == (403, None, message)


def test_a_batch_refused_in_part_says_which_joins_and_when_to_repeat_them() -> None:
    service = Service(lambda _: {"results": [{}, BAD, {}, BUSY]}, headers={"Retry-After": "1"})
    with pytest.raises(PartlyRefusedError, match=r"2 of 4 joins were refused, first number 1: .* 400 INVALID_ARG") as e:
        Client(service).join_many([Join("a", A, str(n)) for n in range(4)])
    assert {n: (error.code, error.retry_after) for n, error in e.value.refused.items()} == {1: (400, None), 3: (503, 1)}


# What is no answer of this API


def test_an_answer_with_an_unknown_field_or_a_set_that_was_not_asked_is_unexpected() -> None:
    good = {"kAnonymousSets": [{"type": "a", "hashes": ["AA"]}], "step": 1, "nextUpdate": ""}
    assert Client(Service(lambda _: good)).query([("a", "AA")]).k_anonymous == {("a", "AA")}
    with pytest.raises(UnexpectedAnswerError, match="a set that was not asked"):
        Client(Service(lambda _: good)).query([("a", "AB")])
    for asked in ([("b", "AA")], [("a", "AA"), ("b", "AA")]):  # what lacks a type must not read as false
        with pytest.raises(UnexpectedAnswerError, match="other types than those that were asked"):
            Client(Service(lambda _: good)).query(asked)
    with pytest.raises(UnexpectedAnswerError, match="unknown field 'stepp'"):
        Client(Service(lambda _: good | {"stepp": 1})).query([("a", "AA")])
    with pytest.raises(UnexpectedAnswerError, match="unknown field 'later'"):
        Client(Service(lambda _: {"later": True})).join("a", A, "1")


def test_an_unknown_type_is_an_error_that_names_the_nearest_one() -> None:
    service = Service(lambda _: {})
    client = Client(service)
    for call in (
        lambda: client.join("fledgee", "v", "1"),
        lambda: client.join_many([Join("a", "v", "1"), Join("fledgee", "v", "1")]),
        lambda: client.is_shared("fledgee", ["v"]),
    ):
        with pytest.raises(UnknownTypeError, match="the service has no type 'fledgee': did you mean 'fledge'"):
            call()
    assert service.sent == []


def test_a_type_that_a_deployment_adds_is_found_a_minute_later() -> None:
    service = Service(lambda _: {})
    client, seconds = Client(service), [0.0]
    client._calls.clock = lambda: seconds[0]
    client.join("a", A, "1")
    service.types = {"types": [*TYPES["types"], {"type": "new", "period": 60}]}
    with pytest.raises(UnknownTypeError, match="it has 'a', 'b', 'fledge'"):
        client.join("new", A, "1")
    seconds[0] = 60.0
    client.join("new", A, "1")


def test_a_single_text_is_no_list_of_values() -> None:
    with pytest.raises(TypeError, match="put a single one into brackets"):
        Client(Service(lambda _: {})).is_shared("a", "abc")


@pytest.mark.parametrize("listed", [False, True])
def test_what_is_neither_text_nor_bytes_is_no_value(*, listed: bool) -> None:
    service, no_value = Service(lambda _: {}), [1]
    service.types = {"types": [{"type": "a", "period": 3600, "listed": listed}]}
    client: Any = Client(service)
    calls: list[Callable[[], object]] = [
        lambda: client.join("a", no_value, "x"),
        lambda: client.join_many([Join("a", no_value, "x")]),
        lambda: client.is_shared("a", [no_value]),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="a value is text or bytes, not list"):
            call()


@pytest.mark.parametrize("told", [b"", b"<html>", b"\xff", b"[" * 100_000, [], "text", None])
def test_an_answer_that_is_not_a_json_object_is_unexpected(told: Any) -> None:
    with pytest.raises(UnexpectedAnswerError, match=r"GET /v1/types/a: .*dict expected.*: check that the address"):
        Client(Service(lambda _: told)).type("a")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda client: client.status("a", "AA"), {"kAnonymous": "no", "step": 1, "nextUpdate": ""}),
        (lambda client: client.status("a", "AA"), {"kAnonymous": True, "step": 1}),
        (lambda client: client.status("a", "AA"), {"kAnonymous": True, "step": "1", "nextUpdate": ""}),
        (lambda client: client.query([("a", "AA")]), {"step": 1}),
        (lambda client: client.query([("a", "AA")]), {"kAnonymousSets": ["AA"], "step": 1}),
        (lambda client: client.query([("a", "AA")]), {"kAnonymousSets": [{"type": "a"}], "step": 1}),
        (lambda client: client.query([("a", "AA")]), {"kAnonymousSets": [], "step": "1"}),
        (lambda client: client.join_many([Join("a", A, "1")]), {"results": []}),
        (lambda client: client.join_many([Join("a", A, "1")]), {"results": [None]}),
        (lambda client: client.join_many([Join("a", A, "1")]), {"results": [{"error": "no"}]}),
    ],
)
def test_an_answer_without_its_fields_is_unexpected(call: Callable[[Client], Any], told: Any) -> None:
    with pytest.raises(UnexpectedAnswerError, match="check that the address is the service's"):
        call(Client(Service(lambda _: told)))


# The local stack answers without a socket


@pytest.mark.slow
def test_every_call_works_on_the_local_stack(stack: Stack) -> None:
    client = Client(stack.request)
    assert [type_["type"] for type_ in client.types()] == ["fledge"]
    assert client.type("fledge")["k"] == 50
    with pytest.raises(RefusedError, match="404 NOT_FOUND"):
        client.type("unknown")
    client.join("fledge", SETS[0], 7)
    client.join_many(Join("fledge", SETS[1], f"client-{n}") for n in range(120))
    with pytest.raises(PartlyRefusedError, match=r"1 of 2 joins were refused, first number 1: .*base64"):
        client.join_many([Join("fledge", SETS[0], "a"), Join("fledge", SetId("?"), "a")])
    stack.advance(2 * 3600)
    sets = [("fledge", set_) for set_ in SETS]
    asked = client.query(sets)
    assert asked.k_anonymous == {("fledge", SETS[1])}
    assert asked.step is not None
    assert client.validate_hashes(sets) == asked
    status = client.status("fledge", SETS[1])
    assert status == Status(k_anonymous=True, step=asked.step, next_update=status.next_update)
    assert client.status("fledge", SETS[2]).k_anonymous is False
