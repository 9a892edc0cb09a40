"""Counts of capacity units, which are the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.harness import Count, Form
from bench.stack import PERIOD, START, TYPES
from kanon.client import Client, Join, encoded
from kanon.dynamo.batches import chunks
from kanon.local import Stack

BATCH = 500


def rows(form: Form) -> Iterator[Count]:
    """Units of both extremes of popularity."""
    sets, joins = form.size(500, 200), 2_000
    tail = [(hour, join(number, f"{hour}-{number}")) for hour in range(3) for number in range(sets)]
    popular = [(0, join(1, str(number))) for number in range(joins)]
    for how, size, of_tail, of_one in (("alone", 1, 1.05, 1.02), (f"in batches of {BATCH}", BATCH, 0.1, 0.05)):
        what = f"write units a join, sent {how}"
        yield Count(f"{what}, one join per set and hour", f"{sets} sets, 3 hours", units(tail, size), of_tail)
        yield Count(f"{what}, one set", f"{joins} joins in an hour", units(popular, size), of_one)


def join(number: int, client: str) -> Join:
    """A join of the set with this number."""
    return Join("fledge", encoded(number.to_bytes(32, "big")), client)


def log(stack: Stack, joins: Sequence[Join], size: int = BATCH) -> None:
    """Send joins in batches of ``size``; the join of a batch of one is stored as a single join is."""
    for part in chunks(joins, size):
        Client(stack.request).join_many(part)


def units(joins: Sequence[tuple[int, Join]], size: int) -> float:
    """Write units per join of a log of (hour, join), until all of it is evaluated."""
    with Stack({"Types": TYPES}, start=START, seed=1) as stack:
        for hour in range(joins[-1][0] + 1):
            log(stack, [join for at, join in joins if at == hour], size)
            stack.advance(PERIOD)
        stack.advance(PERIOD)  # wait for the grace of the last step
        assert not stack.failures
        return sum(stack.meter.written.values()) / len(joins)
