"""The listed sets beside the true ones of a slot: each value whose status is true, and no other, at every step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import chain, count, repeat

import pytest

from kanon.errors import UndecodableMembersError
from kanon.gate import deciding, evaluation, listed_sets
from kanon.gate.listed_sets import name_beside
from kanon.gate.mechanism.steps import end_of
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.step_log import Row
from kanon.gate.storage.aws.true_objects import step_of
from kanon.gate.true_sets import ENTRY_BYTES, HEADER_BYTES, KEY_BYTES, PREFIX
from tests.integration.gate.tables import Running, fresh
from tests.integration.gate.test_evaluation import NAMES, PERIOD, START, TYPES, Scenario, closing

LISTED = {name: replace(type_, listed=name != "small") for name, type_ in TYPES.items()}
"""Two of the three types are listed."""
STEPS = 50


def value_of(name: bytes) -> bytes:
    """How every sealed value of a set begins."""
    return b"value of " + name + b" "


@dataclass
class Listing(Scenario):
    """A scenario whose joins carry sealed values, other ones each time."""

    def join(self, name: bytes, tokens: Sequence[int], step: int, type_name: str = "small") -> None:
        listed, numbers = LISTED[type_name].listed, count()
        rows = [
            Row(
                step, name, token, type_name, end_of(step, PERIOD) + self.schedule.outage_allowance,
                value_of(name) + b"%d %d" % (step, next(numbers)) if listed else b"",
            )
            for token in tokens
        ]  # fmt: skip
        assert all(self.tables.log.put_groups([rows[:1], rows[1:]] if len(rows) > 1 else [rows]))
        self.type_of[name] = type_name
        for token in tokens:
            self.naive[type_name].join(name, token, step)

    def listed(self, slots: Sequence[int] = (0,), layout: int = 0) -> dict[bytes, bytes]:
        """The sealed values of the newest listed sets, by set key. Each is checked against its type."""
        found: dict[bytes, bytes] = {}
        for slot in slots:
            row = self.tables.control.row(Place(layout, slot))
            if row.shown is None:
                assert row.manifest is None or not self.tables.parts(Place(layout, slot)).list_of(row.manifest).pieces
                continue
            assert row.horizon is not None
            assert row.horizon.shows == row.shown
            numbers = self.tables.control.type_numbers(())
            sets = self.tables.parts(Place(layout, slot)).listed_sets(row.shown)
            assert sets is not None
            for each in sets:
                assert each.last >= step_of(row.shown)
                if each.last < row.horizon.through:
                    continue  # no set has crossed since it turned false
                assert each.number == numbers[self.type_of[each.key]]
                assert each.sealed.startswith(value_of(each.key))
                found[each.key] = each.sealed
        return found

    def in_true_sets(self) -> set[bytes]:
        """The sets in the newest object of true sets of slot 0."""
        row = self.tables.control.row(Place(0, 0))
        if row.shown is None:
            return set()
        sets = self.tables.parts(Place(0, 0)).true_sets(row.shown)
        starts = (HEADER_BYTES + n * ENTRY_BYTES for n in range(sets.count))
        keys = [sets.content[start : start + KEY_BYTES] for start in starts]
        assert keys == sorted(set(keys)), "a set is there twice"
        return {name for name in self.type_of if sets.crossings(name)}

    def is_listed(self, name: bytes) -> bool:
        return LISTED[self.type_of[name]].listed

    def wanted(self, step: int) -> set[bytes]:
        """The sets of listed types whose status is true."""
        return {name for name, above in self.expected(step).items() if above and self.is_listed(name)}


@pytest.fixture
def listing(moto: Running) -> Listing:
    listing = Listing(fresh(moto), types=dict(LISTED))
    listing.tables.layouts = Layouts((Layout(1, 0, 2),))
    return listing


def compare(listing: Listing, *, interrupted: bool = False, lost: bool = False) -> int:
    """Every step of a history against the naive algorithm. Returns how many values were listed in all."""
    listing.join_history(3, STEPS)
    seen = 0
    for step in range(START, START + STEPS):
        if interrupted:
            short = chain([1e9] * (step % 7), repeat(0.0))
            listing.run(closing(step), time_left=partial(next, short))
        listing.run(closing(step))
        assert listing.mark() == step
        expected = listing.expected(step)
        assert listing.listed().keys() == {name for name in expected if expected[name] and listing.is_listed(name)}
        assert {name for name in expected if expected[name]} <= listing.in_true_sets()
        seen += len(listing.listed())
        if step % 10 == 0:
            listing.sweep(closing(step))
        if lost:
            shown = str(listing.tables.control.row(Place(0, 0)).shown)
            for name in (name_beside(shown), shown)[: 1 + step % 2]:
                listing.tables.s3.delete_object(Bucket=listing.tables.bucket, Key=name)
    return seen


@pytest.mark.parametrize("ranges", [1 << 20, 2 * deciding.LISTED_WEIGHT])
@pytest.mark.parametrize("interrupted", [False, True])
def test_the_listed_sets_of_every_step_are_those_that_are_true(
    listing: Listing, monkeypatch: pytest.MonkeyPatch, ranges: int, interrupted: bool
) -> None:
    monkeypatch.setattr(deciding, "MOST_JOINS_A_RANGE", ranges)
    listing.start()
    assert compare(listing, interrupted=interrupted) > STEPS


def test_listed_sets_that_are_lost_after_every_step_are_the_same(listing: Listing) -> None:
    listing.start()
    assert compare(listing, lost=True) > STEPS


def test_a_sweep_leaves_the_listed_sets_beside_the_true_ones_of_the_horizon(listing: Listing) -> None:
    listing.start()
    compare(listing)
    listing.sweep(closing(START + STEPS))
    names = listing.tables.objects()
    kept = {name_beside(name) for name in names if name.startswith(PREFIX)}
    row = listing.tables.control.row(Place(0, 0))
    assert row.horizon is not None
    assert {name for name in names if name.endswith(".listed")} == kept == {*map(name_beside, row.horizon.named)}


def test_the_slots_of_the_next_layout_list_what_those_before_listed(listing: Listing) -> None:
    change = START + 20
    listing.tables.layouts = Layouts((Layout(1, 0, 2), Layout(2, change, 1)))
    listing.start()
    listing.join_history(5, 40)
    for step in range(START, START + 40):
        slots, layout = ((0,), 0) if step < change else ((0, 1), change)
        for slot in slots:
            listing.run(closing(step), slot)
        assert listing.listed(slots, layout).keys() == listing.wanted(step)


def test_the_first_listed_sets_are_put_though_nothing_happens_and_then_no_more(listing: Listing) -> None:
    """A version without lists has run before, or its object was lost."""
    listing.start()
    crowd = NAMES[1]
    listing.join(crowd, range(40), START, "one-sided")
    listing.types = {name: replace(type_, listed=type_.listed and name == "crossing") for name, type_ in LISTED.items()}
    listing.run(closing(START))
    first = listing.tables.control.row(Place(0, 0)).shown
    assert first is not None
    listing.tables.s3.delete_object(Bucket=listing.tables.bucket, Key=name_beside(first))
    assert listing.run(closing(START + 2)).steps == 2
    row = listing.tables.control.row(Place(0, 0))
    assert row.shown is not None
    assert step_of(row.shown) == START + 1
    listing.run(closing(START + 3))
    assert listing.tables.control.row(Place(0, 0)).shown == row.shown
    assert listing.listed() == {}  # its state was made before the type was listed


def test_listed_sets_that_are_lost_are_made_of_all_parts_when_a_set_crosses(
    listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing.start()
    for step, name in enumerate(NAMES[:3], START):
        listing.join(name, range(40), step, "one-sided")
    listing.run(closing(START))
    shown = listing.tables.control.row(Place(0, 0)).shown
    assert shown is not None
    put = listing.tables.s3.get_object(Bucket=listing.tables.bucket, Key=name_beside(shown))["Body"].read()
    listing.tables.s3.put_object(Bucket=listing.tables.bucket, Key=name_beside(shown), Body=put[:-1] + b"x" * 70_000)
    listing.tables.s3.put_object(Bucket=listing.tables.bucket, Key=name_beside(shown), Body=put[:60])
    with pytest.raises(UndecodableMembersError):
        listing.listed()
    listing.run(closing(START + 1))
    assert listing.listed().keys() == {*NAMES[:2]}
    shown = listing.tables.control.row(Place(0, 0)).shown
    listing.tables.s3.put_object(Bucket=listing.tables.bucket, Key=name_beside(str(shown)), Body=b"damaged")
    monkeypatch.setattr(evaluation, "MOST_PARTS_READ", 0)  # too many to read: queries keep their object
    listing.run(closing(START + 2))
    row, parts = listing.tables.control.row(Place(0, 0)), listing.tables.parts(Place(0, 0))
    assert row.shown not in (None, shown)
    assert parts.true_sets(str(row.shown)).count == 3
    assert parts.listed_sets(str(row.shown)) is None


def test_too_many_listed_sets_are_incomplete_and_change_no_answer(
    listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed_sets, "MOST_BYTES", 100)
    listing.start()
    for step, name in enumerate(NAMES[:3], START):
        listing.join(name, range(40), step, "one-sided")
        listing.run(closing(step))
        assert listing.shown(step) == listing.expected(step)
    row, parts = listing.tables.control.row(Place(0, 0)), listing.tables.parts(Place(0, 0))
    assert parts.true_sets(str(row.shown)).count == 3
    assert parts.listed_sets(str(row.shown)) is None


def test_listed_sets_are_complete_again_when_they_are_few_again(
    listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing.start()
    with monkeypatch.context() as patch:
        patch.setattr(listed_sets, "MOST_BYTES", 100)
        for step, name in enumerate(NAMES[:3], START):
            listing.join(name, range(40), step, "one-sided")
            listing.run(closing(step))
    listing.join(NAMES[3], range(40), START + 3, "one-sided")
    listing.run(closing(START + 3))
    assert listing.listed().keys() == set(NAMES[:4]) == listing.wanted(START + 3)


BEFORE_LISTS = "73d58e2e952cf690ee9ced1606b03215bd5c0e9be47f63ed3e4db280a2f52f53"
"""SHA-256 of what the version before listed types stored for this history."""


def test_without_a_listed_type_every_row_and_object_is_as_before(moto: Running) -> None:
    scenario = Scenario(fresh(moto))
    scenario.start()
    scenario.join_history(3, 30)
    for step in range(START, START + 30):
        scenario.run(closing(step))
    assert everything(scenario) == BEFORE_LISTS


def everything(scenario: Scenario) -> str:
    """SHA-256 of all tables and objects."""
    tables = scenario.tables
    rows = [str(sorted(item.items())) for name in ("StepLog", "Statuses", "Control") for item in tables.items(name)]
    contents = [
        (name, tables.s3.get_object(Bucket=tables.bucket, Key=name)["Body"].read()) for name in tables.objects()
    ]
    return sha256(repr((rows, contents)).encode()).hexdigest()
