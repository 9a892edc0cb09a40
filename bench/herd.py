"""Load at a tick, when all answers expire in the same second. ``python -m bench.herd``

Simulates clients that query again at ``nextUpdate``, with or without a random delay, against the token bucket of a
route. A refused client (429) waits and tries again, as docs/reference/errors.md says.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import Counter
from dataclasses import dataclass

ROUND_TRIP = 0.05
"""Seconds from a request to its answer."""


@dataclass(frozen=True)
class Herd:
    """The outcome: seconds until a share of the clients has its answer, requests refused, and the busiest second."""

    half: float
    nearly_all: float
    everybody: float
    refused: int
    busiest: int


def simulate(clients: int, rate: float, spread: float, seed: int = 1) -> Herd:
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


def main(arguments: list[str] | None = None) -> None:
    """Print the outcome for several spreads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=80.0)
    given = parser.parse_args(arguments)
    print(f"{given.clients} clients, {given.rate:g} requests a second")
    print("spread (s)  half by (s)  99% by (s)  all by (s)  refused  busiest second")
    for spread in (0.0, 60.0, given.clients / given.rate, 2 * given.clients / given.rate):
        herd = simulate(given.clients, given.rate, spread)
        print(
            f"{spread:10.0f}  {herd.half:11.0f}  {herd.nearly_all:10.0f}  {herd.everybody:10.0f}  {herd.refused:7d}"
            f"  {herd.busiest:14d}"
        )


if __name__ == "__main__":
    main()
