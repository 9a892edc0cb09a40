"""Spark gives the bounded tables and the released files of DuckDB, byte for byte.

It needs pyspark and a Java runtime: `make spark-test` runs it in an environment of its own, and CI does.
"""

import importlib.util
import os
import random
import shutil
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kanon.joinlog.rows import Fault, LogLayout, judged, row_of
from kanon.release import Ledger, Spec, release
from kanon.release.accounting import Period
from kanon.release.bounding import Bounding, Condition
from kanon.release.engines.duckdb import DuckDB
from kanon.release.errors import InputError
from kanon.release.noising import keyed_digest
from kanon.release.output import csv_bytes, json_bytes, parquet_bytes
from tests.integration.release.exports import EXPORTS, Export
from tests.integration.release.test_bounding import COLUMNS, MEASURES, SECRET, rows, write
from tests.integration.release.test_messy_exports import check
from tests.paths import REAL_LOG
from tests.unit.release.made import groups_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed: make spark-test"),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a Java runtime: install Java 17"),
    # pyspark leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def spark() -> Any:
    from pyspark.sql import SparkSession

    from kanon.release.engines.spark import Spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "3")
        .getOrCreate()
    )
    yield Spark(session)
    session.stop()


BOUNDINGS = {
    "every measure": Bounding("client", ("set",), MEASURES, kappa=2, scale=2, left_out=True),
    "two columns": Bounding("client", ("set", "country"), (), kappa=3),
    "days": Bounding("client", ("set",), (), unit="user-day", kappa=2),
    "months of a period": Bounding(
        "client", ("set",), (), unit="user-month", period=Period.read("2026-01").days, kappa=1
    ),
    "a condition": Bounding("client", ("set",), (), kappa=2, where=(Condition("country", equal=False, text="1:y"),)),
    "listed": Bounding("client", ("set",), (), kappa=2, listed=("a", "zz", "nobody's")),
}


@pytest.mark.parametrize("bounding", BOUNDINGS.values(), ids=BOUNDINGS)
@pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet"])
def test_spark_and_duckdb_compute_the_same_table(tmp_path: Path, spark: Any, bounding: Bounding, form: str) -> None:
    log = tmp_path / f"log.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows(3)), log)
    else:
        write(log, rows(3))
    assert digest(DuckDB(), log, bounding) == digest(spark, log, bounding)


def digest(engine: Any, log: Path, bounding: Bounding) -> str:
    """The digest of the bounded table without the rows that cannot be read."""
    with engine.table([log], replace(bounding, skip_bad_rows=True), SECRET) as table:
        return keyed_digest(table, bytes(32))


SMALL = Bounding("client", ("set",), (), skip_bad_rows=True)
LAYOUT = LogLayout(("set", "client", "note"), ",")
MALFORMED = [
    b'b,2,"x', b'"b,2,x', b'b"b,2,x', b'b,2,x"', b'"b"b,2,x', b'",",2', b'"', b'""",1,x', b"b,2,x,more", b"b,2", b"b",
    b",4,x", b"d,,x", b" ,4,x", b"g\xff,7,x", b"b,2,x\rb,3,y", b"b,\x002,x", b"\xff", b"b," + b"2" * (1 << 20),
]  # fmt: skip


@pytest.mark.parametrize("name", ["duckdb", "spark"])
def test_a_malformed_line_changes_nothing_that_the_other_lines_contribute(
    tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    engine = DuckDB() if name == "duckdb" else request.getfixturevalue("spark")
    draw, digests = random.Random(1), []
    fuzzed = [bytes(draw.choices(b'",b2x\r\0\xff ', k=draw.randrange(1, 9))) for _ in range(400)]
    fuzzed = [line.rstrip(b"\r") for line in fuzzed]
    fuzzed = [line for line in fuzzed if line and isinstance(judged(row_of(line, LAYOUT), SMALL.wanted), Fault)]
    assert len(fuzzed) > 250
    # None, one in each file, none, all in one file.
    for bad in ([[]] * len(MALFORMED), [[line] for line in MALFORMED], [[]], [[*MALFORMED, *fuzzed]]):
        (folder := tmp_path / f"{len(digests)}").mkdir()
        for number, malformed in enumerate(bad):
            lines = [f"{group}{number},{number}.{user},x".encode() for group, user in ("a1", "b2", "a3", "c1", "c2")]
            for line in malformed:
                lines.insert(draw.randrange(len(lines) + 1), line)
            first = min((lines.index(line) for line in malformed), default=0)
            (folder / f"{number:02}.csv").write_bytes(b"\n".join([b"set,client,note", *lines]))
        logs = [folder] if name == "spark" else sorted(folder.iterdir())
        with engine.table(logs, SMALL, SECRET) as table:
            digests.append(keyed_digest(table, bytes(32)))
    assert digests[0] == digests[1] != digests[2] == digests[3]
    report = engine.operator_report(logs, SMALL, SECRET)
    number = len(MALFORMED) + len(fuzzed)
    assert (report["rows"], report["rows_left_out"], report["rows_used"]) == (5 + number, number, 5)
    with pytest.raises(InputError) as refused, engine.table(logs, replace(SMALL, skip_bad_rows=False), SECRET):
        pass
    assert str(refused.value).startswith(f"{folder / '00.csv'}, line {first + 2}")


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_a_messy_export_gives_the_right_numbers_or_says_what_to_change(
    tmp_path: Path, spark: Any, export: Export
) -> None:
    check(spark, tmp_path, export)


def spec(kappa: int) -> Spec:
    return Spec(groups=("set",), epsilon=Fraction(1), delta=Fraction(1, 10**6), groups_per_user=kappa)


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real log is not here")
@pytest.mark.parametrize("kappa", [1, 10])
def test_spark_and_duckdb_release_the_real_log_byte_for_byte(tmp_path: Path, spark: Any, kappa: int) -> None:
    ledger = Ledger.at(tmp_path / "ledger")
    made = [release(REAL_LOG, spec(kappa), ledger, dataset="ansible", engine=engine) for engine in (DuckDB(), spark)]
    assert [one.new for one in made] == [True, False]
    assert len(made[0].released.rows) > 10
    for form in (csv_bytes, parquet_bytes):
        assert form(made[0].released, ("set",)) == form(made[1].released, ("set",))
    assert json_bytes(made[0].described()) == json_bytes(made[1].described())
    (account,) = ledger.accounts("ansible")
    assert account.spent.epsilon == 1


def test_a_missing_file_and_a_missing_column_are_named(tmp_path: Path, spark: Any) -> None:
    log = tmp_path / "log.csv"
    write(log, rows(1, 5))
    for place, column, message in ((tmp_path / "none.csv", "set", "cannot be read"), (log, "no", "no column 'no'")):
        with (
            pytest.raises(InputError, match=message),
            spark.table([place], Bounding("client", (column,), ()), SECRET),
        ):
            pass
    assert COLUMNS


@pytest.mark.parametrize("name", ["duckdb", "spark"])
def test_a_condition_on_a_name_that_no_object_of_any_file_has_is_refused(
    tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    engine = DuckDB() if name == "duckdb" else request.getfixturevalue("spark")
    logs = [tmp_path / "lines.json", tmp_path / "array.json"]
    logs[0].write_text('{"client": 1, "set": "a"}\n' * 9)
    logs[1].write_text('[{"client": 2, "set": "a"}]')
    bounding = Bounding("client", ("set",), (), where=(Condition("country", equal=False, text="DE"),))
    with (
        pytest.raises(InputError, match="no row has the column 'country' of --where"),
        engine.table(logs, bounding, ""),
    ):
        pass
    logs[1].write_text('[{"client": 2, "set": "a", "country": null}]')
    with engine.table(logs, bounding, "") as table:
        assert [group.users for group in groups_of(table)] == [2]
