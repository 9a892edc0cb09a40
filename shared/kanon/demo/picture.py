"""The demo's picture: sets near the threshold, their exact count, their status, their instances and restarts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from kanon.demo.drawing import HEAD, Drawing, ticks
from kanon.demo.replay import History, Result
from kanon.gate.mechanism.parameters import Parameters
from kanon.pictures import BLUE, GREEN, ORANGE, TEXT, YELLOW
from kanon.plan.planner import zone

COUNT, TRUE, BAND, RESTART, FALSE = BLUE, GREEN, YELLOW, ORANGE, "#DDDDDD"
NOTE = "#9A6A00"
PANELS = 4
WIDTH, HEIGHT = 1240, 780
LEFT, ACROSS, TOP, DOWN = 84, 610, 86, 380
"""Where the first panel begins, and how far the next ones are."""
ROOM = (440, 280)
"""The size of a panel without what is written around it."""
INSTANCES = 0.78
"""Height of the arrows that show the instances, as a share of the panel's."""


def near_threshold(result: Result, low: int, high: int) -> list[str]:
    """Sets for the picture: their largest counts are above ``low`` and below 2k, and their histories differ.

    If the log has them: one set that stays true with a count below k until a restart turns it false; one that crosses
    early, one that crosses late, one that never crosses. The others are the sets with the most time near k.
    """

    def closeness(name: str) -> float:
        counts = np.array(result.histories[name].counts)
        return float(((counts > low) & (counts < high)).sum())

    def crossing(history: History) -> int:
        return history.counts[history.statuses.index(True)]

    def held(name: str) -> int:
        """Steps in which the set is true with a count below k."""
        history = result.histories[name]
        return sum(status and count < result.k for status, count in zip(history.statuses, history.counts, strict=True))

    def ends(name: str) -> bool:
        """Whether the set turns false at a restart."""
        return (True, False) in pairwise(result.histories[name].statuses)

    near = [name for name, history in result.histories.items() if low < max(history.counts) < 2 * result.k]
    near.sort(key=closeness, reverse=True)
    true = [name for name in near if any(result.histories[name].statuses)]
    stories = (
        sorted(filter(ends, true), key=held, reverse=True),
        [n for n in true if crossing(result.histories[n]) < result.k],
        [n for n in true if crossing(result.histories[n]) >= result.k],
        [n for n in near if n not in true],
        near,
        sorted(result.histories, key=closeness, reverse=True),
    )
    chosen: list[str] = []
    for story in [*stories, *stories[-2:] * PANELS]:
        chosen += [name for name in story if name not in chosen][:1]
    return sorted(chosen[:PANELS])


def draw(result: Result, parameters: Parameters, phases: Mapping[str, int], title: str) -> bytes:
    """The picture as SVG. ``phases``: the phase of every set, at which its instances or epochs begin."""
    zone_ = zone(parameters)
    names = near_threshold(result, *zone_)
    top = max([zone_[1], *(max(result.histories[name].counts) for name in names)]) * 1.45
    drawing = Drawing(WIDTH, HEIGHT)
    drawing.text(12, 30, title, size=17)
    for number, name in enumerate(names):
        history = result.histories[name]
        corner = (LEFT + ACROSS * (number % 2), TOP + DOWN * (number // 2))
        panel = _Panel(drawing, corner, result, history, restarts_of(history, parameters, phases[name]), top)
        if number % 2 == 0:
            label = ("exact count of clients", f"in {parameters.window} steps (never released)")
            for line, text in enumerate(label):
                drawing.text(corner[0] - 52 + 15 * line, corner[1] + ROOM[1] / 2, text, anchor="middle", turned=True)
        _draw_set(panel, name, zone_)
        if parameters.restart is None:
            _draw_instances(panel)
    return drawing.svg()


@dataclass(frozen=True)
class _Panel:
    """The place of one set. ``restarts``: the steps at which its status may end; ``top``: end of the counts."""

    drawing: Drawing
    corner: tuple[float, float]
    result: Result
    history: History
    restarts: Sequence[int]
    top: float

    @property
    def first(self) -> int:
        """The first step of the log."""
        return self.result.start // self.result.period

    def x(self, step: float) -> float:
        """Where a step ends, at which it is decided."""
        return self.at((step + 1) * self.result.period)

    def at(self, time: float) -> float:
        """Where a time (Unix s) is."""
        whole = (max(self.result.steps, 1) + 1) * self.result.period
        return self.corner[0] + ROOM[0] * (time - self.result.start) / whole

    def y(self, count: float) -> float:
        """Where a count is. Below zero is the room for the status."""
        return self.corner[1] + ROOM[1] * (1 - (count / self.top + 0.16) / 1.16)

    @property
    def right(self) -> float:
        """The right edge."""
        return self.corner[0] + ROOM[0]

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.corner[1] + ROOM[1]


def restarts_of(history: History, parameters: Parameters, phase: int) -> list[int]:
    """The steps at which a set gets new noise after it may have been true.

    On a grid an instance begins there; with restart after the crossing a hold has ended.
    """
    steps = range(history.first, history.first + len(history.counts))
    if parameters.restart is None:
        return [step for step in steps if step % parameters.window == phase % parameters.window and step > steps.start]
    found: list[int] = []
    for step, status in zip(steps, history.statuses, strict=True):
        if status and (not found or step >= found[-1]):
            found.append(step + parameters.restart.hold)
    return [step for step in found if step < steps.stop]


def _draw_set(panel: _Panel, name: str, zone_: tuple[int, int]) -> None:
    """One set: its count against threshold and zone, its restarts, and its status as a bar below."""
    drawing, (left, upper) = panel.drawing, panel.corner
    low, high = map(panel.y, zone_)
    drawing.rectangle((left, high), (panel.right, low), BAND, opacity=0.18)
    drawing.line([(left, panel.y(panel.result.k)), (panel.right, panel.y(panel.result.k))], BAND, 1.6)
    drawing.text(panel.right + 5, panel.y(panel.result.k) + 4, f"k = {panel.result.k}", NOTE)
    for line, text in enumerate(("noise decides:", f"{zone_[0]} to {zone_[1]}")):
        drawing.text(panel.right + 5, low + 14 + 13 * line, text, NOTE, size=11)
    _draw_axes(panel)
    drawing.line(list(_curve(panel)), COUNT, 2)
    for step in panel.restarts:
        drawing.line([(panel.x(step), upper), (panel.x(step), panel.bottom)], RESTART, 1.5, dashed=True)
        early = step - panel.first < panel.result.steps / 5
        for line, text in enumerate(("restart:", "new noise")):
            place = (panel.x(step) + (5 if early else -5), upper + 12 + 13 * line)
            drawing.text(*place, text, RESTART, anchor="start" if early else "end", size=11)
    _draw_status(panel)
    _explain(panel)
    drawing.text(left, upper - 10, f"{name} {_story(panel.history, panel.restarts)}", size=14)


def _draw_axes(panel: _Panel) -> None:
    """The counts and the days."""
    drawing, left = panel.drawing, panel.corner[0]
    drawing.line([(left, panel.corner[1]), (left, panel.bottom), (panel.right, panel.bottom)], TEXT, 1)
    for count in ticks(INSTANCES * panel.top, 6):
        drawing.line([(left - 4, panel.y(count)), (left, panel.y(count))], TEXT, 1)
        drawing.text(left - 7, panel.y(count) + 4, str(count), anchor="end")
    begin = panel.result.start
    drawing.days(begin, begin + panel.result.steps * panel.result.period, panel.at, panel.bottom)


def _curve(panel: _Panel) -> Iterator[tuple[float, float]]:
    """The count, which stays from the end of a step to the end of the next one."""
    last = None
    for step, count in enumerate(panel.history.counts, panel.history.first):
        if last is not None:
            yield panel.x(step), panel.y(last)
        yield panel.x(step), panel.y(count)
        last = count


def _draw_status(panel: _Panel) -> None:
    """The served status, as a bar below the curve."""
    drawing, history = panel.drawing, panel.history
    upper, lower = panel.bottom - 0.085 * ROOM[1], panel.bottom - 0.02 * ROOM[1]
    drawing.text(panel.corner[0] - 7, lower - 5, "status", anchor="end")
    first = history.first
    for status, run in groupby(history.statuses):
        length = len(list(run))
        left, right = panel.x(first), panel.x(min(first + length, history.first + len(history.counts)))
        drawing.rectangle((left, upper), (right, lower), TRUE if status else FALSE)
        if length > 0.1 * panel.result.steps:
            colour = "white" if status else TEXT
            drawing.text((left + right) / 2, lower - 5, str(status).lower(), colour, anchor="middle")
        first += length


def _draw_instances(panel: _Panel) -> None:
    """Every instance as an arrow between two restarts, clipped to the panel."""
    height = panel.y(INSTANCES * panel.top)
    edges = [panel.corner[0], *map(panel.x, panel.restarts), panel.right]
    for place, (left, right) in enumerate(pairwise(edges)):
        if right - left < 4 * HEAD:
            continue
        line = [(left + 3, height), (right - 3, height)]
        panel.drawing.line(line, RESTART, 1)
        if place:
            panel.drawing.head(line[1], line[0], RESTART)
        if place < len(panel.restarts):
            panel.drawing.head(line[0], line[1], RESTART)
        if right - left > 0.2 * ROOM[0]:
            panel.drawing.text((left + right) / 2, height - 5, "instance", RESTART, anchor="middle", size=11)


def _explain(panel: _Panel) -> None:
    """Explain beside the curve why a set whose count fell still reads true."""
    history, fell = panel.history, _fell_while_true(panel.history, panel.restarts)
    if fell is None:
        return
    places = [step - history.first for step in panel.restarts]
    begin = max([0, *(place for place in places if place <= fell)])
    end = min([len(history.counts), *(place for place in places if place > fell)])
    centre, height = _empty_spot(history.counts, begin, end, panel.result.steps // 7, panel.top)
    spot = (panel.x(history.first + centre), panel.y(height))
    told = (panel.x(history.first + fell), panel.y(history.counts[fell]))
    beside = 24 if told[1] > spot[1] else -24
    panel.drawing.line([(spot[0], spot[1] + beside), told], TEXT, 1)
    panel.drawing.head((spot[0], spot[1] + beside), told, TEXT)
    for line, text in enumerate(("the count falls,", "the set stays true", "until its restart")):
        panel.drawing.text(spot[0], spot[1] - 9 + 13 * line, text, anchor="middle", size=11)


def _empty_spot(counts: Sequence[int], begin: int, end: int, half: int, top: float) -> tuple[int, float]:
    """The centre of a text, ``2 * half`` steps wide, that is farthest from the curve between two steps."""
    spots = [
        (centre, height * top)
        for centre in range(begin + half, max(begin + half + 1, end - half))
        for height in (0.15, 0.4, 0.62)
    ]

    def distance(spot: tuple[int, float]) -> float:
        near = counts[max(0, spot[0] - half) : spot[0] + half]
        return min((abs(count - spot[1]) for count in near), default=top)

    return max(spots, key=distance)


def _fell_while_true(history: History, restarts: Sequence[int]) -> int | None:
    """A point at which a set is true with fewer clients than when it crossed, in the longest such run."""
    edges = [0, *(step - history.first for step in restarts), len(history.counts)]
    runs = []
    for low, high in pairwise(edges):
        if True in history.statuses[low:high]:
            crossing = low + history.statuses[low:high].index(True)
            below = [
                n
                for n in range(crossing, high)
                if history.statuses[n] and history.counts[n] < history.counts[crossing] - 3
            ]
            runs.append(below)
    longest = max(runs, key=len, default=[])
    return longest[len(longest) // 2] if longest else None


def _story(history: History, restarts: Sequence[int]) -> str:
    """The history of a set in a few words."""
    if True not in history.statuses:
        return f"never turns true, with at most {max(history.counts)} clients"
    count = history.counts[history.statuses.index(True)]
    story = f"turns true at {count} clients"
    places = [step - history.first for step in restarts]
    if any(history.statuses[n - 1 : n + 1] == [True, False] for n in places):
        last = next(n for n in reversed(places) if history.statuses[n - 1 : n + 1] == [True, False])
        return f"{story}, false at its restart" + (", true again" if any(history.statuses[last:]) else "")
    return f"{story}, stays true though they leave" if _fell_while_true(history, restarts) else story
