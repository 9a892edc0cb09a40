"""Queries over the functions' events: their answers, how long these last, and sets that cannot be distinguished."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kanon.gate.models import TypeAnswer
from kanon.gate.types import read_types
from tests.integration.gate.edge import DELAY, NOW, PERIOD, TYPES, Edge, base64url, key_of, slot_of_set

TRUE, FALSE, SUPPRESSED, UNKNOWN = (bytes([i]) * 32 for i in range(4))
CLOCK_STEP = int((NOW - DELAY) // PERIOD) - 1
NEXT_TICK = (CLOCK_STEP + 2) * PERIOD + DELAY
NEXT_UPDATE = "2027-01-15T08:30:00Z"


@pytest.fixture
def edge() -> Iterator[Edge]:
    """One set is true, one has a crossing of long ago, one is suppressed."""
    with Edge() as edge:
        edge.complete(CLOCK_STEP)
        edge.release("fledge", TRUE, CLOCK_STEP)
        edge.release("fledge", FALSE, CLOCK_STEP - 3 * 720)
        edge.release("fledge", SUPPRESSED, CLOCK_STEP, suppressed=True)
        yield edge


def standard(set_id: bytes) -> str:
    return base64.b64encode(set_id).decode()


def ask(edge: Edge, *entries: tuple[str, list[str]]) -> Any:
    asked = [{"type": name, "hashes": hashes} for name, hashes in entries]
    result = edge.post("/v1:query?key=AIzaSyTheKey", {"setsForType": asked})
    assert result.status == 200
    return result.json()


def test_the_k_anonymous_hashes_are_returned_as_they_were_written(edge: Edge) -> None:
    hashes = [base64url(UNKNOWN), base64url(TRUE), standard(FALSE), standard(TRUE), base64url(SUPPRESSED)]
    assert ask(edge, ("fledge", hashes)) == {
        "kAnonymousSets": [{"type": "fledge", "hashes": [base64url(TRUE), standard(TRUE)]}],
        "step": CLOCK_STEP,
        "nextUpdate": NEXT_UPDATE,
    }


def test_a_signed_query_may_name_more_hashes_and_gets_the_same_answer(edge: Edge) -> None:
    asked = {"setsForType": [{"type": "fledge", "hashes": [base64url(TRUE)] * 100}]}
    assert edge.post("/v1:batchQuery", asked).body == edge.post("/v1:query", asked).body
    for count, status in ((101, 400), (1000, 400)):
        asked = {"setsForType": [{"type": "fledge", "hashes": [base64url(TRUE)] * count}]}
        assert edge.post("/v1:query", asked).status == status
        assert edge.post("/v1:batchQuery", asked).status == 200


def test_the_operator_chooses_how_many_hashes_a_query_without_a_signature_may_name() -> None:
    with Edge(environment={"KANON_ANONYMOUS_HASHES": "3"}) as edge:
        for path, field in (("/v1:query", "setsForType"), ("/v1:validateHashes", "sets")):
            for count, status in ((3, 200), (4, 400)):
                asked = {field: [{"type": "fledge", "hashes": [base64url(TRUE)] * count}]}
                assert edge.post(path, asked).status == status


def test_every_queried_type_has_an_entry_even_if_repeated(edge: Edge) -> None:
    true = [base64url(TRUE)]
    answer = ask(edge, ("fledge", []), ("search-term", true), ("fledge", true), ("fledge", true))
    assert answer["kAnonymousSets"] == [
        {"type": "fledge", "hashes": []},
        {"type": "search-term", "hashes": []},
        {"type": "fledge", "hashes": true},
        {"type": "fledge", "hashes": true},
    ]
    assert ask(edge)["kAnonymousSets"] == []


@pytest.mark.parametrize(("path", "field"), [("/v1:query", "setsForType"), ("/v1:validateHashes", "sets")])
def test_a_query_of_an_unknown_type_is_refused_with_the_nearest_one(edge: Edge, path: str, field: str) -> None:
    known = {"type": "fledge", "hashes": [base64url(TRUE)]}
    for wrong, near in (("fledgee", " (did you mean fledge?)"), ("xyz", "")):
        for hashes in ([base64url(UNKNOWN)], []):
            answer = edge.post(path, {field: [known, {"type": wrong, "hashes": hashes}]})
            assert answer.status == 404
            error = answer.json()["error"]
            assert error["message"] == f"no such type{near}: GET /v1/types lists those of this deployment"
            assert error["details"] == [{"field": f"{field}.1.type", "reason": "unknown"}]
            assert edge.calls == []


def test_a_repeated_hash_is_returned_as_often_as_it_was_sent(edge: Edge) -> None:
    true, false = base64url(TRUE), base64url(FALSE)
    answer = ask(edge, ("fledge", [true, false, true, true]), ("fledge", [false, true]), ("search-term", [true]))
    assert answer["kAnonymousSets"] == [
        {"type": "fledge", "hashes": [true] * 3},
        {"type": "fledge", "hashes": [true]},
        {"type": "search-term", "hashes": []},
    ]


def test_bidding_and_auction_servers_are_answered_like_browsers(edge: Edge) -> None:
    documented = edge.post("/v1:validateHashes", '{"sets": { type: "fledge", hashes: [ "somehash" ] }}')
    assert documented.status == 200
    assert documented.json()["kAnonymousSets"] == [{"type": "fledge", "hashes": []}]
    entries = [{"type": "fledge", "hashes": [standard(TRUE), standard(FALSE)]}]
    asked = edge.post("/v1:query", {"setsForType": entries})
    validated = edge.post("/v1:validateHashes", {"sets": entries})
    assert (validated.status, validated.body, validated.headers) == (asked.status, asked.body, asked.headers)


def test_one_set_can_be_read_by_its_path(edge: Edge) -> None:
    for set_id, status in ((TRUE, True), (FALSE, False), (SUPPRESSED, False), (UNKNOWN, False)):
        result = edge.get(f"/v1/types/fledge/sets/{base64url(set_id)}?key=AIzaSyTheKey")
        assert result.json() == {"kAnonymous": status, "step": CLOCK_STEP, "nextUpdate": NEXT_UPDATE}


def test_answers_may_be_cached_until_the_next_tick_and_no_longer(edge: Edge) -> None:
    for now in (NOW, NEXT_TICK - 1.5, NEXT_TICK - 0.001):
        edge.now = now
        got = edge.get(f"/v1/types/fledge/sets/{base64url(TRUE)}")
        asked = edge.post("/v1:query", {"setsForType": []})
        for result in (got, asked):
            assert result.headers["Cache-Control"] == f"max-age={int(NEXT_TICK - now)}"
            assert result.json()["nextUpdate"] == NEXT_UPDATE
    edge.now = NEXT_TICK
    assert edge.post("/v1:query", {"setsForType": []}).headers["Cache-Control"] == f"max-age={PERIOD}"


def test_before_the_first_evaluation_everything_reads_false_at_no_step() -> None:
    with Edge() as edge:
        edge.release("fledge", TRUE, CLOCK_STEP)
        answer = ask(edge, ("fledge", [base64url(TRUE)]))
        assert (answer["kAnonymousSets"], answer["step"]) == ([{"type": "fledge", "hashes": []}], None)


# Sets that cannot be distinguished


@pytest.mark.parametrize("warm", [False, True])
def test_unknown_false_and_suppressed_sets_get_the_same_bytes_by_the_same_calls(warm: bool, edge: Edge) -> None:
    def everything_about(set_id: bytes) -> list[Any]:
        text = base64url(set_id)
        edge.restart()
        if warm:
            edge.get("/v1/types/fledge/sets/asdf")
        edge.calls = []
        results = [
            edge.get(f"/v1/types/fledge/sets/{text}"),
            edge.post("/v1:query", {"setsForType": [{"type": "fledge", "hashes": [text]}]}),
            edge.post("/v1:validateHashes", {"sets": {"type": "fledge", "hashes": [text]}}),
        ]
        key = key_of("fledge", set_id)
        slot = bytes([slot_of_set("fledge", set_id)])
        calls = str(edge.calls).replace(str(key), "KEY").replace(str(slot), "SLOT")
        return [*((r.status, r.headers, r.body) for r in results), calls]

    same_slot = [
        set_id
        for set_id in (bytes([9, i]) for i in range(64))
        if slot_of_set("fledge", set_id) == slot_of_set("fledge", UNKNOWN)
    ]
    for set_id, crossing, suppressed in zip(
        same_slot[:3], (CLOCK_STEP - 3 * 720, CLOCK_STEP + 1, CLOCK_STEP), (False, False, True), strict=True
    ):
        edge.release("fledge", set_id, crossing, suppressed=suppressed)
    unknown = everything_about(UNKNOWN)
    assert b"KEY" in str(unknown).encode()
    for set_id in same_slot[:3]:
        assert everything_about(set_id) == unknown


def test_the_calls_of_a_query_do_not_depend_on_the_answer(edge: Edge) -> None:
    def operations(set_id: bytes) -> list[str]:
        edge.restart()
        edge.calls = []
        edge.get(f"/v1/types/fledge/sets/{base64url(set_id)}")
        return [name for name, _ in edge.calls]

    expected = ["GetSecretValue", "UpdateItem", "BatchGetItem", "BatchGetItem"]  # the last: which sets are suppressed
    assert [operations(set_id) for set_id in (TRUE, FALSE, SUPPRESSED, UNKNOWN)] == [expected] * 4


def test_a_thousand_hashes_are_read_in_about_ten_calls(edge: Edge) -> None:
    ids = [bytes([i % 256, i // 256]) for i in range(1000)]
    edge.release("fledge", ids[777], CLOCK_STEP)
    hashes = [base64url(set_id) for set_id in ids]
    answer = edge.post("/v1:batchQuery", {"setsForType": [{"type": "fledge", "hashes": hashes}]}).json()
    assert answer["kAnonymousSets"][0]["hashes"] == [base64url(ids[777])]
    assert [name for name, _ in edge.calls].count("BatchGetItem") == 12  # horizons and stamp; suppressed sets


# Failures


def test_a_table_that_does_not_answer_gives_503_and_not_false(edge: Edge) -> None:
    edge.fail = lambda operation: "ThrottlingException" if operation == "BatchGetItem" else None
    for result in (
        edge.get(f"/v1/types/fledge/sets/{base64url(TRUE)}"),
        edge.post("/v1:query", {"setsForType": [{"type": "fledge", "hashes": [base64url(TRUE)]}]}),
    ):
        assert (result.status, result.headers["Retry-After"]) == (503, "5")
        assert "kAnonymous" not in result.body
    assert '"QueriesRefused":[1.0]' in edge.output.getvalue()
    edge.fail = lambda operation: None
    assert edge.get(f"/v1/types/fledge/sets/{base64url(TRUE)}").json()["kAnonymous"] is True


# Types


GUARANTEE = ("unit", "bounds", "rejoining", "posterior", "neverTrueBelow", "surelyTrueFrom")


def test_the_types_endpoint_shows_parameters_and_guarantees(edge: Edge) -> None:
    types = read_types(json.dumps(TYPES), PERIOD)
    answer = edge.get("/v1/types").json()["types"]
    assert [entry["type"] for entry in answer] == list(TYPES)
    for entry in answer:
        configured = TYPES[entry["type"]]
        told = TypeAnswer.of(types[entry["type"]]).model_dump(by_alias=True)
        assert entry == {
            "type": entry["type"],
            "k": configured["k"],
            "window": configured["window"],
            "profile": configured["profile"],
            "period": PERIOD,
            "clientBits": 16,
            "listed": False,
            "credential": False,
            "restart": "grid",
            "hold": None,
            "epoch": None,
            **{name: told[name] for name in GUARANTEE},
        }
        assert edge.get(f"/v1/types/{entry['type']}").json() == entry


def test_a_type_with_custom_laws_has_no_profile() -> None:
    laws = {
        "threshold": {"shape": "one-sided", "epsilon": "0.9", "truncation": 15},
        "query": {"shape": "one-sided", "epsilon": "0.9", "truncation": 15},
    }
    types = json.dumps({"own": {"k": 50, "window": 24, "laws": laws}})
    with Edge({"KANON_TYPES": types}) as edge:
        entry = edge.get("/v1/types/own").json()
    assert (entry["profile"], entry["bounds"]["paper"]) == (None, None)


def test_types_need_neither_tables_nor_secrets(edge: Edge) -> None:
    assert edge.get("/v1/types").status == 200
    assert edge.get("/v1/types/fledge").status == 200
    assert edge.calls == []
