"""Tables of different times with unchanged ids: evaluation stops, or the answers are those of the naive algorithm."""

import json
import random
from collections.abc import Iterator
from itertools import chain, combinations

import pytest

from kanon.local import Stack
from tests.conftest import START
from tests.e2e.gate.backups import Rows, put_back, rows
from tests.e2e.gate.oracle import Oracle
from tests.integration.gate.doctor_view import seen, wrong
from tests.snapshot import Snapshot

LAWS = {
    "threshold": {"shape": "two-sided", "epsilon": "0.4", "truncation": 5},
    "query": {"shape": "two-sided", "epsilon": "0.4", "truncation": 5},
}
TYPES = {
    "a": {"k": 12, "window": 6, "laws": LAWS},
    "c": {"k": 12, "window": 6, "laws": LAWS, "restart": "crossing", "hold": 7, "epoch": 20},
}
SETS = [b"set %d" % n for n in range(24)]
RESTORED = ("Control", "Members", "Statuses")
MIXTURES = list(chain.from_iterable(combinations(RESTORED, n) for n in (1, 2, 3)))
HOURS_BACK = 4


def join_some(oracle: Oracle, chance: random.Random) -> None:
    oracle.join_all([("ac"[n % 2], name, f"c{chance.randrange(18)}") for n, name in enumerate(SETS) for _ in range(2)])


@pytest.fixture(scope="module")
def used() -> Iterator[tuple[Snapshot[Oracle], Rows]]:
    """A stack after seven steps, and its rows four steps before."""
    with Stack({"Types": json.dumps(TYPES), "OutageAllowance": "172800"}, start=START, seed=8) as stack:
        oracle, chance = Oracle(stack), random.Random(1)
        for step in range(3 + HOURS_BACK):
            if step == 3:
                backup = {table: rows(stack, table) for table in RESTORED}
            join_some(oracle, chance)
            assert oracle.finish_step() == 0
        yield Snapshot(stack, oracle), backup


def next_steps(oracle: Oracle) -> tuple[bool, list[int]]:
    """Whether evaluation stopped within two more steps, and how many answers were wrong at each of its ticks."""
    chance, mistakes = random.Random(2), []
    for _ in range(2):
        join_some(oracle, chance)
        step = oracle.now_step
        oracle.stack.advance_to((step + 1) * 3600 + 1800)
        expected = oracle.pass_step()
        if {*seen(oracle.stack).marks.values()} != {step}:
            return True, mistakes
        answered = oracle.answers(step)
        mistakes.append(sum(answered[place] != expected[place] for place in expected))
    return False, mistakes


MAY_STOP = {("Members",), ("Statuses",), ("Members", "Statuses"), ("Control", "Statuses")}
"""Members behind the mark, or Statuses behind Members."""


@pytest.mark.parametrize("tables", MIXTURES, ids=" ".join)
def test_tables_restored_from_different_times_stop_evaluation_or_change_no_answer(
    used: tuple[Snapshot[Oracle], Rows], tables: tuple[str, ...]
) -> None:
    snapshot, backup = used
    oracle = snapshot.restore()
    put_back(oracle.stack, backup, tables)
    assert next_steps(oracle) == ((True, []) if tables in MAY_STOP else (False, [0, 0]))
    assert ("tables" in wrong(oracle.stack)) is (tables in MAY_STOP)


def test_an_emptied_statuses_is_found_and_only_lost_crossings_change_answers(
    used: tuple[Snapshot[Oracle], Rows],
) -> None:
    oracle = used[0].restore()
    put_back(oracle.stack, {"Statuses": []}, ("Statuses",))
    assert "tables" in wrong(oracle.stack)
    check(oracle, ("Statuses",))


def test_evaluation_stops_if_control_is_emptied(used: tuple[Snapshot[Oracle], Rows]) -> None:
    oracle = used[0].restore()
    put_back(oracle.stack, {"Control": []}, ("Control",))
    assert next_steps(oracle)[0]


def check(oracle: Oracle, tables: tuple[str, ...]) -> None:
    """Compare the answers of two steps. Evaluation goes on."""
    stopped, mistakes = next_steps(oracle)
    assert (stopped, mistakes) == ((False, [0, 0]) if tables == ("Control",) else (True, []))
