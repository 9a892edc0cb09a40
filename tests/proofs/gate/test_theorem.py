"""The interval-aware theorem (docs/proofs/privacy.md), on every small case there is.

Exhaustive: all integer count sequences, all steps at which a client can count, both directions, both shapes of
law. The largest ratio of what leaks to what is claimed is printed (``pytest -s``, or ``make prove``).
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from kanon.gate.mechanism.bounds import interval_aware, watching
from kanon.gate.mechanism.parameters import Parameters
from kanon.noise.laws import Shape, one_sided, two_sided
from tests.exact_law import first_crossing_exact
from tests.proofs.gate.composition import Claims, of_one_join, pairs, worst
from tests.proofs.gate.enumeration import Claim, Small, largest, mechanisms, wide


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", ["one-sided", "two-sided"])
def test_no_instance_leaks_more_than_its_claim(shape: Shape, window: int) -> None:
    ratio = largest([(s, s.worst_instance()) for s in mechanisms(shape, window, 3)], f"{shape}, one instance")
    assert 0.5 < ratio.value <= 1


@pytest.mark.parametrize(
    ("shape", "window", "most"), [("one-sided", 2, 3), ("two-sided", 2, 3), ("one-sided", 3, 3), ("two-sided", 3, 3)]
)
def test_no_two_instances_leak_more_than_the_theorem_says(shape: Shape, window: int, most: int) -> None:
    ratio = largest([(s, worst(s, pairs(s))) for s in mechanisms(shape, window, most)], f"{shape}, two instances")
    assert 0.3 < ratio.value <= 1


@pytest.mark.prove
@pytest.mark.parametrize(("shape", "window", "most"), [("one-sided", 4, 3), ("two-sided", 4, 3)])
def test_no_two_larger_instances_leak_more_than_the_theorem_says(shape: Shape, window: int, most: int) -> None:
    ratio = largest([(s, worst(s, pairs(s))) for s in mechanisms(shape, window, most)], f"{shape}, two instances")
    assert 0.3 < ratio.value <= 1


@dataclass(frozen=True)
class WithoutQueryEpsilon(Small):
    """A claim that is too strong: a join costs only the threshold's epsilon in its first instance."""

    def removing(self, counted: tuple[int, ...]) -> Claim:
        return Claim((self.threshold_law.epsilon,), super().removing(counted).delta)


def without_second_threshold(small: Small) -> Claims:
    """The claim of a single instance, made for two."""
    claims = of_one_join(small)
    return Claims(Claim(claims.removing.parts[1:], claims.removing.delta), claims.adding)


def test_the_enumeration_refutes_claims_that_are_too_strong() -> None:
    laws = (one_sided(Fraction(9, 10), 3), one_sided(Fraction(6, 5), 3), 4)
    with pytest.raises(AssertionError, match="exceeds its claim"):
        WithoutQueryEpsilon(*laws).worst_instance()
    small = Small(one_sided(Fraction(9, 10), 8), one_sided(Fraction(6, 5), 8), 2)
    assert worst(small, pairs(small)).value <= 1
    with pytest.raises(AssertionError, match="exceeds its claim"):
        worst(small, pairs(small, without_second_threshold))


def test_no_two_short_instances_of_wide_laws_leak_more_than_the_theorem_says() -> None:
    ratio = largest([(small, worst(small, pairs(small))) for small in wide(2)], "wide laws, two instances")
    assert 0.5 < ratio.value <= 1


def test_every_sequence_and_its_neighbours_are_enumerated() -> None:
    small = Small(two_sided(Fraction(1), 1), two_sided(Fraction(1), 2), 3)
    assert len({tuple(row) for row in small.counts.tolist()}) == small.levels**3
    assert len(list(small.patterns)) == 7
    for counted in small.patterns:
        difference = small.counts[small.with_join(counted)] - small.counts[small.without]
        assert np.array_equal(difference, np.tile([t in counted for t in range(3)], (len(small.without), 1)))
    never, surely = small.laws[small.without[0]], small.laws[-1]
    assert never[-1] == pytest.approx(1)
    assert surely[0] == pytest.approx(1)


def test_a_join_timed_by_the_answers_can_leak_more_than_the_theorem_and_at_most_its_own_bound() -> None:
    """Wait for an instance whose first step shows that mu is at its maximum; join in the next step of that one.

    Without the join nothing crosses there with some probability, with it the crossing is certain.
    """
    parameters = Parameters(9, 4, 60, one_sided(Fraction(1, 2), 4), one_sided(Fraction(3, 2), 8))
    # Just below certainty: no crossing only if mu is at its maximum and nu is 0.
    telling = parameters.surely_true_from - 1
    misses_one = first_crossing_exact(parameters, [telling])[-1]
    misses_two = first_crossing_exact(parameters, [telling, telling])[-1]
    assert first_crossing_exact(parameters, [telling, telling + 1])[-1] == 0
    for instances in (1, 10, 100):
        # In the first of the instances that shows it; the counts of the others do not matter.
        leaked = sum((1 - misses_one) ** i * misses_two for i in range(instances))
        assert leaked <= watching(parameters, (instances - 1) * parameters.window + 1).delta
    assert leaked > 5 * interval_aware(parameters).delta


def test_a_client_that_looks_at_many_sets_leaks_more_than_the_bound_for_one_and_at_most_that_for_all() -> None:
    """As above, with an instance of each set: it joins the first that shows in its first step that mu is at its end."""
    parameters = Parameters(9, 4, 60, one_sided(Fraction(1, 2), 4), one_sided(Fraction(3, 2), 8))
    telling = parameters.surely_true_from - 1
    misses_one = first_crossing_exact(parameters, [telling])[-1]
    misses_two = first_crossing_exact(parameters, [telling, telling])[-1]
    for sets in (1, 10, 40):
        leaked = (1 - (1 - misses_one) ** sets) / misses_one * misses_two
        assert leaked <= watching(parameters, 1, sets).delta
    assert leaked > 2 * watching(parameters, 1).delta
