"""``python -m bench.large_steps``: units, memory and time of steps with large k and with many packed joins.

Each row is a process of its own that evaluates one slot and step. DynamoDB answers from memory, behind the whole
client: bodies are serialized, signed, encoded and parsed as ever. Memory is the largest resident memory of that
process, with the interpreter and the SDK. Item bytes and units are counted. It fails above 512 MiB, or if a page with
its chunk of sets takes longer than the time that a worker keeps in reserve.

* Large k: 64 sets, half of them full and half with k members, one join each.
* Many joins, in items of 500 and in random order, so that each set has joins in most items; 5,000 sets.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from kanon.gate.storage.members import to_item
from kanon.gate.storage.packing import pack_all

from bench.stack import START, answer, evaluate_step, evaluation_of, fledge
from kanon import aws
from kanon.dynamo.units import item_size, read_units, write_units
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import Tokens
from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.parameters import token_bytes
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.step_log import FIRST_PACKED, LAST_PACKED, pack_joins
from kanon.gate.types import Type

LARGE_K = ((50, 720), (1_000, 720), (8_000, 720), (20_000, 168), (50_000, 168), (50_000, 720), (79_000, 720))
PACKED = (1_000, 100_000, 1_000_000, 2_000_000)
SETS_OF_LARGE_K, SETS = 64, 5_000
JOINS_AN_ITEM, ITEMS_A_PAGE = 500, 50
"""A page of 1 MB holds some more: an item takes 17 KB."""
MOST_MEMORY, MOST_SECONDS = 512.0, 20.0
STEP = 480_000
WRITES: dict[str, Any] = {
    "BatchWriteItem": {},
    "PutItem": {},
    "UpdateItem": {"Attributes": {"evaluated_through": {"N": str(STEP - 1)}}},
}
"""The answers to wake-ups; to the stamp of Members; to statuses, the horizon, and the lease with the mark."""

Found = dict[str, float]


def main() -> int:
    """Print the tables; 1 if a row takes too much memory or time."""
    return max(
        _table("k | w | bytes | write units | read units | largest chunk, sets", large_k, LARGE_K),
        _table("packed joins | calls that read the log", packed, [(joins,) for joins in PACKED]),
    )


def _table(header: str, measure: Callable[..., Found], rows: Iterable[tuple[int, ...]]) -> int:
    print(f"\n| {header} | slowest page or chunk, s | processor time, s | memory, MiB |", flush=True)
    print("|" + "---|" * (header.count("|") + 4))
    failed = False
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for row in rows:
            found = pool.apply(measure, row)
            cells = [f"{one:,}" if isinstance(one, int) else f"{one:.3g}" for one in (*row, *found.values())]
            print(f"| {' | '.join(cells)} |", flush=True)
            failed |= found["memory"] > MOST_MEMORY or found["slowest"] > MOST_SECONDS
    return int(failed)


def large_k(k: int, window: int) -> Found:
    """A row of large k, measured in this process."""
    bits = max(16, (8 * (k + 100) - 1).bit_length())  # enough for the tokens of its members
    tables = Answers(fledge(k=k, window=window, client_bits=bits), SETS_OF_LARGE_K, SETS_OF_LARGE_K)
    found = evaluated(tables)
    size = item_size(tables.full)
    units = {"write": write_units(size), "read": read_units(size, consistent=True)}
    return {"bytes": size, **units, "chunk": tables.most_asked, **found}


def packed(joins: int) -> Found:
    """A row of packed joins, measured in this process."""
    tables = Answers(fledge(), min(SETS, joins), joins)
    found = evaluated(tables)
    return {"calls": tables.calls, **found}


def evaluated(tables: Answers) -> Found:
    """Evaluate one step in this process: seconds of the slowest page and chunk, processor seconds, and MiB."""
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    client: Any = aws.dynamodb()
    client.meta.events.register("before-send.dynamodb", tables.answer)
    evaluation = evaluation_of(client, tables.type, layouts=Layouts((Layout(1, 0, 1),)))
    moments: list[float] = []

    def time_left() -> float:
        moments.append(time.monotonic())
        return 900.0

    began = time.process_time()
    evaluate_step(evaluation, STEP, len(tables.keys), time_left)
    spent = time.process_time() - began
    slowest = max(after - before for before, after in pairwise(moments))
    return {"slowest": slowest, "processor": spent, "memory": resident()}


def resident() -> float:
    """The peak resident memory of this program, MiB. ``ru_maxrss`` would include that of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


class Answers:
    """The part of DynamoDB that one step of one slot needs. Items are created when they are read."""

    def __init__(self, type_: Type, sets: int, joins: int) -> None:
        self.type, self.joins = type_, joins
        self.most_asked = self.calls = 0
        parameters, chance = type_.parameters, np.random.default_rng(1)
        self.keys = sorted(chance.bytes(32) for _ in range(sets))
        # Every other set has k members, so its noise must be read; the others are full.
        self._packed = []
        for count in (parameters.k, parameters.members_kept):
            lasts = -np.sort(-(STEP - 1 - chance.integers(0, parameters.window - 1, count)))
            members = Tokens(np.array([count]), np.arange(1, count + 1))
            data = pack_all(members, lasts, STEP - 1, token_bytes(parameters.client_bits))[0]
            self._packed.append(_text(data))
        full = tuple(Member(n, STEP) for n in range(parameters.members_kept))
        state = SetState(full, (STEP - 1, STEP), STEP, STEP + 1)
        self.full = to_item(bytes(32), "fledge", state, parameters.client_bits, START)

    def answer(self, request: Any, **_: Any) -> Any:
        """The response to a request."""
        operation = request.headers["X-Amz-Target"].decode().partition(".")[2]
        if operation in WRITES:
            return answer(request, 200, WRITES[operation])
        return answer(request, 200, getattr(self, operation)(json.loads(request.body)))

    def Query(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802, the operation's name
        """A page of packed items. The key of an item names its page."""
        self.calls += 1
        first = base64.b64decode(asked["ExpressionAttributeValues"][":first"]["B"])
        if first > LAST_PACKED:
            return {"Items": []}
        page = 0 if first == FIRST_PACKED else int.from_bytes(first[8:16], "big") + 1
        rest = self.joins - page * JOINS_AN_ITEM * ITEMS_A_PAGE
        joins = min(rest, JOINS_AN_ITEM * ITEMS_A_PAGE)
        items = self._items(page, joins)
        return {"Items": items, **({"LastEvaluatedKey": {"set_token": items[-1]["set_token"]}} if rest > joins else {})}

    def _items(self, page: int, joins: int) -> list[dict[str, Any]]:
        sets = np.resize(np.random.default_rng(page).permutation(len(self.keys)), joins).tolist()
        tokens = np.random.default_rng((page, 1)).integers(0, 1 << 16, joins).tolist()
        each = [("fledge", self.keys[number], token) for number, token in zip(sets, tokens, strict=True)]
        key = _text(FIRST_PACKED + page.to_bytes(8, "big") + bytes(8))
        parts = (pack_joins(each[at : at + JOINS_AN_ITEM]) for at in range(0, joins, JOINS_AN_ITEM))
        return [{"set_token": {"B": key}, "joins": {"B": _text(part)}} for part in parts]

    def BatchGetItem(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """The items of Members."""
        ((table, wanted),) = asked["RequestItems"].items()
        self.most_asked = max(self.most_asked, len(wanted["Keys"]))
        packed = (self._packed[base64.b64decode(key["set_key"]["B"])[0] % 2] for key in wanted["Keys"])
        step = {"N": str(STEP - 1)}
        found = zip(wanted["Keys"], packed, strict=True)
        return {"Responses": {table: [{**key, "members": {"B": data}, "evaluated": step} for key, data in found]}}

    def BatchExecuteStatement(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """All statements succeed."""
        return {"Responses": [{} for _ in asked["Statements"]]}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    sys.exit(main())
