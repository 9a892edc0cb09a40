"""The rows of ``make bench``. Each module of ``infra.measure`` adds its own rows; there is no list of modules.

::

    from infra.measure.rows import Form, row

    @row("pack members")
    def pack(form: Form) -> Iterator[Result]:
        yield compare("pack members", ..., turns=form.size(9, 1))

If the function raises, only the rows that it has not yielded are missing. So it starts its own stack.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.measure.measure import Count, Ratio, Taken

Result = Count | Ratio | Taken


@dataclass(frozen=True)
class Form:
    """The form of a run. The short form checks counts and that every row runs; its times are rough."""

    short: bool = False

    def size(self, whole: int, short: int) -> int:
        """A number of turns, requests or sets that depends on the form."""
        return short if self.short else whole


Measure = Callable[[Form], Iterable[Result]]


@dataclass(frozen=True)
class Failed:
    """A row, or a module of rows, that could not be measured."""

    name: str
    reason: str


_ROWS: dict[str, Measure] = {}


def row(name: str) -> Callable[[Measure], Measure]:
    """Add a function to the rows.

    Raises:
        ValueError: the name is taken.
    """

    def add(measure: Measure) -> Measure:
        if measure.__module__ == "__main__":  # a module run as a program is imported a second time, by its name
            return measure
        if name in _ROWS:
            raise ValueError(f"two rows are named {name!r}")
        _ROWS[name] = measure
        return measure

    return add


def every_row() -> tuple[dict[str, Measure], list[Failed]]:
    """The rows of all modules of this package by name, and the modules that could not be imported."""
    failed = []
    for module in pkgutil.iter_modules([str(Path(__file__).parent)], "infra.measure."):
        try:
            importlib.import_module(module.name)
        except Exception as error:  # noqa: BLE001, the other modules have rows too
            failed.append(Failed(module.name, _reason(error)))
    return dict(_ROWS), failed


def results(rows: dict[str, Measure], form: Form) -> Iterator[Result | Failed]:
    """Measure every row; a row that raises an error ends with a :class:`Failed`."""
    for name, measure in rows.items():
        try:
            yield from measure(form)
        except Exception as error:  # noqa: BLE001, the other rows are still to be measured
            yield Failed(name, _reason(error))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
