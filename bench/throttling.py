"""``python -m bench.throttling``: simulates the rate of single joins at which the log throttles.

DynamoDB puts each partition key on one of its own partitions, which allows 1,000 write units per second. The keys of
the log change every step, so every step has new places. This simulation places them independently and evenly, and
spreads joins evenly over slots. It leaves out adaptive capacity, which moves keys of a busy partition after minutes,
and bursts.
"""

from __future__ import annotations

import numpy as np

UNITS_A_PARTITION = 1_000
STEPS = 10_000
SEED = 1


def limits(keys: int, partitions: int) -> np.ndarray:
    """The joins per second at which the busiest partition is full, for each of many steps, sorted."""
    chance = np.random.default_rng(SEED)
    placed = chance.integers(partitions, size=(STEPS, keys)) + partitions * np.arange(STEPS)[:, None]
    busiest = np.bincount(placed.ravel(), minlength=STEPS * partitions).reshape(STEPS, partitions).max(axis=1)
    return np.sort(UNITS_A_PARTITION * keys / busiest)


def main() -> None:
    """Print the table."""
    print("| slots | partitions of a slot | write units of the table | half of the steps | 99% of the steps |")
    print("|---|---|---|---|---|")
    for slots, each in ((1, 1), (16, 1), (16, 16), (256, 16)):
        for partitions in (4, 40):
            found = limits(slots * each, partitions)
            figures = (f"{int(found[int(STEPS * share)]):,}" for share in (0.5, 0.01))
            print(f"| {slots} | {each} | {UNITS_A_PARTITION * partitions:,} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
