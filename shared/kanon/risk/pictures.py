"""The picture of a report: the loss at a threshold k, one panel for each combination of columns."""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Literal

from kanon.pictures import BLUE, GREEN, ORANGE, TEXT, panels, saved
from kanon.risk.uniqueness import Point, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VALUES, ROWS, SERVICE = BLUE, ORANGE, GREEN
IN_A_ROW = 3
TICKS = (2, 5, 10, 20, 50, 100, 200)


def picture(reports: Sequence[Report], form: Literal["png", "svg"]) -> bytes:
    """Draw the curves of all reports. Identifiers are drawn only if there are no other columns.

    Returns:
        A PNG, or an SVG that needs no font.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    reports = [one for one in reports if one.verdict != "identifier"] or reports
    across = min(len(reports), IN_A_ROW)
    down = ceil(len(reports) / across)
    size = (max(4.6 * across, 7.5), 3.9 * down + 0.9)
    figure, axes = panels(down, across, size, sharex=True, sharey=True)
    for panel, report in zip(axes.flat, reports, strict=False):
        _draw(panel, report)
    for panel in axes.flat[len(reports) :]:
        panel.set_axis_off()
    for panel in axes[:, 0]:
        panel.set_ylabel("share lost", fontsize=10, color=TEXT)
    service = reports[0].service
    figure.legend(
        handles=[
            Line2D([], [], color=VALUES, linewidth=2, label="values with fewer than k users"),
            Line2D([], [], color=ROWS, linewidth=2, label="rows of these values"),
            Line2D([], [], color=SERVICE, linewidth=2, linestyle="--",
                   label=f"rows lost through the service ({service.profile}, {service.window} steps)"),
            Patch(color="#999999", alpha=0.35, linewidth=0, label="two standard errors"),
        ],
        loc="lower center", ncols=2, frameon=False, fontsize=9.5,
    )  # fmt: skip
    figure.tight_layout(w_pad=2.5, rect=(0, 0.68 / figure.get_figheight(), 1, 1))
    return saved(figure, form)


def _draw(panel: "Axes", report: Report) -> None:
    from matplotlib.ticker import NullLocator, PercentFormatter

    _line(panel, report.curve, "values", VALUES, "-")
    _line(panel, report.curve, "rows", ROWS, "-")
    _line(panel, report.service.curve, "rows", SERVICE, "--")
    panel.set(xscale="log", xlim=(2, 200), ylim=(0, 1.02))
    panel.set_xticks(TICKS, [str(k) for k in TICKS])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.grid(color="#DDDDDD", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=9, colors=TEXT, labelbottom=True, labelleft=True)
    panel.set_xlabel("threshold k, users", fontsize=10, color=TEXT)
    panel.set_title(f"{report.name}: {report.verdict}", fontsize=11, color=TEXT, loc="left")


def _line(panel: "Axes", points: Sequence[Point], of: Literal["values", "rows"], colour: str, style: str) -> None:
    ks = [point.k for point in points]
    shares = [getattr(point, of) for point in points]
    errors = [point.standard_error if of == "values" else point.rows_standard_error for point in points]
    low = [max(share - 2 * error, 0) for share, error in zip(shares, errors, strict=True)]
    high = [min(share + 2 * error, 1) for share, error in zip(shares, errors, strict=True)]
    panel.fill_between(ks, low, high, color=colour, alpha=0.18, linewidth=0)
    panel.plot(ks, shares, color=colour, linestyle=style, linewidth=2, clip_on=False)
