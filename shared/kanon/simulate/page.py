"""The report of a simulation as one HTML page that loads nothing: the table, and four pictures.

These show status over time, delay, answers by count, and the privacy loss of clients.
"""

import json
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from kanon import page as template
from kanon.page import drawing
from kanon.pictures import BLUE, GREEN, ORANGE, PINK, SKY, TEXT, YELLOW, panels, saved
from kanon.simulate.rejoining import bounds_of
from kanon.simulate.run import Simulation
from kanon.simulate.table import NOT_PRIVATE, SECTIONS, Judged, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLOURS = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, TEXT, "#F0E442")
_POINTS = 600
_LIMITS = (0, 6, 24, 168)
"""Steps up to which the axis of delays is linear."""


def page(simulation: Simulation, types: Sequence[Judged]) -> str:
    """The whole page."""
    drawn = "".join(_figure(name, svg) for name, svg in _pictures(simulation, types).items())
    body = (
        f'<p>{escape(title(simulation))}</p>\n<p class="warning">{NOT_PRIVATE}</p>\n{_table(types)}\n'
        f'<p>{escape(types[0].prices.summary)}</p>\n<div class="pictures">{drawn}</div>\n{_documents(types)}'
    )
    return template.page("What kanon would answer on this log", body)


def _figure(name: str, svg: bytes) -> str:
    return f"<figure><figcaption>{name}</figcaption>{drawing(svg, name)}</figure>\n"


def _table(types: Sequence[Judged]) -> str:
    head = "".join(f"<th>{escape(one.label)}</th>" for one in types)
    rows = [f"<tr><th></th>{head}<th></th></tr>"]
    for name, section in SECTIONS:
        rows.append(f'<tr class="section"><th colspan="{len(types) + 2}">{name}</th></tr>')
        for row in section:
            cells = "".join(f"<td>{escape(row.value(one))}</td>" for one in types)
            rows.append(f'<tr><td>{row.name}</td>{cells}<td class="note">{row.meaning}</td></tr>')
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _documents(types: Sequence[Judged]) -> str:
    """The document ``Types`` of each type, to copy."""
    entries = "".join(
        f"<h3>{escape(one.label)}</h3><pre>{escape(json.dumps(one.as_json()['types']))}</pre>" for one in types
    )
    return f"<h2>Types</h2><p>The parameter <code>Types</code> of the deployment, to copy:</p>{entries}"


# --- pictures ------------------------------------------------------------------------------------


def _pictures(simulation: Simulation, types: Sequence[Judged]) -> dict[str, bytes]:
    """Each picture as SVG, by its title."""
    drawn: dict[str, Callable[[Axes], None]] = {
        "Sets that read true over time": lambda panel: _over_time(panel, simulation, types),
        "Delay after the exact count reaches k": lambda panel: _delay(panel, types),
        "True answers by exact count": lambda panel: _by_count(panel, types),
        "What clients lose in a set": lambda panel: _lost(panel, types),
    }
    return {title: _svg(draw) for title, draw in drawn.items()}


def _svg(draw: "Callable[[Axes], None]") -> bytes:
    from matplotlib import rc_context

    with rc_context({"font.size": 9.5, "text.color": TEXT, "axes.labelcolor": TEXT}):
        figure, ((panel,),) = panels(1, 1, (6.2, 4.2), layout="constrained")
        draw(panel)
        panel.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
        return saved(figure, "svg")


def _lines(types: Sequence[Judged]) -> list[tuple[Judged, str, str]]:
    """A colour for each type, and a line style if there are more types than colours."""
    styles = ("-", "--", ":", "-.")
    return [(one, COLOURS[n % len(COLOURS)], styles[n // len(COLOURS) % len(styles)]) for n, one in enumerate(types)]


def _over_time(panel: "Axes", simulation: Simulation, types: Sequence[Judged]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    steps = simulation.steps
    edges = np.unique(np.linspace(0, len(steps), min(_POINTS, len(steps)) + 1).astype(int))
    times = (np.datetime64(0, "s") + (steps.start + edges[:-1]) * simulation.period).astype("datetime64[s]")

    def means(changes: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[float]:
        sums = np.concatenate(([0], np.cumsum(np.cumsum(changes))))
        return list(np.diff(sums[edges]) / np.diff(edges))

    told = set()
    for one, colour, style in _lines(types):
        place = (one.type_.parameters.k, one.type_.parameters.window)
        if place not in told:
            told.add(place)
            label = f"exact count at least k={place[0]}, w={place[1]}"
            panel.plot(times, means(one.outcome.reached_changes), color="#BBBBBB", linewidth=2.5, label=label)
        panel.plot(
            times, means(one.outcome.true_changes), color=colour, linestyle=style, linewidth=1.2, label=one.label
        )
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    panel.xaxis.set_major_locator(locator)
    panel.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    panel.set(ylabel="sets", ylim=(0, None))


def _delay(panel: "Axes", types: Sequence[Judged]) -> None:
    names = ["immediately", *(f"within {limit:,}" for limit in _LIMITS[1:]), "later", "never"]
    width = 0.8 / len(types)
    for number, (one, colour, style) in enumerate(_lines(types)):
        delays, reached = one.outcome.delays, max(1, one.outcome.sets_reached)
        within = np.array([(delays <= limit).sum() for limit in _LIMITS])
        sets = [*np.diff(within, prepend=0), len(delays) - within[-1], one.outcome.never]
        places = np.arange(len(names)) + (number - (len(types) - 1) / 2) * width
        panel.bar(places, 100 * np.array(sets) / reached, width, color=colour, edgecolor="white", linestyle=style,
                  linewidth=0.5, label=one.label)  # fmt: skip
    panel.set_xticks(range(len(names)), names)
    label = "steps from the step that reaches k to the first true answer"
    panel.set(ylim=(0, 100), xlabel=label, ylabel="% of the sets that reach k")


def _by_count(panel: "Axes", types: Sequence[Judged]) -> None:
    for one, colour, style in _lines(types):
        counts = one.outcome.true_by_count[:-1]
        shares = counts / max(1, one.outcome.answers_true)
        panel.plot(np.arange(len(counts)), 100 * shares, color=colour, linestyle=style, label=one.label)
    for k in sorted({one.type_.parameters.k for one in types}):
        panel.axvline(k, color=TEXT, linewidth=0.8, linestyle=":")
        panel.annotate(f"k = {k}", (k, 0.98), xycoords=("data", "axes fraction"), xytext=(-3, 0),
                       textcoords="offset points", ha="right", va="top", fontsize=8)  # fmt: skip
    panel.set(xlim=(0, None), xlabel="exact count of clients in the window (never released)")
    panel.set(ylim=(0, None), ylabel="% of the true answers")


def _lost(panel: "Axes", types: Sequence[Judged]) -> None:
    for one, colour, style in _lines(types):
        bounds = bounds_of(one.type_.parameters, one.outcome.rejoining)
        epsilons = np.array([float(bound.epsilon) for _, bound in bounds])
        shares = np.cumsum([clients for clients, _ in bounds]) / one.rejoining.clients
        panel.step(epsilons, 100 * (1 - np.concatenate(([0], shares[:-1]))), where="pre", color=colour,
                   linestyle=style, label=one.label)  # fmt: skip
    panel.set(xscale="log", xlabel="epsilon of all joins of a client in one set")
    panel.set(yscale="log", ylabel="% of clients that lose as much or more")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_major_formatter("{x:g}")
