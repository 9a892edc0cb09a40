"""Joins over the functions' events: their rows in the log, and their calls."""

import json
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kanon.gate.names import client_token
from kanon.gate.slots import Layout
from kanon.gate.storage.aws.step_log import partition
from kanon.keys import Secret
from tests.integration.gate.edge import CLIENT_KEY, NOW, PERIOD, SLOTS, Edge, base64url, key_of, slot_of_set
from tests.integration.gate.tables import joins_of

ASDF = bytes([0x6A, 0xC7, 0x5F])  # base64url: asdf
STEP = int(NOW // PERIOD)


@pytest.fixture
def edge() -> Iterator[Edge]:
    with Edge() as edge:
        yield edge


def row_key(type_name: str, set_id: bytes, kind: Any, client: bytes, step: int = STEP) -> tuple[bytes, bytes]:
    """The key under which a join must be in the log."""
    key = key_of(type_name, set_id)
    token = client_token(Secret.derived("client-key", CLIENT_KEY), key, kind, client, 16)
    return partition(step, Layout(SLOTS, 0), slot_of_set(type_name, set_id)), key + token.to_bytes(4, "big")


def logged(edge: Edge) -> set[tuple[bytes, bytes]]:
    return {(row["step_slot"]["B"], row["set_token"]["B"]) for row in edge.rows()}


def test_a_join_is_one_row_of_its_step_with_its_time_to_live(edge: Edge) -> None:
    result = edge.post("/v1/types/fledge/sets/asdf:join", {"client": "client-1"})
    assert (result.status, result.body) == (200, "{}")
    (row,) = edge.rows()
    assert logged(edge) == {row_key("fledge", ASDF, "client", b"client-1")}
    assert row["type"] == {"S": "fledge"}
    assert row["ttl"] == {"N": str((STEP + 1) * PERIOD + 604800)}


def test_a_join_in_chromiums_form_is_accepted_with_the_set_in_its_path(edge: Edge) -> None:
    body = "{name: 'type/fledge/sets/qqqq', shortClientIdentifier: 2}"
    result = edge.post("/v1/types/fledge/sets/asdf:join?key=AIzaSyTheKey", body)
    assert (result.status, result.body) == (200, "{}")
    assert logged(edge) == {row_key("fledge", ASDF, "short", b"2")}


@pytest.mark.parametrize(("target", "status"), [("/v1/types/fledge/sets/asdf:join", 200), ("/v1:query", 415)])
def test_only_a_join_may_come_as_plain_text_as_a_page_sends_it_without_asking(
    edge: Edge, target: str, status: int
) -> None:
    result = edge.request("POST", target, '{"client": "1"}', content_type="text/plain;charset=UTF-8")
    assert result.status == status


def test_the_client_2_and_the_short_identifier_2_are_different_clients(edge: Edge) -> None:
    edge.post("/v1/types/fledge/sets/asdf:join", {"client": "2"})
    edge.post("/v1/types/fledge/sets/asdf:join", {"shortClientIdentifier": 2})
    assert len(edge.rows()) == 2


def test_a_repeated_join_changes_nothing_in_its_step_and_counts_in_the_next_one(edge: Edge) -> None:
    for _ in range(3):
        edge.post("/v1/types/fledge/sets/asdf:join", {"client": "client-1"})
    assert len(edge.rows()) == 1
    edge.now += PERIOD
    edge.post("/v1/types/fledge/sets/asdf:join", {"client": "client-1"})
    assert logged(edge) == {row_key("fledge", ASDF, "client", b"client-1", step) for step in (STEP, STEP + 1)}


@pytest.mark.parametrize("size", [1, 2, 3, 32, 63, 64])
def test_a_set_id_has_any_size_up_to_64_bytes(size: int, edge: Edge) -> None:
    set_id = bytes(range(255, 255 - size, -1))
    target = f"/v1/types/fledge/sets/{base64url(set_id)}:join"
    assert edge.post(target, {"client": "c"}).status == 200
    assert logged(edge) == {row_key("fledge", set_id, "client", b"c")}


def test_an_encoded_colon_is_read_as_a_colon(edge: Edge) -> None:
    assert edge.post("/v1/types/fledge/sets/asdf%3Ajoin", {"client": "c"}).status == 200


def test_the_same_set_id_in_two_types_is_two_sets(edge: Edge) -> None:
    for name in ("fledge", "search-term"):
        edge.post(f"/v1/types/{name}/sets/asdf:join", {"client": "c"})
    assert len({key[:32] for _, key in logged(edge)}) == 2


def test_a_batch_answers_every_join_in_order_and_a_bad_one_fails_alone(edge: Edge) -> None:
    good = {"type": "fledge", "set": "asdf", "client": "c"}
    joins: list[Any] = [
        good,
        None,
        {**good, "set": "?"},
        {**good, "type": "unknown"},
        {"type": "search-term", "set": "_-_-", "shortClientIdentifier": 7},
        {**good, "client": ""},
        {**good, "shortClientIdentifier": 1},
        {**good, "set": "asdf", "client": "d"},
        good,
        [good],
        {**good, "client": "\ud800"},
    ]
    result = edge.post("/v1:batchJoin", {"joins": joins})
    assert result.status == 200
    codes = [entry.get("error", {"code": 200})["code"] for entry in result.json()["results"]]
    assert codes == [200, 400, 400, 404, 200, 400, 400, 200, 200, 400, 400]
    assert logged(edge) == {
        row_key("fledge", ASDF, "client", b"c"),
        row_key("fledge", ASDF, "client", b"d"),
        row_key("search-term", bytes([0xFF, 0xEF, 0xFE]), "short", b"7"),
    }


def test_a_batch_and_single_joins_log_the_same_rows(edge: Edge) -> None:
    joins = [{"type": "fledge", "set": base64url(bytes([i])), "client": f"c{i % 7}"} for i in range(60)]
    assert edge.post("/v1:batchJoin", {"joins": joins}).json() == {"results": [{}] * 60}
    batched = logged(edge)
    edge.clear()
    for join in joins:
        edge.post(f"/v1/types/fledge/sets/{join['set']}:join", {"client": join["client"]})
    assert logged(edge) == batched


def test_five_hundred_joins_are_one_request(edge: Edge) -> None:
    joins = [{"type": "fledge", "set": "asdf", "client": f"client-{i}"} for i in range(500)]
    assert edge.post("/v1:batchJoin", {"joins": joins}).json() == {"results": [{}] * 500}
    assert Counter(name for name, _ in edge.calls)["BatchWriteItem"] == 20
    assert edge.post("/v1:batchJoin", {"joins": [*joins, joins[0]]}).status == 400


# The calls of a join


def test_a_warm_join_is_one_put_and_reads_nothing(edge: Edge) -> None:
    edge.post("/v1/types/fledge/sets/asdf:join", {"client": "c"})
    cold, edge.calls = edge.calls, []
    assert [name for name, _ in cold] == ["GetSecretValue", "GetSecretValue", "UpdateItem", "PutItem"]
    edge.post("/v1/types/fledge/sets/asdf:join", {"client": "c"})
    assert [name for name, _ in edge.calls] == ["PutItem"]


def test_the_calls_of_a_join_do_not_depend_on_what_others_joined(edge: Edge) -> None:
    def calls_of_one_join() -> list[Any]:
        edge.restart()
        edge.calls = []
        assert edge.post("/v1/types/fledge/sets/asdf:join", {"client": "mine"}).status == 200
        return list(edge.calls)

    alone = calls_of_one_join()
    others = [{"type": "fledge", "set": "asdf", "client": f"other-{i}"} for i in range(300)]
    edge.post("/v1:batchJoin", {"joins": others})
    assert calls_of_one_join() == alone
    # Not even on whether this very client is in the log already, in this environment or another.
    edge.calls = []
    edge.post("/v1/types/fledge/sets/asdf:join", {"client": "mine"})
    assert edge.calls == alone[-1:]


# Failures


def test_a_throttled_join_is_503_with_the_time_to_wait_and_counted(edge: Edge) -> None:
    edge.fail = lambda operation: "ProvisionedThroughputExceededException" if operation == "PutItem" else None
    result = edge.post("/v1/types/fledge/sets/asdf:join", {"client": "c"})
    assert (result.status, result.headers["Retry-After"]) == (503, "5")
    assert edge.rows() == []
    assert '"JoinsAccepted":[0.0],"JoinsRefused":[1.0]' in edge.output.getvalue()


def test_every_unwritten_join_of_a_throttled_batch_is_503(edge: Edge) -> None:
    calls = Counter[str]()

    def second_chunk(operation: str) -> str | None:
        calls[operation] += 1
        return "ThrottlingException" if operation == "BatchWriteItem" and calls[operation] > 1 else None

    edge.fail = second_chunk
    joins = [{"type": "fledge", "set": "asdf", "client": f"c{i}"} for i in range(40)]
    result = edge.post("/v1:batchJoin", {"joins": joins})
    codes = [entry.get("error", {"code": 200})["code"] for entry in result.json()["results"]]
    assert codes == [200] * 25 + [503] * 15
    assert result.json()["results"][-1]["error"]["message"].startswith("this join is not in the log; repeat it after")
    assert (result.status, result.headers["Retry-After"]) == (200, "5")
    assert len(edge.rows()) == 25
    assert '"JoinsAccepted":[25.0],"JoinsRefused":[15.0]' in edge.output.getvalue()


# Packed batches

PACKED = Layout(SLOTS, 0, 4)


@pytest.fixture
def packing() -> Iterator[Edge]:
    layout = {"slots": PACKED.slots, "partitions": PACKED.partitions, "from_step": PACKED.from_step}
    with Edge({"KANON_SLOTS": json.dumps([layout])}) as edge:
        yield edge


def held(edge: Edge) -> Counter[tuple[str, bytes, int]]:
    """Type, set key and token of every join in the log, with the number of its copies."""
    return Counter(join for row in edge.rows() for join in joins_of(row))


def entry_of(join: dict[str, Any]) -> tuple[str, bytes, int]:
    """The entry of a join in the log."""
    key = key_of(join["type"], urlsafe_b64decode(join["set"] + "=="))
    return (
        join["type"],
        key,
        client_token(Secret.derived("client-key", CLIENT_KEY), key, "client", join["client"].encode(), 16),
    )


@pytest.mark.parametrize("slots", [[2], [0, 3], range(SLOTS)], ids=["one slot", "two slots", "every slot"])
def test_each_entry_of_a_packed_batch_is_answered_by_the_result_of_its_item(
    slots: Sequence[int], packing: Edge
) -> None:
    """Valid, invalid and unknown entries take turns; the items of some slots are throttled for good."""
    good = [
        {"type": "fledge" if n % 3 else "search-term", "set": base64url(bytes([n])), "client": f"c{n % 11}"}
        for n in range(80)
    ]
    bad: list[Any] = [None, {**good[0], "set": "?"}, {**good[0], "type": "unknown"}, {**good[0], "client": ""}]
    joins = [each for n, join in enumerate(good) for each in (join, bad[n % 4])]
    packing.leave = lambda item: item["step_slot"]["B"][-2] in slots
    result = packing.post("/v1:batchJoin", {"joins": joins})
    codes = [entry.get("error", {"code": 200})["code"] for entry in result.json()["results"]]
    refused = [join for join in good if PACKED.slot_of(entry_of(join)[1]) in slots]
    assert 0 < len(refused) <= len(good)
    assert codes[::2] == [503 if join in refused else 200 for join in good]
    assert codes[1::2] == [400, 400, 404, 400] * 20
    assert (result.status, result.headers["Retry-After"]) == (200, "5")
    assert held(packing) == Counter(entry_of(join) for join in good if join not in refused)
    counts = f'"JoinsAccepted":[{len(good) - len(refused)}.0],"JoinsRefused":[{len(refused)}.0]'
    assert counts in packing.output.getvalue()

    packing.leave = lambda item: False
    assert packing.post("/v1:batchJoin", {"joins": refused}).json() == {"results": [{}] * len(refused)}
    assert held(packing) == Counter(map(entry_of, good))  # each of them once


@pytest.mark.parametrize("operation", ["GetSecretValue", "UpdateItem", "PutItem"])
def test_a_refused_call_is_503_and_the_next_request_tries_again(operation: str, edge: Edge) -> None:
    edge.fail = lambda name: "AccessDeniedException" if name == operation else None
    assert edge.post("/v1/types/fledge/sets/asdf:join", {"client": "c"}).status == 503
    assert edge.rows() == []
    assert f'"operation":"{operation}","code":"AccessDeniedException"' in edge.output.getvalue()
    edge.fail = lambda name: None
    assert edge.post("/v1/types/fledge/sets/asdf:join", {"client": "c"}).status == 200


def test_changed_parameters_of_a_type_are_refused_before_anything_is_written(edge: Edge) -> None:
    edge.post("/v1/types/fledge/sets/asdf:join", {"client": "c"})
    changed = {"KANON_TYPES": '{"fledge":{"k":51,"window":720,"profile":"published"}}'}
    edge.reconfigure(changed)
    edge.now += PERIOD
    result = edge.post("/v1/types/fledge/sets/asdf:join", {"client": "c"})
    assert (result.status, result.headers["Retry-After"]) == (503, "5")
    assert len(edge.rows()) == 1
    assert "fingerprint mismatch" in edge.output.getvalue()
