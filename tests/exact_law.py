"""The law of the first crossing in exact rationals: for certificates, and to compare that in numpy with."""

from collections.abc import Sequence
from fractions import Fraction

from kanon.gate.mechanism.parameters import Parameters
from kanon.noise.words import TOTAL, WORD_BITS


def first_crossing_exact(parameters: Parameters, counts: Sequence[int]) -> tuple[Fraction, ...]:
    """The probability of each step, and of none, for one sequence of counts."""
    below = (0, *parameters.query_law.cumulative)
    lowest = parameters.query_law.min
    crossing = [0] * len(counts)
    never = 0
    for u in range(parameters.threshold_law.min, parameters.threshold_law.max + 1):
        survives = parameters.threshold_law.weight(u)
        for j, count in enumerate(counts):
            misses = below[min(max(parameters.k + u - count - lowest, 0), len(below) - 1)]
            crossing[j] += survives * (TOTAL - misses)
            survives *= misses
        never += survives
    numerators = (*crossing, never)
    bits = [WORD_BITS * (j + 2) for j in range(len(counts))] + [WORD_BITS * (len(counts) + 1)]
    return tuple(Fraction(n, 1 << b) for n, b in zip(numerators, bits, strict=True))
