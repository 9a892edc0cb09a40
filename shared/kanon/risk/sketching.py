"""Sketches of columns of a log, all of them in one pass."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kanon.joinlog import LogReading
from kanon.noise.words import length_prefixed
from kanon.risk.errors import RiskError
from kanon.risk.hashing import HashArray, HashKey
from kanon.risk.khll import Sketch, empty, from_pairs, merge

if TYPE_CHECKING:
    from kanon.risk.scan import Batch, Coded

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Sketched:
    """The sketch of one column, or of one combination of columns.

    Attributes:
        columns: their names.
        sketch: the sketch of the combinations of their values.
        left_out: rows with a missing value, and rows that cannot be read.
    """

    columns: tuple[str, ...]
    sketch: Sketch
    left_out: int


def sketches(
    source: Path,
    values: Sequence[tuple[str, ...]],
    user: str,
    *,
    key: HashKey,
    size: int,
    reading: LogReading | None = None,
) -> list[Sketched]:
    """A sketch for each combination of columns, in one pass over the log.

    ``reading`` says how the log is read; by default a row that cannot be read is an error.

    Raises:
        RiskError: the file or a row of it cannot be read, or it has no rows.
    """
    from kanon.risk.scan import batches  # needs pyarrow; sketch files do not

    reading = reading or LogReading()
    read = batches(source, {name for columns in values for name in columns}, user, reading)
    made = of_batches(read, values, user, key=key, size=size)
    for one in made:
        if not one.sketch.total_rows:
            raise RiskError(f"{source} has no row with a {' and a '.join([*one.columns, user])}")
    return [replace(one, left_out=one.left_out + reading.left_out.total()) for one in made]


def of_batches(
    read: "Iterable[Batch]", values: Sequence[tuple[str, ...]], user: str, *, key: HashKey, size: int
) -> list[Sketched]:
    """A sketch for each combination of columns of a log that is read in batches."""
    made = [Sketched(names, empty(size, key.check, key.columns(names, user)), 0) for names in values]
    for batch in read:
        made = [_with_batch(one, batch, user, key) for one in made]
    return made


def _with_batch(before: Sketched, batch: "Batch", user: str, key: HashKey) -> Sketched:
    users = batch[user]
    codes, hashes = _hashed([batch[name] for name in before.columns], key)
    codes = np.where(users.codes >= 0, codes, -1)
    rows = np.bincount(codes[codes >= 0], minlength=len(hashes))
    kept = _smallest(hashes, rows, before.sketch)
    order = kept[np.argsort(hashes[kept])]
    place = np.full(len(hashes) + 1, -1)  # the last entry is that of code -1
    place[order] = np.arange(len(order))
    owners = place[codes]
    of_kept = owners >= 0
    owners, owned = _pairs(owners[of_kept], users.codes[of_kept])
    distinct, position = np.unique(owned, return_inverse=True)
    part = from_pairs(
        hashes[order], rows[order], owners, key.users(users.texts_of(distinct))[position],
        before.sketch.size, key.check, int(rows.sum()), before.sketch.columns,
    )  # fmt: skip
    return Sketched(before.columns, merge(before.sketch, part), before.left_out + len(codes) - part.total_rows)


def _smallest(hashes: HashArray, rows: Codes, before: Sketch) -> Codes:
    """The codes whose hashes may be among the K smallest of all."""
    kept = np.flatnonzero((hashes <= before.bound) & (rows > 0))
    if len(kept) > before.size:
        kept = kept[np.argpartition(hashes[kept], before.size - 1)[: before.size]]
    return kept


def _hashed(columns: "Sequence[Coded]", key: HashKey) -> tuple[Codes, HashArray]:
    """The code of each row's combination (-1: a part is missing), and the hash of each code."""
    if len(columns) == 1:
        return columns[0].codes, key.values(columns[0].texts.to_pylist())
    codes = columns[0].codes
    parts = [np.arange(len(columns[0].texts))]
    for column in columns[1:]:
        width = len(column.texts)
        both = np.where((codes >= 0) & (column.codes >= 0), codes * width + column.codes, -1)
        distinct, codes = _recoded(both)
        parts = [*(part[distinct // width] for part in parts), distinct % width]
    texts = [column.texts_of(part) for column, part in zip(columns, parts, strict=True)]
    return codes, key.values(map(length_prefixed, *texts), len(columns))


def _recoded(codes: Codes) -> tuple[Codes, Codes]:
    """The distinct codes of at least 0, and each row's position among them (-1 stays)."""
    import pyarrow as pa

    encoded = pa.array(codes, mask=codes < 0).dictionary_encode()
    return encoded.dictionary.to_numpy(), encoded.indices.fill_null(-1).to_numpy().astype(np.int64)


def _pairs(owners: Codes, users: Codes) -> tuple[Codes, Codes]:
    """Each pair once."""
    import pyarrow as pa

    width = int(users.max(initial=0)) + 1
    pairs = pa.array(owners * width + users).unique().to_numpy()
    return pairs // width, pairs % width
