"""Directed rounding: rational bounds of exponentials, and floats and decimals that are never too small."""

import math
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from functools import lru_cache


@lru_cache(maxsize=64)
def exp_bounds(x: Fraction, bits: int = 256) -> tuple[Fraction, Fraction]:
    """Rational bounds ``(low, high)`` of ``e**x`` for ``x >= 0``, about ``2**-bits`` apart.

    Sums the Taylor series in fixed point. Every term is rounded down for ``low`` and up for ``high``. Once
    ``n >= 2x``, the rest of the series is at most the last term.
    """
    if x < 0:
        raise ValueError("exp_bounds takes x >= 0; use the reciprocal for negative x")
    one = 1 << bits
    low = high = term_low = term_high = one
    n = 0
    while term_high > 1 or n < 2 * x:
        n += 1
        term_low = term_low * x.numerator // (x.denominator * n)
        term_high = -(-term_high * x.numerator // (x.denominator * n))
        low += term_low
        high += term_high
    return Fraction(low, one), Fraction(high + term_high, one)


def round_up(x: Fraction) -> float:
    """The float nearest to ``x``, or the next larger one, so that its decimal text in JSON is at least ``x``."""
    nearest = float(x)
    return nearest if Fraction(repr(nearest)) >= x else math.nextafter(nearest, math.inf)


def written_up(x: Fraction, digits: int) -> Decimal:
    """The smallest decimal with ``digits`` significant digits that is at least ``x``."""
    return Context(prec=digits, rounding=ROUND_CEILING).divide(Decimal(x.numerator), Decimal(x.denominator))
