"""A picture of lines, rectangles and texts as SVG: a library for it would be larger than the service that it shows."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from kanon.pictures import TEXT

Coordinates = tuple[float, float]
HEAD = 6
"""The length of the head of an arrow."""
DAY = 86_400


class Drawing:
    """Places are in pixels from the upper left corner."""

    def __init__(self, width: int, height: int) -> None:
        size = {"width": str(width), "height": str(height), "viewBox": f"0 0 {width} {height}"}
        self._root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, "font-family": "sans-serif"})
        self.rectangle((0, 0), (width, height), "white")

    def rectangle(self, corner: Coordinates, opposite: Coordinates, colour: str, *, opacity: float = 1) -> None:
        """A filled rectangle between two corners."""
        (left, upper), (right, lower) = corner, opposite
        place = {"x": left, "y": upper, "width": right - left, "height": lower - upper}
        self._add("rect", place, fill=colour, **({"opacity": str(opacity)} if opacity < 1 else {}))

    def line(self, points: Sequence[Coordinates], colour: str, width: float, *, dashed: bool = False) -> None:
        """A line through points."""
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        dash = {"stroke-dasharray": "6 4"} if dashed else {}
        self._add("polyline", {"stroke-width": width}, points=path, fill="none", stroke=colour, **dash)

    def head(self, begin: Coordinates, end: Coordinates, colour: str) -> None:
        """The head of an arrow at the end of a line."""
        angle = math.atan2(end[1] - begin[1], end[0] - begin[0])
        sides = [angle + math.pi - 0.5, angle + math.pi + 0.5]
        wings = [(end[0] + HEAD * math.cos(side), end[1] + HEAD * math.sin(side)) for side in sides]
        self.line([wings[0], end, wings[1]], colour, 1)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str = TEXT,
        *,
        anchor: str = "start",
        size: int = 12,
        turned: bool = False,
    ) -> None:
        """A text on the line at ``y``; ``turned``: it runs upwards. A mark stands for what no picture can show."""
        turn = {"transform": f"rotate(-90 {_number(x)} {_number(y)})"} if turned else {}
        look = {"fill": colour, "text-anchor": anchor, **turn}
        self._add("text", {"x": x, "y": y, "font-size": size}, **look).text = "".join(
            sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text
        )

    def days(self, start: float, end: float, at: Callable[[float], float], y: float) -> None:
        """Days below the line at ``y``, between two times (Unix s). ``at``: where a time is."""
        for day in ticks((end - start) / DAY, 8):
            time = (start // DAY + day) * DAY
            if time >= start:
                self.line([(at(time), y), (at(time), y + 4)], TEXT, 1)
                date = datetime.fromtimestamp(time, UTC)
                self.text(at(time), y + 17, f"{date:%b} {date.day}", anchor="middle")

    def svg(self) -> bytes:
        """The file."""
        return b'<?xml version="1.0"?>\n' + ET.tostring(self._root) + b"\n"

    def _add(self, tag: str, numbers: dict[str, float], **texts: str) -> ET.Element:
        return ET.SubElement(self._root, tag, {name: _number(value) for name, value in numbers.items()} | texts)


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def ticks(end: float, most: int) -> range:
    """Round numbers from 0 to ``end``: at most so many, and one."""
    steps = (digit * 10**power for power in range(18) for digit in (1, 2, 5))
    step = next(step for step in steps if end / step <= most)
    return range(0, int(end) + 1, step)
