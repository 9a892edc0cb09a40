"""What differential privacy promises: (epsilon, delta), and what an observer can learn at most."""

from dataclasses import dataclass
from fractions import Fraction

from kanon.noise.exact import exp_bounds, written_up


@dataclass(frozen=True)
class Bound:
    """``P[M(D) in O] <= e**epsilon P[M(D') in O] + delta`` for neighbours D, D' and every set O of answers."""

    epsilon: Fraction
    delta: Fraction

    def times(self, sets: int) -> "Bound":
        """Composition over ``sets`` sets (or types), whose noise is independent."""
        return Bound(sets * self.epsilon, sets * self.delta)

    def __str__(self) -> str:
        """``(2.25, 3.93e-6)``: as people write it, never less than what is proved."""
        return f"({written_up(self.epsilon, 6).normalize():f}, {written_up(self.delta, 3):.2e})"


def posterior(prior: Fraction, epsilon: Fraction) -> Fraction:
    """The most an observer who believed something with probability ``prior`` can come to believe it.

    ``e^eps p / (1 + (e^eps - 1) p)``, but for the probability delta; rounded up.
    """
    _, factor = exp_bounds(epsilon)
    return factor * prior / (1 + (factor - 1) * prior)
