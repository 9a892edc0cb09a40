"""Use case: build the first states of a new deployment from a past log.

Each row counts in the step of its time, as far as the window reaches. Nothing is decided for the past, and every set is
due at the first step: its decision there is the first one that meets its noise.
"""

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kanon.errors import ConfigurationError
from kanon.gate import deciding
from kanon.gate.mechanism.columns import NEVER, Ints
from kanon.gate.mechanism.steps import step_at
from kanon.gate.mechanism.tape import SET_KEY_BYTES
from kanon.gate.merging import JOIN, Joins
from kanon.gate.parts import BYTES_A_MEMBER, BYTES_A_SET, Part
from kanon.gate.storage.protocols import Piece
from kanon.serving.arrivals import Arrivals, Reader, RowCounts
from kanon.serving.directory import IMPORTING, Directory

if TYPE_CHECKING:
    from kanon.joinlog.numbered import JoinBatch

NAME = "import.db"
LATEST = "INSERT INTO members VALUES (?, ?) ON CONFLICT (entry) DO UPDATE SET step = MAX(step, excluded.step)"
SORTED = "SELECT entry, step FROM members ORDER BY substr(entry, 1, 32), step DESC, entry"  # 32 is SET_KEY_BYTES
MemberEntry = tuple[bytes, int]
"""A join as the log stores it, and its last step."""


def import_log(directory: Directory, batches: "Iterable[JoinBatch]", now: float) -> RowCounts:
    """Make the first states of a deployment; a run that stopped begins again.

    Args:
        directory: the deployment, opened to import.
        batches: the rows of the log.
        now: the time (Unix s). Rows of its step arrive in it.

    Raises:
        ConfigurationError: the deployment has evaluated or counted something already.
        LogError: a row cannot be read.
    """
    control, log = directory.control, directory.log
    step = step_at(now, directory.settings.period)
    first = directory.segments.begin_at
    with closing(Arrivals(directory.path)) as arrivals:
        if control.evaluated_through() is not None or control.manifest() is not None:
            raise ConfigurationError(f"{directory.path} has states already: import into a new directory")
        if control.text(IMPORTING) is None and not (arrivals.empty and not log.steps()):
            raise ConfigurationError(f"{directory.path} has counted joins already: import into a new directory")
        control.put_text(IMPORTING, "begun")
        arrivals.clear()
        log.forget_before(step + 1)
        reader = Reader(directory.names, step, directory.settings.period)
        with closing(_collected(directory.path / NAME)) as members:

            def store(at: int, entries: Iterable[bytes]) -> None:
                if at >= first:
                    arrivals.wait(step, entries)
                else:
                    rows = ((entry, at) for entry in entries)
                    members.executemany(LATEST, rows)

            arrivals.record(batches, reader, step, store)
            pieces = list(_pieces(directory, members.execute(SORTED), first))
        directory.parts.sync()
        (directory.path / NAME).unlink()
        control.begin_with(first - 1, pieces, IMPORTING)
        arrivals.finish(log)
    return reader.counted


def _collected(path: Path) -> sqlite3.Connection:
    """An empty file that sorts the members. It need not outlast a loss of power."""
    path.unlink(missing_ok=True)
    members = sqlite3.connect(path, isolation_level=None)
    members.execute("PRAGMA journal_mode = OFF")
    members.execute("PRAGMA synchronous = OFF")
    members.execute("CREATE TABLE members (entry BLOB PRIMARY KEY, step INTEGER NOT NULL) WITHOUT ROWID")
    return members


def _pieces(directory: Directory, members: Iterable[MemberEntry], first: int) -> Iterator[Piece]:
    """The parts of members, which come set by set, the latest member of each first."""
    parameters = {directory.segments.numbers[name]: type_.parameters for name, type_ in directory.types.items()}
    kept = {number: each.members_kept for number, each in parameters.items()}
    lowest = bytes(SET_KEY_BYTES)
    for columns, steps in _portions(members, kept):
        lowest = lowest or columns["key"][0].tobytes().ljust(SET_KEY_BYTES, b"\0")
        part = _part(columns, steps, {number: each.window for number, each in parameters.items()}, first)
        yield directory.parts.put(part, first - 1, directory.segments.run, lowest.hex())
        lowest = b""


def _portions(members: Iterable[MemberEntry], kept: Mapping[int, int]) -> Iterator[tuple[Joins, Ints]]:
    """The members of whole sets, as many as go into a part, and their steps; of each set those that a state keeps."""
    entries, steps, sets, rank = bytearray(), array("q"), 0, 0
    key = b""
    for entry, step in members:
        if entry[:SET_KEY_BYTES] != key:
            if sets * BYTES_A_SET + len(steps) * BYTES_A_MEMBER > deciding.MOST_PART_BYTES:
                yield np.frombuffer(bytes(entries), JOIN), np.array(steps, np.int64)
                entries, steps, sets = bytearray(), array("q"), 0
            key, rank, sets = entry[:SET_KEY_BYTES], 0, sets + 1
        if rank < kept[entry[-1]]:
            entries += entry
            steps.append(step)
        rank += 1
    if steps:
        yield np.frombuffer(bytes(entries), JOIN), np.array(steps, np.int64)


def _part(columns: Joins, steps: Ints, windows: Mapping[int, int], first: int) -> Part:
    """A part of sets that were never decided, each due at the step ``first``."""
    starts = np.flatnonzero(np.concatenate(([True], columns["key"][1:] != columns["key"][:-1])))
    types = columns["type"][starts]
    number = len(starts)
    window = np.array([windows[each] for each in types.tolist()])
    return Part.of(
        first - 1,
        columns["key"][starts],
        types,
        np.diff(np.append(starts, len(columns))),
        columns["token"].astype(np.int64),
        steps,
        np.full((number, 2), NEVER),
        np.full(number, first),
        np.maximum(steps[starts] + window - 1, first),
    )
