"""``python -m bench.reading``: pages, memory and time of reading a step of one slot with many packed joins.

Each row is a process of its own that reads the step and takes its joins range by range, as evaluation does. DynamoDB
answers from memory, after a delay, behind the whole client; its part is in the processor time. Items have 500 joins
of different sets; a page of 1 MB holds 60. Memory is the largest resident memory of the process, with the interpreter
and the SDK. It fails above the row's limit, if a page is read twice, or if reading takes longer than half of the time
of a worker.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from bench.stack import answer
from kanon import aws
from kanon.gate.deciding import MOST_JOINS_A_RANGE
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.step_joins import StepJoins
from kanon.gate.storage.aws.step_log import BEFORE_ANY_SET, StepLog

ROWS = ((1_000_000, 1, 0.0, 512), (10_000_000, 1, 0.1, 512), (22_500_000, 1, 0.1, 1024), (22_500_000, 4, 0.1, 1024))
"""Joins, partitions of the slot, seconds a page, most memory (MiB). 22,500,000 is 100,000 a second over 16 slots."""
STEP, SLOTS, SLOT = 480_000, 16, 5
JOINS_AN_ITEM, ITEMS_A_PAGE = 500, 60
ENTRY = 34
MOST_SECONDS = 60.0
NUMBERS = 1 << 8 * 16


def main() -> int:
    """Print the table; 1 if a row breaks a limit."""
    print("| joins | partitions | s a page | pages | reading, s | all, s | processor, s | memory, MiB |")
    print("|---|---|---|---|---|---|---|---|")
    failed = False
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for joins, partitions, delay, most_memory in ROWS:
            found = pool.apply(measured, (joins, partitions, delay))
            cells = [f"{one:,}" if isinstance(one, int) else f"{one:.3g}" for one in found.values()]
            print(f"| {joins:,} | {partitions} | {delay} | {' | '.join(cells)} |", flush=True)
            failed |= found["memory"] > most_memory or found["reading"] > MOST_SECONDS
    return int(failed)


def measured(joins: int, partitions: int, delay: float) -> dict[str, float]:
    """A row, measured in this process.

    Raises:
        AssertionError: an item was read twice, or joins are missing.
    """
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    table = Table(joins // JOINS_AN_ITEM // partitions, delay)
    client: Any = aws.dynamodb()
    client.meta.events.register("before-send.dynamodb", table.answer)
    layout = Layout(SLOTS, 0, partitions)
    began, used = time.monotonic(), time.process_time()
    with StepJoins(StepLog(client, "log", Layouts((layout,))), SLOT, {"fledge": 1}) as log:
        count = log.count(STEP)
        reading = time.monotonic() - began
        splits = -(-count // MOST_JOINS_A_RANGE)
        edges = [(SLOT << 24) + (n << 24) // splits for n in range(splits + 1)]
        keys = [(edge * (256 // SLOTS) << 224).to_bytes(32, "big") for edge in edges]
        distinct = sum(len(log.joins(STEP, first, end)) for first, end in pairwise(keys))
    assert distinct == count == joins, (distinct, count, joins)
    assert table.items == joins // JOINS_AN_ITEM, "an item was read twice"
    every, processor = time.monotonic() - began, time.process_time() - used
    return {"pages": table.pages, "reading": reading, "all": every, "processor": processor, "memory": resident()}


def resident() -> float:
    """The peak resident memory of this program, MiB. ``ru_maxrss`` would include that of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


class Table:
    """Partitions of packed items whose keys are evenly spaced. They are created when they are read."""

    def __init__(self, items: int, delay: float) -> None:
        self.in_partition, self.delay = items, delay
        self.pages = self.items = 0
        self._lock = Lock()

    def answer(self, request: Any, **_: Any) -> Any:
        """The response to a Query."""
        values = json.loads(request.body)["ExpressionAttributeValues"]
        place, first, last = (base64.b64decode(values[name]["B"]) for name in (":here", ":first", ":last"))
        low, high = self._at(first), min(self._at(last + b"\x00"), self.in_partition)
        end = min(low + ITEMS_A_PAGE, high)
        with self._lock:
            self.pages += 1
            self.items += max(0, end - low)
        time.sleep(self.delay)
        items = [self.item(self._key(n), place[-1] * self.in_partition + n) for n in range(low, end)]
        more = {"LastEvaluatedKey": {"set_token": items[-1]["set_token"]}} if end < high else {}
        return answer(request, 200, {"Items": items, **more})

    def item(self, key: bytes, number: int) -> dict[str, Any]:
        """The item of this number, with joins of sets of the slot at random."""
        joins = np.frombuffer(np.random.default_rng(number).bytes(JOINS_AN_ITEM * ENTRY), np.uint8)
        joins = joins.reshape(-1, ENTRY).copy()
        joins[:, 0] = SLOT << 4 | joins[:, 0] & 15
        return item_of(key, joins.tobytes())

    def _key(self, item: int) -> bytes:
        return BEFORE_ANY_SET + (item * NUMBERS // self.in_partition).to_bytes(16, "big")

    def _at(self, bound: bytes) -> int:
        """The first item whose key is not before a bound."""
        if bound[:8] > BEFORE_ANY_SET:
            return self.in_partition
        number = int.from_bytes(bound[8:24].ljust(16, b"\x00"), "big")
        item = -(-number * self.in_partition // NUMBERS)
        return item + (item < self.in_partition and self._key(item) < bound)


def item_of(key: bytes, joins: bytes) -> dict[str, Any]:
    """A packed item of the log with joins of ``ENTRY`` bytes: set key and token."""
    head = bytes([1, 6]) + b"fledge" + bytes([2]) + (len(joins) // ENTRY).to_bytes(2, "big")
    return {"set_token": {"B": _text(key)}, "joins": {"B": _text(head + joins)}}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    sys.exit(main())
