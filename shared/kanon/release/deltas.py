"""The delta of a noise table in exact rationals: hockey-sticks, and composition over several groups.

The *hockey-stick* of two distributions P, Q at epsilon is ``sum_o max(0, P(o) - e**epsilon Q(o))``: the least delta
for which ``P[S] <= e**epsilon Q[S] + delta`` for every set S of outcomes. ``e**epsilon`` is rounded down to a rational,
so a delta is never too small.
"""

from fractions import Fraction

from kanon.noise.laws import Table

_ROOT_BITS = 256


def shift_delta(table: Table, shift: int, epsilon: Fraction) -> Fraction:
    """The hockey-stick of ``x`` and ``x + shift``, x drawn from the table: the larger of the two directions."""
    return max(table.excess(shift, epsilon), table.excess(-shift, epsilon))


def of_each(delta: Fraction, groups: int) -> Fraction:
    """The largest delta (a multiple of 2^-256) of each of ``groups`` groups: ``(1 - d)**groups >= 1 - delta``.

    Heterogeneous composition of ``groups`` mechanisms with (e, d) is ``(groups e, 1 - (1 - d)**groups)``
    (Kairouz, Oh, Viswanath 2015, theorem 3.4, with slack 0).
    """
    least = (1 - delta) * (1 << _ROOT_BITS * groups)
    kept = _root_up(-(-least.numerator // least.denominator), groups)
    return 1 - Fraction(kept, 1 << _ROOT_BITS)


def of_all(delta: Fraction, groups: int) -> Fraction:
    """``1 - (1 - delta)**groups``: the delta of ``groups`` groups together, each with ``delta``."""
    return 1 - (1 - delta) ** groups


def _root_up(x: int, n: int) -> int:
    """The least integer r with ``r**n >= x``, for x >= 1."""
    root = 1 << -(-x.bit_length() // n)
    # Newton's iteration from above ends at the root rounded down.
    while (better := ((n - 1) * root + x // root ** (n - 1)) // n) < root:
        root = better
    return root if root**n == x else root + 1
