"""Layouts: which slot evaluates which set at which step, in what order, and where its rows may lie."""

import itertools
from dataclasses import replace

import pytest

from kanon.errors import ConfigurationError
from kanon.gate.slots import Layout, Layouts
from tests.unit.examples import ONE_SLOT, set_key

KEYS = [set_key(n) for n in range(200)]
LAYOUTS = [
    Layouts(tuple(Layout(slots, first) for slots, first in zip(numbers, (0, 4, 7), strict=False)))
    for count in (1, 2, 3)
    for numbers in itertools.product((1, 2, 4), repeat=count)
]
STEPS = range(12)
every_layouts = pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda each: "-".join(map(str, each.entries)))


@every_layouts
def test_every_set_belongs_to_one_slot_at_every_step_and_lies_within_its_keys(layouts: Layouts) -> None:
    for layout in layouts.entries:
        for key in KEYS:
            holders = [
                slot for slot in range(layout.slots) if layout.keys_of(slot)[0] <= key <= layout.keys_of(slot)[1]
            ]
            assert holders == [layout.slot_of(key)]


@every_layouts
def test_the_slots_together_evaluate_every_step_of_every_set(layouts: Layouts) -> None:
    for slot in layouts.slots:
        walked, step = [], layouts.next_step(slot, -1)
        while step is not None and step < len(STEPS):
            walked.append(step)
            step = layouts.next_step(slot, step)
        assert walked == [step for step in STEPS if slot < layouts.at(step).slots]
        for after, through in itertools.product((-1, 2, 3, 5, 7), (-1, 3, 4, 8, 11)):
            assert layouts.steps(slot, after, through) == sum(after < step <= through for step in walked)


@every_layouts
def test_a_slot_follows_exactly_the_slots_that_evaluated_its_sets_before(layouts: Layouts) -> None:
    for step in STEPS[1:]:
        layout, before = layouts.at(step), layouts.at(step - 1)
        for slot in range(layout.slots):
            shared = {before.slot_of(key) for key in KEYS if layout.slot_of(key) == slot}
            assert set(layouts.preceding(slot, step)) == (shared if before is not layout else set())
        for slot in range(before.slots):
            shared = {layout.slot_of(key) for key in KEYS if before.slot_of(key) == slot}
            if before is not layout:
                assert set(layouts.following(slot, step - 1)) == shared
    assert layouts.following(0, STEPS[-1]) == range(0)
    assert not layouts.preceding(0, 0)


@every_layouts
def test_a_run_ends_at_the_last_step_of_its_layout(layouts: Layouts) -> None:
    for step in STEPS:
        last = max(at for at in STEPS if layouts.at(at) is layouts.at(step))
        assert layouts.last_step(step, STEPS[-1]) == last
        assert layouts.last_step(step, step) == step


@every_layouts
def test_evaluated_lists_every_slot_with_a_step_in_the_range(layouts: Layouts) -> None:
    for oldest, last in itertools.product(STEPS, STEPS):
        if oldest <= last:
            slots = {slot for step in range(oldest, last + 1) for slot in range(layouts.at(step).slots)}
            assert set(layouts.evaluated(oldest, last)) == slots


@every_layouts
@pytest.mark.parametrize("late", [0, 2, 9])
def test_every_place_in_which_a_join_may_lie_is_read(layouts: Layouts, late: int) -> None:
    """A join lies under the layout of its step, or under an older one if that ended at most ``late`` steps before."""
    layouts = replace(layouts, late=late)
    for step, key in itertools.product(STEPS, KEYS[:40]):
        known = {layouts.at(at) for at in range(max(0, step - late), step + 1)}
        places = set(layouts.read(layouts.at(step).slot_of(key), step))
        assert places >= {(layout, layout.slot_of(key)) for layout in known}
        assert {layout for layout, _ in places} == known  # and no other


@every_layouts
def test_the_ranges_of_the_slots_lie_side_by_side(layouts: Layouts) -> None:
    for layout in layouts.entries:
        ranges = [layout.range_of(slot) for slot in range(layout.slots)]
        assert [end for _, end in ranges] == [*(first for first, _ in ranges[1:]), None]
        assert ranges[0][0] == bytes(32)


def test_a_removed_layout_whose_joins_may_still_come_is_missed() -> None:
    layouts = Layouts((Layout(2, 100),), late=5)
    with pytest.raises(ConfigurationError, match=r"^Slots has no entry before step 100, and step 104 may have rows"):
        list(layouts.read(0, 104))
    assert list(layouts.read(0, 105)) == [(Layout(2, 100), 0)]


def test_a_single_layout_reads_one_place() -> None:
    assert list(ONE_SLOT.read(0, 100)) == [(Layout(1, 0), 0)]


def test_a_step_before_the_first_layout_has_no_layout() -> None:
    with pytest.raises(ConfigurationError, match=r"^Slots has no entry for step 3: put the removed entry back"):
        Layouts((Layout(1, 4),)).at(3)
