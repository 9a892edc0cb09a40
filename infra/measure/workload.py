"""A heavy-tailed workload: a few sets get most joins, most sets get one or two."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kanon.gate.joining import Join, Joining
from kanon.gate.settings import JoinSettings
from kanon.gate.storage.step_log import StepLog
from kanon.keys import Secret
from kanon.local import Stack

TAIL = 1.1
"""Exponent of the Pareto distribution of a set's popularity. Near 1, few sets have most of the weight."""


def joins(type_name: str, sets: int, seed: int) -> Iterator[Join]:
    """An endless stream of joins of different clients in ``sets`` sets."""
    chance = random.Random(seed)
    weights = [1 / (rank + 1) ** TAIL for rank in range(sets)]
    names = [chance.randbytes(32) for _ in range(sets)]
    number = 0
    while True:
        for name in chance.choices(names, weights, k=1000):
            number += 1
            yield Join(type_name, name, "client", f"client-{seed}-{number}".encode())


def joining_of(stack: Stack, client: Any) -> Joining:
    """The use case of ``join`` with the settings and secrets of a stack, on a client of DynamoDB."""
    settings = JoinSettings.from_environment(stack.functions["join"].environment)
    return Joining(
        settings.read_types(),
        Secret.derived("set-pepper", stack.storage.secrets["SetPepper"]),
        Secret.derived("client-key", stack.storage.secrets["ClientKey"]),
        StepLog(client, stack.storage.tables["StepLog"], settings.layouts),
        settings.period,
        settings.outage_allowance,
    )


def mark(stack: Stack, client: Any, step: int) -> None:
    """Mark slot 0 as evaluated through ``step``."""
    item: Any = {"name": {"S": "slot#0"}, "evaluated_through": {"N": str(step)}}
    client.put_item(TableName=stack.storage.tables["Control"], Item=item)
