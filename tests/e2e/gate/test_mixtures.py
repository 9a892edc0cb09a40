"""Tables of different times with unchanged ids: the doctor finds them, and no set becomes true that should not.

No restore of DynamoDB gives such tables, but an import of rows does.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations

import pytest

from kanon.gate.publishing import Horizon
from kanon.local import Stack
from tests.conftest import START
from tests.e2e.gate.backups import Rows, put_back, rows, states
from tests.e2e.gate.operating import begin_generation, stopped
from tests.e2e.gate.oracle import Oracle, laws
from tests.integration.gate.doctor_view import findings, operate, seen, wrong
from tests.snapshot import Snapshot

LAWS = laws("two-sided", "0.4", 5, 5)
TYPES = {
    "a": {"k": 12, "window": 6, "laws": LAWS},
    "c": {"k": 12, "window": 6, "laws": LAWS, "restart": "crossing", "hold": 7, "epoch": 20},
}
SETS = [b"set %d" % n for n in range(24)]
RESTORED = ("Control", "Statuses")
MIXTURES = list(chain.from_iterable(combinations(RESTORED, n) for n in (1, 2)))
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
        assert not [place for place in expected if answered[place] and not expected[place]]
        mistakes.append(sum(answered[place] != expected[place] for place in expected))
    return False, mistakes


@pytest.mark.parametrize("tables", MIXTURES, ids=" ".join)
def test_tables_of_different_times_are_found_and_no_answer_is_wrong(
    used: tuple[Snapshot[Oracle], Rows], tables: tuple[str, ...]
) -> None:
    snapshot, backup = used
    oracle = snapshot.restore()
    assert "tables" not in wrong(oracle.stack)
    put_back(oracle.stack, backup, tables)
    assert wrong(oracle.stack)["tables"] == ("FAIL", "tables-of-different-times")
    stopped, mistakes = next_steps(oracle)
    assert stopped is (tables == ("Statuses",))  # an older Control evaluates the same steps again
    assert sum(mistakes) == 0


def without_objects(horizon: Horizon) -> Horizon:
    """The horizon if only the table answers: the objects may know crossings that it had lost."""
    return replace(horizon, shows=None, earlier_shows=None, earliest_shows=None)


@pytest.mark.parametrize("emptied", [False, True], ids=["restored", "emptied"])
def test_evaluation_stops_at_older_statuses_until_a_new_generation_has_mended_them(
    used: tuple[Snapshot[Oracle], Rows], emptied: bool
) -> None:
    snapshot, backup = used
    oracle = snapshot.restore()
    stack = oracle.stack
    crossings, horizons = seen(stack).statuses.released()
    put_back(stack, {"Statuses": []} if emptied else backup, ("Statuses",))
    assert "tables" in wrong(stack)
    assert next_steps(oracle) == (True, [])
    (reason,) = {re.sub(r"slot \d+", "slot N", line["reason"]) for line in stopped(stack)}
    assert reason == (
        "the table Statuses is older than the states of slot N, because it was restored or emptied: begin a new log"
        " generation with `kanon operate new-generation`"
    )

    first = begin_generation(stack)
    mended, shown = seen(stack).statuses.released()
    assert {slot: without_objects(each) for slot, each in horizons.items()} == shown  # readers see what they saw
    assert {key: steps for key, steps in mended.items() if steps}.items() >= {
        key: steps for key, steps in crossings.items() if steps and steps[-1] >= oracle.now_step - HOURS_BACK
    }.items()
    assert "tables" not in wrong(stack)
    stack.advance_to((first + 2) * 3600 + 1800)
    assert {*seen(stack).marks.values()} == {first + 1}
    assert "tables" not in wrong(stack)


def test_evaluation_stops_if_control_is_emptied(used: tuple[Snapshot[Oracle], Rows]) -> None:
    oracle = used[0].restore()
    put_back(oracle.stack, {"Control": []}, ("Control",))
    assert next_steps(oracle)[0]


def test_a_new_generation_after_an_older_control_begins_with_the_newest_states(
    used: tuple[Snapshot[Oracle], Rows],
) -> None:
    oracle, chance = used[0].restore(), random.Random(3)
    stack = oracle.stack
    join_some(oracle, chance)
    oracle.finish_step()
    backup = {"Control": rows(stack, "Control")}
    for _ in range(4):
        join_some(oracle, chance)
        oracle.finish_step()
    stack.invoke("sweep", {})  # deletes the manifest that the older Control names
    before = states(stack)
    put_back(stack, backup, ("Control",))
    assert wrong(stack)["tables"] == ("FAIL", "tables-of-different-times")
    begin_generation(stack)
    assert states(stack).keys() == before.keys()
    assert "tables" not in wrong(stack)


def test_the_doctor_prints_the_generation_that_is_not_deployed_yet(used: tuple[Snapshot[Oracle], Rows]) -> None:
    stack = used[0].restore().stack
    code, output = operate(stack, "new-generation", "--yes")
    assert code == 0
    (finding,) = findings(stack)["log"]
    assert finding.verdict == "FAIL"
    assert finding.advice == f"deploy with LogGenerations='{output.splitlines()[-1]}': nothing is evaluated before"
