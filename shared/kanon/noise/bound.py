"""Privacy bounds: (epsilon, delta), and the largest belief of an observer."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from kanon.noise.exact import exp_bounds, written_up

MOST_DELTA = Fraction(1, 100)
"""From this delta on, a mechanism may reveal a random hundredth of its users: no release or type is made with it."""
MUCH_EPSILON = 10


@dataclass(frozen=True)
class Bound:
    """``P[M(D) in O] <= e**epsilon P[M(D') in O] + delta`` for neighbouring D, D' and every set O of answers."""

    epsilon: Fraction
    delta: Fraction

    def times(self, sets: int) -> "Bound":
        """Composition over ``sets`` sets (or types) with independent noise."""
        return Bound(sets * self.epsilon, sets * self.delta)

    def cautions(self, users: int = 0) -> Iterator[str]:
        """What a reader should know about a weak guarantee.

        Args:
            users: a number of users that is public or released, never an exact one of the data; 0 if there is none.
        """
        if self.epsilon > MUCH_EPSILON:
            yield (
                f"epsilon {written_up(self.epsilon, 6).normalize():f} is above {MUCH_EPSILON}: an observer can become"
                " almost certain of whether one user is in the data"
            )
        if self.delta * users > 1:
            delta = f"{written_up(self.delta, 3):.2e}"
            yield f"delta {delta} is above 1 divided by {users} users: one of them may lose all protection"

    def __str__(self) -> str:
        """The bound as text, rounded up: ``(2.25, 3.93e-6)``."""
        delta = f"{written_up(self.delta, 3):.2e}" if self.delta else "0"
        return f"({written_up(self.epsilon, 6).normalize():f}, {delta})"


def posterior(prior: Fraction, epsilon: Fraction) -> Fraction:
    """The largest probability that an observer can assign to a fact that had probability ``prior`` before.

    ``e^eps p / (1 + (e^eps - 1) p)``, rounded up; it holds except with probability delta.
    """
    _, factor = exp_bounds(epsilon)
    return factor * prior / (1 + (factor - 1) * prior)
