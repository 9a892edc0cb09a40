"""With restart after the crossing, nothing forgets a crossing while a later search may depend on it.

A set that forgot it would search too early: an old noise would be drawn again.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kanon.client import Client, Join, encoded
from kanon.gate.names import set_key
from kanon.keys import Secret
from kanon.local import Stack
from tests.conftest import START
from tests.integration.gate.doctor_view import operate
from tests.snapshot import Snapshot

WINDOW, HOLD, EPOCH, ALLOWANCE = 5, 7, 24, 172_800
LAWS = {
    "threshold": {"shape": "one-sided", "epsilon": "0.7", "truncation": 3},
    "query": {"shape": "one-sided", "epsilon": "0.7", "truncation": 4},
}
TYPES = {
    "a": {"k": 8, "window": WINDOW, "laws": LAWS, "restart": "crossing", "hold": HOLD, "epoch": EPOCH},
    "short": {"k": 8, "window": 2, "laws": LAWS},
}
SET = b"popular"
PLACE = f"a/{encoded(SET)}"


class Crossed:
    """A stack with a set that has just crossed and is left by everybody."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.key = set_key(Secret.derived("set-pepper", stack.storage.secrets["SetPepper"]), "a", SET)
        while not self.is_true():
            Client(stack.request).join_all(Join("a", encoded(SET), f"client-{n}") for n in range(20))
            stack.advance_to((stack.clock.now() // 3600 + 1) * 3600 + 1800)
        self.crossing = self.crossings("Members")[-1]

    @property
    def client(self) -> Any:
        return self.stack.session.client("dynamodb")

    def is_true(self) -> bool:
        return Client(self.stack.request).status("a", encoded(SET)).k_anonymous

    def item(self, table: str) -> dict[str, Any]:
        name = self.stack.storage.tables[table]
        found = self.client.get_item(TableName=name, Key={"set_key": {"B": self.key}}, ConsistentRead=True)
        return dict(found.get("Item", {}))

    def crossings(self, table: str) -> list[int]:
        return [int(step["N"]) for step in self.item(table)["crossings"]["L"]]

    def kept_until(self, table: str) -> int:
        """The last step for which a row with the crossing surely exists, an outage allowance included."""
        assert self.crossings(table)[-1] == self.crossing
        return (int(self.item(table)["ttl"]["N"]) - ALLOWANCE) // 3600 - 1

    def assert_kept(self) -> None:
        for table in ("Members", "Statuses"):
            assert self.kept_until(table) >= self.crossing + EPOCH + HOLD, table


@pytest.fixture(scope="module")
def used() -> Iterator[Snapshot[Crossed]]:
    with Stack({"Types": json.dumps(TYPES), "OutageAllowance": str(ALLOWANCE)}, start=START, seed=6) as stack:
        yield Snapshot(stack, Crossed(stack))


@pytest.fixture
def crossed(used: Snapshot[Crossed]) -> Crossed:
    return used.restore()


def test_evaluation_keeps_a_crossing_for_an_epoch_and_a_hold(crossed: Crossed) -> None:
    crossed.assert_kept()
    for _ in range(WINDOW + 1):  # everybody leaves
        crossed.stack.advance(3600)
    assert crossed.kept_until("Members") == crossed.kept_until("Statuses") == crossed.crossing + EPOCH + HOLD


def test_an_empty_set_is_gone_only_after_that(crossed: Crossed) -> None:
    crossed.stack.advance((EPOCH + HOLD) * 3600 + ALLOWANCE - 7200)
    crossed.stack.sweep()
    crossed.assert_kept()
    crossed.stack.advance(3 * 3600)
    crossed.stack.sweep()
    assert crossed.item("Members") == crossed.item("Statuses") == {}


def test_a_set_that_was_suppressed_keeps_it(crossed: Crossed) -> None:
    assert operate(crossed.stack, "suppress", PLACE, "--yes")[0] == 0
    assert "ttl" not in crossed.item("Statuses")
    assert operate(crossed.stack, "unsuppress", PLACE, "--yes")[0] == 0
    crossed.assert_kept()


def test_a_repair_keeps_it(crossed: Crossed) -> None:
    crossed.client.update_item(
        TableName=crossed.stack.storage.tables["Members"],
        Key={"set_key": {"B": crossed.key}},
        UpdateExpression="SET members = :damaged",
        ExpressionAttributeValues={":damaged": {"B": b"\xff"}},
    )
    assert operate(crossed.stack, "repair", "--yes")[0] == 0
    crossed.assert_kept()


@pytest.mark.parametrize("lost", ["Members", "Statuses"])
def test_a_log_generation_takes_it_from_the_table_that_has_it(crossed: Crossed, lost: str) -> None:
    crossed.client.delete_item(TableName=crossed.stack.storage.tables[lost], Key={"set_key": {"B": crossed.key}})
    code, output = operate(crossed.stack, "new-generation", "--yes")
    assert code == 0, output
    crossed.assert_kept()


def test_answers_that_are_too_old_are_refused_over_http_and_types_on_a_grid_still_answer(crossed: Crossed) -> None:
    stack, now = crossed.stack, crossed.stack.clock.now()
    asked = {name: {"setsForType": [{"type": name, "hashes": [encoded(SET)]}]} for name in TYPES}
    stack.clock.set(now + (WINDOW - 1) * 3600)  # nothing is evaluated meanwhile
    assert crossed.is_true()
    stack.clock.set(now + WINDOW * 3600)
    refused = stack.request("POST", "/v1:query", asked["a"])
    assert refused.status == 503
    assert dict(refused.headers)["Retry-After"] == "5"
    assert refused.json()["error"]["status"] == "UNAVAILABLE"
    assert stack.request("GET", f"/v1/types/a/sets/{encoded(b'nobody')}").status == 503  # whatever the set
    assert stack.request("POST", "/v1:query", asked["short"]).status == 200
    stack.advance(3600)
    stack.advance_to((stack.clock.now() // 3600) * 3600 + 1800)
    assert stack.request("POST", "/v1:query", asked["a"]).status == 200
