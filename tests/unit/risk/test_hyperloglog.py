import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.risk.hashing import estimate, index_and_rank, registers_of

hashes = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50)


def rank(value: int, p: int) -> int:
    """One more than the number of trailing zeros of the 64 - p high bits, bit by bit."""
    rest, found = value >> p, 1
    while found <= 64 - p and not rest & 1:
        rest, found = rest >> 1, found + 1
    return found


@given(hashes, st.integers(4, 20))
def test_index_and_rank_equal_the_definition(values: list[int], p: int) -> None:
    index, ranks = index_and_rank(np.array(values, np.uint64), p)
    assert index.tolist() == [value % 2**p for value in values]
    assert ranks.tolist() == [rank(value, p) for value in values]


@pytest.mark.parametrize("p", [4, 10, 15])
def test_every_rank_from_1_to_65_minus_p_is_reached(p: int) -> None:
    values = [1 << (p + zeros) for zeros in range(64 - p)] + [0]
    assert index_and_rank(np.array(values, np.uint64), p)[1].tolist() == list(range(1, 66 - p))


def test_all_ones_have_rank_1_although_a_float_would_round_them() -> None:
    assert index_and_rank(np.array([2**64 - 1], np.uint64), 10)[1].tolist() == [1]


@given(hashes, hashes)
def test_registers_of_a_union_are_the_largest_of_both(first: list[int], second: list[int]) -> None:
    both = registers_of(np.array(first + second[::-1] + first, np.uint64), 4)
    one, other = (registers_of(np.array(values, np.uint64), 4) for values in (first, second))
    assert both.tolist() == np.maximum(one, other).tolist()


def test_an_empty_sketch_is_estimated_as_zero() -> None:
    assert estimate(np.zeros(1024, np.uint8)) == 0


@pytest.mark.parametrize("n", [1, 50, 129, 1_000, 2_560, 5_000, 100_000])
def test_the_estimate_is_unbiased_and_as_precise_as_promised(n: int) -> None:
    """60 sketches: each within 5 standard errors, their mean within 5 of its own (false alarm below 1e-4 in all)."""
    random = np.random.default_rng(n)
    found = [estimate(registers_of(random.integers(0, 2**64, n, np.uint64), 10)) for _ in range(60)]
    error = 1.04 / math.sqrt(1024)
    assert max(abs(one / n - 1) for one in found) < max(5 * error, 0.01)
    assert abs(np.mean(found) / n - 1) < 5 * error / math.sqrt(60) + 0.001
