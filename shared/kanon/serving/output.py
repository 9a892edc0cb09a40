"""The table of statuses that runs append to: CSV or Parquet, and a description beside it.

The table has a row for each change: a set turned true, or false. The difference between what the table says and the
sets that are true is appended, so a run that stopped before it wrote is made up for by the next one.

The description (``statuses.json`` beside ``statuses.csv``) names the deployment, the last step and the digest of what
was released until then. It is written first. So a directory that went back to an earlier state, from a copy, is
noticed: the table knows a later step, or another digest.
:mod:`kanon.serving.output_database` does the same in databases.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kanon.created import SHARED, created
from kanon.errors import ConfigurationError
from kanon.serving.gating import NamedSet, ReleasedStatuses

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("value", "type", "step", "time", "status")
FORMS = (".csv", ".parquet")
LAST_STEP = 1 << 40


@dataclass(frozen=True)
class TableDescription:
    """What the description of a table says: the deployment, the last step, and the digest of the answers."""

    deployment: str
    step: int
    digest: str

    def __post_init__(self) -> None:
        kinds = [type(each) for each in (self.deployment, self.step, self.digest)]
        if kinds != [str, int, str] or not 0 <= self.step < LAST_STEP:
            raise ValueError(f"{self} is no description")


def description_of(table: Path) -> Path:
    """The description beside a table."""
    return table.with_suffix(".json")


def written(table: Path) -> TableDescription | None:
    """What was written to a table; None if it is new.

    Raises:
        ConfigurationError: it is no table of statuses.
    """
    if table.suffix.lower() not in FORMS:
        raise ConfigurationError(
            f"{table}: give a name that ends in {' or '.join(FORMS)}, or that of a database: .db, .sqlite or .duckdb"
        )
    beside = description_of(table)
    if is_new(beside):
        if not is_new(table):
            raise ConfigurationError(f"{table} exists and was not written by `kanon gate`: choose another name")
        return None
    try:
        found = TableDescription(**json.loads(beside.read_text()))
    except (ValueError, TypeError, OSError) as error:
        raise ConfigurationError(
            f"{beside} does not describe a table of `kanon gate`: choose another name for the table"
        ) from error
    _read(table)  # a damaged table is refused before rows are counted
    return found


def is_new(path: Path) -> bool:
    """Whether nothing was written to a file. A process that stopped may have left an empty one."""
    return not path.exists() or not path.stat().st_size


def append(table: Path, statuses: ReleasedStatuses, period: int) -> int:
    """Append what has changed to a table. Returns the number of changes.

    Raises:
        ConfigurationError: the table cannot be read.
        OSError: it cannot be written.
    """
    before = _read(table)
    changes = changed(before, statuses, period)
    rows = [*before, *changes]
    described = TableDescription(statuses.deployment, statuses.step, statuses.digest)
    with created(lambda _: True) as create:
        with create(description_of(table), SHARED) as file:
            file.write(json.dumps(asdict(described), indent=2).encode() + b"\n")
        if changes or is_new(table):
            with create(table, SHARED) as file:
                _write(file, rows, table.suffix.lower())
    return len(changes)


def changed(rows: Iterable[dict[str, Any]], statuses: ReleasedStatuses, period: int) -> list[dict[str, Any]]:
    """The rows to append: the sets that are true and were not, then those that were true and are not."""
    last = {NamedSet(row["type"], row["value"]): row["status"] for row in rows}
    were = {named for named, status in last.items() if status}
    time = datetime.fromtimestamp(statuses.step * period, UTC)

    def row(named: NamedSet, *, status: bool) -> dict[str, Any]:
        return dict(zip(COLUMNS, (named.text, named.type_name, statuses.step, time, status), strict=True))

    turned_true = [row(named, status=True) for named in sorted(statuses.true - were)]
    return turned_true + [row(named, status=False) for named in sorted(were - statuses.true)]


def as_csv(rows: "list[dict[str, Any]]") -> bytes:
    """Rows as CSV with a header."""
    from io import BytesIO

    buffer = BytesIO()
    _write(buffer, rows, ".csv")
    return buffer.getvalue()


def _schema() -> "pa.Schema":
    import pyarrow as pa

    kinds = (pa.string(), pa.string(), pa.int64(), pa.timestamp("s", "UTC"), pa.bool_())
    return pa.schema(list(zip(COLUMNS, kinds, strict=True)))


def _read(table: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    if is_new(table):
        return []
    options = csv.ConvertOptions(column_types=_schema(), strings_can_be_null=False)
    parsing = csv.ParseOptions(newlines_in_values=True)
    try:
        if table.suffix.lower() == ".parquet":
            found = parquet.read_table(table)
        else:
            one_block = csv.ReadOptions(block_size=table.stat().st_size)  # a row that is longer than a block fails
            found = csv.read_csv(table, one_block, parsing, options)
        return list(found.select(list(COLUMNS)).to_pylist())
    except (pa.ArrowException, KeyError, OSError) as error:
        raise ConfigurationError(f"{table} cannot be read as a table of statuses: choose another name") from error


def _write(file: Any, rows: "list[dict[str, Any]]", form: str) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    table = pa.Table.from_pylist(rows, _schema())
    if form == ".parquet":
        parquet.write_table(table, file)
    else:
        csv.write_csv(table, file)
