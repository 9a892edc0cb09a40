"""Every interleaving of small models of the step protocol is right; each known mistake is found and told."""

from collections.abc import Iterator
from enum import Enum
from itertools import product
from typing import Any

import pytest

from tests.proofs.gate.segments import dueing, layouts, operating, reading, showing, stepping
from tests.proofs.gate.segments.exploring import Explored, explore

COMMANDS = ("recover", "forget", "begin a generation", "skip")
SEVERAL = (("recover", "forget"), ("recover", "begin a generation"), ("skip", "recover"))
RIGHT: dict[str, tuple[Any, int]] = {
    "a step with two workers and the sweeper": (stepping.Model(runs=2), 9_000),
    "what readers see": (showing.Model(), 20_000),
    "what is due": (dueing.Model(), 2_000),
    "a reading that outlasts its workers": (reading.Model(runs=1), 1_000),
    "one slot becomes two": (layouts.Model(slots=(1, 2), runs=2, evaluated=False), 3_000),
    "two slots become one": (layouts.Model(slots=(2, 1), runs=2, evaluated=False), 2_000),
    "two slots become one, and one is recovered": (layouts.Model(slots=(2, 1)), 20_000),
    **{" and ".join(commands): (operating.Model(commands=commands), 25_000) for commands in SEVERAL},
    "a recovery far back": (operating.Model(last=5, runs=3, commands=("recover",)), 8_000),
}
LARGER: dict[str, tuple[Any, int]] = {
    "a step with three runs": (stepping.Model(runs=3), 150_000),
    "a reading with three runs": (reading.Model(), 50_000),
    "what readers see in ten steps": (showing.Model(last=10), 300_000),
    "one slot becomes two, and is recovered": (layouts.Model(slots=(1, 2)), 100_000),
    "one slot becomes two and one again": (layouts.Model(slots=(1, 2, 1), runs=2, evaluated=False), 10_000),
    **{" and ".join(c): (operating.Model(commands=c), 25_000) for c in product(COMMANDS, COMMANDS)},
    "a generation, a skip and a recovery": (
        operating.Model(runs=5, commands=("begin a generation", "skip", "recover")),
        100_000,
    ),
    "two recoveries and a forget": (
        operating.Model(runs=5, commands=("recover", "recover", "forget")),
        100_000,
    ),
}


@pytest.mark.parametrize(("model", "least"), RIGHT.values(), ids=RIGHT)
def test_no_interleaving_goes_wrong(model: Any, least: int) -> None:
    explored = explore(model)
    print(explored)
    assert explored.problem is None, str(explored)
    assert explored.states > least


@pytest.mark.prove
@pytest.mark.parametrize(("model", "least"), LARGER.values(), ids=LARGER)
def test_no_interleaving_goes_wrong_within_larger_bounds(model: Any, least: int) -> None:
    test_no_interleaving_goes_wrong(model, least)


NOT_THERE = "is recorded that is not there"
GONE = "the sweeper is about to delete"
TWICE = "traces of two decisions"
UNKNOWN = "does not know it"
STUCK = "has not begun, and a slot from which it begins is retired"
S, V, D, P, L = stepping.Flaw, showing.Flaw, dueing.Flaw, operating.Flaw, layouts.Flaw
R = reading.Flaw


def stepped(flaw: stepping.Flaw) -> stepping.Model:
    return stepping.Model(flaw, runs=2)


def operated(flaw: operating.Flaw, *commands: str) -> operating.Model:
    return operating.Model(flaw, commands=commands)


SHOWN_BY: dict[Enum, tuple[Any, str]] = {
    **{
        flaw: (stepped(flaw), GONE)
        for flaw in (
            S.SWEEP_BY_REFERENCES,
            S.REFERENCES_BEFORE_RUN,
            S.REFERENCES_IN_TWO_READS,
            S.NAMES_WITHOUT_RUN,
            S.PROGRESS_WITHOUT_RUN,
            S.HORIZON_WITHOUT_RUN,
            S.COMMIT_WITHOUT_RUN,
            S.SWEEP_HORIZON,
        )
    },
    S.MARK_FIRST: (stepped(S.MARK_FIRST), "the mark is 1, the manifest that of step 0"),
    S.DECIDED_IS_DONE: (stepped(S.DECIDED_IS_DONE), "a crossing is not written"),
    S.PLACE_FIRST: (stepped(S.PLACE_FIRST), "a crossing is not written"),
    S.HORIZON_FIRST: (stepped(S.HORIZON_FIRST), "a crossing is not written"),
    V.CATCH_UP_PAST_HOLD: (showing.Model(V.CATCH_UP_PAST_HOLD), "the table says False"),
    V.CATCH_UP_PAST_TWO_HOLDS: (showing.Model(V.CATCH_UP_PAST_TWO_HOLDS), "the table says False"),
    V.TWO_STEPS: (showing.Model(V.TWO_STEPS), "within a tick one reader sees"),
    V.NO_MARGIN: (showing.Model(V.NO_MARGIN), "within a tick one reader sees"),
    V.EARLY_OBJECT: (showing.Model(V.EARLY_OBJECT), "a reader answers from the object of step"),
    V.SUPPRESSED_IN_OBJECT: (showing.Model(V.SUPPRESSED_IN_OBJECT), "or it says False"),
    V.ONE_CROSSING: (showing.Model(V.ONE_CROSSING), "the table says False"),
    V.CROSSING_ENDS_WITH_HOLD: (showing.Model(V.CROSSING_ENDS_WITH_HOLD), "the table says False"),
    D.DUE_BY_EQUALITY: (dueing.Model(D.DUE_BY_EQUALITY), "the parts say ()"),
    D.NO_END: (dueing.Model(D.NO_END), "could be forgotten"),
    D.END_WITHOUT_CROSSING: (dueing.Model(D.END_WITHOUT_CROSSING), "the parts say"),
    D.WAKE_UP_KEPT: (dueing.Model(D.WAKE_UP_KEPT), "due for ever"),
    R.RECORD_FIRST: (reading.Model(R.RECORD_FIRST), NOT_THERE),
    R.RECORD_WITHOUT_RUN: (reading.Model(R.RECORD_WITHOUT_RUN), NOT_THERE),
    R.OWN_OBJECTS_ONLY: (reading.Model(R.OWN_OBJECTS_ONLY), "without the joins of page"),
    R.SWEEP_RECORDED: (reading.Model(R.SWEEP_RECORDED), NOT_THERE),
    R.REFERENCES_BEFORE_RUN: (reading.Model(R.REFERENCES_BEFORE_RUN), NOT_THERE),
    R.OTHER_STATES: (reading.Model(R.OTHER_STATES), "from before a command"),
    R.LOST_IS_EMPTY: (reading.Model(R.LOST_IS_EMPTY), "without the joins of page"),
    P.GENERATION_OVER_HALF_STEP: (operated(P.GENERATION_OVER_HALF_STEP, "begin a generation"), TWICE),
    P.GENERATION_WITHOUT_CROSSINGS: (operated(P.GENERATION_WITHOUT_CROSSINGS, "begin a generation"), UNKNOWN),
    P.SKIP_WITHOUT_CROSSINGS: (operated(P.SKIP_WITHOUT_CROSSINGS, "skip"), UNKNOWN),
    P.FORGET_OVER_HALF_STEP: (operated(P.FORGET_OVER_HALF_STEP, "forget"), TWICE),
    P.FORGET_BY_HORIZON: (operated(P.FORGET_BY_HORIZON, "forget"), TWICE),
    P.BEGUN_GOES_BACK: (operated(P.BEGUN_GOES_BACK, "recover", "begin a generation"), TWICE),
    P.RECOVERY_CROSSES_FORGET: (operated(P.RECOVERY_CROSSES_FORGET, "forget", "recover"), "was forgotten"),
    P.RECOVERY_CROSSES_GENERATION: (
        operated(P.RECOVERY_CROSSES_GENERATION, "begin a generation", "recover"),
        TWICE,
    ),
    P.RECOVERY_CROSSES_SKIP: (operated(P.RECOVERY_CROSSES_SKIP, "skip", "recover"), "is not the one in Statuses"),
    P.TWO_CROSSINGS: (
        operating.Model(P.TWO_CROSSINGS, last=5, runs=3, commands=("recover",)),
        "Statuses lacks the crossing of 1",
    ),
    P.COMMIT_OVER_CHANGED_MANIFEST: (
        operated(P.COMMIT_OVER_CHANGED_MANIFEST, "recover"),
        "is committed on another manifest",
    ),
    P.CROSSING_WITHOUT_RUN: (operated(P.CROSSING_WITHOUT_RUN, "begin a generation"), UNKNOWN),
    P.OPERATOR_WITHOUT_RUN: (operated(P.OPERATOR_WITHOUT_RUN, "skip"), UNKNOWN),
    L.KEYED_BY_SLOT: (layouts.Model(L.KEYED_BY_SLOT, (2, 1), evaluated=False), "a reader of part B"),
    L.HEIR_BEFORE_ALL: (layouts.Model(L.HEIR_BEFORE_ALL, (2, 1), evaluated=False), "a reader of part B"),
    L.HEIR_NAMES_OLD_PARTS: (layouts.Model(L.HEIR_NAMES_OLD_PARTS, (2, 1)), "is gone"),
    L.RUN_BEGINS_AGAIN: (layouts.Model(L.RUN_BEGINS_AGAIN, (2, 1)), "finds no object of crossings"),
    L.RETIRED_AFTER_ONE_HEIR: (layouts.Model(L.RETIRED_AFTER_ONE_HEIR, (1, 2), 1), STUCK),
    L.RETIRED_AFTER_HORIZON: (layouts.Model(L.RETIRED_AFTER_HORIZON, (2, 1), 2), STUCK),
    L.NOT_RETIRED_BY_A_WRITE: (layouts.Model(L.NOT_RETIRED_BY_A_WRITE, (2, 1)), "is gone"),
    **{
        flaw: (layouts.Model(flaw, (2, 1)), STUCK)
        for flaw in (
            L.RETIRED_BESIDE_RECOVERY,
            L.RECOVERY_BESIDE_RETIREMENT,
            L.RECOVERY_BESIDE_RETIRED,
        )
    },
}


@pytest.mark.parametrize("flaw", [flaw for flaws in (S, V, D, P, L, R) for flaw in flaws], ids=lambda flaw: flaw.name)
def test_every_known_mistake_is_found(flaw: Enum) -> None:
    model, problem = SHOWN_BY[flaw]
    found = explore(model)
    print(f"{flaw.value}:\n{found}")
    assert problem in (found.problem or "nothing")
    assert found.moves
    assert len(found.moves) <= 30


def test_an_exploration_tells_the_shortest_way_to_what_is_wrong() -> None:
    found = explore(stepping.Model(stepping.Flaw.SWEEP_BY_REFERENCES, runs=1))
    assert str(found).splitlines() == [
        "a worker takes the lease: run 1",
        "run 1 puts part A of step 1",
        "the sweeper reads the run",
        "the sweeper reads the row's references",
        "run 1 records part A as decided",
        "the sweeper reads the horizon and lists part A of step 1, run 1",
        "=> the sweeper is about to delete what is referenced",
    ]


class Trap:
    """A state from which one move leads to where nothing can be finished."""

    @property
    def start(self) -> int:
        return 0

    def moves(self, state: int) -> Iterator[tuple[str, int]]:
        return iter([("falls", 1), ("walks on", 2)] if state == 0 else [])

    def wrong(self, state: int) -> None:
        return None

    def finished(self, state: int) -> bool:
        return state == 2


def test_a_state_from_which_nobody_can_finish_is_wrong() -> None:
    assert explore(Trap()) == Explored(3, "from here the work can never be finished", ("falls",))
