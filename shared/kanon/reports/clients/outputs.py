"""The set O of all possible outputs of the event-level reports of one source, counted and numbered.

An output is a matrix of counts: ``n[d][w]`` reports of trigger datum ``d`` in window ``w``. Datum ``d`` has at
most as many reports as it has summary buckets, and all data together at most ``max_reports``. O is never listed: it has
2,925 members for a default navigation source, and may have 10^20. A table of numbers of completions gives its size and
the member with a given number (``unrank``).
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import comb

Output = tuple[tuple[int, ...], ...]
"""Counts of reports by datum, then by window."""

MAX_DATA = 32
MAX_WINDOWS = 5
MAX_REPORTS = 20


@dataclass(frozen=True)
class Datum:
    """The limits of one trigger datum.

    Attributes:
        windows: number of report windows.
        buckets: number of summary buckets, which is the most reports of this datum.
    """

    windows: int
    buckets: int


@dataclass(frozen=True)
class Outputs:
    """All outputs of a source.

    Attributes:
        data: one entry for every trigger datum.
        max_reports: the most reports of the source.

    Raises:
        ValueError: more than 32 data, 5 windows or 20 reports, or a negative number.
    """

    data: tuple[Datum, ...]
    max_reports: int

    def __post_init__(self) -> None:
        if len(self.data) > MAX_DATA:
            raise ValueError(f"a source has at most {MAX_DATA} trigger data")
        if not 0 <= self.max_reports <= MAX_REPORTS:
            raise ValueError(f"a source has at most {MAX_REPORTS} event-level reports")
        if any(not 1 <= datum.windows <= MAX_WINDOWS for datum in self.data):
            raise ValueError(f"a trigger datum has 1 to {MAX_WINDOWS} report windows")
        if any(not 0 <= datum.buckets <= MAX_REPORTS for datum in self.data):
            raise ValueError(f"a trigger datum has at most {MAX_REPORTS} summary buckets")

    @property
    def count(self) -> int:
        """The number of outputs, |O|; at least 1."""
        return self._after(0, 0, self.max_reports)

    def unrank(self, number: int) -> Output:
        """The output with this number, ``0 <= number < count``. Numbers follow the order of the matrices.

        Raises:
            IndexError: no output has this number.
        """
        if not 0 <= number < self.count:
            raise IndexError("no output has this number")
        rows = []
        cell, left = 0, self.max_reports
        for datum in self.data:
            row, datum_left = [], datum.buckets
            for _ in range(datum.windows):
                cell += 1
                chosen = 0
                while number >= (ways := self._after(cell, datum_left - chosen, left - chosen)):
                    number -= ways
                    chosen += 1
                row.append(chosen)
                datum_left, left = datum_left - chosen, left - chosen
            rows.append(tuple(row))
        return tuple(rows)

    @cached_property
    def moments(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """Mean and variance of ``n[d][w]`` over O, by datum. They are the same for all windows of a datum."""
        found = {datum: self._moments(datum) for datum in set(self.data)}
        return tuple(found[datum] for datum in self.data)

    def _moments(self, datum: Datum) -> tuple[Fraction, Fraction]:
        rest = list(self.data)
        rest.remove(datum)
        others = Outputs(tuple(rest), self.max_reports)
        first = second = 0
        for j in range(1, min(datum.buckets, self.max_reports) + 1):
            ways = others._after(0, 0, self.max_reports - j)
            for n in range(1, j + 1):
                # n of the datum's j reports are in the window: "stars and bars" for those in its other windows.
                weight = ways * (comb(datum.windows - 2 + j - n, j - n) if n < j else 1)
                first, second = first + n * weight, second + n * n * weight
        mean = Fraction(first, self.count)
        return mean, Fraction(second, self.count) - mean**2

    def _after(self, cell: int, datum_left: int, left: int) -> int:
        """The number of ways to fill the cells from ``cell`` on; 0 for a negative rest.

        At the first cell of a datum ``datum_left`` has no influence: the datum has all its buckets.
        """
        if datum_left < 0 or left < 0:
            return 0
        return self._ways[cell][self._fresh.get(cell, datum_left)][left]

    @cached_property
    def _fresh(self) -> dict[int, int]:
        """For the first cell of each datum: the number of reports that the datum may have."""
        starts, cell = {}, 0
        for datum in self.data:
            starts[cell] = datum.buckets
            cell += datum.windows
        return starts | {cell: 0}

    @cached_property
    def _ways(self) -> list[list[list[int]]]:
        """``ways[cell][b][c]``: ways to fill the cells from ``cell`` on with ``b`` reports left for its datum and ``c``
        in all.

        A(cell; b, c) = sum over j <= min(b, c) of A(cell + 1; b - j, c - j); at the end of a datum ``b`` becomes
        the next one's number of buckets.
        """
        size = range(self.max_reports + 1)
        cells = sum(datum.windows for datum in self.data)
        most = max((datum.buckets for datum in self.data), default=0)
        ways = [[[1 for _ in size] for _ in range(most + 1)]]
        for cell in reversed(range(cells)):
            after = ways[0]
            fresh = self._fresh.get(cell + 1)
            here = [
                [sum(after[b - j if fresh is None else fresh][c - j] for j in range(min(b, c) + 1)) for c in size]
                for b in range(most + 1)
            ]
            ways.insert(0, here)
        return ways
