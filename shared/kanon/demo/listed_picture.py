"""The picture of a released list over time: a row for each value, with a bar for each time in which it was listed."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kanon.demo.drawing import Drawing
from kanon.pictures import GREEN, TEXT

MOST_ROWS, MOST_SIGNS = 40, 28
LEFT, ACROSS, TOP, ROW, BELOW = 230, 930, 72, 18, 44
"""Where the first bar may begin, the length of the longest one, and heights."""
GRID = "#E8E8E8"


@dataclass(frozen=True)
class ListHistory:
    """The lists of a type.

    Attributes:
        period: length of a step (s).
        lists: the values of each list, by step, in the order of steps; at least one.
    """

    period: int
    lists: Mapping[int, Sequence[str]]

    @classmethod
    def read(cls, folder: Path, period: int) -> "ListHistory":
        """Read the history in ``lists/<type>`` of a directory."""
        from pyarrow.parquet import ParquetFile

        files = {int(file.parent.name.partition("=")[2]): file for file in folder.glob("date=*/step=*/values.parquet")}
        lists = {}
        for step in sorted(files):
            with ParquetFile(files[step]) as file:
                lists[step] = file.read(["value"])["value"].to_pylist()
        return cls(period, lists)

    @cached_property
    def runs(self) -> dict[str, list[tuple[int, int]]]:
        """Of each value the first and last steps of its runs of lists, in the order in which values were first listed.

        A step without a list ends no run.
        """
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        before = None
        for step, values in self.lists.items():
            for value in values:
                runs = found[value]
                first = runs.pop()[0] if runs and runs[-1][1] == before else step
                runs.append((first, step))
            before = step
        return dict(found)

    def longest(self, most: int) -> dict[str, list[tuple[int, int]]]:
        """The runs of the values that were listed for the longest time, in the same order."""

        def steps(value: str) -> int:
            return sum(last - first + 1 for first, last in self.runs[value])

        chosen = set(sorted(self.runs, key=steps, reverse=True)[:most])
        return {value: runs for value, runs in self.runs.items() if value in chosen}


def draw(history: ListHistory, title: str) -> bytes:
    """The picture as SVG. An answer is true for a step, and the list of it is visible after its end."""
    rows, first, last = history.longest(MOST_ROWS), min(history.lists), max(history.lists)
    start, end = first * history.period, (last + 1) * history.period
    bottom = TOP + ROW * max(len(rows), 1)

    def at(time: float) -> float:
        return LEFT + ACROSS * (time - start) / (end - start)

    drawing = Drawing(LEFT + ACROSS + 30, bottom + BELOW)
    drawing.text(12, 30, title, size=17)
    shown = f"{len(rows):,} of " if len(rows) < len(history.runs) else ""
    drawing.text(12, 52, f"{shown}{len(history.runs):,} values that were listed; a bar: while a value is on the list")
    for number, (value, runs) in enumerate(rows.items()):
        upper = TOP + ROW * number
        name = value if len(value) <= MOST_SIGNS else f"{value[: MOST_SIGNS - 1]}\N{HORIZONTAL ELLIPSIS}"
        drawing.text(LEFT - 8, upper + 13, name, anchor="end")
        drawing.line([(LEFT, upper + ROW / 2), (LEFT + ACROSS, upper + ROW / 2)], GRID, 1)
        for begin, until in runs:
            corners = at(begin * history.period), at((until + 1) * history.period)
            drawing.rectangle((corners[0], upper + 3), (corners[1], upper + ROW - 3), GREEN)
    drawing.line([(LEFT, bottom), (LEFT + ACROSS, bottom)], TEXT, 1)
    drawing.days(start, end, at, bottom)
    return drawing.svg()
