"""The uniqueness report as one HTML page that loads nothing, and its picture.

The picture is the loss at a threshold k, one panel for each combination of columns.
"""

from collections.abc import Sequence
from html import escape
from math import ceil
from typing import TYPE_CHECKING, Literal

from kanon import page as template
from kanon.page import drawing, row
from kanon.pictures import BLUE, GREEN, ORANGE, TEXT, panels, saved
from kanon.risk.uniqueness import (
    CAVEATS,
    REACHED,
    ColumnUniqueness,
    ThresholdLoss,
    costs,
    finding,
    reached,
    service_note,
    with_error,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VALUES, ROWS, SERVICE = BLUE, ORANGE, GREEN
IN_A_ROW = 3
TICKS = (2, 5, 10, 20, 50, 100, 200)
SHOWN = (2, 3, 5, 10, 20, 50, 100, 200)


def page(reports: Sequence[ColumnUniqueness], thresholds: Sequence[int]) -> str:
    """The whole page about at least one report. The text has the losses at the thresholds."""
    title = "What these columns reveal"
    svg = drawing(picture(reports, "svg"), f"{title}: shares lost by k")
    findings = "".join(f'<p class="{one.verdict.replace(" ", "-")}">{escape(finding(one))}</p>' for one in reports)
    lost = "".join(row(escape(one.name), *reached(one)) for one in reports)
    lost = f"<table><caption>The least k that loses this share</caption>{_head('columns', *REACHED)}{lost}</table>"
    sections = "".join(_section(one, thresholds) for one in reports)
    notes = "".join(f"<p>{escape(caveat)}</p>" for caveat in (service_note(reports[0]), *CAVEATS))
    body = f'{_overview(reports[0])}{findings}\n{lost}\n{svg}\n{sections}\n<div class="note">{notes}</div>'
    return template.page(title, body)


def _overview(report: ColumnUniqueness) -> str:
    left_out = f" {report.left_out:,} rows lack a value or a user and are left out." if report.left_out else ""
    return f"<p>{report.rows:,} rows; users are identified by the column {escape(report.user)}.{left_out}</p>"


def _section(report: ColumnUniqueness, thresholds: Sequence[int]) -> str:
    service = {point.k: point for point in report.service.curve}
    curve = "".join(row(str(point.k), *_cells(point), *_cells(service.get(point.k))) for point in map(report.at, SHOWN))
    return (
        f"<h2>{escape(report.name)}</h2><p>{escape(costs(report, thresholds))}</p>"
        f"<table><caption>Lost at a threshold of k users, with standard errors</caption>"
        f"{_head('k', 'values', 'rows', 'values, through the service', 'rows, through the service')}{curve}"
        f"</table>\n"
    )


def _cells(point: ThresholdLoss | None) -> tuple[str, str]:
    if point is None:
        return "no such k", "no such k"
    return with_error(point.values, point.standard_error), with_error(point.rows, point.rows_standard_error)


def _head(*cells: str) -> str:
    return row(*cells, of="th")


# --- the picture ----------------------------------------------------------------------------------


def picture(reports: Sequence[ColumnUniqueness], form: Literal["png", "svg"]) -> bytes:
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


def _draw(panel: "Axes", report: ColumnUniqueness) -> None:
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


def _line(
    panel: "Axes", points: Sequence[ThresholdLoss], of: Literal["values", "rows"], colour: str, style: str
) -> None:
    ks = [point.k for point in points]
    shares = [getattr(point, of) for point in points]
    errors = [point.standard_error if of == "values" else point.rows_standard_error for point in points]
    low = [max(share - 2 * error, 0) for share, error in zip(shares, errors, strict=True)]
    high = [min(share + 2 * error, 1) for share, error in zip(shares, errors, strict=True)]
    panel.fill_between(ks, low, high, color=colour, alpha=0.18, linewidth=0)
    panel.plot(ks, shares, color=colour, linestyle=style, linewidth=2, clip_on=False)
