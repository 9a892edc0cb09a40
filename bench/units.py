"""Counts of capacity units, bytes and items, which are the same on every machine; packed batches relative to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from bench.harness import Comparison, Count, Form, Row, Side, Turn
from bench.stack import PERIOD, START, TYPES, fledge, mark, service
from kanon.client import Client, Join, encoded
from kanon.dynamo.batches import chunks, put_all
from kanon.dynamo.units import item_size, write_units
from kanon.gate.joining import Join as Joined
from kanon.gate.joining import Joining
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.members import Member
from kanon.gate.names import set_key
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.members import to_item
from kanon.gate.storage.step_log import StepLog
from kanon.keys import Secret
from kanon.local import Stack

BATCH, BATCHES = 500, 20


def rows(form: Form) -> Iterator[Row]:
    """Units of both extremes of popularity, a full item, idle sets, packed batches."""
    sets, joins = form.size(500, 200), 2_000
    for how, size, tail, popular in (("alone", 1, 2.1, 1.01), (f"in batches of {BATCH}", BATCH, 1.15, 0.05)):
        what = f"write units a join, sent {how}"
        yield Count(f"{what}, one join per set and hour", f"{sets} sets, 3 hours", long_tail(sets, size), tail)
        yield Count(f"{what}, one set", f"{joins} joins in an hour", hot(joins, size), popular)
    full = "bytes of a Members item with all its members, filled up"
    yield Count(full, "published profile, w = 720", members_item(), 1024)
    idle = form.size(1_000, 50)
    few, many = work_among(idle), work_among(10 * idle)
    yield Count(
        "items read and written by a step among ten times the idle sets",
        f"among {idle} ({few[0]} read, {few[1]} written)", sum(many) / sum(few), 1.0,
    )  # fmt: skip
    for slots, size, most in ((16, 100, 0.2), (16, 500, 0.06), (256, 500, 1.0)):
        name = f"packed join, batches of {size}, {slots} slots: write units"
        yield Count(name, "an item a slot; 1 unit is one row for a join", packed_units(slots, size), most)
    yield Comparison(
        "batch of 500 in packed items, a join", "naming, packing, the calls with their client; no HTTP, no validation",
        "the same batch as one row for each join", "join",
        Side(batches, (Layout(16, 0, 16),)), Side(batches, (Layout(16, 0),)), form.size(15, 1), 4.5, at_least=True,
    )  # fmt: skip


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


class Written:
    """A client of DynamoDB that counts the write units of put items."""

    def __init__(self) -> None:
        self.units = 0

    def batch_write_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803, a parameter of boto3
        """Count the items."""
        (requests,) = RequestItems.values()
        self.units += sum(write_units(item_size(request["PutRequest"]["Item"])) for request in requests)
        return {}


def joining(client: Any, table: str, layout: Layout) -> Joining:
    """The use case on this client, with secrets of its own."""
    secrets = Secret.derived("set-pepper", "bench"), Secret.derived("client-key", "bench")
    return Joining({"fledge": fledge()}, *secrets, StepLog(client, table, Layouts((layout,))), PERIOD, 604_800)


def packed_batch(size: int, chance: Random) -> list[Joined]:
    """Joins of different clients to different sets."""
    return [Joined("fledge", chance.randbytes(32), "client", chance.randbytes(16)) for _ in range(size)]


def packed_units(slots: int, size: int) -> float:
    """Write units of a join in batches of ``size`` without repeated clients."""
    chance, written = Random(6), Written()
    for _ in range(BATCHES):
        joining(written, "log", Layout(slots, 0, 16)).join_all(packed_batch(size, chance), START)
    return written.units / (BATCHES * size)


@contextmanager
def batches(layout: Layout) -> Iterator[Callable[[], Turn]]:
    """Batches of 500 in this layout, with the service's client and engine."""
    with service({"Types": TYPES}) as running:
        chance, use_case = Random(7), joining(running.dynamodb, running.tables["StepLog"], layout)

        def prepare() -> Turn:
            joins = packed_batch(BATCH, chance)
            return Turn(BATCH, lambda: use_case.join_all(joins, START))

        yield prepare
