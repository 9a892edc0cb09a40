"""``python -m bench.parts``: the processor time of a part in a step: read, merged with its joins, and encoded.

Each touched set gets one join. ``kanon cost`` takes from the table what an untouched byte, a touched set and a member
cost (``shared/kanon/cost/measured.json``). Times are the least of five runs in this process.
"""

import gc
import sys
import time
from functools import cache

import numpy as np

from bench.stack import fledge
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.mechanism.tape import SET_KEY_BYTES, Tapes
from kanon.gate.merging import JOIN, Deciding, merged
from kanon.gate.parts import Part, decode, encode
from kanon.noise.words import NoiseKey

STEP = 480_000
ROWS = ((200_000, 2), (50_000, 50))
"""Sets of a part, and the members of each."""
SHARES = (0.0, 0.01, 0.2, 1.0)
RUNS = 5


def main() -> int:
    """Print the table."""
    gc.freeze()
    print("| sets | members of each | touched | us a touched set | ns a byte |\n|---|---|---|---|---|")
    for sets, members in ROWS:
        content, _ = encode(part(sets, members), STEP - 1)
        for share in SHARES:
            seconds = min(spent(content, share) for _ in range(RUNS))
            each = f"{1e6 * seconds / (sets * share):.3g}" if share else "-"
            print(f"| {sets:,} | {members} | {share:.0%} | {each} | {1e9 * seconds / len(content):.3g} |", flush=True)
    return 0


def part(sets: int, members: int) -> Part:
    """A part whose sets have as many members, of random ages within the window."""
    chance, count = np.random.default_rng(1), sets * members
    keys = np.sort(np.frombuffer(chance.bytes(SET_KEY_BYTES * sets), f"S{SET_KEY_BYTES}"))
    ages = np.sort(chance.integers(1, fledge().parameters.window, (sets, members)), axis=1).ravel()
    never, tokens = np.full(sets, NEVER), chance.integers(0, 1 << 16, count, np.uint32)
    ends = np.full(sets, STEP + fledge().parameters.window)
    crossings, lasts = np.full((sets, 2), NEVER), STEP - ages
    return Part.of(
        STEP - 1, keys, np.ones(sets, np.uint8), np.full(sets, members), tokens, lasts, crossings, never, ends
    )


def spent(content: bytes, share: float) -> float:
    """Processor seconds of a step in which this share of the sets is joined."""
    keys, chance = decode(content).keys, np.random.default_rng(2)
    joins = np.zeros(round(len(keys) * share), JOIN)
    joins["key"] = keys[np.sort(chance.choice(len(keys), len(joins), replace=False))]
    joins["token"], joins["type"] = chance.integers(0, 1 << 16, len(joins)), 1
    deciding = Deciding(STEP, {1: fledge().parameters}, lambda *_: tapes())
    began = time.process_time()
    encode(merged(decode(content), joins, deciding).part, STEP)
    return time.process_time() - began


@cache
def tapes() -> Tapes:
    """The tapes of the type."""
    return Tapes(NoiseKey("1", bytes(32)), "deployment", "fledge", fledge().parameters)


if __name__ == "__main__":
    sys.exit(main())
