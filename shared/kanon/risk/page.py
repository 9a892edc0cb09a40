"""The uniqueness report as one HTML page that loads nothing."""

from collections.abc import Sequence
from html import escape

from kanon import page as template
from kanon.page import drawing, row
from kanon.risk.pictures import picture
from kanon.risk.uniqueness import Point, Report
from kanon.risk.wording import CAVEATS, REACHED, costs, finding, reached, service_note, with_error

SHOWN = (2, 3, 5, 10, 20, 50, 100, 200)


def page(reports: Sequence[Report], thresholds: Sequence[int]) -> str:
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


def _overview(report: Report) -> str:
    left_out = f" {report.left_out:,} rows lack a value or a user and are left out." if report.left_out else ""
    return f"<p>{report.rows:,} rows; users are identified by the column {escape(report.user)}.{left_out}</p>"


def _section(report: Report, thresholds: Sequence[int]) -> str:
    service = {point.k: point for point in report.service.curve}
    curve = "".join(row(str(point.k), *_cells(point), *_cells(service.get(point.k))) for point in map(report.at, SHOWN))
    return (
        f"<h2>{escape(report.name)}</h2><p>{escape(costs(report, thresholds))}</p>"
        f"<table><caption>Lost at a threshold of k users, with standard errors</caption>"
        f"{_head('k', 'values', 'rows', 'values, through the service', 'rows, through the service')}{curve}"
        f"</table>\n"
    )


def _cells(point: Point | None) -> tuple[str, str]:
    if point is None:
        return "no such k", "no such k"
    return with_error(point.values, point.standard_error), with_error(point.rows, point.rows_standard_error)


def _head(*cells: str) -> str:
    return row(*cells, of="th")
