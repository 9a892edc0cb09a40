"""The bounded table by Spark SQL, on a cluster or on one machine.

Spark may run a task again at any time. So each result is fetched once, into a file that only this user can read. The
noisy half reads that file: noise is added to exactly the numbers that were digested.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kanon.release.bounding import Bounding
from kanon.release.engines.sql import SPARK, UNREADABLE, Texts, require
from kanon.release.errors import InputError
from kanon.release.publishing import PrivateTable, Row

_SOURCE = "kanon_source"
_CSV = {
    "header": "true", "quote": '"', "escape": '"', "nullValue": "", "multiLine": "true", "inferSchema": "false",
    "encoding": "UTF-8", "mode": "DROPMALFORMED",
}  # fmt: skip


class Spark:
    """The engine beyond one machine.

    Args:
        session: a session; by default the active one, or a new one as the environment configures it.
    """

    def __init__(self, session: SparkSession | None = None) -> None:
        try:
            self._session = session or SparkSession.builder.appName("kanon release").getOrCreate()
        except PySparkException:
            raise InputError("Spark does not start: it needs Java 17 or newer, on the path or as JAVA_HOME") from None
        self._session.sparkContext.setLogLevel("OFF")  # log messages of tasks may hold parts of rows
        for name, value in (
            ("spark.sql.session.timeZone", "UTC"),
            ("spark.sql.ansi.enabled", "false"),
            ("spark.sql.csv.parser.columnPruning.enabled", "false"),  # or lines of another length would be kept
        ):
            self._session.conf.set(name, value)

    @contextmanager
    def table(self, sources: Sequence[Path | str], bounding: Bounding, secret: str) -> Iterator[PrivateTable]:
        """The bounded table of files in the session's file system, such as ``s3://bucket/name.parquet``.

        The secret appears in the engine's texts and so in the history of its queries.

        Raises:
            InputError: a file cannot be read, or lacks a column. No message holds anything of a row.
        """
        texts = Texts(bounding, SPARK, _SOURCE, secret)
        with self._registered(sources, bounding), tempfile.TemporaryDirectory(prefix="kanon-") as folder:
            fetched = Path(folder) / "bounded.jsonl"  # the folder has mode 0700
            self._fetch(texts.table(), fetched)
            bins: dict[str, dict[int, int]] = {column: dict(self._run(text)) for column, text in texts.bins().items()}

            def rows() -> Iterator[Row]:
                with fetched.open(encoding="utf-8") as lines:
                    yield from map(tuple, map(json.loads, lines))

            yield PrivateTable(bounding, rows, bins)

    def operator_counts(self, sources: Sequence[Path | str], bounding: Bounding, secret: str) -> tuple[int, ...]:
        """Exact numbers for the operator alone, in the order of ``Texts.operator_counts``."""
        with self._registered(sources, bounding):
            (counts,) = self._run(Texts(bounding, SPARK, _SOURCE, secret).operator_counts())
        return tuple(counts)

    @contextmanager
    def _registered(self, sources: Sequence[Path | str], bounding: Bounding) -> Iterator[None]:
        """Register the source and the public groups under the names in the SQL."""
        frames = [self._file(str(source), bounding.columns) for source in sources]
        reduce(DataFrame.unionByName, frames).createOrReplaceTempView(_SOURCE)
        if bounding.listed is not None:
            names = self._session.createDataFrame([(name,) for name in bounding.listed], "grp string")
            names.createOrReplaceTempView("listed")
        try:
            yield
        finally:
            for view in (_SOURCE, "listed"):
                self._session.catalog.dropTempView(view)

    def _file(self, place: str, columns: Sequence[str]) -> DataFrame:
        """The columns of a file, as texts."""
        try:
            read = self._session.read
            found = read.parquet(place) if place.endswith(".parquet") else read.options(**_CSV).csv(place)
            names = found.columns
        except PySparkException:
            raise InputError(f"{place} cannot be read: it must be CSV (.csv, .csv.gz) or Parquet (.parquet)") from None
        require(place, columns, names)
        return found.select([found[SPARK.identifier(column)].cast("string").alias(column) for column in columns])

    def _fetch(self, text: str, at: Path) -> None:
        """Write the rows of a text to a file, sorted by the bytes of the first column."""
        with at.open("w", encoding="utf-8") as file:
            for row in self._run(f"select * from ({text}) bounded order by grp"):
                cells = [cell if isinstance(cell, str) else int(cell) for cell in row]
                file.write(json.dumps(cells) + "\n")

    def _run(self, text: str) -> Iterator[Any]:
        try:
            yield from self._session.sql(text).toLocalIterator()
        except PySparkException:
            raise InputError(UNREADABLE) from None
