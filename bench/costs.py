"""``python -m bench.costs``: copies the processor times of the last whole run of `make bench` for `kanon cost`.

A value of ``measured.json`` whose field ``from`` names a row of `make bench` is the time in that row of the performance
page. Run `make reference` afterwards: the outputs in the cost guide change with the values.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kanon.cost
from kanon.local.source import ROOT

PAGE = ROOT / "docs" / "evidence" / "performance.md"
MEASURED = Path(str(kanon.cost.__file__)).with_name("measured.json")
MS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}


def times(entries: Mapping[str, Any], page: str) -> dict[str, float]:
    """The values that come from rows of a page, in ms of processor time with three significant digits.

    Raises:
        ValueError: a row that an entry names is not in the page exactly once.
    """
    named = {name: re.search(r"^make bench.* row `(.+?)`", entry["from"]) for name, entry in entries.items()}
    sides = {name: _sides(page, found[1]) for name, found in named.items() if found}
    taken = {name: ours for name, (ours, _) in sides.items()}
    taken["query_ms"] = sides["query_ms"][1]  # a minimal request: the other side
    taken["hash_ms"] = (taken["hash_ms"] - taken["query_ms"]) / 100
    return {name: float(f"{time:.3g}") for name, time in taken.items()}


def _sides(page: str, row: str) -> tuple[float, float]:
    """The times of the project's side and the other side, in ms."""
    pattern = rf"^\| {re.escape(row)} \|.*\| ([\d.]+) ([mun]?s) a [\w ]+, against ([\d.]+) ([mun]?s) \|"
    found = re.findall(pattern, page, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows of the page are called {row!r}: correct `from` in measured.json")
    ours, unit, other, other_unit = found[0]
    return float(ours) * MS[unit], float(other) * MS[other_unit]


def with_times(text: str, page: str) -> str:
    """The text of ``measured.json`` with the times of the page."""
    for name, time in times(json.loads(text)["values"], page).items():
        text = re.sub(rf'(?<="{name}": {{"value": )[^,]+', f"{time:.12g}", text)
    return text


def main() -> None:
    """Write ``measured.json``."""
    MEASURED.write_text(with_times(MEASURED.read_text(), PAGE.read_text()))


if __name__ == "__main__":
    main()
