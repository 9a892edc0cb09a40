"""With restart after the crossing, nothing forgets a crossing while a later search may depend on it.

A set that forgot it would search too early: an old noise would be drawn again.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kanon.client import Client, Join, encoded
from kanon.gate.parts import Part, keys_of
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.parts import PartList
from kanon.local import Stack
from kanon.operate.changes import leased
from tests.conftest import START
from tests.e2e.gate.backups import parts_of, put_object
from tests.e2e.gate.operating import key_of
from tests.e2e.gate.oracle import laws
from tests.integration.gate.doctor_view import operate, seen
from tests.snapshot import Snapshot

WINDOW, HOLD, EPOCH, ALLOWANCE = 5, 7, 24, 172_800
LAWS = laws("one-sided", "0.7", 3, 4)
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
        self.key = key_of(stack, "a", SET)
        while not self.is_true():
            Client(stack.request).join_many(Join("a", encoded(SET), f"client-{n}") for n in range(20))
            stack.advance_to((stack.clock.now() // 3600 + 1) * 3600 + 1800)
        self.crossing = int(self.states.crossings[0, 1])

    @property
    def client(self) -> Any:
        return self.stack.session.client("dynamodb")

    def is_true(self) -> bool:
        return Client(self.stack.request).status("a", encoded(SET)).k_anonymous

    @property
    def states(self) -> Part:
        """The part of the only slot."""
        (part,) = parts_of(self.stack)
        return part

    @property
    def status(self) -> dict[str, Any]:
        """The item of the set in Statuses; empty if there is none."""
        return dict(self.client.get_item(**self.place, ConsistentRead=True).get("Item", {}))

    @property
    def place(self) -> dict[str, Any]:
        return {"TableName": self.stack.storage.tables["Statuses"], "Key": {"set_key": {"B": self.key}}}

    def state_kept_until(self) -> int:
        """The last step with the state of the set."""
        (row,) = (n for n, key in enumerate(keys_of(self.states.keys)) if key == self.key)
        assert self.states.crossings[row, 1] == self.crossing
        return int(self.states.ends[row])

    def status_kept_until(self) -> int:
        """The last step for which an item with the crossing surely exists, an outage allowance included."""
        assert int(self.status["crossings"]["L"][-1]["N"]) == self.crossing
        return (int(self.status["ttl"]["N"]) - ALLOWANCE) // 3600 - 1

    def assert_kept(self) -> None:
        assert min(self.state_kept_until(), self.status_kept_until()) >= self.crossing + EPOCH + HOLD

    def forget_state(self) -> None:
        """Put states without any set in the place of those of the slot."""
        stack, place = seen(self.stack), Place(0, 0)
        with leased(stack.control, [place], self.stack.clock.now(), 60) as rows:
            step, run = rows[place].evaluated_through or 0, rows[place].run
            piece = stack.parts(place).put(Part.empty(), step, run, "")
            stack.control.restate(place, run, step, [stack.parts(place).put_list(PartList(step, (piece,)), run)])
        assert len(self.states) == 0

    def forget_status(self) -> None:
        """Delete the item in Statuses."""
        self.client.delete_item(**self.place)


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
    assert crossed.state_kept_until() == crossed.status_kept_until() == crossed.crossing + EPOCH + HOLD


def test_an_empty_set_is_gone_only_after_that(crossed: Crossed) -> None:
    crossed.stack.advance((EPOCH + HOLD - 1) * 3600)
    crossed.assert_kept()
    crossed.stack.advance(2 * 3600)
    assert len(crossed.states) == 0
    crossed.stack.advance(ALLOWANCE - 3 * 3600)
    crossed.stack.sweep()
    assert crossed.status_kept_until() == crossed.crossing + EPOCH + HOLD
    crossed.stack.advance(3 * 3600)
    crossed.stack.sweep()
    assert crossed.status == {}


def test_a_set_that_was_suppressed_keeps_it(crossed: Crossed) -> None:
    assert operate(crossed.stack, "suppress", PLACE, "--yes")[0] == 0
    crossed.assert_kept()
    assert operate(crossed.stack, "unsuppress", PLACE, "--yes")[0] == 0
    crossed.assert_kept()


def test_a_repair_keeps_it(crossed: Crossed) -> None:
    manifest = seen(crossed.stack).control.row(Place(0, 0)).manifest or ""
    (piece,) = seen(crossed.stack).parts(Place(0, 0)).list_of(manifest).pieces
    put_object(crossed.stack, piece.name, b"damaged")
    assert operate(crossed.stack, "repair", "--yes")[0] == 0
    crossed.assert_kept()


@pytest.mark.parametrize("forget", [Crossed.forget_state, Crossed.forget_status], ids=["states", "statuses"])
def test_a_log_generation_takes_it_from_where_it_is(crossed: Crossed, forget: Callable[[Crossed], None]) -> None:
    forget(crossed)
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
