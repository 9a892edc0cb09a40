"""``python -m bench``: measures the claims of docs/evidence/performance.md, or some by the names of their files.

Prints a table. With ``--keep``, a whole run is appended to docs/evidence/benchmarks.jsonl, replaces the table of the
page, and gives its times to `kanon cost` (run ``make reference`` afterwards). Exits with a status other than 0 if a row
could not be measured or a count misses its target. Times depend on the machine, so they are shown but not judged.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bench.harness import Count, Failed, Form, Ratio, Result, results
from kanon.local.source import ROOT

CLAIMS = ("units", "evaluate", "step", "requests", "credentials", "disk", "reports", "desk")
"""The modules of this package whose ``rows`` are measured, in the order of the page."""
YARDSTICK = 4
"""The version of the measurements in the history. Figures of different versions cannot be compared (see the page)."""
HISTORY, PAGE = ROOT / "docs/evidence/benchmarks.jsonl", ROOT / "docs/evidence/performance.md"
COST = ROOT / "shared/kanon/cost/measured.json"
HEADER = (
    "| what | what it includes | against | figure | lowest, highest | one takes | target | met |\n"
    "|---|---|---|---|---|---|---|---|"
)
ROW = re.compile(r"make bench.* row `(.+?)`")
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"

Measured = Sequence[Result | Failed]


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if a row could not be measured or a count missed its target."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("claims", nargs="*", metavar="claim", help=f"of {', '.join(CLAIMS)}; all by default")
    parser.add_argument("--short", action="store_true", help="small sizes: the counts are valid, the times are rough")
    parser.add_argument("--keep", action="store_true", help="store the figures of this run, of all claims")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.claims) - set(CLAIMS):
        parser.error(f"no claim is called {min(unknown)}")
    if asked.keep and (asked.short or asked.claims):
        parser.error("--keep stores the figures of a whole run of all claims")
    print(HEADER, flush=True)
    measured = []
    for result in measure(asked.claims or CLAIMS, Form(asked.short)):
        measured.append(result)
        print(line(result), flush=True)
    if asked.keep:
        keep(measured)
    return int(any(isinstance(one, Failed) or (isinstance(one, Count) and not one.met) for one in measured))


def measure(claims: Sequence[str], form: Form) -> Iterator[Result | Failed]:
    """The rows of some claims."""
    for claim in claims:
        yield from results(claim, importlib.import_module(f"bench.{claim}").rows(form))


def keep(measured: Measured) -> None:
    """Append a run to the history, put its table into the page, and its times into the figures of `kanon cost`.

    Raises:
        ValueError: the page has no place for the table; or a row that `kanon cost` needs is missing, after the run and
            its table were stored.
    """
    ran = run(measured)
    page = with_table(PAGE.read_text(), ran, measured)
    with HISTORY.open("a") as file:
        file.write(json.dumps(ran) + "\n")
    PAGE.write_text(page)
    COST.write_text(with_times(COST.read_text(), ran))


def with_times(text: str, ran: Mapping[str, Any]) -> str:
    """The text of ``measured.json``: a value whose ``from`` names a row of `make bench` is this row's time.

    Raises:
        ValueError: the run does not have one figure of this name.
    """
    rows = {name: ROW.match(entry["from"]) for name, entry in json.loads(text)["values"].items()}
    times = {name: _milliseconds(ran, found[1], "") for name, found in rows.items() if found}
    times["query_ms"] = _milliseconds(ran, "join, a request", "_against")  # a minimal request
    times["hash_ms"] = (times["hash_ms"] - times["query_ms"]) / 100
    for name, time in times.items():
        text = re.sub(rf'(?<="{name}": {{"value": )[^,]+', f"{float(f'{time:.3g}'):.12g}", text)
    return text


def _milliseconds(ran: Mapping[str, Any], row: str, side: str) -> float:
    found = [figure for figure in ran["figures"] if figure["name"] == row]
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows of the run are called {row!r}: correct `from` in measured.json")
    return float(found[0][f"microseconds{side}"]) / 1000


def with_table(text: str, ran: Mapping[str, Any], measured: Measured) -> str:
    """The text with the table of a run between the two markers.

    Raises:
        ValueError: the text does not have both markers, once each.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page must contain {BEGIN} and {END} once each")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    told = f"Run of {ran['when']}, commit `{ran['commit']}`, Python {ran['python']}, {ran['machine']}."
    table = "\n".join([HEADER, *without_repetitions([line(result) for result in measured])])
    return f"{before}{BEGIN}\n\n{told}\n\n{table}\n\n{missed(measured)}\n\n{END}{after}"


def without_repetitions(rows: Sequence[str]) -> list[str]:
    """The rows, with ``the same`` in a second or third cell that repeats that of the row above."""
    cells = [row.split("|") for row in rows]
    return [
        "|".join(
            " the same " if at in (2, 3) and cell.strip() and above[at : at + 1] == [cell] else cell
            for at, cell in enumerate(own)
        )
        for above, own in zip([[], *cells], cells, strict=False)
    ]


def missed(measured: Measured) -> str:
    """A sentence with the rows that missed their target or could not be measured."""
    names = [result.name for result in measured if result.met is False]
    return f"Targets missed in this run: {'; '.join(names)}." if names else "Every target was met in this run."


def line(result: Result | Failed) -> str:
    """A row of the table."""
    if isinstance(result, Failed):
        return f"| {result.name} | | | not measured: {result.reason.replace('|', '/')} | | | | no |"
    met = "-" if result.met is None else "yes" if result.met else "no"
    if isinstance(result, Count):
        what = f"| {result.name} | {result.against} | |"
        return f"{what} {result.value:.4g} | counted | | at most {result.most:g} | {met} |"
    return f"{_measured(result)} {met} |"


def _measured(result: Ratio) -> str:
    row = result.row
    target = "-" if row.target is None else f"at most {row.target:g}"
    ours, theirs = map(duration, result.seconds)
    return (
        f"| {row.name} | {row.inside} | {row.against} | {result.median:.2f} |"
        f" {min(result.ratios):.2f}, {max(result.ratios):.2f} | {ours} a {row.unit}, against {theirs} | {target} |"
    )


def duration(seconds: float) -> str:
    """A time with three significant digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def run(measured: Measured) -> dict[str, Any]:
    """The results of a run, with the commit, the Python version and the machine."""
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "yardstick": YARDSTICK,
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "figures": [result.figures for result in measured if not isinstance(result, Failed)],
        "failed": [{"name": one.name, "reason": one.reason} for one in measured if isinstance(one, Failed)],
    }


if __name__ == "__main__":
    sys.exit(main())
