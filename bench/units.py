"""Counts of capacity units, bytes and items, which are the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kanon.gate.storage.members import to_item

from bench.harness import Count, Form
from bench.stack import PERIOD, START, TYPES, fledge, mark
from kanon.client import Client, Join, encoded
from kanon.dynamo.batches import chunks, put_all
from kanon.dynamo.units import item_size
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.members import Member
from kanon.gate.names import set_key
from kanon.keys import Secret
from kanon.local import Stack

BATCH = 500


def rows(form: Form) -> Iterator[Count]:
    """Units of both extremes of popularity, a full item, idle sets."""
    sets, joins = form.size(500, 200), 2_000
    tail = [(hour, join(number, f"{hour}-{number}")) for hour in range(3) for number in range(sets)]
    popular = [(0, join(1, str(number))) for number in range(joins)]
    for how, size, of_tail, of_one in (("alone", 1, 2.1, 1.01), (f"in batches of {BATCH}", BATCH, 1.15, 0.05)):
        what = f"write units a join, sent {how}"
        yield Count(f"{what}, one join per set and hour", f"{sets} sets, 3 hours", units(tail, size), of_tail)
        yield Count(f"{what}, one set", f"{joins} joins in an hour", units(popular, size), of_one)
    full = "bytes of a Members item with all its members, filled up"
    yield Count(full, "published profile, w = 720", members_item(), 1024)
    idle = form.size(1_000, 50)
    few, many = work_among(idle), work_among(10 * idle)
    yield Count(
        "items read and written by a step among ten times the idle sets",
        f"among {idle} ({few[0]} read, {few[1]} written)", sum(many) / sum(few), 1.0,
    )  # fmt: skip


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


def members_item() -> int:
    """Bytes of the largest item of Members with the published profile."""
    parameters = fledge().parameters
    step = START // PERIOD
    members = tuple(Member(token, step) for token in range(parameters.members_kept))
    state = SetState(members, (step - parameters.window, step), step, step + parameters.window)
    return item_size(to_item(bytes(31) + b"\1", "fledge", state, parameters.client_bits, START + 10**7))


def work_among(idle: int, joined: int = 20) -> tuple[int, int]:
    """Items read and written by evaluating a step in which ``joined`` sets have joins and ``idle`` sets exist."""
    with Stack({"Types": TYPES}, start=START, seed=1) as stack:
        client, step = stack.session.client("dynamodb"), START // PERIOD - 1
        pepper = Secret.derived("set-pepper", stack.storage.secrets["SetPepper"])
        mark(stack, client, step)
        state = SetState((Member(7, step),), (), step)
        names = (set_key(pepper, "fledge", number.to_bytes(32, "big")) for number in range(idle))
        items = (to_item(name, "fledge", state, 32, START + 10**7) for name in names)
        assert not put_all(client, stack.storage.tables["Members"], items, ["set_key"])
        log(stack, [join(n, "someone") for n in range(joined)])
        read, written = stack.meter.items_read["evaluate"], stack.meter.items_written["evaluate"]
        stack.advance(2 * PERIOD)
        assert not stack.failures
        return stack.meter.items_read["evaluate"] - read, stack.meter.items_written["evaluate"] - written
