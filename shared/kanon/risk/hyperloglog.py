"""HyperLogLog (Flajolet et al. 2007) on 64-bit hashes: registers, union and estimate.

A hash of 64 bits is split into an index (its ``p`` low bits) and a rank (one more than the number of trailing zeros
of the other ``64 - p``). A register holds the largest rank of its index; 0 means that the index was never seen.
"""

import math

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Registers = NDArray[np.uint8]


def index_and_rank(hashes: Hashes, p: int) -> tuple[NDArray[np.int64], Registers]:
    """The register of every hash and the rank it would write there.

    Args:
        hashes: 64-bit hashes, shape (n,).
        p: 2^p registers.

    Returns:
        Indexes in 0..2^p - 1 and ranks in 1..65 - p, both of shape (n,).
    """
    index = (hashes & np.uint64((1 << p) - 1)).astype(np.int64)
    rest = hashes >> np.uint64(p)
    lowest_bit = rest & (~rest + np.uint64(1))
    _, exponent = np.frexp(lowest_bit.astype(np.float64))  # a power of two is exact in a float
    return index, np.where(rest == 0, 65 - p, exponent).astype(np.uint8)


def registers_of(hashes: Hashes, p: int) -> Registers:
    """The 2^p registers after inserting all hashes; their order and repetitions do not matter."""
    registers = np.zeros(1 << p, dtype=np.uint8)
    np.maximum.at(registers, *index_and_rank(hashes, p))
    return registers


def estimate(registers: Registers) -> float:
    """The number of distinct hashes inserted, standard error about 1.04 / sqrt(2^p).

    Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017), algorithm 6: no bias correction
    table and no switch between ranges. His correction for registers at the largest rank is left out: it matters from
    about 2^60 users on.
    """
    m = len(registers)
    counts = np.bincount(registers).tolist()
    z = 0.0
    for number in reversed(counts[1:]):
        z = (z + number) / 2
    z += m * _sigma(counts[0] / m)
    return m * m / (2 * math.log(2) * z)


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x *= x
        before = z
        z += x * y
        y += y
    return z
