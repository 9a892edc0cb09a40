"""``python -m infra.measure.load``: puts the local stack under load, prints tables, fails if a limit is exceeded."""

from __future__ import annotations

import argparse
import sys

from infra.measure import load_joins as joins
from infra.measure import load_step as step
from infra.measure.served import Served
from infra.measure.workload import joins as workload

MEMORY = 256.0
"""The largest memory, in MiB, that an evaluation may use."""


def main() -> int:
    """Run the load; 1 if an acknowledged join is missing, memory exceeds its limit, or a step is unfinished."""
    parser = argparse.ArgumentParser(prog="python -m infra.measure.load", description=__doc__)
    parser.add_argument("--rates", default="10,25,50", help="requests per second, one run each")
    parser.add_argument("--seconds", type=float, default=20, help="length of each run")
    parser.add_argument("--throttle", type=float, default=0.6, help="share of refused writes in the last run")
    parser.add_argument("--throttled-rate", type=float, default=10, help="requests per second of that run")
    parser.add_argument("--joins", default="10000,100000", help="sizes of the steps that are evaluated")
    parser.add_argument("--timeout", type=float, default=120, help="seconds a worker has for one message")
    asked = parser.parse_args()
    broken = _join(asked) + _evaluate(asked)
    for promise in broken:
        print(f"BROKEN: {promise}")
    return 1 if broken else 0


def _join(asked: argparse.Namespace) -> list[str]:
    rates = [float(rate) for rate in asked.rates.split(",") if rate]
    if not rates:
        return []
    broken = []
    print(joins.HEADER)
    with Served("ministack") as served:
        stream = workload("fledge", 5_000, seed=2)
        runs = [(rate, 0.0) for rate in rates] + [(asked.throttled_rate, asked.throttle)]
        for number, (rate, share) in enumerate(runs):
            served.throttle(share)
            tally = joins.drive(served, stream, rate, asked.seconds, seed=number)
            refused = f" {share:.0%} of the writes refused, every second batch of those in part" if share else ""
            print(tally.line() + refused, flush=True)
            if tally.missing:
                broken.append(f"{tally.missing} acknowledged joins are not in the log at {rate:g} a second")
            if tally.without_retry_after or set(tally.statuses) - {200, 503}:
                broken.append(f"answers other than 200 and 503 with Retry-After at {rate:g} a second")
    return broken


def _evaluate(asked: argparse.Namespace) -> list[str]:
    broken = []
    sizes = [int(size) for size in asked.joins.split(",") if size]
    if sizes:
        print(step.HEADER)
    for size in sizes:
        figures = step.evaluate_step(size, asked.timeout)
        print(figures.line(), flush=True)
        if not figures.complete:
            broken.append(f"the step of {size} joins was not evaluated completely")
        if figures.resident_at_most > MEMORY:
            broken.append(f"{figures.resident_at_most:.0f} MiB for {size} joins, more than {MEMORY:.0f}")
        if size > 20_000 and figures.largest_page > size / 2:
            broken.append(f"a page held {figures.largest_page} of {size} rows")
    return broken


if __name__ == "__main__":
    sys.exit(main())
