import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from traceback import format_exception

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kanon.joinlog import LogReading
from kanon.risk import scan
from kanon.risk.errors import RiskError
from kanon.risk.scan import batches

ROWS = [
    ("1328464132", "lib", "6468"),
    ("1328464132", "lib/a,b", "01"),
    ("1328547600", 'say "hi" there', "1"),
    ("1330560000", "ü", "6468"),
]
CSV = """time,set,client
1328464132,lib,6468
1328464132,"lib/a,b",01
1328547600,"say ""hi"" there",1
1330560000,ü,6468
"""


def read(path: Path, *columns: str, user: str = "") -> list[tuple[str | None, ...]]:
    """The rows as text; None is a missing value."""
    rows: list[tuple[str | None, ...]] = []
    for batch in batches(path, columns, user or columns[-1]):
        texts = []
        for name in columns:
            found = [text.decode() for text in batch[name].texts.to_pylist()]
            texts.append([found[code] if code >= 0 else None for code in batch[name].codes])
        rows += zip(*texts, strict=True)
    return rows


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def plain(folder: Path) -> Path:
    return written(folder / "log.csv", CSV)


def parquet(folder: Path) -> Path:
    times, sets, clients = zip(*ROWS, strict=True)
    table = pa.table({"time": pa.array(map(int, times)), "set": sets, "client": clients})
    pq.write_table(table, folder / "log.parquet", row_group_size=2)
    return folder / "log.parquet"


def parquet_of_dictionaries(folder: Path) -> Path:
    times, sets, clients = zip(*ROWS, strict=True)
    stamps = pa.array([datetime.fromtimestamp(int(t), UTC) for t in times], pa.timestamp("us", "Europe/Zurich"))
    table = pa.table(
        {"client": pa.array(clients).dictionary_encode(), "set": pa.array(sets).dictionary_encode(), "time": stamps}
    )
    pq.write_table(table, folder / "log.parquet")
    return folder / "log.parquet"


@pytest.mark.parametrize("log", [plain, parquet, parquet_of_dictionaries])
def test_every_kind_of_file_gives_the_same_values_in_utc(log: Callable[[Path], Path], tmp_path: Path) -> None:
    path = log(tmp_path)
    assert read(path, "set", "client") == [row[1:] for row in ROWS]
    assert read(path, "day", "hour", "month") == [
        ("2012-02-05", "2012-02-05 17", "2012-02"),
        ("2012-02-05", "2012-02-05 17", "2012-02"),
        ("2012-02-06", "2012-02-06 17", "2012-02"),
        ("2012-03-01", "2012-03-01 00", "2012-03"),
    ]


@pytest.mark.parametrize(
    "times",
    [
        ["2012-02-05T17:48:52Z", "2012-02-06T00:59:59+01:00"],
        ["2012-02-05T17:48:52", "2012-02-05 23:59:59"],
        ["2012-02-05", "2012-02-05"],
        ["1328464132.9", "1328486399.9"],
    ],
)
def test_times_may_be_iso_8601_or_unix_seconds(times: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "c,time\n" + "".join(f"c,{time}\n" for time in times))
    assert read(path, "day", user="c") == [("2012-02-05",), ("2012-02-05",)]


def test_a_column_of_that_name_replaces_the_one_derived_from_time(tmp_path: Path) -> None:
    assert read(written(tmp_path / "log.csv", "time,day\n0,Monday\n"), "day") == [("Monday",)]


def test_a_value_may_be_missing_but_a_user_and_a_time_may_not(tmp_path: Path) -> None:
    text = written(tmp_path / "log.csv", 'time,set,client\n4,,1\n5,"",2\n6,NULL,3\n7, ,4\n')
    expected = [(None, "1"), (None, "2"), ("NULL", "3"), (None, "4")]
    assert read(text, "set", "client") == expected
    assert read(text, "set", "client", "day", user="client") == [(*row, "1970-01-01") for row in expected]
    pq.write_table(pa.table({"set": ["", None, "a"], "client": [1, 2, 3]}), tmp_path / "log.parquet")
    assert read(tmp_path / "log.parquet", "set", "client") == [(None, "1"), (None, "2"), ("a", "3")]
    for row, column in (("9,s,", "client"), (",s,1", "time")):
        written(text, f"time,set,client\n4,s,1\n{row}\n")
        with pytest.raises(RiskError, match=f"line 3, column {column}: it is empty"):
            read(text, "day", "client")
        reading = LogReading(skip=True)
        assert sum(len(batch["set"].codes) for batch in batches(text, ["set", "day"], "client", reading)) == 1
        assert reading.left_out.total() == 1


def test_numbers_and_dates_of_parquet_read_as_their_text(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 20], "f": [0.5, 2.0], "b": [True, False], "d": pa.array([0, 1], pa.date32())})
    pq.write_table(table, tmp_path / "log.parquet")
    assert read(tmp_path / "log.parquet", "n", "f", "b", "d") == [
        ("1", "0.5", "true", "1970-01-01"),
        ("20", "2", "false", "1970-01-02"),
    ]  # fmt: skip


def test_a_value_that_a_dictionary_holds_twice_is_one_value(tmp_path: Path) -> None:
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", "a", "b"]))
    pq.write_table(pa.table({"set": twice}), tmp_path / "log.parquet")
    (batch,) = batches(tmp_path / "log.parquet", ["set"], "set")
    assert (batch["set"].texts.to_pylist(), batch["set"].codes.tolist()) == ([b"a", b"b"], [0, 0, 1])


def test_batches_cut_anywhere_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f'{n % 7},"value, {n % 11}",{n % 13}' for n in range(1_000)]
    path = written(tmp_path / "log.csv", "time,set,client\n" + "\n".join(lines) + "\n")
    whole = read(path, "set", "client")
    assert whole == [(f"value, {n % 11}", str(n % 13)) for n in range(1_000)]
    monkeypatch.setattr(scan, "ROWS_IN_BATCH", 50)
    monkeypatch.setattr("kanon.joinlog.batches.BLOCK_BYTES", 256)
    assert len(list(batches(path, ["set"], "client"))) > 10
    assert read(path, "set", "client") == whole


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("time,client\n1,secret\n", "has no column 'set': line 1 has 2 columns separated by commas"),
        ("set,time\na,1\nsecret,secret\n", "line 3, column time: not a time"),
        ("PAR1secretPAR1", "is not readable as Parquet"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_line_without_its_content(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RiskError, match=message) as refused:
        read(written(tmp_path / "log", content), "set", "day")
    assert "secret" not in "".join(format_exception(refused.value))
    assert "\n" not in str(refused.value)


def test_a_pipe_is_read_where_one_pass_is_enough(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pipe.write_text, CSV)
        assert read(pipe, "set", "client") == [row[1:] for row in ROWS]
    for name in (pipe, Path("-")):
        with pytest.raises(RiskError, match="not from a pipe: save the log, and name its file"):
            read(name, "day", "client")
