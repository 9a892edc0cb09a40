"""``python -m tests.faults.gate.load``: puts the local stack under load, fails if an acknowledged join is missing."""

from __future__ import annotations

import argparse
import sys

from bench.stack import workload
from tests.faults.gate.load.driving import HEADER, drive
from tests.faults.gate.load.served import Served


def main() -> int:
    """Run the load; 1 if an acknowledged join is missing, or a join is refused in another way than with 503."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.gate.load", description=__doc__)
    parser.add_argument("--rates", default="10,25,50", help="requests per second, one run each")
    parser.add_argument("--seconds", type=float, default=20, help="length of each run")
    parser.add_argument("--throttle", type=float, default=0.6, help="share of refused writes in the last run")
    parser.add_argument("--throttled-rate", type=float, default=10, help="requests per second of that run")
    asked = parser.parse_args()
    broken = _join(asked)
    for promise in broken:
        print(f"BROKEN: {promise}")
    return 1 if broken else 0


def _join(asked: argparse.Namespace) -> list[str]:
    rates = [float(rate) for rate in asked.rates.split(",") if rate]
    if not rates:
        return []
    broken = []
    print(HEADER)
    with Served() as served:
        stream = workload("fledge", 5_000, seed=2)
        runs = [(rate, 0.0) for rate in rates] + [(asked.throttled_rate, asked.throttle)]
        for number, (rate, share) in enumerate(runs):
            served.throttle(share)
            tally = drive(served, stream, rate, asked.seconds, seed=number)
            refused = f" {share:.0%} of the writes refused, every second batch of those in part" if share else ""
            print(tally.line() + refused, flush=True)
            if tally.missing:
                broken.append(f"{tally.missing} acknowledged joins are not in the log at {rate:g} a second")
            if tally.without_retry_after or set(tally.statuses) - {200, 503}:
                broken.append(f"answers other than 200 and 503 with Retry-After at {rate:g} a second")
    return broken


if __name__ == "__main__":
    sys.exit(main())
