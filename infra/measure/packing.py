"""Packed batches of joins: write units for each join, and processor time relative to one row for each join."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from infra.measure.measure import Count, Ratio, Turn, compare
from infra.measure.rows import Form, row
from infra.measure.service import PERIOD, START, TYPES, fledge, service
from kanon.dynamo.units import item_size, write_units
from kanon.gate.joining import Join, Joining
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.step_log import StepLog
from kanon.keys import Secret

BATCHES, TARGETS = 20, {(16, 500): 0.06, (16, 100): 0.2}


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


def batch(size: int, chance: Random) -> list[Join]:
    """Joins of different clients to different sets."""
    return [Join("fledge", chance.randbytes(32), "client", chance.randbytes(16)) for _ in range(size)]


@row("packed joins, units")
def units(_: Form) -> Iterator[Count]:
    """Write units of a join, by slots and by the size of a batch without repeated clients."""
    chance = Random(6)
    for slots in (1, 16, 64, 256):
        for size in (25, 100, 500):
            written = Written()
            for _batch in range(BATCHES):
                joining(written, "log", Layout(slots, 0, 16)).join_all(batch(size, chance), START)
            yield Count(
                f"packed join, batches of {size}, {slots} slots: write units",
                "an item a slot; 1 unit is one row for a join",
                written.units / (BATCHES * size),
                TARGETS.get((slots, size), 1.0),
            )


@row("packed joins, time")
def time(form: Form) -> Iterator[Ratio]:
    """A batch of 500 as packed items and as rows, with the service's client and engine."""
    with service({"Types": TYPES}) as running:
        log, chance = running.tables["StepLog"], Random(7)
        packed, rows = (joining(running.dynamodb, log, layout) for layout in (Layout(16, 0, 16), Layout(16, 0)))

        def turn(use_case: Joining) -> Turn:
            joins = batch(500, chance)
            return Turn(500, lambda: use_case.join_all(joins, START))

        yield compare(
            "batch of 500 in packed items, a join",
            "the same batch as one row for each join",
            "join",
            partial(turn, packed),
            partial(turn, rows),
            inside="naming, packing, the calls with their client; no HTTP, no validation",
            turns=form.size(15, 1),
            target=4.5,
            at_least=True,
        )
