"""The demo's picture: a few sets near the threshold, their exact count, and when they read true."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from kanon.gate.mechanism.parameters import Parameters
from kanon.local.replay import History, Result
from kanon.plan.planner import zone

COUNT, TRUE, BAND, TEXT = "#0072B2", "#009E73", "#E69F00", "#333333"  # Okabe and Ito's colours
PANELS = 4


def near_threshold(result: Result, low: int, high: int) -> list[str]:
    """Sets worth a look: their largest count lies near the threshold, and no two tell the same story.

    One that a restart turns false, one that crosses early, one late, one never: whatever
    of these the log holds, filled up with those that spend most time near k.
    """

    def closeness(name: str) -> float:
        counts = np.array(result.histories[name].counts)
        return float(((counts > low) & (counts < high)).sum())

    def crossing(history: History) -> int:
        return history.counts[history.statuses.index(True)]

    def false_again(name: str) -> int:
        """Steps without the status after its first crossing: a restart took it away."""
        statuses = result.histories[name].statuses
        return statuses[statuses.index(True) :].count(False)

    near = [
        name for name, history in result.histories.items() if low < max(history.counts) < result.k + (result.k - low)
    ]
    near.sort(key=closeness, reverse=True)
    true = [name for name in near if any(result.histories[name].statuses)]
    stories = (
        sorted(filter(false_again, true), key=false_again, reverse=True),
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


def draw(result: Result, parameters: Parameters, title: str, path: Path) -> None:
    """Write the picture as a PNG."""
    from matplotlib import pyplot as plt
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    plt.switch_backend("agg")
    low, high = zone(parameters)
    names = near_threshold(result, low, high)
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), sharex=True, sharey=True, squeeze=False)
    top = max([high, *(max(result.histories[name].counts) for name in names)]) * 1.08
    begin = datetime.fromtimestamp(result.start, UTC)
    end = begin + timedelta(seconds=result.period * max(result.steps, 1))
    for panel, name in zip(axes.flat, names, strict=False):
        history = result.histories[name]
        times = [
            datetime.fromtimestamp(history.first * result.period, UTC) + timedelta(seconds=result.period * (n + 1))
            for n in range(len(history.counts))
        ]
        panel.axhspan(low, high, color=BAND, alpha=0.22, linewidth=0)
        panel.axhline(result.k, color=BAND, linewidth=1.4)
        panel.fill_between(
            times,
            0,
            history.counts,
            where=history.statuses,
            step="post",
            facecolor=TRUE,
            alpha=0.28,
            hatch="///",
            edgecolor=TRUE,
            linewidth=0,
        )
        panel.step(times, history.counts, where="post", color=COUNT, linewidth=1.8)
        panel.set_title(name, fontsize=11, color=TEXT, loc="left")
        panel.set_ylim(0, top)
        panel.set_xlim(begin, end)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9, colors=TEXT)
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        panel.xaxis.set_major_locator(locator)
        panel.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    for panel in axes.flat[len(names) :]:
        panel.set_axis_off()
    for panel in axes[:, 0]:
        panel.set_ylabel(f"clients in {parameters.window} steps", fontsize=10, color=TEXT)
    figure.suptitle(title, fontsize=12, color=TEXT, x=0.012, ha="left")
    figure.legend(
        handles=[
            Line2D([], [], color=COUNT, linewidth=1.8, label="exact count (never released)"),
            Patch(facecolor=TRUE, alpha=0.28, hatch="///", edgecolor=TRUE, label="status served: true"),
            Line2D([], [], color=BAND, linewidth=1.4, label=f"threshold k = {result.k}"),
            Patch(color=BAND, alpha=0.22, linewidth=0, label=f"where the noise decides ({low} to {high}, 99%)"),
        ],
        loc="lower center",
        ncols=4,
        frameon=False,
        fontsize=9.5,
    )
    figure.tight_layout(rect=(0, 0.045, 1, 0.985))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
