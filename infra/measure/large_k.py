"""``python -m infra.measure.large_k``: units, memory and time of a step for large k.

Each row is a process of its own that evaluates one step with full and nearly full sets, one join each. DynamoDB
answers from memory, behind the whole client: bodies are serialized, signed, encoded and parsed as ever. Memory
is the largest resident memory of that process, with the interpreter and the SDK. Item bytes and units are counted.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from multiprocessing import get_context
from typing import Any

import numpy as np

from infra.measure import wire
from infra.measure.one_step import evaluate_step, evaluation_of
from infra.measure.service import START, fledge
from infra.measure.worker import resident
from kanon import aws
from kanon.dynamo.units import item_size, read_units, write_units
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import Tokens
from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.parameters import token_bytes
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.members import to_item
from kanon.gate.storage.packing import pack_all
from kanon.gate.types import Type

ROWS = ((50, 720), (1_000, 720), (8_000, 720), (20_000, 168), (50_000, 168), (50_000, 720), (79_000, 720))
SETS = 64
MOST_MEMORY, MOST_SECONDS = 512.0, 20.0
STEP = 480_000
WRITES: dict[str, Any] = {
    "BatchWriteItem": {},
    "PutItem": {},
    "UpdateItem": {"Attributes": {"evaluated_through": {"N": str(STEP - 1)}}},
}
"""The answers to wake-ups; to the stamp of Members; to statuses, the horizon, and the lease with the mark."""
HEADER = (
    "| k | w | bytes of a full item | write units | read units | largest chunk, sets | slowest chunk, s |"
    " processor time, ms a set | memory, MiB |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    """Print the table; 1 if a row takes too much memory, or a chunk more than the time a worker keeps in reserve."""
    print(HEADER, flush=True)
    failed = False
    for (k, window), found in in_processes(measured, ROWS):
        print(
            f"| {k:,} | {window} | {found['bytes']:,} | {found['write']} | {found['read']:g} | {found['chunk']} |"
            f" {found['slowest']:.2f} | {1000 * found['processor']:.2f} | {found['memory']:.0f} |",
            flush=True,
        )
        failed |= found["memory"] > MOST_MEMORY or found["slowest"] > MOST_SECONDS
    return int(failed)


def in_processes(
    measure: Callable[..., dict[str, float]], rows: Iterable[tuple[int, ...]]
) -> Iterator[tuple[tuple[int, ...], dict[str, float]]]:
    """Each row with what ``measure`` finds for it in a process of its own."""
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for row in rows:
            yield row, pool.apply(measure, row)


def measured(k: int, window: int) -> dict[str, float]:
    """One row, measured in this process."""
    bits = max(16, (8 * (k + 100) - 1).bit_length())  # enough for the tokens of its members
    tables = Answers(fledge(k=k, window=window, client_bits=bits), SETS)
    found = evaluated(tables)
    size = item_size(tables.full)
    return {
        **found,
        "bytes": size,
        "write": write_units(size),
        "read": read_units(size, consistent=True),
        "chunk": tables.most_asked,
        "processor": found["processor"] / SETS,
    }


def evaluated(tables: Answers, partitions: int | None = None) -> dict[str, float]:
    """Evaluate one step in this process: seconds of the slowest page and chunk, processor seconds, and MiB."""
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    client = aws.dynamodb()
    client.meta.events.register("before-send.dynamodb", tables.answer)
    evaluation = evaluation_of(client, tables.type, layouts=Layouts((Layout(1, 0, partitions),)))
    moments: list[float] = []

    def time_left() -> float:
        moments.append(time.monotonic())
        return 900.0

    began = time.process_time()
    evaluate_step(evaluation, STEP, len(tables.keys), time_left)
    spent = time.process_time() - began
    slowest = max(after - before for before, after in pairwise(moments))
    return {"slowest": slowest, "processor": spent, "memory": resident()}


class Answers:
    """The part of DynamoDB that one step of one slot needs. Rows and items are created when they are read."""

    def __init__(self, type_: Type, sets: int) -> None:
        self.type = type_
        self.most_asked = 0
        parameters, chance = type_.parameters, np.random.default_rng(1)
        self.keys = sorted(chance.bytes(32) for _ in range(sets))
        # Every other set has k members, so its noise must be read; the others are full.
        self._packed = []
        for count in (parameters.k, parameters.members_kept):
            lasts = -np.sort(-(STEP - 1 - chance.integers(0, parameters.window - 1, count)))
            members = Tokens(np.array([count]), np.arange(1, count + 1))
            packed = pack_all(members, lasts, STEP - 1, token_bytes(parameters.client_bits))[0]
            self._packed.append(base64.b64encode(packed).decode())
        full = tuple(Member(n, STEP) for n in range(parameters.members_kept))
        state = SetState(full, (STEP - 1, STEP), STEP, STEP + 1)
        self.full = to_item(bytes(32), "fledge", state, parameters.client_bits, START)

    def answer(self, request: Any, **_: Any) -> Any:
        """The response to a request."""
        operation = request.headers["X-Amz-Target"].decode().partition(".")[2]
        if operation in WRITES:
            return wire.answer(request, 200, WRITES[operation])
        return wire.answer(request, 200, getattr(self, operation)(json.loads(request.body)))

    def Query(self, _: Any) -> dict[str, Any]:  # noqa: N802, the operation's name
        """The rows of the step: one new client for each set."""
        tokens = (base64.b64encode(key + bytes(4)).decode() for key in self.keys)
        return {"Items": [{"set_token": {"B": token}, "type": {"S": "fledge"}} for token in tokens]}

    def BatchGetItem(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """The items of Members."""
        ((table, wanted),) = asked["RequestItems"].items()
        self.most_asked = max(self.most_asked, len(wanted["Keys"]))
        items = [
            {
                **key,
                "members": {"B": self._packed[base64.b64decode(key["set_key"]["B"])[0] % 2]},
                "evaluated": {"N": str(STEP - 1)},
            }
            for key in wanted["Keys"]
        ]
        return {"Responses": {table: items}}

    def BatchExecuteStatement(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """All statements succeed."""
        return {"Responses": [{} for _ in asked["Statements"]]}


if __name__ == "__main__":
    sys.exit(main())
