"""The report of a simulation as one HTML page that loads nothing."""

import json
from collections.abc import Sequence
from html import escape

from kanon import page as template
from kanon.page import drawing
from kanon.simulate.figures import NOT_PRIVATE, SECTIONS, Judged, title
from kanon.simulate.pictures import pictures
from kanon.simulate.run import Simulation


def page(simulation: Simulation, types: Sequence[Judged]) -> str:
    """The whole page."""
    drawn = "".join(_figure(name, svg) for name, svg in pictures(simulation, types).items())
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
