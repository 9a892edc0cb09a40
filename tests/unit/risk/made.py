"""Sketches of given hashes."""

import numpy as np

from kanon.risk.hashing import Hashes
from kanon.risk.khll import Sketch, from_pairs


def sketch_of(values: Hashes, users: Hashes, size: int, key_check: bytes) -> Sketch:
    """The sketch of a log whose rows are given as hashes of their value and their user."""
    kept, position, rows = np.unique(values, return_inverse=True, return_counts=True)
    return from_pairs(kept, rows, position, users, size, key_check, len(values))
