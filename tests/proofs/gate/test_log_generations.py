"""A change of the log inside an instance (docs/proofs/privacy.md, "A change of the log"), on every small case there is.

The instance is cut in two, with noise of its own in each piece. The join is in both logs, in one of them, or it shows
again after the change because a later join of the same client was lost.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest

from kanon.gate.mechanism.bounds import interval_aware, over_generations
from kanon.noise.laws import Shape, one_sided
from tests.proofs.gate.composition import Case, Claims, Part, costs, of_one_join, one_run, worst
from tests.proofs.gate.enumeration import Claim, Small, largest, mechanisms

CASES = [
    ("one-sided", 2, 3),
    ("two-sided", 2, 3),
    ("one-sided", 3, 2),
    pytest.param("two-sided", 3, 2, marks=pytest.mark.prove),
    pytest.param("two-sided", 3, 3, marks=pytest.mark.prove),
    pytest.param("one-sided", 3, 3, marks=pytest.mark.prove),
    pytest.param("one-sided", 4, 3, marks=pytest.mark.prove),
    pytest.param("two-sided", 4, 2, marks=pytest.mark.prove),
    pytest.param("one-sided", 4, 2, marks=pytest.mark.prove),
    pytest.param("two-sided", 4, 1, marks=pytest.mark.prove),
]


def cuts(window: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The lengths of the pieces before and after a change inside the first or the second of two instances."""
    for cut in range(1, window):
        yield (cut,), (window - cut, window)
        yield (window, cut), (window - cut,)


def in_both_logs(small: Small) -> Iterator[Case]:
    w = small.window
    for before, after in cuts(w):
        for begin in range(before[0]):
            yield Case(f"{before}|{after}, join at {begin}", one_run(before + after, begin, w), of_one_join(small, 3))


def in_the_first_log_only(small: Small) -> Iterator[Case]:
    for before, after in cuts(small.window):
        for begin in range(before[0]):
            left = min(small.window, sum(before) - begin)
            yield Case(f"{before}|{after}, join at {begin}", one_run(before, begin, left), of_one_join(small))


def in_the_second_log_only(small: Small) -> Iterator[Case]:
    """The join was made ``ago`` steps before the change, which is the first step at which it shows."""
    for before, after in cuts(small.window):
        for ago in range(1, small.window):
            yield Case(f"{before}|{after}, {ago} ago", one_run(after, 0, small.window - ago), of_one_join(small))


def of_two_runs(small: Small, runs: int = 2) -> Claims:
    """Three pieces, in ``runs`` of which steps without the client may follow."""
    (e1, d1), (e2, d2) = costs(small)
    w = small.window
    return Claims(Claim((e1,) * 3 + (e2,) * runs, 3 * d1 + runs * (w - 1) * d2), Claim((e2,) * 3, w * d2))


def with_a_later_join_lost(small: Small, claims: Callable[[Small], Claims] = of_two_runs) -> Iterator[Case]:
    """The client joins again before the change, and that join is in the first log only."""
    w = small.window
    for before, after in cuts(w):
        for begin in range(before[0]):
            for end in range(begin + 1, min(sum(before), begin + w)):
                left = w - (sum(before) - begin)
                then = one_run(after, 0, left) if left > 0 else ()
                for steps in reversed(list(pieces(before, begin, end))):
                    then = (Part(steps, len(steps) + 1 if then else 0, then),)
                yield Case(f"{before}|{after}, joins at {begin} and {end}", then, claims(small))


def pieces(lengths: tuple[int, ...], begin: int, end: int) -> Iterator[tuple[bool, ...]]:
    """The steps ``[begin, end)`` in each piece that holds some."""
    start = 0
    for length in lengths:
        steps = tuple(begin <= start + t < end for t in range(length))
        if any(steps):
            yield steps
        start += length


@pytest.mark.parametrize(
    ("cases", "least"),
    [
        (in_both_logs, 0.3),
        (in_the_first_log_only, 0.1),
        (in_the_second_log_only, 0.1),
        (with_a_later_join_lost, 0.1),
    ],
)
@pytest.mark.parametrize(("shape", "window", "most"), CASES)
def test_a_change_of_the_log_costs_at_most_its_bound(
    shape: Shape, window: int, most: int, cases: Callable[[Small], Iterator[Case]], least: float
) -> None:
    tried = [(small, worst(small, cases(small))) for small in mechanisms(shape, window, most)]
    ratio = largest(tried, f"{shape}, {cases.__name__}, w={window}")
    assert least < ratio.value <= 1


WIDE = Small(one_sided(Fraction(1, 2), 12), one_sided(Fraction(2), 8), 3)


def test_a_join_in_both_logs_can_cost_more_than_one_without_a_change() -> None:
    with pytest.raises(AssertionError, match="exceeds its claim"):
        worst(WIDE, (Case(case.name, case.parts, of_one_join(WIDE)) for case in in_both_logs(WIDE)))


def test_a_later_join_that_was_lost_can_cost_more_than_a_join_in_both_logs() -> None:
    """Four steps are the fewest that leave room for a hole before the change and for three pieces."""
    small = Small(one_sided(Fraction(1, 2), 8), one_sided(Fraction(2), 4), 4)
    assert worst(small, with_a_later_join_lost(small)).value <= 1
    with pytest.raises(AssertionError, match="exceeds its claim"):
        worst(small, with_a_later_join_lost(small, lambda small: of_two_runs(small, 1)))


def test_the_bound_is_the_claim_that_is_tried() -> None:
    for small in mechanisms("one-sided", 3, 2):
        parameters = small.parameters
        for bound, claims in (
            (over_generations(parameters, 1), of_one_join(small, 3)),
            (over_generations(parameters, 1, forgotten=1), of_two_runs(small)),
        ):
            assert bound.epsilon == max(sum(claim.parts) for claim in (claims.removing, claims.adding))
            assert bound.delta == max(claims.removing.delta, claims.adding.delta)
        assert over_generations(parameters, 0) == interval_aware(parameters)
