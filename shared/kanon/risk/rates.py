"""The mean number of users of each value of a log in a window, the input of a plain threshold."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa

from kanon.joinlog import Reading
from kanon.risk.errors import RiskError
from kanon.risk.reading import Coded, batches

_EPOCH = "1970-01-01"
_INSERT = "insert into joins select distinct grp, usr, (day::date - '1970-01-01'::date) // $1 from batch"
_MEMORY = "512MB"  # the rest is spilled to disk


@dataclass(frozen=True)
class Rates:
    """The groups of a log.

    Attributes:
        clients: n, distinct users of the log.
        windows: windows from the first to the last day of the log.
        groups: value and mean number of distinct users in a window, from many to few.
    """

    clients: int
    windows: int
    groups: tuple[tuple[str, float], ...]


def rates(source: Path, value: str, user: str, window_days: int | None, reading: Reading | None = None) -> Rates:
    """The rates of a log's groups, by DuckDB.

    Args:
        source: a CSV, JSON or Parquet file.
        value: the value column.
        user: the user column.
        window_days: length of a window; needs the column ``time``. None: the whole log is one window.
        reading: how the log is read; by default a row that cannot be read is an error.

    Raises:
        RiskError: the file or a row of it cannot be read, or it has no rows.
    """
    columns = {"grp": value, "usr": user, **({"day": "day"} if window_days else {})}
    with (
        TemporaryDirectory() as folder,
        duckdb.connect(config={"memory_limit": _MEMORY, "temp_directory": folder}) as database,
    ):
        database.execute("create table joins (grp varchar, usr varchar, win bigint)")
        for batch in batches(source, columns.values(), user, reading):
            complete = pa.table({name: _text(batch[column]) for name, column in columns.items()}).drop_null()
            if not window_days:  # all rows have one day
                complete = complete.append_column("day", pa.repeat(_EPOCH, len(complete)))
            database.register("batch", complete)
            try:
                database.execute(_INSERT, [window_days or 1])
            except duckdb.ConversionException as error:
                raise RiskError("column 'day' must hold dates such as 2012-02-05") from error
        ((clients, windows),) = database.execute(
            "select count(distinct usr), coalesce(max(win) - min(win) + 1, 0) from joins"
        ).fetchall()
        groups = database.execute(
            "select grp, count(*) / $1 from (select distinct * from joins) group by grp order by 2 desc, 1", [windows]
        ).fetchall()
    if not groups:
        raise RiskError(f"{source} has no row with a {value} and a {user}")
    return Rates(clients, windows, tuple(groups))


def _text(column: Coded) -> pa.Array:
    codes = pa.array(column.codes, mask=column.codes < 0)
    return pa.DictionaryArray.from_arrays(codes, column.texts.cast(pa.large_string()))
