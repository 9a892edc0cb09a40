"""An engine whose table is given, and short specifications."""

from contextlib import contextmanager
from fractions import Fraction

from kanon.release import Spec
from kanon.release.noising import PrivateTable, _groups


def spec(**more):
    return Spec(**{"groups": ("set",), "epsilon": Fraction(1), "delta": Fraction("1e-5"), **more})


def groups_of(table):
    """The exact numbers of all groups."""
    return [group for piece in table._pieces("by name") for group in _groups(piece, table._bounding.measures)]


class Given:
    """The bounded table is what the test says."""

    def __init__(self, *rows, bins=None):
        self.rows, self.bins, self.queries = sorted(rows), bins or {}, 0

    @contextmanager
    def table(self, sources, bounding, secret):
        self.queries += 1
        yield PrivateTable.of_rows(bounding, lambda: self.rows, self.bins)


LOG = Given(("a", 100), ("b", 60), ("c", 12), ("d", 1))
