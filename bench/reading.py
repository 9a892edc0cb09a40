"""``python -m bench.reading``: a whole step of one slot with many packed joins: pages, memory and time.

Each line is a process of its own. It reads the joins of the step once, decides their sets range by range, and puts
the parts, as evaluation does; lease and commit of the slot, two calls, are left out. Each row has two steps: first
all sets are new, then all of them are known, and their parts are read too. DynamoDB answers from memory, behind the
whole client; its part is in the processor time. Parts are files: they are read, checked, written and flushed. Pages
and objects arrive after the delays that ``kanon cost`` assumes. Items have 500 joins of different sets; a page of 1
MB holds 60. Memory is the largest resident memory of the process, with the interpreter and the SDK.

It fails above the row's limit of memory, if a page is read twice, if reading takes longer than half of the time of a
worker, if a range, the most that a worker that stops loses, takes longer than that, or if the step is not decided by
its tick.
"""

from __future__ import annotations

import argparse
import base64
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np

from bench.stack import KEY, PERIOD, answer, fledge
from kanon import aws
from kanon.cost.deployed import EVALUATE_SECONDS, SECONDS_TO_TICK
from kanon.gate.deciding import Decisions, Keys, NoiseKeys
from kanon.gate.parts import Part
from kanon.gate.schedule import Schedule
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.step_joins import StepJoins
from kanon.gate.storage.aws.step_log import BEFORE_ANY_SET, StepLog
from kanon.gate.storage.disk.parts import PartFiles
from kanon.gate.storage.protocols import Piece

ROWS = ((10_000_000, 512), (22_500_000, 1024))
"""Joins, and most memory (MiB). 22,500,000 is 100,000 a second over 16 slots."""
SHORT = ((100_000, 512),)
STEP, SLOTS, SLOT = 480_000, 16, 5
OF_THE_SLOT = Keys(*((slot << 252).to_bytes(32, "big") for slot in (SLOT, SLOT + 1)))
SCHEDULE = Schedule(PERIOD, grace=120, lease=150, publish_delay=1800, publish_margin=60, outage_allowance=604_800)
PAGE_SECONDS, OBJECT_SECONDS, BYTE_SECONDS = 0.1, 0.03, 12e-9
JOINS_AN_ITEM, ITEMS_A_PAGE = 500, 60
ENTRY = 34
NUMBERS = 1 << 8 * 16


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a row breaks a limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.reading", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer joins: shows that it runs")
    print("| joins | sets | pages | reading, s | all, s | longest range, s | processor, s | put, MB | memory, MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    failed = False
    for joins, most_memory in SHORT if parser.parse_args(arguments).short else ROWS:
        with TemporaryDirectory() as folder, get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            pieces: list[Piece] = []
            for number, kind in enumerate(("new", "known")):
                pieces, found = pool.apply(measured, (Path(folder), joins, STEP + number, pieces))
                cells = [f"{one:,}" if isinstance(one, int) else f"{one:.3g}" for one in found.values()]
                print(f"| {joins:,} | {kind} | {' | '.join(cells)} |", flush=True)
                failed |= bool(broken(found, most_memory))
    return int(failed)


def broken(found: dict[str, float], most_memory: float) -> list[str]:
    """The limits that a line breaks."""
    limits = {"memory": most_memory, "reading": EVALUATE_SECONDS / 2, "longest": EVALUATE_SECONDS / 2}
    return [name for name, most in {**limits, "all": SECONDS_TO_TICK}.items() if found[name] > most]


def measured(folder: Path, joins: int, step: int, pieces: Sequence[Piece]) -> tuple[list[Piece], dict[str, float]]:
    """A step, in this process: the parts after it, and what it took.

    Raises:
        AssertionError: an item was read twice, or joins or sets are missing.
    """
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    table, files = Table(joins // JOINS_AN_ITEM), Distant(folder)
    client: Any = aws.dynamodb()
    client.meta.events.register("before-send.dynamodb", table.answer)
    noise_keys = NoiseKeys(((0, KEY),))
    decisions = Decisions({"fledge": fledge()}, {"fledge": 1}, frozenset(), noise_keys, "bench", SCHEDULE)
    after: list[Piece] = []
    sets, longest = 0, 0.0
    gc.collect()
    gc.freeze()
    began, used = time.monotonic(), time.process_time()
    with StepJoins(StepLog(client, "log", Layouts((Layout(SLOTS, 0, 1),))), SLOT, {"fledge": 1}) as log:
        count = log.count(step)
        reading = last = time.monotonic() - began
        for each in decisions.decided(step, 1, log, files, pieces, mark=step - 1, keys=OF_THE_SLOT):
            after, sets, now = [*after, *each.pieces], sets + each.sets, time.monotonic() - began
            longest, last = max(longest, now - last), now
    assert sets == count == joins, (sets, count, joins)
    assert table.items == joins // JOINS_AN_ITEM, "an item was read twice"
    return after, {
        "pages": table.pages,
        "reading": reading,
        "all": time.monotonic() - began,
        "longest": longest,
        "processor": time.process_time() - used,
        "put": files.put_bytes / 1e6,
        "memory": resident(),
    }


class Distant(PartFiles):
    """Files that arrive as late as objects of S3."""

    bytes = put_bytes = 0

    def _wait(self, piece: Piece) -> int:
        size = (self.folder / piece.name).stat().st_size
        self.bytes += size
        time.sleep(OBJECT_SECONDS + BYTE_SECONDS * size)
        return size

    def read(self, piece: Piece) -> Part:
        """A part."""
        self._wait(piece)
        return super().read(piece)

    def put(self, part: Part, step: int, run: int, first: str) -> Piece:
        """Write a part."""
        piece = super().put(part, step, run, first)
        self.put_bytes += self._wait(piece)
        return piece


def resident() -> float:
    """The peak resident memory of this program, MiB. ``ru_maxrss`` would include that of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


class Table:
    """Partitions of packed items whose keys are evenly spaced. They are created when they are read."""

    def __init__(self, items: int) -> None:
        self.in_partition = items
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
        time.sleep(PAGE_SECONDS)
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
