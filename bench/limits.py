"""``python -m bench.limits``: simulations of load, for the guides of clients and of deployment.

* Clients that query again at ``nextUpdate``, when all answers expire in the same second, with or without a random
  delay, against the token bucket of a route. A refused client (429) waits and tries again, as docs/guides/clients.md
  says.
* The rate of single joins at which the log throttles. DynamoDB puts each partition key on one of its own partitions,
  which allows 1,000 write units per second. The keys of the log change every step, so every step has new places. They
  are placed independently and evenly here, and joins are spread evenly over slots. Adaptive capacity, which moves keys
  of a busy partition after minutes, and bursts are left out.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass

import numpy as np

CLIENTS, RATE = 10_000, 80.0
ROUND_TRIP = 0.05
"""Seconds from a request to its answer."""
UNITS_A_PARTITION = 1_000
STEPS = 10_000


@dataclass(frozen=True)
class Herd:
    """The outcome: seconds until a share of the clients has its answer, requests refused, and the busiest second."""

    half: float
    nearly_all: float
    everybody: float
    refused: int
    busiest: int


def herd(clients: int, rate: float, spread: float, seed: int = 1) -> Herd:
    """Let ``clients`` query once after a tick, at random times within ``spread`` seconds.

    ``rate`` is the route's requests per second, and its burst (``AnonymousRate``).
    """
    choose = random.Random(seed)
    waiting = [(choose.uniform(0, spread), client, 0) for client in range(clients)]
    heapq.heapify(waiting)
    tokens, refilled, refused = rate, 0.0, 0
    answered: list[float] = []
    seconds: Counter[int] = Counter()
    while waiting:
        now, client, attempt = heapq.heappop(waiting)
        tokens, refilled = min(rate, tokens + (now - refilled) * rate), now
        seconds[int(now)] += 1
        if tokens >= 1:
            tokens -= 1
            answered.append(now + ROUND_TRIP)
        else:
            refused += 1
            pause = min(2.0**attempt, 64.0) * choose.uniform(0.5, 1.5)
            heapq.heappush(waiting, (now + ROUND_TRIP + pause, client, attempt + 1))
    nearly_all = answered[min(clients - 1, clients * 99 // 100)]
    return Herd(answered[clients // 2], nearly_all, answered[-1], refused, max(seconds.values()))


def throttled(keys: int, partitions: int) -> np.ndarray:
    """The joins per second at which the busiest partition is full, for each of many steps, sorted."""
    placed = np.random.default_rng(1).integers(partitions, size=(STEPS, keys)) + partitions * np.arange(STEPS)[:, None]
    busiest = np.bincount(placed.ravel(), minlength=STEPS * partitions).reshape(STEPS, partitions).max(axis=1)
    return np.sort(UNITS_A_PARTITION * keys / busiest)


def main() -> None:
    """Print both tables."""
    print(f"{CLIENTS} clients, {RATE:g} requests a second\n")
    print("| spread, s | half by, s | 99% by, s | all by, s | refused | busiest second |\n|---|---|---|---|---|---|")
    for spread in (0.0, 60.0, CLIENTS / RATE, 2 * CLIENTS / RATE):
        found = herd(CLIENTS, RATE, spread)
        seconds = f"{found.half:.0f} | {found.nearly_all:.0f} | {found.everybody:.0f}"
        print(f"| {spread:.0f} | {seconds} | {found.refused:,} | {found.busiest:,} |")
    print("\n| slots | partitions of a slot | write units of the table | half of the steps | 99% of the steps |")
    print("|---|---|---|---|---|")
    for slots, each in ((1, 1), (16, 1), (16, 16), (256, 16)):
        for partitions in (4, 40):
            rates = throttled(slots * each, partitions)
            figures = (f"{int(rates[int(STEPS * share)]):,}" for share in (0.5, 0.01))
            print(f"| {slots} | {each} | {UNITS_A_PARTITION * partitions:,} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
