"""The report of a simulation as one HTML page that loads nothing."""

import json
from collections.abc import Sequence
from html import escape

from kanon.simulate.figures import NOT_PRIVATE, SECTIONS, Judged, title
from kanon.simulate.pictures import pictures
from kanon.simulate.run import Simulation

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 80rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: 1rem 0 } .wide { overflow-x: auto }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; font-variant-numeric: tabular-nums }
th:first-child, td:first-child, td:last-child { text-align: left } tr.section th { text-align: left; padding-top: 1rem }
td:last-child { color: #555; font-size: .9rem } pre { background: #f4f4f4; padding: .8rem; overflow-x: auto }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(28rem, 1fr)); gap: 1.5rem }
figure { margin: 0 } figcaption { font-weight: 600 } svg { max-width: 100%; height: auto }
.warning { border-left: .3rem solid #D55E00; padding: .3rem .8rem; background: #fdf3ec }
"""


def page(simulation: Simulation, types: Sequence[Judged]) -> str:
    """The whole page."""
    heading = "What kanon would answer on this log"
    drawn = "".join(_figure(name, svg) for name, svg in pictures(simulation, types).items())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{heading}</h1>\n<p>{escape(title(simulation))}</p>\n"
        f'<p class="warning">{NOT_PRIVATE}</p>\n{_table(types)}\n<p>{escape(types[0].prices.summary)}</p>\n'
        f'<div class="pictures">{drawn}</div>\n'
        f"{_documents(types)}</body></html>\n"
    )


def _figure(name: str, svg: bytes) -> str:
    text = svg.decode()
    text = text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{name}"', 1)
    return f"<figure><figcaption>{name}</figcaption>{text}</figure>\n"


def _table(types: Sequence[Judged]) -> str:
    head = "".join(f"<th>{escape(one.label)}</th>" for one in types)
    rows = [f"<tr><th></th>{head}<th></th></tr>"]
    for name, section in SECTIONS:
        rows.append(f'<tr class="section"><th colspan="{len(types) + 2}">{name}</th></tr>')
        for row in section:
            cells = "".join(f"<td>{escape(row.value(one))}</td>" for one in types)
            rows.append(f"<tr><td>{row.name}</td>{cells}<td>{row.meaning}</td></tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _documents(types: Sequence[Judged]) -> str:
    """The document ``Types`` of each type, to copy."""
    entries = "".join(
        f"<h3>{escape(one.label)}</h3><pre>{escape(json.dumps(one.as_json()['types']))}</pre>" for one in types
    )
    return f"<h2>Types</h2><p>The parameter <code>Types</code> of the deployment, to copy:</p>{entries}"
