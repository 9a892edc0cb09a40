"""A slot of a step is read in the order of sets, page by page, from every partition that may have its rows."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.errors import ConfigurationError, UndecodableJoinsError
from kanon.gate import reading
from kanon.gate.reading import BYTES_A_CHUNK, Page, Touched, chunked, pages, touched
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.step_log import (
    BEFORE_ANY_SET,
    PAST_ANY_TOKEN,
    Row,
    StepLog,
    key_of,
    pack_all,
    pack_joins,
    partition,
)
from tests.unit.examples import ONE_SLOT, SIXTEEN_SLOTS, in_slot, set_key

STEP, WINDOW = 472_000, 6
A, B, C = sorted(set_key(name) for name in "abc")
CHANGED = Layouts((Layout(1, 0), Layout(16, STEP - 2)))


class Table:
    """The log in memory; a page holds ``size`` rows. ``asked`` has every Query."""

    def __init__(self, rows: Mapping[bytes, Sequence[tuple[bytes, str | bytes]]], size: int = 3) -> None:
        self.rows = {place: sorted(found, key=lambda row: row[0]) for place, found in rows.items()}
        self.size = size
        self.asked: list[dict[str, Any]] = []

    def query(self, **query: Any) -> dict[str, Any]:
        self.asked.append(query)
        values = {name: value["B"] for name, value in query["ExpressionAttributeValues"].items()}
        assert values[":first"] <= values[":last"], "DynamoDB refuses a BETWEEN with its bounds exchanged"
        found = [row for row in self.rows.get(values[":here"], ()) if values[":first"] <= row[0] <= values[":last"]]
        items: list[dict[str, Any]] = [
            {"set_token": {"B": key}, **({"type": {"S": held}} if isinstance(held, str) else {"joins": {"B": held}})}
            for key, held in found[: self.size]
        ]
        more = {"LastEvaluatedKey": {"set_token": items[-1]["set_token"]}} if len(found) > self.size else {}
        return {"Items": items, **more}


def log_of(
    rows: Sequence[Row],
    layouts: Layouts,
    size: int = 3,
    *,
    older: Sequence[Row] = (),
    groups: Sequence[Sequence[Row]] = (),
) -> StepLog:
    """A log with rows under its layouts; ``older`` ones lie where the first layout puts them, ``groups`` are packed."""
    table: dict[bytes, set[tuple[bytes, str | bytes]]] = {}
    for group in groups:
        item = pack_all(group, layouts.at(STEP))
        table.setdefault(item["step_slot"]["B"], set()).add((item["set_token"]["B"], item["joins"]["B"]))
    for log, some in ((StepLog(None, "log", layouts), rows), (StepLog(None, "log", first(layouts)), older)):  # type: ignore[arg-type]
        for row in some:
            place, key = key_of(log.item(row))
            table.setdefault(place, set()).add((key, row.type_name))
    return StepLog(Table({place: list(found) for place, found in table.items()}, size), "log", layouts)  # type: ignore[arg-type]


def first(layouts: Layouts) -> Layouts:
    return Layouts(layouts.entries[:1])


def join(name: bytes, token: int | None, type_name: str = "a") -> Row:
    return Row(STEP, name, token, type_name, 99)


def read(log: StepLog, slot: int = 0, keep: int = 99, after: bytes | None = None) -> list[Touched]:
    return list(touched(log, STEP, slot, keep, WINDOW, after))


def expected(rows: Sequence[Row], keep: int) -> list[Touched]:
    """The sets of rows by the definition."""
    ordered = sorted(rows, key=lambda row: (row.set_key, -1 if row.token is None else row.token))
    sets = ((key, list(of_set)) for key, of_set in groupby(ordered, key=lambda row: row.set_key))
    return [
        Touched(key, of_set[0].type_name, tuple(dict.fromkeys(r.token for r in of_set if r.token is not None))[:keep])
        for key, of_set in sets
    ]


def test_the_rows_of_a_set_count_as_one_set_even_across_pages() -> None:
    rows = [join(A, None), join(A, 1), join(A, 2), join(A, 3), join(B, 1)]
    for size in range(1, 6):
        assert read(log_of(rows, ONE_SLOT, size)) == [Touched(A, "a", (1, 2, 3)), Touched(B, "a", (1,))]


def test_a_wake_up_alone_touches_a_set_that_nobody_joined() -> None:
    assert read(log_of([join(A, None)], ONE_SLOT)) == [Touched(A, "a", ())]


def test_only_the_smallest_tokens_are_kept() -> None:
    assert read(log_of([join(A, n) for n in range(9)], ONE_SLOT), keep=3) == [Touched(A, "a", (0, 1, 2))]


def test_reading_a_set_stops_when_enough_tokens_are_read() -> None:
    log = log_of([*(join(A, n) for n in range(1_000)), join(B, 1)], ONE_SLOT, 5)
    assert read(log, keep=4) == [Touched(A, "a", (0, 1, 2, 3)), Touched(B, "a", (1,))]
    firsts = [query["ExpressionAttributeValues"][":first"]["B"] for query in log._client.asked]  # type: ignore[attr-defined]
    assert firsts == [bytes(32), A + PAST_ANY_TOKEN]


def test_a_page_holds_the_sets_its_call_completed_and_says_how_many_rows_it_read() -> None:
    log = log_of([join(A, 1), join(A, 2), join(B, 1), join(C, 1)], ONE_SLOT, 2)
    assert [(list(page.sets), page.rows) for page in pages(log, STEP, 0, 9, WINDOW)] == [
        ([], 2),
        ([Touched(A, "a", (1, 2)), Touched(B, "a", (1,)), Touched(C, "a", (1,))], 2),
    ]


def test_an_empty_step_is_one_call() -> None:
    log = log_of([], ONE_SLOT)
    assert read(log) == []
    assert len(log._client.asked) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("token", [None, 0, 2**32 - 1])
def test_reading_after_a_set_starts_after_all_its_rows_and_before_every_later_set(token: int | None) -> None:
    following = (int.from_bytes(A, "big") + 1).to_bytes(32, "big")
    log = log_of([join(A, token), join(following, token)], ONE_SLOT)
    assert [each.set_key for each in read(log, after=A)] == [following]


tokens = st.none() | st.sampled_from([0, 1, 2, 255, 256, 2**31, 2**32 - 1])
names = st.sampled_from(
    [bytes(32), b"\xff" * 32, A, A[:31] + b"\x00", A[:16] + bytes(16), *(set_key(n) for n in range(20))]
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    joins=st.lists(st.tuples(names, tokens, st.booleans()), max_size=40),
    size=st.integers(1, 9),
    keep=st.integers(1, 5),
    layouts=st.sampled_from([ONE_SLOT, SIXTEEN_SLOTS, CHANGED, Layouts((Layout(16, 0), Layout(2, STEP - 2)))]),
)
def test_every_slot_gives_its_sets_in_order_with_the_smallest_tokens_for_any_pages_and_layouts(
    joins: list[tuple[bytes, int | None, bool]], size: int, keep: int, layouts: Layouts
) -> None:
    rows = [join(name, token, f"type {name[0] % 3}") for name, token, _ in joins]
    older = [row for row, (_, _, old) in zip(rows, joins, strict=True) if old]
    newer = [row for row, (_, _, old) in zip(rows, joins, strict=True) if not old]
    log = log_of(newer, layouts, size, older=older)
    found = [each for slot in range(layouts.at(STEP).slots) for each in read(log, slot, keep)]
    assert found == expected(rows, keep)
    for n, each in enumerate(found):
        slot = layouts.at(STEP).slot_of(each.set_key)
        later = [other for other in found[n + 1 :] if layouts.at(STEP).slot_of(other.set_key) == slot]
        assert read(log, slot, keep, after=each.set_key) == later


def test_wake_ups_of_an_older_layout_are_read_for_one_window_and_no_longer() -> None:
    for last in range(STEP - 2 * WINDOW, STEP):
        layouts = Layouts((Layout(1, 0), Layout(16, last + 1)))
        log = log_of([], layouts, older=[join(A, None)])
        slot = layouts.at(STEP).slot_of(A)
        assert [each.set_key for each in read(log, slot)] == ([A] if last + WINDOW > STEP else [])


def test_an_entry_that_was_removed_too_early_is_detected() -> None:
    removed = Layouts(CHANGED.entries[1:])
    message = r"^Slots has no entry before step 471998, and step 472000 still has rows of it: put the removed entry"
    with pytest.raises(ConfigurationError, match=message):
        read(log_of([], removed))
    late = Layouts((Layout(16, STEP - WINDOW),))
    assert read(log_of([], late)) == []


def test_a_slot_reads_only_its_keys_of_a_shared_partition() -> None:
    name, other = (in_slot(slot, SIXTEEN_SLOTS, 1)[0] for slot in (3, 4))
    log = log_of([], CHANGED, older=[join(name, None), join(other, None)])
    assert [each.set_key for each in read(log, 3)] == [name]
    places = {query["ExpressionAttributeValues"][":here"]["B"] for query in log._client.asked}  # type: ignore[attr-defined]
    assert places == {partition(STEP, CHANGED.at(STEP), 3), partition(STEP, CHANGED.at(0), 0)}


# Packed items

PACKING = Layouts((Layout(1, 0), Layout(4, STEP - 2, 4)))
ALL_PACKING = [Layouts((Layout(1, 0, 1),)), PACKING, Layouts((Layout(4, 0, 2), Layout(2, STEP - 1, 16)))]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    joins=st.lists(
        st.tuples(names.filter(any), tokens, st.sampled_from(["row", "old", "group 1", "group 2"])), max_size=40
    ),
    size=st.integers(1, 9),
    keep=st.integers(1, 5),
    held=st.sampled_from([4, 20, 1000]),
    layouts=st.sampled_from(ALL_PACKING),
)
def test_packed_joins_give_the_same_sets_as_rows_however_few_are_held_at_once(
    joins: list[tuple[bytes, int | None, str]], size: int, keep: int, held: int, layouts: Layouts
) -> None:
    """Any join is a row, a row of an older layout, in a packed item, or in several of these."""
    rows = [join(name, token, f"type {name[0] % 3}") for name, token, _ in joins]
    by_place: dict[str, list[Row]] = {}
    for row, (_, token, place) in zip(rows, joins, strict=True):
        by_place.setdefault("row" if token is None and place != "old" else place, []).append(row)
    layout = layouts.at(STEP)
    groups = [
        list(group)
        for place in ("group 1", "group 2")
        for _, group in groupby(
            sorted(by_place.get(place, []), key=lambda row: row.set_key), key=lambda row: layout.slot_of(row.set_key)
        )
    ]
    log = log_of(by_place.get("row", []), layouts, size, older=by_place.get("old", []), groups=groups)
    with mock.patch.object(reading, "MOST_JOINS_HELD", held):
        found = [each for slot in range(layout.slots) for each in read(log, slot, keep)]
        assert found == expected(rows, keep)
        for n, each in enumerate(found[:5]):
            slot = layout.slot_of(each.set_key)
            later = [other for other in found[n + 1 :] if layout.slot_of(other.set_key) == slot]
            assert read(log, slot, keep, after=each.set_key) == later


def test_an_idle_slot_is_one_call_for_each_of_its_partitions() -> None:
    log = log_of([], Layouts((Layout(16, 0, 16),)))
    assert read(log, 3) == []
    assert len(log._client.asked) == 16  # type: ignore[attr-defined]


def test_a_million_packed_joins_are_read_once_with_bounded_memory() -> None:
    """A small form: 4,000 joins, of which 400 are held. The items are read again, about once for every 200 joins."""
    rows = [join(set_key(n % 3_000), n) for n in range(4_000)]
    log = log_of(
        [], Layouts((Layout(1, 0, 4),)), 50, groups=[rows[start : start + 40] for start in range(0, 4_000, 40)]
    )
    most = 0
    add = reading._Packed.add

    def counted(packed: reading._Packed, items: Sequence[bytes]) -> None:
        nonlocal most
        add(packed, items)
        most = max(most, sum(len(held.keys) for held in packed.held))

    with mock.patch.object(reading, "MOST_JOINS_HELD", 400), mock.patch.object(reading._Packed, "add", counted):
        assert read(log, 0, 5) == expected(rows, 5)
    assert most <= 400
    assert len(log._client.asked) < 4 * 2 * 4_000 / 150  # type: ignore[attr-defined]


def test_a_later_pass_starts_at_the_first_dropped_set() -> None:
    """Eight joins are held. The first item drops all sets from the fifth on; the second repeats what is held."""
    layout = Layout(1, 0, 1)
    sets = sorted(set_key(n) for n in range(10))
    items = [sets[:9], sets[:4] + sets[5:]]
    rows = [
        (BEFORE_ANY_SET + bytes([n] * 16), pack_joins(("a", name, 1) for name in names))
        for n, names in enumerate(items)
    ]
    table = Table({partition(STEP, layout, 0): rows}, size=1)
    with mock.patch.object(reading, "MOST_JOINS_HELD", 8):
        found = read(StepLog(table, "log", Layouts((layout,))), 0, 2)  # type: ignore[arg-type]
    assert found == [Touched(name, "a", (1,)) for name in sets]


def test_one_set_with_many_packed_joins_needs_no_second_pass() -> None:
    rows = [join(A, token) for token in range(5_000)]
    log = log_of(
        [], Layouts((Layout(1, 0, 1),)), 50, groups=[rows[start : start + 50] for start in range(0, 5_000, 50)]
    )
    with mock.patch.object(reading, "MOST_JOINS_HELD", 400):
        assert read(log, 0, 100) == [Touched(A, "a", tuple(range(100)))]
    assert len(log._client.asked) == 2  # type: ignore[attr-defined]


def test_a_packed_item_of_a_newer_format_stops_the_slot() -> None:
    layout = Layout(1, 0, 1)
    place = partition(STEP, layout, 0)
    for held in (b"\x02", b"\x01\x01a\x02\x00\x01" + bytes(33), b"\x01\x01a\x03\x00\x01" + bytes(35), b""):
        log = StepLog(Table({place: [(bytes(24), held)]}), "log", Layouts((layout,)))  # type: ignore[arg-type]
        with pytest.raises(UndecodableJoinsError, match=r"^packed joins of "):
            read(log)


# Chunks


def _page(sets: range, rows: int) -> Page:
    return Page(tuple(Touched(set_key(n), "a", ()) for n in sets), rows)


def test_pages_are_split_into_chunks_without_reading_ahead() -> None:
    read: list[int] = []

    def pages() -> Iterator[Page]:
        for n in range(2):
            read.append(n)
            yield _page(range(700 * n, 700 * (n + 1)), 700)

    chunks = chunked(pages(), {})
    assert len(next(chunks)) == 500
    assert read == [0]
    assert [len(chunk) for chunk in chunks] == [0, 500, 0, 400]


def test_a_chunk_of_crowded_sets_is_closed_by_its_rows() -> None:
    pages = [_page(range(0), 9_999), _page(range(1), 9_999), _page(range(1, 2), 2), _page(range(2, 3), 1)]
    assert [len(chunk) for chunk in chunked(pages, {})] == [0, 0, 2, 0, 1]


def test_a_step_without_rows_has_no_chunk_with_a_set() -> None:
    assert list(chunked([Page((), 0)], {})) == [[]]


def test_a_chunk_ends_when_its_sets_may_have_too_many_members() -> None:
    page = Page([Touched(set_key(n), "large" if n % 2 else "small", ()) for n in range(40)], 40)
    largest = {"large": BYTES_A_CHUNK // 4, "small": 1}
    assert [len(chunk) for chunk in chunked([page], largest)] == [8] * 5 + [0]
    assert [len(chunk) for chunk in chunked([page], {"large": 2 * BYTES_A_CHUNK})][:3] == [2, 2, 2]
