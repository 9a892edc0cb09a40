"""The searches of a set: every join counts in one of them, and every way to compute them agrees."""

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kanon.gate.mechanism.columns import NEVER
from kanon.gate.mechanism.parameters import CrossingRestart, Parameters
from kanon.gate.mechanism.searches import Search, Searches
from kanon.gate.mechanism.vectorised import searches_at
from tests.naive import NaiveSearches
from tests.unit.examples import CROSSING, SMALL, set_key

SHAPES = [(w, hold, epoch) for w in (2, 3) for hold in (w, w + 1, 2 * w, 11) for epoch in (w + 1, 2 * w, 7)]
"""Window, hold and epoch: small, and with every order of hold and epoch."""
STEPS = range(20)


def shaped(window: int, hold: int, epoch: int) -> Parameters:
    """A type with this restart."""
    return replace(CROSSING, window=window, restart=CrossingRestart(hold, epoch))


Tested = tuple[tuple[int, Search], ...]


def runs(searches: Searches, crossed: tuple[int, ...] = (), tested: Tested = ()) -> Iterator[tuple[set[int], Tested]]:
    """Every run with at most two crossings: its crossings, and its tested steps with their searches."""
    crossing = crossed[-1] if crossed else None
    for step in range(0 if crossing is None else crossing + 1, len(STEPS)):
        search = searches.at(step, crossing)
        if search.first <= step:
            tested += ((step, search),)
            if len(crossed) < 2:
                yield from runs(searches, (*crossed, step), tested)
    yield set(crossed), tested


@pytest.mark.parametrize("begun", [None, 0, 9])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_join_counts_in_two_searches(shape: tuple[int, int, int], begun: int | None) -> None:
    parameters = shaped(*shape)
    for phase in range(parameters.cycle):
        searches = Searches(parameters, phase, begun)
        for crossed, found in runs(searches):
            for (step, search), (later, other) in pairwise(found):
                if search == other:
                    continue
                assert searches.counts_from(search, step) <= step < searches.counts_from(other, later)
                # And no join is lost: the next search counts from the step after the last one on.
                assert other.since == step + 1 or other.since == (begun or 0) > step
                if step in crossed:
                    assert later == step + parameters.restart.hold  # type: ignore[union-attr]


@pytest.mark.parametrize("begun", [None, 4, 9, 10])
@pytest.mark.parametrize("shape", SHAPES)
def test_searches_are_those_of_an_algorithm_that_remembers_them(shape: tuple[int, int, int], begun: int | None) -> None:
    parameters = shaped(*shape)
    for phase in range(parameters.cycle):
        naive = NaiveSearches(parameters, phase.to_bytes(32, "big"), since=-1)
        naive.begun = begun
        follow(naive, Searches(parameters, phase), Searches(parameters, phase, begun))


def follow(naive: NaiveSearches, first: Searches, later: Searches) -> None:
    """Compare every run that goes on from here and has at most two crossings.

    ``first`` are the searches before the log generation of ``naive``, ``later`` those in it.
    """
    crossing, w = naive.crossings[-1] if naive.crossings else None, first.parameters.window
    for step in range(0 if crossing is None else crossing, len(STEPS)):
        searches = first if naive.begun is None or step < naive.begun else later
        if step != crossing:
            search = searches.at(step, crossing)
            running = naive.search_at(step)
            assert (None if search.first > step else (search.place, step - search.first)) == running
            assert search.first == search.place
            assert not running or searches.counts_from(search, step) == max(step - w + 1, naive.counted_from)
            if running and len(naive.crossings) < 2:
                crossed = copy(naive)
                crossed.crossings = [*naive.crossings]
                crossed.crossed(step)
                follow(crossed, first, later)
        assert (crossing is not None and searches.is_true(crossing, step)) == (step <= naive.true_through)


def test_the_searches_of_a_quiet_set_fill_each_epoch_and_count_from_0() -> None:
    searches = Searches(CROSSING, 4)  # window 6, epoch 15
    assert [searches.at(step, None) for step in (4, 9, 18, 19)] == [Search(4, 4, 18, 4)] * 3 + [Search(19, 19, 33, 19)]


@pytest.mark.parametrize(
    ("crossing", "step", "search"),
    [
        (10, 11, Search(18, 18, 18, 11)),  # the last step of its epoch
        (10, 19, Search(19, 19, 33, 19)),
        (11, 12, Search(19, 19, 33, 12)),  # the first step of the next one: no search ended there, so no join is lost
        (13, 14, Search(21, 21, 33, 14)),
        (13, 20, Search(21, 21, 33, 14)),
        (18, 18, Search(26, 26, 33, 19)),
    ],
)
def test_the_search_after_a_crossing_begins_when_the_status_ends_and_ends_with_its_epoch(
    crossing: int, step: int, search: Search
) -> None:
    assert Searches(CROSSING, 4).at(step, crossing) == search  # hold 8


def test_a_hold_longer_than_the_epoch_passes_over_epochs() -> None:
    searches = Searches(replace(CROSSING, restart=CrossingRestart(40, 15)), 4)
    assert {searches.at(step, 10) for step in range(10, 64)} == {Search(50, 50, 63, 11)}
    assert searches.at(64, 10) == Search(64, 64, 78, 64)


def test_a_log_generation_ends_searches_like_an_epoch_and_statuses_stay() -> None:
    searches = Searches(CROSSING, 4, begun=12)
    assert searches.at(12, None) == Search(12, 12, 18, 12)
    assert searches.at(12, 3) == Search(12, 12, 18, 12)  # its search began at 11 and ends at 11
    assert searches.at(12, 4) == Search(12, 12, 18, 5)  # a true status ended at 11: no search ended there
    assert searches.at(12, 9) == Search(17, 17, 18, 10)
    assert Searches(CROSSING, 4, begun=15).at(19, None) == Search(19, 19, 33, 19)


@pytest.mark.parametrize("parameters", [SMALL, *(shaped(*shape) for shape in SHAPES)])
@pytest.mark.parametrize("begun", [None, 5])
def test_the_searches_of_many_sets_are_those_of_each(parameters: Parameters, begun: int | None) -> None:
    cases = [
        (phase, step, crossing)
        for phase in range(parameters.cycle)
        for step in range(5, 24)
        for crossing in (None, *range(step - 20, step + 1))
    ]
    phases, steps = (np.array([case[n] for case in cases]) for n in (0, 1))
    newest = np.array([NEVER if crossing is None else crossing for _, _, crossing in cases])
    found = searches_at(parameters, phases, steps, newest, begun)
    alone = [Searches(parameters, phase, begun).at(step, crossing) for phase, step, crossing in cases]
    assert list(zip(*(column.tolist() for column in found), strict=True)) == alone


def test_the_phase_of_an_epoch_is_a_public_hash_of_the_set() -> None:
    key = set_key(1)
    assert Searches.of(CROSSING, key).phase == int(key[24:].hex(), 16) % 15
    assert Searches.of(replace(CROSSING, phase="zero"), key).phase == 0
    assert Searches.of(SMALL, key).phase == int(key[24:].hex(), 16) % 6


def test_a_status_lasts_for_its_hold_and_on_a_grid_until_its_instance_ends() -> None:
    assert Searches(SMALL, 4).last_true(10) == 15
    assert Searches(CROSSING, 4).last_true(10) == 17


@pytest.mark.parametrize("shape", SHAPES)
def test_a_crossing_is_needed_for_its_memory_at_most_and_for_the_search_after_it_at_least(
    shape: tuple[int, int, int],
) -> None:
    parameters = shaped(*shape)
    _, hold, epoch = shape
    assert parameters.memory == epoch + hold
    for phase in range(epoch):
        searches = Searches(parameters, phase)
        after = searches.at(10, 10)
        assert after.last < 10 + hold + epoch
        for step in range(10 + parameters.memory, 10 + parameters.memory + 3 * epoch):
            assert searches.at(step, 10) == searches.at(step, None)
    assert SMALL.memory == SMALL.window
