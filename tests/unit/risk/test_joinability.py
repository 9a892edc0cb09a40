import numpy as np
import pytest

from kanon.risk.errors import RiskError
from kanon.risk.joinability import Containment, containment, joinability
from kanon.risk.khll import Sketch, empty
from tests.unit.risk.made import sketch_of

CHECK = b"12345678"
SIZE = 2_048
TRIALS = 40


def column(values: np.ndarray, size: int = SIZE, users: int = 1) -> Sketch:
    """Every value with so many users."""
    values = np.tile(values, users)
    return sketch_of(values, np.arange(len(values), dtype=np.uint64), size, CHECK)


def trial(random: np.random.Generator, first: int, second: int, truth: float) -> Containment:
    """Two columns of so many values, of the first a share of ``truth`` in the second."""
    shared = round(truth * first)
    hashes = random.integers(0, 2**64, first + second - shared, np.uint64)
    return containment(column(hashes[:first]), column(hashes[first - shared :]))


def found(first: int, second: int, truth: float) -> list[Containment]:
    random = np.random.default_rng(round(1000 * truth) + second)
    return [trial(random, first, second, truth) for _ in range(TRIALS)]


@pytest.mark.slow
@pytest.mark.parametrize("truth", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_matched_hashes_are_always_within_5_percent_for_columns_of_one_size(truth: float) -> None:
    results = found(10_000, 10_000, truth)
    matched = np.array([one.matched for one in results])
    errors = np.array([one.standard_error for one in results])
    assert np.abs(matched - truth).max() <= 0.05
    assert np.abs((matched - truth) / errors).max() < 4.5  # the sampled part of all values is left out: they are wide
    thesis = np.array([one.thesis for one in results])
    assert thesis.std() > 1.3 * matched.std()
    assert np.abs(thesis - truth).max() <= 0.15


@pytest.mark.slow
def test_matched_hashes_stay_precise_among_twenty_times_as_many_values() -> None:
    results = found(5_000, 100_000, 0.5)
    low, high = np.quantile([one.matched for one in results], [0.05, 0.95])
    assert high - low <= 0.20
    low, high = np.quantile([one.thesis for one in results], [0.05, 0.95])
    assert 0.24 < high - low < 0.36


def test_columns_that_fit_into_their_sketches_are_compared_exactly() -> None:
    first, second = column(np.arange(100, dtype=np.uint64)), column(np.arange(75, 475, dtype=np.uint64))
    assert containment(first, second) == Containment(0.25, 0.0, 0.25)
    assert containment(second, first) == Containment(0.0625, 0.0, 0.0625)


def test_hashes_at_and_above_the_smaller_bound_are_not_compared() -> None:
    """The second column knows nothing of hashes above its largest one, and that one is kept by construction."""
    first = column(np.arange(0, 100, 2, dtype=np.uint64), 64)
    second = column(np.arange(0, 100, dtype=np.uint64), 10)  # keeps 0..9
    assert containment(first, second).matched == 1.0
    assert containment(second, first).matched == pytest.approx(5 / 9)


def test_too_few_hashes_give_no_share_and_no_verdict() -> None:
    first, second = column(np.array([2**63], np.uint64)), column(np.arange(10, dtype=np.uint64), 8)
    result = joinability(first, second)
    assert result.first_in_second.matched is None
    assert not result.joinable


def test_columns_are_joinable_if_one_is_contained_and_both_are_unique() -> None:
    values = np.arange(100, dtype=np.uint64)
    unique, shared, other = column(values), column(values, users=2), column(values + np.uint64(51))
    assert joinability(unique, unique).joinable
    assert joinability(unique, column(values[:20])).joinable  # the small one lies in the large one
    assert not joinability(unique, shared).joinable
    assert not joinability(shared, unique).joinable
    assert not joinability(unique, other).joinable  # 49 of 100
    assert joinability(unique, column(values + np.uint64(50))).joinable


def test_different_keys_and_empty_columns_refuse() -> None:
    values = np.arange(3, dtype=np.uint64)
    with pytest.raises(RiskError, match="different keys"):
        containment(column(values), sketch_of(values, values, SIZE, b"another!"))
    with pytest.raises(RiskError, match="without values"):
        containment(column(values), empty(SIZE, CHECK))
