"""A deployment that gates rows of a log, and the plain algorithm over the rows as they arrive."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from uuid import UUID

import numpy as np
import pytest

from kanon.gate.names import client_token, set_key
from kanon.joinlog.numbered import JoinBatch, Texts
from kanon.serving import directory as directory_module
from kanon.serving import secret_files
from kanon.serving.arrivals import Arrivals
from kanon.serving.directory import Directory, Given, open_directory
from kanon.serving.gating import NamedSet
from tests.naive import Naive

PERIOD = 60
LAW = {"shape": "two-sided", "epsilon": "0.75", "truncation": 1}
LAWS = {"threshold": LAW, "query": LAW}
TYPES = {
    "grid": {"k": 4, "window": 6, "laws": LAWS},
    "crossing": {"k": 4, "window": 5, "laws": LAWS, "restart": "crossing", "hold": 5, "epoch": 40},
}
FIRST = 1_000_000  # a step
SETS = [f"search {n}" for n in range(10)]
ROWS_A_BATCH = 3


def with_fixed_secrets(patch: pytest.MonkeyPatch, seed: str) -> None:
    """Let deployments and generations be named, and keys be drawn, by a seed: then a test gives one result."""
    chance = random.Random(seed)
    drawn = SimpleNamespace(token_urlsafe=lambda size: chance.randbytes(size).hex())
    patch.setattr(secret_files, "secrets", drawn)
    for module in (directory_module, secret_files):
        patch.setattr(module, "uuid", SimpleNamespace(uuid4=lambda: UUID(int=chance.getrandbits(128))))


class Row(NamedTuple):
    time: float
    set: str
    client: str


def opened(path: Path, now: float, types: dict = TYPES, *, to_import: bool = False) -> Directory:
    return open_directory(path, Given(period=PERIOD, types=json.dumps(types)), now, to_import=to_import)


def batches(rows: Sequence[Row]) -> Iterator[JoinBatch]:
    """The rows as the reader yields them, a few at a time."""
    for at in range(0, len(rows), ROWS_A_BATCH):
        some = rows[at : at + ROWS_A_BATCH]
        sets, clients = ([text.encode() for text in column] for column in list(zip(*some, strict=True))[1:])
        numbers = np.arange(len(some))
        times = np.array([row.time for row in some], np.float64)
        yield JoinBatch(times, Texts(numbers, sets).distinct(), Texts(numbers, clients).distinct())


class Oracle:
    """Every type over the rows that are given to it, each in the step in which it counts."""

    def __init__(self, directory: Directory) -> None:
        self.names = directory.names
        tapes = directory.segments._tapes_of
        self.naive = {name: Naive(type_.parameters, tapes(name, FIRST)) for name, type_ in directory.types.items()}
        self.seen: set[Row] = set()
        self.stepped = directory.evaluated_through

    def key(self, name: str, text: str) -> bytes:
        return set_key(self.names.pepper, name, text.encode())

    def join(self, row: Row, step: int, now: int) -> None:
        """The row counts at ``step``, for the types in whose window before the step ``now`` it lies."""
        for name, naive in self.naive.items():
            if row.time // PERIOD > now - naive.parameters.window:
                key = self.key(name, row.set)
                bits = naive.parameters.client_bits
                naive.join(key, client_token(self.names.client_key, key, "client", row.client.encode(), bits), step)

    def arrive(self, rows: Iterable[Row], step: int, now: int) -> int:
        """Rows that were not seen count at ``step``. Returns their number."""
        window = max(naive.parameters.window for naive in self.naive.values())
        new = {row for row in rows if now - window < row.time // PERIOD <= now} - self.seen
        for row in new:
            self.join(row, step, now)
        self.seen |= new
        return len(new)

    def through(self, step: int) -> frozenset[NamedSet]:
        """The sets that are true at ``step``."""
        true: set[NamedSet] = set()
        for at in range(self.stepped + 1, step + 1):
            true = {
                NamedSet(name, text)
                for name, naive in self.naive.items()
                for text in SETS
                if naive.step(self.key(name, text), at)
            }
            self.stepped, self.true = at, frozenset(true)
        return self.true


def sizes(directory: Directory) -> dict[bytes, int]:
    """The number of members of each set in the newest states."""
    manifest = directory.control.manifest()
    assert manifest is not None
    parts = [directory.parts.read(piece) for piece in manifest.pieces]
    return {
        bytes(key).ljust(32, b"\0"): int(size)
        for part in parts
        for key, size in zip(part.keys, part.sizes, strict=True)
    }


def unreferenced(directory: Directory) -> set[str]:
    """What lies in a directory and has no use: parts that no manifest names, joins that no recovery needs.

    A part that is named and missing is wrong too.
    """
    manifests = directory.control.manifests()
    named = {piece.name for manifest in manifests for piece in manifest.pieces}
    parts = {path.name for path in directory.parts.folder.iterdir()} ^ named
    oldest = min((manifest.step for manifest in manifests), default=0)
    joins = {str(step) for step in directory.log.steps() if step <= oldest}
    expected = {"control.db", "arrivals.db", "lock", "log", "parts", "secrets", "seen"}
    others = {path.name.removesuffix("-wal").removesuffix("-shm") for path in directory.path.iterdir()} - expected
    with closing(Arrivals(directory.path)) as arrivals:
        waiting = {f"waiting {step}" for (step,) in arrivals.database.execute("SELECT step FROM waiting")}
    return parts | joins | others | waiting
