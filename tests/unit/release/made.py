"""An engine whose table is given, and short specifications."""

from contextlib import contextmanager
from fractions import Fraction

from kanon.release import Spec
from kanon.release.publishing import PrivateTable


def spec(**more):
    return Spec(**{"groups": ("set",), "epsilon": Fraction(1), "delta": Fraction("1e-5"), **more})


class Given:
    """The bounded table is what the test says."""

    def __init__(self, *rows, bins=None):
        self.rows, self.bins, self.queries = sorted(rows), bins or {}, 0

    @contextmanager
    def table(self, sources, bounding, secret):
        self.queries += 1
        yield PrivateTable(bounding, lambda: iter(self.rows), self.bins)


LOG = Given(("a", 100), ("b", 60), ("c", 12), ("d", 1))
