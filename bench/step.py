"""``python -m bench.step``: a step of a slot of a million sets, and the same with the code before there were parts.

Each row is a process of its own with the collector frozen. All joins are in packed items of 500, one join a touched
set. DynamoDB answers from memory, behind the whole client. Parts are files: they are read, checked, written and
flushed. Pages and objects arrive after the delays that ``kanon cost`` assumes (``shared/kanon/cost/measured.json``);
the client of S3, and the lease and the commit of the slot, are left out. Memory is the largest resident memory.

``before`` is commit ea1d11a, from this repository's history, with the same joins and sets. There a set that nobody
joins is not read, so only touched sets exist, 20,000 of them. Fails if a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.reading import ENTRY, JOINS_AN_ITEM, SCHEDULE, Distant, Table, item_of, resident
from bench.stack import KEY, fledge
from kanon import aws
from kanon.gate.deciding import MOST_PART_BYTES, Decisions, NoiseKeys
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.mechanism.tape import SET_KEY_BYTES
from kanon.gate.parts import Part
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.step_joins import StepJoins
from kanon.gate.storage.aws.step_log import StepLog
from kanon.gate.storage.disk.parts import PartFiles
from kanon.gate.storage.protocols import Piece
from kanon.local.source import ROOT

BEFORE = "ea1d11a"
STEP = 480_000
LAYOUTS = Layouts((Layout(1, 0, 1),))
MOST_MEMORY = 1024


class Case(NamedTuple):
    """Sets with some members, and the most us for one of them if a fifth of them is touched."""

    name: str
    least: int
    most: int
    target: float | None


CASES = (
    Case("1 to 4 members (a long tail)", 1, 4, 12.0),
    Case("50 members (k)", 50, 50, 45.0),
    Case("99 members (full)", 99, 99, 45.0),
)


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a row misses a target."""
    parser = argparse.ArgumentParser(prog="python -m bench.step", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer sets: shows that it runs; the times are rough")
    short = parser.parse_args(arguments).short
    print(
        "| sets | touched | us of processor time a touched set | before | ratio | target, us | met | wall time, s |"
        " read and put, MB | memory, MiB |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    met = True
    with old_code() as before:
        for case in CASES:
            met &= rows(case, before, *((20_000, 2_000) if short else (1_000_000, 20_000)))
    if before is None:
        print(f"\nNot compared: there is no history with commit {BEFORE} here.")
    return int(not (met or short))


def rows(case: Case, before: Path | None, sets: int, sets_before: int) -> bool:
    """Print the rows of a case, with a fifth and a hundredth of the sets touched; whether the targets are met."""
    then, met = None if before is None else measured_before(case, before, sets_before), True
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        made = pool.apply(filled, (Path(folder), case, sets))
        for touched, target in ((sets // 5, case.target), (sets // 100, None)):
            now = pool.apply(evaluated, (Path(folder), made, touched))
            print(f"| {sets:,} of {case.name} | {touched:,} | {cells(now, then, target)} |", flush=True)
            met &= now["memory"] <= MOST_MEMORY and (target is None or now["us"] <= target)
    return met


def cells(now: dict[str, float], before: float | None, target: float | None) -> str:
    """The figures of a row."""
    old = "not compared | -" if before is None else f"{before:.3g} | {now['us'] / before:.2g}"
    limit = "- | -" if target is None else f"{target:g} | {'yes' if now['us'] <= target else 'no'}"
    return f"{now['us']:.3g} | {old} | {limit} | {now['wall']:.1f} | {now['bytes'] / 1e6:.0f} | {now['memory']:.0f}"


@contextmanager
def old_code() -> Iterator[Path | None]:
    """The files of the commit before; None if the history does not have it."""
    found = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=False)
    with tempfile.TemporaryDirectory() as folder:
        if not found.returncode:
            with tarfile.open(fileobj=BytesIO(found.stdout)) as files:
                files.extractall(folder, filter="data")
        yield None if found.returncode else Path(folder)


def measured_before(case: Case, code: Path, touched: int) -> float:
    """The us of a touched set with the code of the commit before."""
    script, paths = Path(__file__).with_name("before_parts.py"), os.pathsep.join((str(code / "shared"), str(code)))
    command = [sys.executable, "-P", str(script), *map(str, (case.least, case.most, touched))]
    told = subprocess.run(command, cwd=code, env={"PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    return 1e6 * float(json.loads(told.stdout)["processor"]) / touched


def filled(folder: Path, case: Case, sets: int) -> list[Piece]:
    """Put the parts of the sets before the step, each of at most 16 MiB."""
    files, number = PartFiles(folder), 1 << (sets * (80 + 4 * case.most) // MOST_PART_BYTES).bit_length()
    share, pieces = -(-sets // number), []
    for n in range(number):
        first = ((n << 8 * SET_KEY_BYTES) // number).to_bytes(SET_KEY_BYTES, "big").hex()
        content = part(case, n / number, 1 / number, min(share, sets - n * share))
        pieces.append(files.put(content, STEP - 1, 1, first))
    return pieces


def part(case: Case, low: float, width: float, sets: int) -> Part:
    """Sets with keys in a share of all keys, and members of random ages. Those with k members have crossed."""
    chance, window = np.random.default_rng(int(low * 4096)), fledge().parameters.window
    heads = ((low + width * np.sort(chance.random(sets))) * 2.0**48).astype(">u8")
    raw = chance.integers(0, 256, (sets, SET_KEY_BYTES), dtype=np.uint8)
    raw[:, :6] = heads.view(np.uint8).reshape(-1, 8)[:, 2:]
    keys = np.sort(raw.view(f"S{SET_KEY_BYTES}").ravel())
    sizes = chance.integers(case.least, case.most + 1, sets)
    owners = np.repeat(np.arange(sets), sizes)
    lasts = STEP - 1 - chance.integers(0, window - 1, len(owners))
    lasts = lasts[np.lexsort((-lasts, owners))]
    crossings = np.full((sets, 2), NEVER)
    crossings[sizes >= fledge().parameters.k, 1] = STEP - 1
    ends = np.full(sets, STEP + window)
    tokens = (np.arange(len(owners)) * 331) & 0x7FFF
    ones, never = np.ones(sets, np.uint8), np.full(sets, NEVER)
    return Part.of(STEP - 1, keys, ones, sizes, tokens, lasts, crossings, never, ends)


class Joins(Table):
    """A log with one join of some sets, in packed items in any order."""

    def __init__(self, keys: np.ndarray[Any, Any]) -> None:
        super().__init__(-(-len(keys) // JOINS_AN_ITEM))
        tokens = np.random.default_rng(4).integers(1 << 15, 1 << 16, len(keys)).astype(">u2")
        entries = np.zeros(len(keys), [("key", keys.dtype), ("token", ">u2")])
        entries["key"], entries["token"] = keys, tokens
        self._entries = entries.tobytes()

    def item(self, key: bytes, number: int) -> dict[str, Any]:
        """The item of this number."""
        size = JOINS_AN_ITEM * ENTRY
        return item_of(key, self._entries[number * size : (number + 1) * size])


def evaluated(folder: Path, pieces: list[Piece], touched: int) -> dict[str, float]:
    """A step of these parts: ``us`` of processor time a touched set, ``wall`` s, ``bytes``, and ``memory`` in MiB.

    Raises:
        RuntimeError: other sets were decided than those joined.
    """
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    client: Any = aws.dynamodb()
    keys = np.concatenate([PartFiles(folder).read(piece).keys.copy() for piece in pieces])
    client.meta.events.register(
        "before-send.dynamodb", Joins(np.random.default_rng(5).choice(keys, touched, replace=False)).answer
    )
    del keys
    type_, files = fledge(), Distant(folder)
    keys_of_noise = NoiseKeys(((0, KEY),))
    decisions = Decisions({"fledge": type_}, {"fledge": 1}, frozenset(), keys_of_noise, "bench", SCHEDULE)
    gc.collect()
    gc.freeze()
    began, used = time.monotonic(), time.process_time()
    with StepJoins(StepLog(client, "log", LAYOUTS), 0, {"fledge": 1}) as log:
        decided = list(decisions.decided(STEP, 2, log, files, pieces, mark=STEP - 1))
    spent, wall = time.process_time() - used, time.monotonic() - began
    if sum(each.sets for each in decided) != touched:
        raise RuntimeError(f"{sum(each.sets for each in decided)} sets were decided")
    return {"us": 1e6 * spent / touched, "wall": wall, "bytes": files.bytes, "memory": resident()}


if __name__ == "__main__":
    sys.exit(main())
