"""The demo's picture: sets near the threshold, their exact count, their status, their instances and restarts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from kanon.gate.mechanism.parameters import Parameters
from kanon.local.replay import History, Result
from kanon.pictures import BLUE, GREEN, ORANGE, TEXT, YELLOW, panels, saved
from kanon.plan.planner import zone

COUNT, TRUE, BAND, RESTART, FALSE = BLUE, GREEN, YELLOW, ORANGE, "#DDDDDD"
PANELS = 4
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
    """The picture as a PNG. ``phases``: the phase of every set, at which its instances or epochs begin."""
    zone_ = zone(parameters)
    names = near_threshold(result, *zone_)
    figure, axes = panels(2, 2, (12, 8), sharex=True, sharey=True)
    top = max([zone_[1], *(max(result.histories[name].counts) for name in names)]) * 1.45
    for panel, name in zip(axes.flat, names, strict=False):
        restarts = restarts_of(result.histories[name], parameters, phases[name])
        _draw_set(panel, result, name, restarts, zone_, top)
        if parameters.restart is None:
            _draw_instances(_Panel(panel, result, result.histories[name], restarts, top))
    for panel in axes.flat[len(names) :]:
        panel.set_axis_off()
    for panel in axes[:, 0]:
        label = f"exact count of clients\nin {parameters.window} steps (never released)"
        panel.set_ylabel(label, fontsize=10, color=TEXT)
    figure.suptitle(title, fontsize=13, color=TEXT, x=0.012, ha="left")
    figure.tight_layout(rect=(0, 0, 1, 0.99), h_pad=2, w_pad=4)
    return saved(figure)


@dataclass(frozen=True)
class _Panel:
    """The axes of one set. ``restarts``: the steps at which its status may end; ``top``: end of the counts."""

    axes: Any
    result: Result
    history: History
    restarts: Sequence[int]
    top: float

    @property
    def begin(self) -> datetime:
        """The start of the log."""
        return datetime.fromtimestamp(self.result.start, UTC)

    def at(self, step: int) -> datetime:
        """The end of a step, at which it is decided."""
        return datetime.fromtimestamp((step + 1) * self.result.period, UTC)


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


def _draw_set(
    axes: Any, result: Result, name: str, restarts: Sequence[int], zone_: tuple[int, int], top: float
) -> None:
    """One set: its count against threshold and zone, its restarts, and its status as a bar below."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    history, first = result.histories[name], result.start // result.period
    steps = range(history.first, history.first + len(history.counts))
    panel = _Panel(axes, result, history, restarts, top)
    axes.set_xlim(panel.begin, panel.at(first + max(result.steps, 1)))
    axes.axhspan(*zone_, color=BAND, alpha=0.18, linewidth=0)
    axes.axhline(result.k, color=BAND, linewidth=1.4)
    axes.annotate(
        f"k = {result.k}", (1, result.k), xycoords=("axes fraction", "data"), xytext=(4, 0),
        textcoords="offset points", va="center", fontsize=9, color="#9A6A00",
    )  # fmt: skip
    axes.annotate(
        f"noise decides:\n{zone_[0]} to {zone_[1]}", (1, zone_[0]), xycoords=("axes fraction", "data"),
        xytext=(4, 0), textcoords="offset points", va="top", fontsize=8, color="#9A6A00",
    )  # fmt: skip
    axes.step([panel.at(step) for step in steps], history.counts, where="post", color=COUNT, linewidth=1.8)
    _draw_status(panel, steps)
    for step in restarts:
        axes.axvline(panel.at(step), color=RESTART, linewidth=1.3, linestyle="--")
        early = step - first < result.steps / 5
        axes.annotate(
            "restart:\nnew noise", (panel.at(step), top), xytext=(4 if early else -4, -3), textcoords="offset points",
            ha="left" if early else "right", va="top", fontsize=8.5, color=RESTART,
        )  # fmt: skip
    _explain(panel)
    axes.set_title(f"{name} {_story(history, restarts)}", fontsize=11, color=TEXT, loc="left")
    axes.set_ylim(-0.16 * top, top)
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= INSTANCES * top])
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, colors=TEXT)
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _draw_status(panel: _Panel, steps: range) -> None:
    """The served status, as a bar below the curve."""
    axes = panel.axes
    place = {"transform": axes.get_xaxis_transform(), "va": "center_baseline", "fontsize": 9}
    axes.text(panel.begin, 0.05, "status ", ha="right", color=TEXT, **place)
    first = steps.start
    for status, run in groupby(panel.history.statuses):
        length = len(list(run))
        start, stop = panel.at(first), panel.at(min(first + length, steps.stop))
        axes.axvspan(start, stop, 0.02, 0.085, color=TRUE if status else FALSE, linewidth=0, zorder=3)
        if length > 0.1 * panel.result.steps:
            colour = "white" if status else TEXT
            axes.text(start + (stop - start) / 2, 0.05, str(status).lower(), ha="center", color=colour, **place)
        first += length


def _draw_instances(panel: _Panel) -> None:
    """Every instance as an arrow between two restarts, clipped to the panel."""
    from matplotlib.dates import num2date

    end = num2date(panel.axes.get_xlim()[1])  # type: ignore[no-untyped-call]
    height = INSTANCES * panel.top
    for place, (left, right) in enumerate(pairwise([panel.begin, *map(panel.at, panel.restarts), end])):
        heads = ("<" if place else "") + "-" + (">" if place < len(panel.restarts) else "")
        arrow = {"arrowstyle": heads, "color": RESTART, "linewidth": 0.9, "shrinkA": 2, "shrinkB": 2}
        panel.axes.annotate("", (right, height), xytext=(left, height), arrowprops=arrow)
        if right - left > 0.2 * (end - panel.begin):
            panel.axes.annotate(
                "instance", (left + (right - left) / 2, height), xytext=(0, 3), textcoords="offset points",
                ha="center", va="bottom", fontsize=8.5, color=RESTART,
            )  # fmt: skip


def _explain(panel: _Panel) -> None:
    """Explain beside the curve why a set whose count fell still reads true."""
    history, fell = panel.history, _fell_while_true(panel.history, panel.restarts)
    if fell is None:
        return
    places = [step - history.first for step in panel.restarts]
    begin = max([0, *(place for place in places if place <= fell)])
    end = min([len(history.counts), *(place for place in places if place > fell)])
    centre, height = _empty_spot(history.counts, begin, end, panel.result.steps // 7, panel.top)
    panel.axes.annotate(
        "the count falls,\nthe set stays true\nuntil its restart",
        (panel.at(history.first + fell), history.counts[fell]), xytext=(panel.at(history.first + centre), height),
        ha="center", va="center", fontsize=8.5, color=TEXT,
        arrowprops={"arrowstyle": "->", "color": TEXT, "shrinkA": 6}, zorder=4,
    )  # fmt: skip


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
