"""Counts of capacity units, bytes and items. They are the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.measure.measure import Count
from infra.measure.rows import Form, row
from infra.measure.service import PERIOD, START, TYPES, fledge
from infra.measure.workload import mark
from kanon.client import Client, Join, encoded
from kanon.dynamo.batches import chunks, put_all
from kanon.dynamo.units import item_size
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.members import Member
from kanon.gate.names import set_key
from kanon.gate.storage.members import to_item
from kanon.keys import Secret
from kanon.local import Stack

BATCH = 500


@row("units of joins")
def units(form: Form) -> Iterator[Count]:
    """Write units of both extremes of popularity, on one slot: single joins, and joins in batches."""
    sets, joins = form.size(500, 200), 2_000
    for how, size, tail, popular in (("alone", 1, 2.1, 1.01), (f"in batches of {BATCH}", BATCH, 1.15, 0.05)):
        what = f"write units a join, sent {how}"
        yield Count(f"{what}, one join per set and hour", f"{sets} sets, 3 hours", long_tail(sets, size), tail)
        yield Count(f"{what}, one set", f"{joins} joins in an hour", hot(joins, size), popular)


@row("a full item")
def full_item(_: Form) -> Iterator[Count]:
    """The bytes of the largest item with the published profile."""
    yield Count(
        "bytes of a Members item with all its members, filled up", "published profile, w = 720", members_item(), 1024
    )


@row("idle sets")
def idle_sets(form: Form) -> Iterator[Count]:
    """The reads and writes of a step among more sets without joins."""
    idle = form.size(1_000, 50)
    few, many = work_among(idle), work_among(10 * idle)
    yield Count(
        "items read and written by a step among ten times the idle sets",
        f"among {idle} ({few[0]} read, {few[1]} written)",
        sum(many) / sum(few),
        1.0,
    )


def join(number: int, client: str) -> Join:
    """A join of the set with this number."""
    return Join("fledge", encoded(number.to_bytes(32, "big")), client)


def log(stack: Stack, joins: Sequence[Join], size: int = BATCH) -> None:
    """Send joins in batches of ``size``; the join of a batch of one is stored as a single join is."""
    for part in chunks(joins, size):
        Client(stack.request).join_all(part)


def long_tail(sets: int, size: int) -> float:
    """Write units per join when every set gets one join per hour, each of a new client."""
    with Stack({"Types": TYPES}, start=START, seed=1) as stack:
        for hour in range(3):
            log(stack, [join(n, f"{hour}-{n}") for n in range(sets)], size)
            stack.advance(PERIOD)
        stack.advance(PERIOD)  # wait for the grace of the last step
        assert not stack.failures
        return sum(stack.meter.written.values()) / (3 * sets)


def hot(joins: int, size: int) -> float:
    """Write units per join when all joins of an hour are in one set."""
    with Stack({"Types": TYPES}, start=START, seed=1) as stack:
        log(stack, [join(1, str(n)) for n in range(joins)], size)
        stack.advance(2 * PERIOD)
        assert not stack.failures
        return sum(stack.meter.written.values()) / joins


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
