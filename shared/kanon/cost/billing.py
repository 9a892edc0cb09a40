"""A bill: the quantities that AWS charges for, times list prices. A pure function."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from kanon.errors import Error

Usage = Mapping[str, float]
"""Quantities in a month, by the names in ``prices.json``, such as ``dynamodb.write``."""


class CostError(Error, ValueError):
    """A file or a workload cannot be priced; the message says what to change."""


def check_between(*values: tuple[float, str, float, float]) -> None:
    """Check values of a workload, each given with its name in words, its least and its largest value.

    Raises:
        CostError: a value is out of its range.
    """
    for value, name, least, most in values:
        if not least <= value <= most:
            raise CostError(f"{name} must lie between {least:,} and {most:,.0f}, not {value:g}")


@dataclass(frozen=True)
class Price:
    """A list price: ``usd`` for ``per`` of ``what``."""

    service: str
    what: str
    per: float
    usd: float


@dataclass(frozen=True)
class Prices:
    """List prices by name, the date when they were noted, and their region."""

    noted: str
    region: str
    by_name: Mapping[str, Price]

    @property
    def summary(self) -> str:
        """One sentence."""
        return f"List prices of {self.region} as noted on {self.noted}, without free tier: check them."


@dataclass(frozen=True)
class BillLine:
    """A line of a bill: a quantity in a month and its price."""

    name: str
    service: str
    what: str
    quantity: float
    dollars: float


@dataclass(frozen=True)
class Bill:
    """The lines of a month, without those of quantity 0."""

    lines: tuple[BillLine, ...]

    @property
    def total(self) -> float:
        """Dollars a month."""
        return sum(line.dollars for line in self.lines)

    def by_service(self) -> Iterator[tuple[str, float]]:
        """Dollars a month of each service, in the order of the prices."""
        for service, lines in groupby(self.lines, key=lambda line: line.service):
            yield service, sum(line.dollars for line in lines)


def bill(usage: Usage, prices: Prices) -> Bill:
    """Price the quantities of a month.

    Raises:
        CostError: a quantity has no price.
    """
    if missing := sorted(usage.keys() - prices.by_name.keys()):
        raise CostError(f"the price file has no price for {', '.join(missing)}: add it")
    priced = ((name, price, usage.get(name, 0.0)) for name, price in prices.by_name.items())
    return Bill(
        tuple(
            BillLine(name, price.service, price.what, quantity, quantity / price.per * price.usd)
            for name, price, quantity in priced
            if quantity
        )
    )


def read_prices(path: Path | None = None) -> Prices:
    """The prices of a file in the form of ``prices.json``, or those of the package.

    Raises:
        CostError: the file cannot be read or has a wrong form.
    """
    document = _document(path, "prices.json")
    try:
        noted, entries = str(document["noted"]), document["prices"]
        by_name = {
            str(name): Price(str(entry["service"]), str(entry["what"]), _number(entry["per"]), _number(entry["usd"]))
            for name, entry in entries.items()
        }
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", noted) or not all(price.per for price in by_name.values()):
            raise ValueError
        return Prices(noted, str(document["region"]), by_name)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CostError(
            f"{path} is not a price file: it needs noted (YYYY-MM-DD), region and prices, and for each price service,"
            f" what, per and usd (numbers of at least 0); start from a copy of prices.json"
        ) from error


def read_measured(path: Path | None = None) -> dict[str, float]:
    """The measured values and assumptions of a file in the form of ``measured.json``, or those of the package.

    Raises:
        CostError: the file cannot be read, has a wrong form, or lacks a value.
    """
    needed = _document(None, "measured.json")["values"].keys()
    document = _document(path, "measured.json")
    try:
        values = {str(name): _number(entry["value"]) for name, entry in document["values"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CostError(f"{path} needs values, each with a value (a number of at least 0)") from error
    if missing := sorted(needed - values.keys()):
        raise CostError(f"{path} lacks {', '.join(missing)}: start from a copy of measured.json")
    return values


def _document(path: Path | None, name: str) -> Any:
    try:
        text = path.read_text() if path else files(__package__).joinpath(name).read_text()
        document = json.loads(text)
    except OSError as error:
        raise CostError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CostError(f"{path} cannot be read: it is not UTF-8 text") from error
    except ValueError as error:
        raise CostError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise CostError(f"{path} must be a JSON object")
    return document


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(value)
    return float(value)
