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
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench import costs
from bench.harness import Count, Failed, Form, Once, Ratio, Result, results
from kanon.local.source import ROOT

CLAIMS = ("units", "evaluate", "api", "start", "reports", "reports_service", "desk", "first_run")
"""The modules of this package whose ``rows`` are measured, in the order of the page."""
YARDSTICK = 3
"""The version of the measurements in the history. Figures of different versions cannot be compared (see the page)."""
HISTORY, PAGE = ROOT / "docs/evidence/benchmarks.jsonl", ROOT / "docs/evidence/performance.md"
HEADER = (
    "| what | what it includes | against | figure | lowest, highest | one takes | target | met |\n"
    "|---|---|---|---|---|---|---|---|"
)
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
        keep(measured, HISTORY, PAGE)
        costs.main()
    return int(any(isinstance(one, Failed) or (isinstance(one, Count) and not one.met) for one in measured))


def measure(claims: Sequence[str], form: Form) -> Iterator[Result | Failed]:
    """The rows of some claims."""
    for claim in claims:
        yield from results(claim, importlib.import_module(f"bench.{claim}").rows(form))


def keep(measured: Measured, history: Path, page: Path) -> None:
    """Append a run to the history and put its table into the page."""
    ran = run(measured)
    text = with_table(page.read_text(), ran, measured)
    with history.open("a") as file:
        file.write(json.dumps(ran) + "\n")
    page.write_text(text)


def with_table(text: str, ran: dict[str, object], measured: Measured) -> str:
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
    if isinstance(result, Once):
        target = "-" if result.most is None else f"at most {result.most:g} s"
        took = duration(result.seconds)
        return f"| {result.name} | {result.inside} | | {took} | once | {result.remark} | {target} | {met} |"
    return f"{_measured(result)} {met} |"


def _measured(result: Ratio) -> str:
    row = result.row
    target = "-" if row.target is None else f"at {'least' if row.at_least else 'most'} {row.target:g}"
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


def run(measured: Measured) -> dict[str, object]:
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
