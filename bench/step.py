"""A step of a slot of a million sets: against the code before there were parts, and against copying the parts.

All joins are in packed items of 500, one join a touched set. DynamoDB answers from memory, behind the whole client.
Parts are files: they are read, checked, written and flushed. The client of S3, and the lease and the commit of the
slot, are left out; ``python -m bench.reading`` has the times of transfers.

With a fifth of the sets touched, the other side is commit ea1d11a, from this repository's history, with the same joins
and sets. There a set that nobody joins is not read, so only touched sets exist. The targets are those of the design, 12
and 45 us, relative to what it took then. With a hundredth touched nearly every set is only copied, so the other side
reads the same files, hashes what it read and what it writes, and flushes it: states that are stored in whole objects
cannot take less.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from bench.harness import Comparison, Form, Side, SideError, Took, Turn
from bench.reading import ENTRY, JOINS_AN_ITEM, SCHEDULE, Table, item_of, resident
from bench.stack import KEY, fledge
from kanon import aws
from kanon.gate.deciding import MOST_PART_BYTES, Decided, Decisions, NoiseKeys
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
INSIDE = "reading the log, reading and checking parts, decisions, merging, writing parts"


class Case(NamedTuple):
    """Sets with some members, and the most time of a step that touches a fifth, relative to the code before."""

    name: str
    least: int
    most: int
    target: float


CASES = (
    Case("1 to 4 members (a long tail)", 1, 4, 0.13),
    Case("50 members (k)", 50, 50, 0.36),
    Case("99 members (full)", 99, 99, 0.29),
)


def rows(form: Form) -> Iterator[Comparison]:
    """Of each case, with a fifth and with a hundredth of the sets touched."""
    sets, turns, unit = form.size(1_000_000, 20_000), form.size(3, 1), "touched set"
    for case in CASES:
        fifth, hundredth = sets // 5, sets // 100
        name = f"a step of {sets:,} sets of {case.name}, {{:,}} touched"
        before = Side(old_steps, (case, form.size(20_000, 2_000)))
        yield Comparison(
            name.format(fifth), INSIDE, f"the same joins of as large sets with commit {BEFORE}, an item a set", unit,
            Side(steps, (case, sets, fifth)), before, turns, case.target,
        )  # fmt: skip
        against = "reading the same files, hashing, writing, hashing and flushing as many bytes"
        ours, theirs = (Side(start, (case, sets, hundredth)) for start in (steps, copies))
        yield Comparison(name.format(hundredth), INSIDE, against, unit, ours, theirs, turns)


@contextmanager
def steps(case: Case, sets: int, touched: int) -> Iterator[Callable[[], Turn]]:
    """Steps of the same parts."""
    with tempfile.TemporaryDirectory() as folder:
        pieces = filled(Path(folder), case, sets)
        step = Step(Path(folder), pieces, touched)

        def decided() -> None:
            step.decided()
            if (memory := resident()) > MOST_MEMORY:
                raise SideError(f"it took {memory:.0f} MiB")

        yield lambda: Turn(touched, decided)


@contextmanager
def copies(case: Case, sets: int, touched: int) -> Iterator[Callable[[], Turn]]:
    """Copies of the parts."""
    with tempfile.TemporaryDirectory() as folder:
        pieces = [Path(folder) / piece.name for piece in filled(Path(folder), case, sets)]

        def copy() -> None:
            for piece in pieces:
                content = piece.read_bytes()
                sha256(content).hexdigest()
                sha256(content).hexdigest()
                with piece.with_suffix(".copy").open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            for piece in pieces:
                piece.with_suffix(".copy").unlink()

        yield lambda: Turn(touched, copy)


@contextmanager
def old_steps(case: Case, touched: int) -> Iterator[Callable[[], Turn]]:
    """Steps with the code of the commit before, each in a process of its own.

    Raises:
        SideError: the history does not have the commit.
    """
    found = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        raise SideError(f"there is no history with commit {BEFORE} here")
    with tempfile.TemporaryDirectory() as code:
        with tarfile.open(fileobj=BytesIO(found.stdout)) as files:
            files.extractall(code, filter="data")
        script, paths = Path(__file__).with_name("before_parts.py"), os.pathsep.join((f"{code}/shared", code))
        command = [sys.executable, "-P", str(script), *map(str, (case.least, case.most, touched))]

        def step() -> Took:
            told = subprocess.run(
                command, cwd=code, env={"PYTHONPATH": paths}, capture_output=True, text=True, check=True
            )
            return Took(json.loads(told.stdout)["processor"])

        yield lambda: Turn(touched, step)


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


class Step:
    """A step of parts, in which some of the sets are joined."""

    def __init__(self, folder: Path, pieces: Sequence[Piece], touched: int) -> None:
        self._files, self._pieces, self._touched = PartFiles(folder), pieces, touched
        keys = np.concatenate([self._files.read(piece).keys.copy() for piece in pieces])
        joins = Joins(np.random.default_rng(5).choice(keys, touched, replace=False))
        environment = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "-", "AWS_SECRET_ACCESS_KEY": "-"}
        with mock.patch.dict(os.environ, environment):
            self._client: Any = aws.dynamodb()
        self._client.meta.events.register("before-send.dynamodb", joins.answer)

    def decided(self) -> None:
        """Evaluate the step.

        Raises:
            RuntimeError: other sets were decided than those joined.
        """
        noise_keys = NoiseKeys(((0, KEY),))
        decisions = Decisions({"fledge": fledge()}, {"fledge": 1}, frozenset(), noise_keys, "bench", SCHEDULE)
        with StepJoins(StepLog(self._client, "log", LAYOUTS), 0, {"fledge": 1}) as log:
            found: list[Decided] = list(decisions.decided(STEP, 2, log, self._files, self._pieces, mark=STEP - 1))
        self._files.sweep([piece.name for piece in self._pieces], 2)
        if (sets := sum(each.sets for each in found)) != self._touched:
            raise RuntimeError(f"{sets} sets were decided")
