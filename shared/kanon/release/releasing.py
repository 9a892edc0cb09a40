"""A release from end to end: pay, draw, publish."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kanon import __version__
from kanon.noise.bound import MOST_DELTA, Bound
from kanon.release.bounding import Bounding
from kanon.release.errors import SpecificationError
from kanon.release.ledger import Ledger, Purchase
from kanon.release.mechanism import Mechanism
from kanon.release.output import ReleasedRows, described
from kanon.release.spec import Spec
from kanon.release.tape import derived

if TYPE_CHECKING:
    from kanon.release.noising import PrivateTable

SourceFile = Path | str
"""A file by its path, or for Spark by its URI."""
SourceFiles = SourceFile | Sequence[SourceFile]


class Engine(Protocol):
    """Computes bounded tables."""

    def table(
        self, sources: Sequence[SourceFile], bounding: Bounding, secret: str
    ) -> "AbstractContextManager[PrivateTable]":
        """The bounded table of the sources, as long as the context lasts. ``secret`` keys the sampling."""
        ...

    def operator_report(self, sources: Sequence[SourceFile], bounding: Bounding, secret: str) -> dict[str, Any]:
        """Exact numbers for the operator alone."""
        ...


@dataclass(frozen=True)
class Release:
    """A finished release. All of it may be published.

    Attributes:
        id: of the release, as in the ledger.
        name: the name under which it can be repeated.
        dataset: the data whose budget it spent.
        mechanism: its noise tables.
        released: the rows.
        new: whether this run paid; False if it repeated a release that was paid for.
        version: of the program that paid.
    """

    id: str
    name: str
    dataset: str
    mechanism: Mechanism
    released: ReleasedRows
    new: bool
    version: str

    @property
    def guarantee(self) -> Bound:
        """(epsilon, delta), computed from the tables."""
        return self.mechanism.claim

    @property
    def fewest_users(self) -> int:
        """A number of users that the data surely or almost surely have, from the released rows and the floor."""
        counts = [] if self.mechanism.spec.only_groups else [cells[1] for _, cells in self.released.rows]
        floor = self.mechanism.rule.floor if self.released.rows else 0
        return max(floor, *(int(low) for low in counts), 0)

    def described(self) -> dict[str, Any]:
        """The content of ``released.json``."""
        facts = {"id": self.id, "name": self.name, "dataset": self.dataset, "version": self.version}
        return described(self.mechanism, self.released, facts)


def release(
    source: SourceFiles,
    spec: Spec,
    ledger: Ledger,
    *,
    dataset: str,
    name: str | None = None,
    engine: Engine | None = None,
) -> Release:
    """Publish once, with the guarantee of the specification.

    Privacy guarantee: ``spec.epsilon`` and ``spec.delta`` for one unit, for this name. Running it again with the same
    data, specification and name gives the same result and costs nothing.

    Args:
        source: one or several files: CSV with a header, JSON lines, a JSON array (all also gzipped), or Parquet.
        spec: the specification.
        ledger: records the cost.
        dataset: names the data in the ledger. The same data must always have the same name, and the user and time of
            a row must never change: else its costs are added up for the wrong unit.
        name: of the release; by default the digest of the specification. A new name costs budget again and draws new
            noise.
        engine: computes the bounded table; DuckDB by default.

    Raises:
        SpecificationError: the specification is impossible, the name is empty, or a file is given twice.
        OverBudgetError: the budget does not allow it; nothing was drawn.
        InputError: a file or a row of it cannot be read, or the name was used for other data. Nothing was charged.
        NoBoundsError: automatic bounds found no bin; the cost is spent.
        LedgerError: the ledger is broken.
    """
    from kanon.release.noising import keyed_digest, publish  # pyarrow, which `kanon ledger` can do without

    if name is not None and not name.strip():
        raise SpecificationError("--name is empty: write a name, or leave it out")
    files = _paths(source)
    mechanism = Mechanism(spec)
    dataset = ledger.dataset(dataset)
    purchase = Purchase(
        dataset, spec.digest if name is None else name, spec.unit, spec.period, spec.epsilon, spec.delta, spec.digest,
        mechanism.digest, __version__, spec.user, spec.time if spec.bounding.needs_time else None,
    )  # fmt: skip
    _ = mechanism.claim  # refuses an impossible specification
    paid_before = ledger.find(purchase)
    if paid_before is None:
        refuse_delta(spec)
        ledger.refuse_over_budget(purchase)
    with (engine or _duckdb()).table(files, spec.bounding, sampling_text(ledger, dataset, spec)) as table:
        spend, tape = ledger.begin(purchase, lambda key: keyed_digest(table, key))
        released = publish(table, mechanism, tape)
    return Release(
        spend.id, purchase.name, dataset, mechanism, released, new=paid_before is None, version=spend.version or ""
    )


def refuse_delta(spec: Spec) -> None:
    """Refuse a delta that protects nobody.

    Raises:
        SpecificationError: delta is 0.01 or more.
    """
    if spec.delta >= MOST_DELTA:
        raise SpecificationError(
            f"--delta must be below {float(MOST_DELTA)}, not {float(spec.delta):g}: take less than 1 divided by the"
            " number of users"
        )


def operator_report(
    source: SourceFiles, spec: Spec, ledger: Ledger, *, dataset: str, engine: Engine | None = None
) -> dict[str, Any]:
    """Exact numbers of rows left out, and of rows and groups that the bounding drops. Not private: for the operator."""
    text = sampling_text(ledger, ledger.dataset(dataset), spec)
    warning = "NOT PRIVATE: exact numbers, outside any guarantee. Do not publish."
    return {"warning": warning, **(engine or _duckdb()).operator_report(_paths(source), spec.bounding, text)}


def sampling_text(ledger: Ledger, dataset: str, spec: Spec) -> str:
    """The sampling key in the engine's SQL. It is derived from the secret, because the engine may log it."""
    return derived(ledger.sampling_secret(dataset, spec.digest), "engine").hex()


def _duckdb() -> Engine:
    from kanon.release.engines.duckdb import DuckDB

    return DuckDB()


def _paths(source: SourceFiles) -> list[SourceFile]:
    """The files; a URI stays a text, because a path would drop one of its slashes.

    Raises:
        SpecificationError: two of them are the same file, whose rows would count twice.
    """
    files = [source] if isinstance(source, str | Path) else list(source)
    seen: dict[object, SourceFile] = {}
    for each in files:
        if (file := _file(each)) in seen:
            raise SpecificationError(
                f"{each} is the same file as {seen[file]}, so its rows would count twice: leave one out"
            )
        seen[file] = each
    return [each if "://" in str(each) else Path(each) for each in files]


def _file(place: SourceFile) -> object:
    """What all paths to one file have in common."""
    try:
        found = Path(place).stat()
    except (OSError, ValueError):  # a URI, standard input, or nothing that can be read
        return str(place)
    return found.st_dev, found.st_ino
