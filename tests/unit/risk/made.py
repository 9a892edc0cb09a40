"""Sketches of given hashes, and of a log; a sketch as a dictionary."""

from pathlib import Path

import numpy as np

from kanon.risk.hashing import HashArray, HashKey
from kanon.risk.khll import Sketch, from_pairs
from kanon.risk.sketching import sketches


def sketch_of(values: HashArray, users: HashArray, size: int, key_check: bytes) -> Sketch:
    """The sketch of a log whose rows are given as hashes of their value and their user."""
    kept, position, rows = np.unique(values, return_inverse=True, return_counts=True)
    return from_pairs(kept, rows, position, users, size, key_check, len(values))


def as_dictionary(sketch: Sketch) -> dict[int, tuple[int, set[int]]]:
    """Rows and users of each value, as in a naive sketch. No value may have many users."""
    assert not len(sketch.dense)
    owned: dict[int, set[int]] = {}
    for owner, user in zip(sketch.owners.tolist(), sketch.users.tolist(), strict=True):
        owned.setdefault(owner, set()).add(user)
    of_value = zip(sketch.values.tolist(), sketch.rows.tolist(), strict=True)
    return {value: (rows, owned[at]) for at, (value, rows) in enumerate(of_value)}


def sketch_of_file(source: Path, columns: tuple[str, ...], key: HashKey, size: int = 2_048) -> Sketch:
    """The sketch of the combinations of some columns of a log; its users are in the column ``client``."""
    (made,) = sketches(source, [columns], "client", key=key, size=size)
    return made.sketch
