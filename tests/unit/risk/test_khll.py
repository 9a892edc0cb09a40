import math
from functools import reduce
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.risk import hashing
from kanon.risk.khll import MOST_EXACT, Sketch, empty, merge, to_bytes
from tests.unit.risk.made import as_dictionary, sketch_of
from tests.unit.risk.naive import Row, naive_sketch

CHECK = b"12345678"
values = st.integers(0, 30).map(lambda n: n * (2**64 // 31))
users = st.integers(0, 5).map(lambda n: (n * 0x9E3779B97F4A7C15) % 2**64)
logs = st.lists(st.tuples(values, users), max_size=60)


def sketched(rows: list[Row], size: int) -> Sketch:
    values, users = np.array(rows, np.uint64).reshape(-1, 2).T
    return sketch_of(values, users, size, CHECK)


@pytest.mark.slow
@given(logs, st.integers(1, 40))
def test_a_sketch_keeps_rows_and_users_of_the_smallest_values(rows: list[Row], size: int) -> None:
    sketch = sketched(rows, size)
    expected = naive_sketch(rows, size)
    assert as_dictionary(sketch) == expected
    assert sketch.total_rows == len(rows)
    assert sketch.counts.tolist() == [len(users) for _, users in expected.values()]


@pytest.mark.slow
@given(st.lists(st.tuples(values, users, st.integers(0, 6)), max_size=60), st.integers(1, 40), st.randoms())
def test_seven_parts_merge_in_any_order_to_the_same_bytes(rows, size, random) -> None:
    parts = [sketched([row[:2] for row in rows if row[2] == part], size) for part in range(7)]
    whole = to_bytes(sketched([row[:2] for row in rows], size))
    random.shuffle(parts)
    assert to_bytes(reduce(merge, parts)) == whole
    paired = [reduce(merge, parts[:2]), reduce(merge, parts[2:5]), reduce(merge, parts[5:])]
    assert to_bytes(reduce(merge, paired)) == whole


@pytest.mark.slow
@given(logs, logs, logs, st.integers(1, 40), st.integers(1, 40))
def test_a_merge_keeps_the_smallest_size_in_any_order(a, b, c, size, other) -> None:
    parts = [sketched(a, size), sketched(b, other), sketched(c, 20)]
    expected = to_bytes(sketched([*a, *b, *c], min(size, other, 20)))
    assert {to_bytes(reduce(merge, order)) for order in permutations(parts)} == {expected}


@pytest.mark.parametrize("number", [MOST_EXACT - 1, MOST_EXACT, MOST_EXACT + 1, 5_000])
def test_users_are_counted_exactly_up_to_128_and_then_by_registers(number: int) -> None:
    hashes = np.random.default_rng(number).integers(0, 2**64, number, np.uint64)
    sketch = sketch_of(np.full(number, 7, np.uint64), hashes, 16, CHECK)
    if number <= MOST_EXACT:
        assert sketch.counts.tolist() == [number]
    else:
        assert sketch.registers[0].tolist() == hashing.registers_of(hashes, 10).tolist()
        assert not len(sketch.users)
        assert abs(sketch.counts[0] / number - 1) < 5 * 1.04 / 32


def test_parts_of_a_value_with_many_users_merge_to_the_same_bytes_whichever_parts_are_exact() -> None:
    random = np.random.default_rng(1)
    hashes = random.integers(0, 2**64, 600, np.uint64)
    value = np.full(600, 7, np.uint64)
    whole = to_bytes(sketch_of(value, hashes, 16, CHECK))
    for cuts in ([300], [10, 20], [100, 200, 300, 400, 500], [599], [128], [129]):
        parts = [sketch_of(value[: len(part)], part, 16, CHECK) for part in np.split(hashes, cuts)]
        random.shuffle(parts)
        assert to_bytes(reduce(merge, parts)) == whole


def test_a_value_that_leaves_the_sketch_removes_its_registers() -> None:
    hashes = np.random.default_rng(2).integers(0, 2**64, 200, np.uint64)
    large = sketch_of(np.full(200, 9, np.uint64), hashes, 2, CHECK)
    small = sketched([(1, 1), (2, 2)], 2)
    assert len(large.dense) == 1
    assert to_bytes(merge(large, small)) == to_bytes(merge(small, large))
    assert not len(merge(large, small).dense)
    assert merge(large, small).total_rows == 202


def test_the_number_of_values_is_exact_until_the_sketch_is_full() -> None:
    assert sketched([(5, 1), (6, 1), (6, 2)], 3).number_of_values == 2
    assert empty(3, CHECK).number_of_values == 0


@pytest.mark.slow
def test_the_number_of_values_of_a_full_sketch_is_unbiased() -> None:
    """200 sketches of 10,000 values: mean within 5 standard errors of 1 / sqrt(K - 2) each (false alarm 6e-7)."""
    random = np.random.default_rng(3)
    size = 512
    found = []
    for _ in range(200):
        hashes = random.integers(0, 2**64, 10_000, np.uint64)
        found.append(sketch_of(hashes, hashes, size, CHECK).number_of_values)
    error = 1 / math.sqrt(size - 2)
    assert abs(np.mean(found) / 10_000 - 1) < 5 * error / math.sqrt(200)
    assert 0.8 * error < np.std(found) / 10_000 < 1.2 * error
