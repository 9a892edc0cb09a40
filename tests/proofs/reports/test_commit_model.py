"""Every interleaving of two committing jobs keeps the budget and releases what it spends; each flaw is found."""

from dataclasses import replace

import pytest

from tests.proofs.reports.commit_model import Flaw, Model

BOTH = (0, 1)
SHAPES = {
    "both jobs need both rows": (BOTH, BOTH),
    "one job needs both rows, the other the first": (BOTH, (0,)),
    "one job needs both rows, the other the second": (BOTH, (1,)),
}
FRESH: frozenset[int] = frozenset()
SPENT = {"none": FRESH, "the first": frozenset({0}), "the second": frozenset({1}), "both": frozenset({0, 1})}


def test_no_interleaving_spends_without_release_or_refuses_what_is_left() -> None:
    worlds, problem = Model((BOTH, BOTH), workers=(2, 1)).explore()
    assert problem is None
    assert worlds > 5_000


@pytest.mark.prove
@pytest.mark.parametrize("spent", SPENT.values(), ids=SPENT)
@pytest.mark.parametrize("rows", SHAPES.values(), ids=SHAPES)
def test_no_interleaving_fails_for_any_rows_spent_at_the_start(
    rows: tuple[tuple[int, ...], ...], spent: frozenset[int]
) -> None:
    worlds, problem = Model(rows, spent).explore()
    print(f"{worlds} worlds")
    assert problem is None


def restored(rows: tuple[tuple[int, ...], ...], second: tuple[int, ...], flaw: Flaw | None = None) -> Model:
    """The row of the first job may be put back; its second plan has other rows. One worker each: the rest is above."""
    return Model(rows, FRESH, flaw, (1, 1), second)


def test_a_row_that_is_put_back_spends_nothing_for_free_and_returns_nothing_released() -> None:
    assert restored((BOTH, (1,)), BOTH).explore()[1] is None


@pytest.mark.prove
@pytest.mark.parametrize("second", [(0,), (1,), BOTH], ids=str)
@pytest.mark.parametrize("rows", SHAPES.values(), ids=SHAPES)
def test_a_row_that_is_put_back_with_any_plans_spends_nothing_for_free(
    rows: tuple[tuple[int, ...], ...], second: tuple[int, ...]
) -> None:
    for shape in (rows, rows[::-1]):
        assert restored(shape, second).explore()[1] is None


@pytest.mark.prove
def test_a_row_that_is_put_back_among_two_workers_spends_nothing_for_free() -> None:
    worlds, problem = replace(restored((BOTH, BOTH), BOTH), workers=(2, 1)).explore()
    print(f"{worlds} worlds")
    assert problem is None


SHOWN_BY = {
    Flaw.NO_CHECK_IN_A_HOLD: (Model((BOTH, BOTH), FRESH, Flaw.NO_CHECK_IN_A_HOLD), "a refused job keeps budget"),
    Flaw.REFUND_WITHOUT_CONDITION: (Model((BOTH, (0,)), FRESH, Flaw.REFUND_WITHOUT_CONDITION), "do not add up"),
    Flaw.RESULT_BEFORE_COMMIT: (Model((BOTH, BOTH), FRESH, Flaw.RESULT_BEFORE_COMMIT), "without its budget"),
    # The row that is spent makes one job abort; its own abort must not take the other one along.
    Flaw.ABORT_BY_STATES: (
        Model(((0,), BOTH), frozenset({1}), Flaw.ABORT_BY_STATES),
        "that committed spending admits",
    ),
    Flaw.NO_DEADLINE: (Model((BOTH, BOTH), FRESH, Flaw.NO_DEADLINE), "a row is spent twice"),
    # The other table forgets what a third job had spent before.
    **{
        flaw: (Model((BOTH, BOTH), SPENT["the second"], flaw), "a row is spent twice")
        for flaw in (
            Flaw.NO_EPOCH,
            Flaw.NO_WITNESS,
            Flaw.EPOCH_BEFORE_WITNESS,
            Flaw.ONE_WITNESS_A_JOB,
            Flaw.WITNESS_IN_THE_HOLDS,
            Flaw.OLD_WITNESS,
        )
    },
    Flaw.CLAIM_WITHOUT_PLAN: (restored(((0,), BOTH), BOTH, Flaw.CLAIM_WITHOUT_PLAN), "came back"),
    Flaw.ABORT_WITHOUT_A_LOOK: (restored((BOTH, BOTH), BOTH, Flaw.ABORT_WITHOUT_A_LOOK), "came back"),
}


@pytest.mark.parametrize("flaw", Flaw)
def test_every_known_flaw_is_found(flaw: Flaw) -> None:
    model, problem = SHOWN_BY[flaw]
    assert problem in (model.explore()[1] or "nothing")
