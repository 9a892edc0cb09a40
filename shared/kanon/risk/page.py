"""The uniqueness report as one HTML page that loads nothing."""

from collections.abc import Sequence
from html import escape

from kanon.risk.pictures import picture
from kanon.risk.uniqueness import Point, Report
from kanon.risk.wording import CAVEATS, REACHED, costs, finding, reached, service_note, with_error

SHOWN = (2, 3, 5, 10, 20, 50, 100, 200)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 66rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: 1rem 0 } caption { text-align: left; padding: .3rem 0; color: #555 }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left } .dangerous { color: #a02000; font-weight: 600 }
svg { max-width: 100%; height: auto } .note { color: #555 }
"""


def page(reports: Sequence[Report], thresholds: Sequence[int]) -> str:
    """The whole page about at least one report. The text has the losses at the thresholds."""
    title = "What these columns reveal"
    svg = picture(reports, "svg").decode()
    svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{title}: shares lost by k"', 1)
    findings = "".join(f'<p class="{one.verdict.replace(" ", "-")}">{escape(finding(one))}</p>' for one in reports)
    lost = "".join(_row(escape(one.name), *reached(one)) for one in reports)
    lost = f"<table><caption>The least k that loses this share</caption>{_head('columns', *REACHED)}{lost}</table>"
    sections = "".join(_section(one, thresholds) for one in reports)
    notes = "".join(f"<p>{escape(caveat)}</p>" for caveat in (service_note(reports[0]), *CAVEATS))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n{_overview(reports[0])}{findings}\n{lost}\n{svg}\n{sections}\n"
        f'<div class="note">{notes}</div></body></html>\n'
    )


def _overview(report: Report) -> str:
    left_out = f" {report.left_out:,} rows lack a value or a user and are left out." if report.left_out else ""
    return f"<p>{report.rows:,} rows; users are identified by the column {escape(report.user)}.{left_out}</p>"


def _section(report: Report, thresholds: Sequence[int]) -> str:
    service = {point.k: point for point in report.service.curve}
    curve = "".join(
        _row(str(point.k), *_cells(point), *_cells(service.get(point.k))) for point in map(report.at, SHOWN)
    )
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
    return f"<tr>{''.join(f'<th>{cell}</th>' for cell in cells)}</tr>"


def _row(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
