"""The template of a page: one HTML file that loads nothing."""

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 80rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: 1rem 0 } caption { text-align: left; padding: .3rem 0; color: #555 }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; font-variant-numeric: tabular-nums }
th:first-child, td:first-child, td.note { text-align: left } tr.section th { text-align: left; padding-top: 1rem }
.note { color: #555 } td.note { font-size: .9rem } .dangerous { color: #a02000; font-weight: 600 }
.wide { overflow-x: auto } pre { background: #f4f4f4; padding: .8rem; overflow-x: auto }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(28rem, 1fr)); gap: 1.5rem }
figure { margin: 0 } figcaption { font-weight: 600 } svg { max-width: 100%; height: auto }
.warning { border-left: .3rem solid #D55E00; padding: .3rem .8rem; background: #fdf3ec }
"""


def page(title: str, body: str) -> str:
    """The whole page. ``title`` and ``body`` are HTML: escape what comes from outside."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n{body}</body></html>\n"
    )


def drawing(svg: bytes, label: str) -> str:
    """A picture within a page, and what a screen reader says of it."""
    text = svg.decode()
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def row(*cells: str, of: str = "td") -> str:
    """A row of a table; cells are HTML."""
    return f"<tr>{''.join(f'<{of}>{cell}</{of}>' for cell in cells)}</tr>"
