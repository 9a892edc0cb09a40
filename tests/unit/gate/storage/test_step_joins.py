"""A slot's step is read once, in parallel, and its joins are given range by range, distinct and sorted."""

import os
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from unittest import mock

import numpy as np
import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.errors import ConfigurationError, OutOfTimeError, ThrottledError, UndecodableJoinsError
from kanon.gate.merging import JOIN
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws import step_joins
from kanon.gate.storage.aws.step_joins import READERS, Range, StepJoins
from kanon.gate.storage.aws.step_log import (
    FIRST_PACKED,
    Row,
    StepLog,
    key_of,
    pack,
    pack_all,
    pack_joins,
    partition,
    unpack_joins,
)
from tests.unit.examples import set_key

STEP = 472_000
NUMBERS = {"a": 0, "b": 7}
Join = tuple[bytes, int, str]
ONE, SIXTEEN = Layout(1, 0, 1), Layout(16, 0, 4)
EDGES = [bytes(two) + set_key("x")[2:30] for two in ((0x50, 0), (0x50, 1), (0x5F, 0xFF), (0x60, 0))]
KEYS = [*map(set_key, range(12)), *(key + end for key in EDGES for end in (b"\0\0", b"\1\0"))]
TOKENS = [0, 1, 255, 256, 65_536, 2**32 - 1]
JOINS = st.builds(lambda key, token: (key, token, "ab"[key[4] & 1]), st.sampled_from(KEYS), st.sampled_from(TOKENS))

PARTITIONED = [
    Layouts((ONE,)),
    Layouts((SIXTEEN,)),
    Layouts((ONE, Layout(16, STEP - 2, 4)), late=5),
    Layouts((SIXTEEN, Layout(1, STEP - 2, 2)), late=5),
]
CUTS = st.lists(st.sampled_from([bytes(32), *KEYS, b"\x50" + bytes(31), b"\xff" * 32]), max_size=4)
"""Where ranges that are asked for begin."""
SECONDS = st.sampled_from([0.0, 20.0, 50.0, 80.0])
"""How long a page takes."""


class Table:
    """The log in memory; a page holds ``size`` items. ``read`` counts how often each item was, ``ends`` each range."""

    def __init__(self, items: Iterable[dict[str, Any]], size: int, fail_at: int = 0) -> None:
        self.items = sorted({key_of(item): item for item in items}.values(), key=key_of)
        self.size, self.fail_at, self.pages = size, fail_at, 0
        self.read: Counter[tuple[bytes, bytes]] = Counter()
        self.ends: Counter[tuple[bytes, bytes]] = Counter()
        self._lock = Lock()

    def query(self, ExpressionAttributeValues: Any, **_: Any) -> dict[str, Any]:  # noqa: N803
        place, first, last = (ExpressionAttributeValues[name]["B"] for name in (":here", ":first", ":last"))
        assert first <= last, "DynamoDB refuses a BETWEEN with its bounds exchanged"
        found = [i for i in self.items if i["step_slot"]["B"] == place and first <= i["set_token"]["B"] <= last]
        page, more = found[: self.size], len(found) > self.size
        with self._lock:
            self.pages += 1
            if self.pages == self.fail_at:
                raise ThrottledError("the log is busy")
            self.ends[place, last] += 1
            self.read.update(map(key_of, page))
        return {"Items": page, **({"LastEvaluatedKey": {"set_token": page[-1]["set_token"]}} if more else {})}


def rows_of(joins: Iterable[Join]) -> list[Row]:
    return [Row(STEP, key, token, type_name, 99) for key, token, type_name in joins]


def single(join: Join, layout: Layout) -> dict[str, Any]:
    return pack(rows_of([join])[0], layout)


def packed(joins: Sequence[Join], layout: Layout) -> list[dict[str, Any]]:
    """The joins as packed items, one a slot."""
    slots: dict[int, list[Row]] = {}
    for row in rows_of(joins):
        slots.setdefault(layout.slot_of(row.set_key), []).append(row)
    return [pack_all(group, layout) for group in slots.values()]


def reading(table: Table, layouts: Layouts, slot: int = 0) -> StepJoins:
    return StepJoins(StepLog(table, "log", layouts), slot, NUMBERS)  # type: ignore[arg-type]


class Kept:
    """What workers have put. A page takes ``seconds``."""

    def __init__(self, table: Table, seconds: float) -> None:
        self.table, self.seconds = table, seconds
        self.objects: list[bytes] = []
        self.left: list[Range] | None = None
        self.begin()

    def begin(self) -> None:
        """The next worker begins."""
        self.begun, self.others = self.table.pages, [*self.objects]

    def time_left(self) -> float:
        return 120.0 - self.seconds * (self.table.pages - self.begun)

    def rest(self, step: int) -> Any:
        return self.left

    def put(self, step: int, contents: Iterable[bytes], rest: Any) -> None:
        self.objects += contents
        self.left = [*rest]

    def contents(self) -> Iterable[bytes]:
        return self.others


def read_by_workers(table: Table, layouts: Layouts, slot: int, seconds: float) -> StepJoins:
    """The step, read by as many workers as it takes."""
    kept = Kept(table, seconds)
    while True:
        log = StepJoins(StepLog(table, "log", layouts), slot, NUMBERS, kept)  # type: ignore[arg-type]
        try:
            log.count(STEP)
        except OutOfTimeError:
            log.close()
            kept.begin()
        else:
            return log


def expected(joins: Iterable[Join], layout: Layout, slot: int, first: bytes, end: bytes | None) -> list[bytes]:
    return sorted({
        key + token.to_bytes(4, "big") + bytes([NUMBERS[type_name]])
        for key, token, type_name in joins
        if layout.slot_of(key) == slot and first <= key and (end is None or key < end)
    })  # fmt: skip


def entries(found: Any) -> list[bytes]:
    assert found.dtype == JOIN
    return [found[n : n + 1].tobytes() for n in range(len(found))]


@pytest.mark.slow
@settings(max_examples=40)
@given(
    singles=st.lists(JOINS, max_size=20),
    batches=st.lists(st.lists(JOINS, min_size=1, max_size=6), max_size=12),
    late=st.lists(JOINS, max_size=8),
    layouts=st.sampled_from([*PARTITIONED, Layouts((Layout(2, 0), Layout(16, STEP - 2, 1)), late=5)]),
    size=st.integers(1, 4),
    most_bytes=st.sampled_from([0, 4 * JOIN.itemsize, 1 << 20]),
    bucket=st.sampled_from([1, 8, 1 << 20]),
    cuts=CUTS,
    seconds=SECONDS,
)  # fmt: skip
def test_the_joins_of_ranges_are_those_of_a_plain_reference(
    singles: list[Join],
    batches: list[list[Join]],
    late: list[Join],
    layouts: Layouts,
    size: int,
    most_bytes: int,
    bucket: int,
    cuts: list[bytes],
    seconds: float,
) -> None:
    layout, older = layouts.at(STEP), layouts.entries[0]
    items = [single(join, layout) for join in singles] + [item for batch in batches for item in packed(batch, layout)]
    items += [single(join, older) for join in late] + ([] if older.partitions is None else packed(late, older))
    every = [*singles, *late, *(join for batch in batches for join in batch)]
    table = Table(items, size)
    edges = sorted({bytes(32), *cuts})
    with mock.patch.multiple(step_joins, MOST_BYTES=most_bytes, JOINS_A_BUCKET=bucket, READERS=3):
        for slot in sorted({0, 5, layout.slots - 1} & set(range(layout.slots))):
            with read_by_workers(table, layouts, slot, seconds) as log:
                for first, end in zip(edges, [*edges[1:], None], strict=True):
                    found = log.joins(STEP, first, end)
                    assert entries(found) == expected(every, layout, slot, first, end)
                assert log.count(STEP) >= len(expected(every, layout, slot, bytes(32), None))
            assert seconds or max(table.read.values(), default=0) <= 1, "an item was read twice"
            table.read.clear()


def batches_of(count: int) -> list[dict[str, Any]]:
    """Packed items with evenly spread keys, one join each."""
    return [
        {
            "step_slot": {"B": partition(STEP, ONE, 0)},
            "set_token": {"B": FIRST_PACKED + (n * (1 << 128) // count).to_bytes(16, "big")},
            "joins": {"B": pack_joins([("a", set_key(n), n)])},
        }
        for n in range(count)
    ]


@pytest.mark.slow
def test_a_hundred_thousand_joins_a_second_are_read_in_time() -> None:
    """In batches of 500 over 16 slots: 22.5 million joins of a step lie in 800 pages of a slot, at 0.1 s each."""
    pages, page_seconds, worker_seconds = 800, 0.1, 120
    table = Table(batches_of(pages), 1)
    with reading(table, Layouts((ONE,))) as log:
        assert log.count(STEP) == pages
    assert set(table.read.values()) == {1}
    assert table.pages <= pages + 2 * READERS
    # No order of the readers takes longer than this (Graham's bound).
    assert (table.pages / READERS + max(table.ends.values()) + 1) * page_seconds < worker_seconds / 4


@pytest.mark.parametrize(("first", "last"), [(bytes(24), b"\xff" * 36), (bytes(24), bytes(23) + b"\1"), (b"a", b"a")])
def test_the_parts_of_a_range_leave_nothing_between_them(first: bytes, last: bytes) -> None:
    parts = Range(b"here", first, last).parts()
    assert (parts[0].first, parts[-1].last) == (first, last)
    assert all(part.first <= part.last for part in parts)
    assert [part.last + b"\0" for part in parts[:-1]] == [part.first for part in parts[1:]]


@pytest.mark.parametrize("stops", [1, 5, 60])
def test_a_page_is_read_at_most_twice_if_a_worker_stops(stops: int) -> None:
    table = Table(batches_of(60), 1, fail_at=stops)
    with pytest.raises(ThrottledError), reading(table, Layouts((ONE,))) as log:
        log.count(STEP)
    with reading(table, Layouts((ONE,))) as log:
        assert len(log.joins(STEP, bytes(32), None)) == 60
    assert max(table.read.values()) <= 2


def test_a_busy_table_is_asked_again_and_no_page_is_read_twice() -> None:
    throttled = ClientError({"Error": {"Code": "ProvisionedThroughputExceededException"}}, "Query")
    table, pauses = Table(batches_of(40), 1), mock.Mock()
    answer, asked = table.query, Counter[bytes]()

    def busy(**query: Any) -> dict[str, Any]:
        first = query["ExpressionAttributeValues"][":first"]["B"]
        asked[first] += 1
        if asked[first] < step_joins.TRIES:
            raise throttled
        return answer(**query)

    with mock.patch.object(table, "query", busy), mock.patch.object(step_joins, "back_off", pauses):
        with reading(table, Layouts((ONE,))) as log:
            assert log.count(STEP) == 40
        assert set(table.read.values()) == {1}
        assert pauses.call_count == (step_joins.TRIES - 1) * table.pages
    with (
        mock.patch.object(table, "query", mock.Mock(side_effect=throttled)) as never,
        mock.patch.object(step_joins, "back_off", pauses),
        reading(table, Layouts((ONE,))) as log,
        pytest.raises(ClientError),
    ):
        log.count(STEP)
    assert never.call_count == step_joins.TRIES


def test_an_error_that_is_no_throttle_is_raised_at_once() -> None:
    refused = mock.Mock(side_effect=ClientError({"Error": {"Code": "AccessDeniedException"}}, "Query"))
    table = Table([], 1)
    with (
        mock.patch.object(table, "query", refused),
        reading(table, Layouts((ONE,))) as log,
        pytest.raises(ClientError),
    ):
        log.count(STEP)
    assert refused.call_count == 1


def test_single_joins_of_a_busy_slot_are_read_in_parallel_from_its_first_key_on() -> None:
    layout = Layout(16, 0, 1)
    keys = [bytes([0xF0 | set_key(n)[0] & 15]) + set_key(n)[1:] for n in range(400)]
    table = Table([single((key, 1, "a"), layout) for key in keys], 2)
    with reading(table, Layouts((layout,)), 15) as log:
        assert log.count(STEP) == 400
    assert set(table.read.values()) == {1}
    assert max(table.ends.values()) < 2 * 200 / READERS


def test_a_step_is_read_once_and_the_next_one_takes_its_place() -> None:
    table = Table(batches_of(3), 9)
    with reading(table, Layouts((ONE,))) as log:
        assert log.count(STEP) == 3
        assert len(log.joins(STEP, bytes(32), None)) == 3
        assert table.pages == 1
        assert log.count(STEP + 1) == 0
        assert len(log.joins(STEP + 1, bytes(32), None)) == 0
    assert table.pages == 2


def test_the_joins_of_one_crowded_set_are_in_memory_twice_while_they_are_sorted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_joins, "MOST_BYTES", 0)
    joins = [("a", set_key("crowded"), token) for token in range(60_000)]
    item = {"joins": {"B": pack_joins(joins)}, "set_token": {"B": FIRST_PACKED}}
    item["step_slot"] = {"B": partition(STEP, ONE, 0)}
    with reading(Table([item], 1), Layouts((ONE,))) as log:
        log.count(STEP)
        tracemalloc.start()
        try:
            assert len(log.joins(STEP, bytes(32), None)) == len(joins)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 2.2 * len(joins) * JOIN.itemsize


def test_the_file_has_no_name_and_closes_with_the_log(tmp_path: Path) -> None:
    opened: list[Any] = []

    def temporary(**given: Any) -> Any:
        opened.append(original(dir=tmp_path, **given))
        return opened[-1]

    original = tempfile.TemporaryFile
    with mock.patch.multiple(step_joins, MOST_BYTES=0, TemporaryFile=temporary):
        with reading(Table(batches_of(3), 1), Layouts((ONE,))) as log:
            assert log.count(STEP) == 3
            assert list(tmp_path.iterdir()) == []
        assert [file.closed for file in opened] == [True]
        table = Table(batches_of(30), 1, fail_at=20)
        with pytest.raises(ThrottledError), reading(table, Layouts((ONE,))) as log:
            log.count(STEP)
        assert [file.closed for file in opened] == [True, True]


def test_a_full_disk_is_an_error_that_says_what_to_do() -> None:
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    with (
        mock.patch.object(step_joins, "MOST_BYTES", 0),
        mock.patch.object(os, "pwrite", full),
        reading(Table(batches_of(3), 1), Layouts((ONE,))) as log,
        pytest.raises(ConfigurationError, match=r"^slot 0 has more joins in step 472000 .*: raise Ephemeral"),
    ):
        log.count(STEP)


def test_writes_and_reads_that_end_early_are_continued() -> None:
    pwrite, pread = os.pwrite, os.pread
    with (
        mock.patch.object(step_joins, "MOST_BYTES", 0),
        mock.patch.object(os, "pwrite", lambda file, data, at: pwrite(file, data[:10], at)),
        mock.patch.object(os, "pread", lambda file, size, at: pread(file, min(size, 7), at)),
        reading(Table(batches_of(9), 2), Layouts((ONE,))) as log,
    ):
        assert entries(log.joins(STEP, bytes(32), None)) == expected(
            [(set_key(n), n, "a") for n in range(9)], ONE, 0, bytes(32), None
        )


def test_joins_of_an_unknown_type_are_refused() -> None:
    for item in (single((set_key(1), 1, "c"), ONE), *packed([(set_key(1), 1, "c")], ONE)):
        with (
            reading(Table([item], 9), Layouts((ONE,))) as log,
            pytest.raises(ConfigurationError, match="joins of type 'c', which is not configured: deploy the type"),
        ):
            log.count(STEP)


@pytest.mark.parametrize("key", [set_key(1), set_key(1) + bytes(5)])
def test_a_row_that_is_no_join_is_refused(key: bytes) -> None:
    item = single((set_key(1), 1, "a"), ONE) | {"set_token": {"B": key}}
    with reading(Table([item], 9), Layouts((ONE,))) as log, pytest.raises(UndecodableJoinsError, match="not that of a"):
        log.count(STEP)


def test_packed_joins_of_an_unknown_format_are_refused() -> None:
    (item,) = packed([(set_key(1), 1, "a")], ONE)
    item["joins"]["B"] = b"\x03" + item["joins"]["B"][1:]
    with reading(Table([item], 9), Layouts((ONE,))) as log, pytest.raises(UndecodableJoinsError, match="format 03"):
        log.count(STEP)


def test_a_step_without_joins_costs_a_call_for_each_partition() -> None:
    table = Table([], 9)
    with reading(table, Layouts((SIXTEEN,)), 3) as log:
        assert log.count(STEP) == 0
        assert np.array_equal(log.joins(STEP, bytes(32), None), np.zeros(0, JOIN))
    assert table.pages == SIXTEEN.partitions


# Sealed values of listed types

VALUES = st.builds(
    lambda key, token, value: Row(STEP, key, token, "ab"[key[4] & 1], 99, value),
    st.sampled_from(KEYS),
    st.sampled_from(TOKENS),
    st.one_of(st.just(b""), st.binary(min_size=1, max_size=3), st.binary(min_size=500, max_size=592)),
)


def first_values(items: Iterable[dict[str, Any]], layout: Layout, slot: int) -> dict[bytes, bytes]:
    """The first sealed value of each set of a slot in the order of the log: partition, then key."""
    found: dict[bytes, bytes] = {}
    for item in sorted({key_of(item): item for item in items}.values(), key=key_of):
        values = [(item["set_token"]["B"][:32], item["sealed"]["B"])] if "sealed" in item else []
        for joins in unpack_joins(item["joins"]["B"]) if "joins" in item else ():
            values += joins.sealed
        for key, value in values:
            if layout.slot_of(key) == slot:
                found.setdefault(key, value)
    return found


@pytest.mark.slow
@settings(max_examples=40)
@given(
    singles=st.lists(VALUES, max_size=20),
    batches=st.lists(st.lists(VALUES, min_size=1, max_size=6), max_size=12),
    late=st.lists(VALUES, max_size=8),
    layouts=st.sampled_from(PARTITIONED),
    size=st.integers(1, 4),
    most_bytes=st.sampled_from([0, 700, 1 << 20]),
    cuts=CUTS,
    seconds=SECONDS,
)  # fmt: skip
def test_the_sealed_value_of_a_set_is_the_first_one_in_the_order_of_the_log(
    singles: list[Row],
    batches: list[list[Row]],
    late: list[Row],
    layouts: Layouts,
    size: int,
    most_bytes: int,
    cuts: list[bytes],
    seconds: float,
) -> None:
    layout, older = layouts.at(STEP), layouts.entries[0]
    items = [pack(row, layout) for row in singles] + [pack(row, older) for row in late]
    for batch, of in [*((batch, layout) for batch in batches), (late, older)]:
        slots = {of.slot_of(row.set_key) for row in batch}
        items += [pack_all([row for row in batch if of.slot_of(row.set_key) == slot], of) for slot in slots]
    table, edges = Table(items, size), sorted({bytes(32), *cuts})
    with mock.patch.multiple(step_joins, MOST_BYTES=most_bytes, READERS=3):
        for slot in sorted({0, 5, layout.slots - 1} & set(range(layout.slots))):
            wanted = first_values(items, layout, slot)
            with read_by_workers(table, layouts, slot, seconds) as log:
                for first, end in zip(edges, [*edges[1:], None], strict=True):
                    own = {key: wanted[key] for key in wanted if first <= key and (end is None or key < end)}
                    assert log.sealed(STEP, first, end) == own
            with reading(table, layouts, slot) as log:
                assert log.sealed(STEP + 1, bytes(32), None) == {}
