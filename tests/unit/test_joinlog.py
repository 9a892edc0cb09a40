"""The streaming reader of join logs."""

import gzip
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from kanon.joinlog import Columns, Join, LogError, read_joins

EXPECTED = [
    Join(7200.0, "b", "2"),
    Join(3700.5, "a,1", "1"),
    Join(1706933106.0, "c", "3"),
    Join(1706929506.0, "ü\n", "4"),
]
"""In the order of the file, which is not that of time."""
gzipped = partial(gzip.compress, mtime=0)
"""Without the time, which would give a test another name in each process."""
CSV = (
    'client,time,more,set\n2,7200,x,b\n1,3700.5,,"a,1"\n3,2024-02-03T04:05:06Z,,c\n4,2024-02-03T04:05:06+01:00,,"ü\n"\n'
)
ROWS = [
    {"time": 7200, "set": "b", "client": 2},
    {"time": "3700.5", "set": "a,1", "client": "1", "more": [1]},
    {"time": "2024-02-03T04:05:06", "set": "c", "client": 3},
    {"time": "2024-02-03T04:05:06+01:00", "set": "ü\n", "client": "4"},
]
JSON_LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)


def as_parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, row_group_size=2)
    return file.getvalue()


PARQUET = as_parquet(
    time=pa.array([t * 10**9 + 7 for t in (7200, 3700, 1706933106, 1706929506)], pa.timestamp("ns")),
    set=[join.set for join in EXPECTED],
    client=[2, 1, 3, 4],
    more=[None] * 4,
)
FORMS = {"CSV": CSV.encode(), "CSV with a byte order mark": b"\xef\xbb\xbf" + CSV.encode(), "JSON": JSON_LINES.encode()}


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("form", FORMS)
def test_every_text_form_is_read_under_any_file_name(
    tmp_path: Path, form: str, compress: Callable[[bytes], bytes]
) -> None:
    (path := tmp_path / "log").write_bytes(compress(FORMS[form]))
    assert list(read_joins(path)) == EXPECTED


def test_parquet_is_read_with_times_cut_to_microseconds(tmp_path: Path) -> None:
    (path := tmp_path / "log").write_bytes(PARQUET)
    assert list(read_joins(path)) == [join._replace(time=float(int(join.time))) for join in EXPECTED]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([7200, 3600]),
        pa.array([7200.0, 3600.0]),
        pa.array(["1970-01-01T02:00:00", "3600"]),
        pa.array([datetime(1970, 1, 1, 2, tzinfo=UTC), datetime(1970, 1, 1, 1, tzinfo=UTC)]),
        pa.array([7200, 3600], pa.timestamp("s", "Europe/Paris")),
    ],
)
def test_parquet_may_hold_times_in_any_type(tmp_path: Path, times: Any) -> None:
    (path := tmp_path / "log").write_bytes(as_parquet(time=times, set=["a", "b"], client=["1", "2"]))
    assert list(read_joins(path)) == [Join(7200.0, "a", "1"), Join(3600.0, "b", "2")]


@pytest.mark.parametrize("form", [*FORMS.values(), gzipped(CSV.encode())])
def test_standard_input_is_read_from_a_pipe(form: bytes) -> None:
    program = "from kanon.joinlog import read_joins; print([tuple(join) for join in read_joins('-')])"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=form, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert ran.stdout.decode().strip() == str([tuple(join) for join in EXPECTED])


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    columns = Columns("at", "page", "who")
    parquet_log = as_parquet(at=[1], page=["a"], who=["b"])
    for content in (b"at,page,who\n1,a,b\n", b'{"at": 1, "page": "a", "who": "b"}', parquet_log):
        (path := tmp_path / "log").write_bytes(content)
        assert list(read_joins(path, columns)) == [Join(1.0, "a", "b")]


def test_joins_are_yielded_before_the_log_has_ended(tmp_path: Path) -> None:
    """A reader that held the file would wait for its end for ever."""
    os.mkfifo(path := tmp_path / "log")
    seen, ended = threading.Event(), []

    def write() -> None:
        with path.open("w") as file:
            file.write("time,set,client\n" + "1,a,b\n" * 20_000)
            file.flush()
            ended.append(seen.wait(30))

    writer = threading.Thread(target=write)
    writer.start()
    joins = read_joins(path)
    assert next(joins) == Join(1.0, "a", "b")
    seen.set()
    assert sum(1 for _ in joins) == 19_999
    writer.join()
    assert ended == [True]


HEAD = "time,set,client\n1,a,b\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("time,set\n1,a\n", "line 1: no column client: add a header line, or give the names of the columns"),
        ("", "log: no column client, set, time: add a header line"),
        (HEAD + "yesterday,a,b\n", "line 3: time is 'yesterday': write Unix seconds, or ISO 8601"),
        (HEAD + "nan,a,b\n", "line 3: time is 'nan'"),
        (HEAD + "-1,a,b\n", "line 3: time is '-1', before 1970"),
        (HEAD + "1700000000000,a,b\n", "line 3: .*write seconds, not milliseconds"),
        (HEAD + "1,a\n", "line 3: client is empty: write text or a whole number"),
        (HEAD + "1,,b\n", "line 3: set is empty"),
        (HEAD + "1,a,b,c\n", "line 3: more values than columns: put a value that holds a comma in quotes"),
        (HEAD + '1,"a,b\n1,a,b\n', "line 4: not CSV .*: check the quotes"),
        (HEAD + "1," + "a" * (1 << 20) + ",b\n", "line 3: more than 1,048,576 bytes in one line: check that this is"),
        (HEAD.encode() + b"1,\xff,b\n", "line 3: not UTF-8: convert the log to UTF-8"),
        (gzipped(HEAD.encode() + b"1,a,b\n" * 999)[:-20], "the gzip data is damaged .*: compress the log again"),
        (gzipped(HEAD.encode())[:-8] + bytes(8), "the gzip data is damaged .*: compress the log again"),
        ('{"time": 1, "set": "a", "client": "b"}\n\n{"time": 1', "line 3: not JSON: write one object per line"),
        ('{"time": 1, "set": "a", "client": "b"}\n[1]', "line 2: not a JSON object: write one object per line"),
        ('{"time": 1, "set": "a"}\n', "line 1: no column client: write it in every line"),
        ('{"time": true, "set": "a", "client": "b"}\n', "line 1: time is True: write Unix seconds"),
        ('{"time": NaN, "set": "a", "client": "b"}\n', "line 1: time is nan"),
        ('{"time": null, "set": "a", "client": "b"}\n', "line 1: time is None"),
        ('{"time": [1], "set": "a", "client": "b"}\n', r"line 1: time is \[1\]"),
        ('{"time": 1e999, "set": "a", "client": "b"}\n', "line 1: time is inf"),
        ('{"time": 1, "set": 1.5, "client": "b"}\n', "line 1: set is 1.5: write text or a whole number"),
        ('{"time": 1, "set": "a", "client": false}\n', "line 1: client is False: write text"),
        ("{" * 100_000, "line 1: not JSON"),
        (as_parquet(time=[1, None], set=["a", "b"], client=["b", "c"]), "row 2: time is None"),
        (as_parquet(time=[1], set=[b"a"], client=["b"]), "row 1: set is b'a': write text"),
        (as_parquet(time=[1], set=["a"]), "no column client: name the columns the file has"),
        (PARQUET[:-20], "not readable as Parquet .*: write the file again"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isprintable() else "",
)  # fmt: skip
def test_an_unreadable_log_says_where_and_what_to_change(tmp_path: Path, content: str | bytes, message: str) -> None:
    (path := tmp_path / "log").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(LogError, match=message) as found:
        list(read_joins(path))
    assert str(found.value).startswith(str(path))


def test_the_lines_before_an_invalid_line_are_read(tmp_path: Path) -> None:
    (path := tmp_path / "log").write_text(HEAD + "x,a,b\n")
    joins = read_joins(path)
    assert next(joins) == Join(1.0, "a", "b")
    with pytest.raises(LogError, match="line 3"):
        next(joins)


def test_a_missing_file_and_a_folder_say_to_check_the_path(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.csv", tmp_path):
        with pytest.raises(LogError, match=r"cannot be read \(.*\): check the path"):
            next(read_joins(path))


def test_without_pyarrow_parquet_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "log.parquet").write_bytes(PARQUET)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LogError, match=r"is Parquet, and pyarrow is missing: pip install .*, or run `make simulate`"):
        next(read_joins(path))


def test_parquet_from_a_pipe_asks_for_a_file() -> None:
    program = "from kanon.joinlog import read_joins; next(read_joins('-'))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=PARQUET, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert b"standard input is Parquet, which is read from its end: give the name of a file" in ran.stderr
