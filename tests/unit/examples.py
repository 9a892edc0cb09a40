"""Small types, keys and tapes that many tests start from."""

import itertools
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256

from kanon.gate.mechanism.parameters import CrossingRestart, Parameters, profile, profile_restart
from kanon.gate.mechanism.tape import Noise, Tapes
from kanon.gate.slots import Layout, Layouts
from kanon.noise.laws import one_sided, two_sided
from kanon.noise.words import NoiseKey

SMALL = Parameters(
    k=4,
    window=6,
    period=3600,
    threshold_law=two_sided(Fraction(1, 2), 1),
    query_law=two_sided(Fraction(1, 2), 2),
    client_bits=8,
)
"""An empty set is just never true (never_true_below is 1), a set is surely true from 7 clients."""

ONE_SIDED = Parameters(
    k=5,
    window=4,
    period=60,
    threshold_law=one_sided(Fraction(1, 2), 2),
    query_law=one_sided(Fraction(1, 2), 3),
    client_bits=8,
    phase="zero",
)

CROSSING = Parameters(
    k=4,
    window=6,
    period=3600,
    threshold_law=one_sided(Fraction(1, 2), 2),
    query_law=one_sided(Fraction(1, 2), 3),
    client_bits=8,
    restart=CrossingRestart(hold=8, epoch=15),
)
"""Restart after the crossing; a set is surely true from 6 clients."""

LONG_HOLD = replace(CROSSING, window=3, restart=CrossingRestart(hold=11, epoch=4))
"""A status that outlasts epochs, and epochs that hardly outlast a window."""

ASSORTED = [
    SMALL,
    ONE_SIDED,
    replace(SMALL, phase="zero"),
    replace(SMALL, k=6, window=3),
    replace(SMALL, window=2),
    replace(SMALL, k=9),
    CROSSING,
    replace(CROSSING, phase="zero"),
    replace(CROSSING, k=6, window=3),
    replace(CROSSING, window=2),
    LONG_HOLD,
]
"""Types of every kind, with small windows."""


def of_profile(name: str, window: int) -> Parameters:
    """A type of a profile with k = 50 and steps of an hour."""
    return Parameters(50, window, 3600, *profile(name, window), restart=profile_restart(name, window))


PUBLISHED = of_profile("published", 720)

KEY = NoiseKey("1", bytes(range(32)))

ONE_SLOT, TWO_SLOTS, SIXTEEN_SLOTS = (Layouts((Layout(slots, 0),)) for slots in (1, 2, 16))


def set_key(name: object) -> bytes:
    """A set key like any other: 32 uniform bytes."""
    return sha256(f"set {name}".encode()).digest()


def in_slot(slot: int, layouts: Layouts, count: int) -> list[bytes]:
    """So many set keys that the last of these layouts puts into a slot."""
    keys = (set_key(n) for n in itertools.count())
    return list(itertools.islice((key for key in keys if layouts.entries[-1].slot_of(key) == slot), count))


def tapes(parameters: Parameters, key: NoiseKey = KEY) -> Tapes:
    """The tapes of a type named ``type`` in a deployment named ``deployment``."""
    return Tapes(key, "deployment", "type", parameters)


def noise(parameters: Parameters, name: bytes, instance: int) -> Noise:
    """The noise of a set in an instance on these tapes."""
    return Noise(tapes(parameters), name, instance)
