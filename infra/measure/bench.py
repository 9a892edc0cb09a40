"""``python -m infra.measure.bench``: measures the cost of the service relative to the bare libraries.

Prints a table. A whole run can append its results to a history file (one line of JSON) and replace the table of a page.
Exits with a status other than 0 if a row could not be measured or a count misses its target. Times depend on the
machine, so they are shown but not judged.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from infra.measure.measure import Count, Taken
from infra.measure.rows import Failed, Form, Result, every_row, results
from kanon.local.source import ROOT

YARDSTICK = 2
"""The version of the reference measurements in the history. Figures of different versions cannot be compared (see the
page)."""

HEADER = (
    "| what | what it includes | against | figure | lowest, highest | one takes | target | met |\n"
    "|---|---|---|---|---|---|---|---|"
)
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def main(arguments: list[str] | None = None) -> int:
    """Measure the rows; 1 if one of them failed or a counted quantity missed its target."""
    parser = argparse.ArgumentParser(prog="python -m infra.measure.bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="small sizes: the counts are valid, the times are rough")
    parser.add_argument("--rows", help="measure only rows whose name contains this text; store nothing")
    parser.add_argument("--history", type=Path, help="append the results of a whole run to this file")
    parser.add_argument("--page", type=Path, help="replace the table of this page by that of a whole run")
    asked = parser.parse_args(arguments)
    rows, found = every_row()
    if asked.rows is not None:
        rows = {name: measure for name, measure in rows.items() if asked.rows in name}
        if not rows:
            parser.error(f"no row has a name with {asked.rows!r}")
    print(HEADER, flush=True)
    measured: list[Result | Failed] = []
    for result in chain(found, results(rows, Form(asked.short))):
        measured.append(result)
        print(line(result), flush=True)
    if not asked.short and asked.rows is None:
        keep(measured, asked.history, asked.page)
    return int(any(isinstance(r, Failed) or (isinstance(r, Count) and not r.met) for r in measured))


def keep(measured: Sequence[Result | Failed], history: Path | None, page: Path | None) -> None:
    """Append a run to the history and put its table into the page."""
    ran = run(measured)
    if history:
        with history.open("a") as file:
            file.write(json.dumps(ran) + "\n")
    if page:
        page.write_text(with_table(page.read_text(), ran, measured))


def with_table(text: str, ran: dict[str, object], measured: Sequence[Result | Failed]) -> str:
    """The text with the table of a run between the two markers.

    Raises:
        ValueError: the text does not have both markers, once each.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page must contain {BEGIN} and {END} once each")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    told = f"Run of {ran['when']}, commit `{ran['commit']}`, Python {ran['python']}, {ran['machine']}."
    table = "\n".join([HEADER, *map(line, measured)])
    return f"{before}{BEGIN}\n\n{told}\n\n{table}\n\n{missed(measured)}\n\n{END}{after}"


def missed(measured: Sequence[Result | Failed]) -> str:
    """A sentence with the rows that missed their target or could not be measured."""
    names = [f"{result.name}" for result in measured if isinstance(result, Failed) or result.met is False]
    return f"Targets missed in this run: {'; '.join(names)}." if names else "Every target was met in this run."


def line(result: Result | Failed) -> str:
    """A row of the table."""
    if isinstance(result, Failed):
        return f"| {result.name} | | | not measured: {result.reason.replace('|', '/')} | | | | no |"
    met = "-" if result.met is None else "yes" if result.met else "no"
    if isinstance(result, Count):
        what = f"| {result.name} | {result.against} | |"
        return f"{what} {result.value:.4g} | counted | | at most {result.most:g} | {met} |"
    if isinstance(result, Taken):
        target = "-" if result.most is None else f"at most {result.most:g} s"
        took = duration(result.seconds)
        return f"| {result.name} | {result.inside} | | {took} | once | {result.remark} | {target} | {met} |"
    target = "-" if result.target is None else f"at {'least' if result.at_least else 'most'} {result.target:g}"
    spread = f"{min(result.ratios):.2f}, {max(result.ratios):.2f}"
    takes = f"{duration(result.seconds)} a {result.unit}, against {duration(result.seconds_against)}"
    return (
        f"| {result.name} | {result.inside} | {result.against} | {result.median:.2f} | {spread} | {takes} | {target} |"
        f" {met} |"
    )


def duration(seconds: float) -> str:
    """A time with three significant digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def run(measured: Sequence[Result | Failed]) -> dict[str, object]:
    """The results of a run, with the commit, the Python version and the machine."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "yardstick": YARDSTICK,
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "figures": [result.figures for result in measured if not isinstance(result, Failed)],
        "failed": [{"name": r.name, "reason": r.reason} for r in measured if isinstance(r, Failed)],
    }


if __name__ == "__main__":
    sys.exit(main())
