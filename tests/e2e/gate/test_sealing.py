"""Joins of listed types on AWS: the log has their values sealed, and the lister's key alone opens them.

``tests/monitor`` fails any of these tests in which a function writes, logs or answers a value in clear text.
"""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from kanon.dynamo.units import item_size, write_units
from kanon.gate.sealing import LISTER_KEY, opened, private_key
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.step_log import unpack_joins
from kanon.keys import fetch_secret
from kanon.local.stack import Stack
from tests.e2e.gate.backups import rows
from tests.e2e.gate.operating import key_of
from tests.integration.gate.edge import base64url
from tests.monitor.monitor import Monitor
from tests.monitor.permissions import Call

LONG_NAME = "l" * 64
TYPES = {
    "terms": {"k": 50, "window": 24, "profile": "crossing", "listed": True},
    "fledge": {"k": 50, "window": 24, "profile": "crossing"},
    LONG_NAME: {"k": 50, "window": 24, "profile": "crossing", "listed": True},
}
PARAMETERS = {"Types": json.dumps(TYPES), "JoinAuth": "OPEN", "ReviewSteps": "24"}
PACKED = '[{"slots":1,"partitions":4,"from_step":0}]'
VALUE = "how to plant a tree"
LONGEST = "é" * 256


def set_of(value: str) -> str:
    return base64url(sha256(value.encode()).digest())


def path(value: str, type_name: str = "terms") -> str:
    return f"/v1/types/{type_name}/sets/{set_of(value)}:join"


@pytest.fixture(params=[None, PACKED], ids=["rows", "packed"])
def listing(request: pytest.FixtureRequest, new_stack: Callable[..., Stack]) -> Stack:
    """A stack with listed types; with the first form of the log, and with packed items."""
    slots = {"Slots": request.param or '[{"slots":1,"from_step":0}]'}
    return new_stack(PARAMETERS | slots)


def join(stack: Stack, value: str, client: str = "me", type_name: str = "terms") -> int:
    answer = stack.request("POST", path(value, type_name), {"client": client, "value": value})
    return int(answer.status)


def sealed(stack: Stack) -> list[tuple[bytes, bytes]]:
    """The set key and the sealed value of each row, and of each set of each packed item, in the log."""
    found = []
    for row in rows(stack, "StepLog"):
        if "joins" in row:
            found += [pair for of_type in unpack_joins(row["joins"]["B"]) for pair in of_type.sealed]
        elif "sealed" in row:
            found.append((row["set_token"]["B"][:32], row["sealed"]["B"]))
    return found


def read(stack: Stack, value: bytes, set_key: bytes) -> str:
    """What the lister reads, who alone may have the private key."""
    secret = fetch_secret(stack.session.client("secretsmanager"), LISTER_KEY, lister_secret(stack))
    return opened(value, private_key(secret), set_key).decode()


def lister_secret(stack: Stack) -> str:
    return stack.template.parameters["ListerKeySecret"]


def test_the_value_of_a_join_is_in_the_log_sealed_to_the_lister(listing: Stack) -> None:
    assert join(listing, VALUE) == 200
    ((key, value),) = sealed(listing)
    assert key == key_of(listing, "terms", sha256(VALUE.encode()).digest())
    assert read(listing, value, key) == VALUE


def test_a_repeated_join_is_one_row_whose_value_opens(listing: Stack) -> None:
    assert [join(listing, VALUE), join(listing, VALUE)] == [200, 200]
    ((key, value),) = sealed(listing)
    assert read(listing, value, key) == VALUE


def test_sealed_values_of_one_set_differ_and_their_length_is_that_of_others(listing: Stack) -> None:
    other = "how to burn a tree!"
    for client in range(3):
        assert join(listing, VALUE, f"client {client}") == 200
    assert join(listing, other) == 200
    values = [value for _, value in sealed(listing)]
    assert len(set(values)) == 4
    assert {len(value) for value in values} == {48 + 32}


BAD: list[tuple[Any, str]] = [
    ({"client": "me"}, "this type is listed: give the value of the set"),
    ({"client": "me", "value": "another"}, "the set must be the SHA-256 of the value"),
    ({"client": "me", "value": ""}, "value"),
    ({"client": "me", "value": "v" * 513}, "value"),
    ({"client": "me", "value": "é" * 257}, "at most 512 bytes of UTF-8"),
    ({"client": "me", "value": None}, "must be a text"),
    ({"client": "me", "value": ["v"]}, "value"),
    ('{"client": "me", "value": "\\ud800"}', "value"),
    (b'{"client": "me", "value": "\xff"}', "UTF-8"),
]


@pytest.mark.parametrize(("body", "message"), BAD, ids=map(str, range(len(BAD))))
def test_a_wrong_value_is_refused_with_what_to_change_and_nothing_is_logged(
    listing: Stack, body: Any, message: str
) -> None:
    headers = {"content-type": "application/json"}
    answer = listing.request("POST", path(VALUE), body, headers)
    assert answer.status == 400
    assert message in answer.body.decode()
    assert rows(listing, "StepLog") == []


def test_a_value_for_a_type_that_is_not_listed_is_refused(listing: Stack) -> None:
    answer = listing.request("POST", path(VALUE, "fledge"), {"client": "me", "value": VALUE})
    assert answer.status == 400
    assert "this type is not listed: leave out the value" in answer.body.decode()
    assert rows(listing, "StepLog") == []


def test_a_batch_is_sealed_set_by_set_and_a_bad_join_fails_alone(listing: Stack) -> None:
    values = ["shoes", "boots", LONGEST]
    joins = [
        {"type": "terms", "set": set_of(value), "client": f"client {n}", "value": value}
        for n in range(4)
        for value in values
    ]
    joins.insert(5, {"type": "terms", "set": set_of("shoes"), "client": "you", "value": "boots"})
    joins.append({"type": "fledge", "set": "YWQ", "client": "me"})
    answer = listing.request("POST", "/v1:batchJoin", {"joins": joins})
    results = json.loads(answer.body)["results"]
    assert [place for place, result in enumerate(results) if "error" in result] == [5]
    found = {key: read(listing, value, key) for key, value in sealed(listing)}
    assert found == {key_of(listing, "terms", sha256(value.encode()).digest()): value for value in values}


def test_a_batch_of_the_most_and_longest_values_is_stored(listing: Stack) -> None:
    values = [f"{n:0512}" for n in range(500)]
    joins = [{"type": "terms", "set": set_of(value), "client": "me", "value": value} for value in values]
    answer = listing.request("POST", "/v1:batchJoin", {"joins": joins})
    assert answer.status == 200
    assert json.loads(answer.body)["results"] == [{}] * 500
    assert sorted(read(listing, value, key) for key, value in sealed(listing)) == values
    joins = [{**each, "client": f"client {n}"} for n, each in enumerate(joins)]  # one group, so one item if it packs
    assert json.loads(listing.request("POST", "/v1:batchJoin", {"joins": joins}).body)["results"] == [{}] * 500
    assert sorted(read(listing, value, key) for key, value in sealed(listing)) == sorted(2 * values)


def test_a_single_join_of_the_longest_value_and_name_takes_one_write_unit(listing: Stack) -> None:
    assert join(listing, LONGEST, type_name=LONG_NAME) == 200
    (row,) = rows(listing, "StepLog")
    assert len(row["sealed"]["B"]) == 48 + 32 * 17
    assert write_units(item_size(row)) == 1


def test_joins_of_types_that_are_not_listed_are_the_same_bytes_as_in_a_stack_without_lists(
    new_stack: Callable[..., Stack],
) -> None:
    alone = {"fledge": TYPES["fledge"]}
    found, calls = [], []
    for types, slots in [(alone, PACKED), (TYPES, PACKED)]:
        stack = new_stack({**PARAMETERS, "Types": json.dumps(types), "Slots": slots})
        assert stack.request("POST", "/v1/types/fledge/sets/YWQ:join", {"client": "me"}).status == 200
        batch = {"joins": [{"type": "fledge", "set": "YWQ", "client": f"client {n}"} for n in range(9)]}
        assert stack.request("POST", "/v1:batchJoin", batch).status == 200
        calls.append({(call.action, call.key) for call in Monitor.of(stack).calls if call.function == "join"})
        single, packed = sorted(rows(stack, "StepLog"), key=lambda row: "joins" in row)
        found.append((single, packed["joins"], packed["ttl"], sorted(packed)))
    assert found[0] == found[1]
    assert calls[0] == calls[1]


def test_a_set_that_crosses_has_its_value_beside_the_true_sets_of_its_slot(listing: Stack) -> None:
    for n in range(130):  # certain to cross
        assert join(listing, VALUE, f"client {n}") == 200
    assert join(listing, "my own name") == 200
    listing.advance(3 * 3600)
    place = Place(0, 0)
    row = Control(listing.session.client("dynamodb"), listing.storage.tables["Control"]).row(place)
    assert row.shown
    parts = PartObjects(listing.session.client("s3"), listing.storage.buckets["StatesBucket"], place)
    found = parts.listed_sets(row.shown)
    assert found is not None
    assert [read(listing, each.sealed, each.key) for each in found] == [VALUE]
    answer = listing.request("GET", f"/v1/types/terms/sets/{set_of(VALUE)}")
    assert json.loads(answer.body)["kAnonymous"] is True


def test_list_alone_may_read_the_key_of_the_lister(listing: Stack) -> None:
    assert join(listing, VALUE) == 200
    listing.advance(2 * 3600)
    monitor, secret = Monitor.of(listing), lister_secret(listing)
    for function in listing.functions:
        call = Call(function, "secretsmanager:GetSecretValue", secret, "")
        may = any(permission.covers(call) for permission in monitor.allowed[function])
        told = secret in listing.functions[function].environment.values()
        assert may == told == (function == "list"), function
    assert {call.function for call in monitor.calls if call.resource == secret} == {"list"}


def test_another_key_of_the_lister_is_refused_before_a_value_is_sealed_to_it(listing: Stack) -> None:
    assert join(listing, VALUE) == 200
    listing.deploy({"ListerKey": "A" * 42 + "w"})
    assert join(listing, VALUE, "you") == 503
    assert len(sealed(listing)) == 1


def test_a_type_that_is_added_as_listed_gets_its_values_from_then_on(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack({**PARAMETERS, "Types": json.dumps({"fledge": TYPES["fledge"]})})
    assert stack.request("POST", "/v1/types/fledge/sets/YWQ:join", {"client": "me"}).status == 200
    stack.deploy({"Types": json.dumps(TYPES)})
    assert join(stack, VALUE) == 200
    ((key, value),) = sealed(stack)
    assert read(stack, value, key) == VALUE
