"""Privacy bounds: (epsilon, delta), and the largest belief of an observer."""

from dataclasses import dataclass
from fractions import Fraction

from kanon.noise.exact import exp_bounds, written_up


@dataclass(frozen=True)
class Bound:
    """``P[M(D) in O] <= e**epsilon P[M(D') in O] + delta`` for neighbouring D, D' and every set O of answers."""

    epsilon: Fraction
    delta: Fraction

    def times(self, sets: int) -> "Bound":
        """Composition over ``sets`` sets (or types) with independent noise."""
        return Bound(sets * self.epsilon, sets * self.delta)

    def __str__(self) -> str:
        """The bound as text, rounded up: ``(2.25, 3.93e-6)``."""
        return f"({written_up(self.epsilon, 6).normalize():f}, {written_up(self.delta, 3):.2e})"


def posterior(prior: Fraction, epsilon: Fraction) -> Fraction:
    """The largest probability that an observer can assign to a fact that had probability ``prior`` before.

    ``e^eps p / (1 + (e^eps - 1) p)``, rounded up; it holds except with probability delta.
    """
    _, factor = exp_bounds(epsilon)
    return factor * prior / (1 + (factor - 1) * prior)
