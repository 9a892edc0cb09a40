"""The streaming reader of join logs."""

import bz2
import gzip
import io
import json
import lzma
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from kanon.joinlog import Columns, LogError, LoggedJoin, LogReading, read_joins, values
from kanon.joinlog.values import DECIMALS, NOT_A_NUMBER, TOO_LARGE, Dates

EXPECTED = [
    LoggedJoin(7200.0, "b", "2"),
    LoggedJoin(3700.5, "a,1", "1"),
    LoggedJoin(1706933106.0, "c", "3"),
    LoggedJoin(1706929506.0, "ü x", "4"),
]
"""In the order of the file, which is not that of time."""
gzipped = partial(gzip.compress, mtime=0)
"""Without the time, which would give a test another name in each process."""
CSV = (
    'client,time,more,set\n2,7200,x,b\n1,3700.5,,"a,1"\n3,2024-02-03T04:05:06Z,,c\n4,2024-02-03T04:05:06+01:00,,"ü x"\n'
)
ROWS = [
    {"time": 7200, "set": "b", "client": 2},
    {"time": "3700.5", "set": "a,1", "client": "1", "more": [1]},
    {"time": "2024-02-03T04:05:06", "set": "c", "client": 3},
    {"time": "2024-02-03T04:05:06+01:00", "set": "ü x", "client": "4"},
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
    assert list(read_joins(path)) == [LoggedJoin(7200.0, "a", "1"), LoggedJoin(3600.0, "b", "2")]


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
        assert list(read_joins(path, columns)) == [LoggedJoin(1.0, "a", "b")]


@pytest.mark.slow
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
    assert next(joins) == LoggedJoin(1.0, "a", "b")
    seen.set()
    assert sum(1 for _ in joins) == 19_999
    writer.join()
    assert ended == [True]


HEAD = "time,set,client\n1,a,b\n"


OBJECT = '{"time": 1, "set": "a", "client": "b"}\n'
QUOTES, TIME, EMPTY = (
    "unbalanced or stray quotes",
    "not a time: write Unix seconds, or ISO 8601",
    "it is empty: fill it in",
)


def json_line(**cells: str) -> str:
    """A line of JSON; the cells are JSON texts."""
    cells = {"time": "1", "set": '"a"', "client": '"b"', **cells}
    return OBJECT + "{" + ", ".join(f'"{name}": {cell}' for name, cell in cells.items()) + "}\n"


UNREADABLE: list[tuple[str | bytes, str]] = [
    (HEAD + "yesterday,a,b\n", f"line 3, column time: {TIME}"),
    (HEAD + "nan,a,b\n", f"line 3, column time: {TIME}"),
    (HEAD + "1e9,a,b\n", f"line 3, column time: {TIME}"),
    (HEAD + "-1,a,b\n", "line 3, column time: a time before 1970"),
    (HEAD + "20260131,a,b\n", "line 3, column time: eight digits, a date or Unix seconds: write dates as 2026-01-31"),
    (HEAD + "20260131120000,a,b\n", "line 3, column time: a time before 1970 or after 9999"),
    (HEAD + "01/31/2026,a,b\n", "line 3, column time: a date such as 01/02/2026: say --dates mdy"),
    (HEAD + "2026-02-30,a,b\n", f"line 3, column time: {TIME}"),
    (HEAD + "1,a\n", "line 3: fewer values than columns"),
    (HEAD + "1,,b\n", f"line 3, column set: {EMPTY}"),
    (HEAD + "1,a,  \n", f"line 3, column client: {EMPTY}"),
    (HEAD + "1,a,b,c\n", "line 3: more values than columns: put a value that holds the separator in quotes"),
    (HEAD + '1,"a,b\n1,a,b\n', f"line 3: {QUOTES}"),
    (HEAD + '1,a"b,c\n', f"line 3: {QUOTES}"),
    (HEAD + '1,"a"b,c\n', f"line 3: {QUOTES}"),
    (HEAD + "1,a,b\r1,a,b\n", "line 3: a carriage return within the line: end lines with LF or CRLF"),
    (HEAD + "1,a,\0b\n", "line 3: a zero byte: remove it, or save UTF-16 as UTF-8"),
    (HEAD + "1," + "a" * (1 << 20) + ",b\n", "line 3: more than 1,048,576 bytes in one line: check that this is a log"),
    (HEAD.encode() + b"1,\xff,b\n", "line 3, column set: not UTF-8: convert the log to UTF-8"),
    (OBJECT + '\n{"time": 1', "line 3: not a JSON object: write one object per line"),
    (OBJECT + "[1]", "line 2: not a JSON object: write one object per line"),
    (OBJECT + "{" * 100_000, "line 2: not a JSON object"),
    (OBJECT + '{"time": 1, "set": "a"}\n', f"line 2, column client: {EMPTY}"),
    (json_line(time="true"), f"line 2, column time: {TIME}"),
    (json_line(time="NaN"), f"line 2, column time: {TIME}"),
    (json_line(time="null"), f"line 2, column time: {EMPTY}"),
    (json_line(time="[1]"), "line 2, column time: neither text nor a number"),
    (json_line(time="1e999"), f"line 2, column time: {TIME}"),
    (json_line(set='"\\ud800"'), "line 2, column set: not UTF-8"),
    (json_line(client='"c", "client": "d"'), "line 2: a JSON object with the same name twice"),
    (as_parquet(time=[1, None], set=["a", "b"], client=["b", "c"]), f"row 2, column time: {EMPTY}"),
]
"""Logs with one invalid row, and what the message says of it."""


@pytest.mark.parametrize(("content", "message"), UNREADABLE, ids=range(len(UNREADABLE)))
def test_an_invalid_row_is_refused_without_its_values_or_left_out_alone(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    (path := tmp_path / "log").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(LogError) as found:
        list(read_joins(path))
    assert str(found.value).startswith(f"{path}, {message}")
    assert str(found.value).endswith("(--skip-bad-rows leaves out such rows)")
    reading = LogReading(skip=True)
    joins = list(read_joins(path, reading=reading))
    assert set(joins) == {LoggedJoin(1.0, "a", "b")}
    assert (reading.rows, reading.left_out.total()) == (len(joins) + 1, 1)


UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))

FILES: list[tuple[str | bytes, str]] = [
    (
        "time,set\n1,a\n",
        r"log has no column 'client': line 1 has 2 columns separated by commas; expected time, set, cl",
    ),
    ("time,set,Client\n1,a,b\n", "log has no column 'client': it has 'Client'"),
    ("1,secret,b\n", "'time': line 1 has 3 columns separated by commas; .* check that line 1 is the header, and the n"),
    ("1;secret,b;c;d\n", "has no column 'time': line 1 has 4 columns separated by semicolons; expected time, set, cl"),
    ("time\tsecret\n", "has no column 'set': line 1 has 2 columns separated by tabs; expected time, set, client; ch"),
    ("at|secret\n", "has no column 'time': line 1 has 2 columns separated by bars; expected time, set, client; chec"),
    ("secret\n", "has no column 'time': line 1 has 1 column; expected time, set, client; check that line 1 is the h"),
    ("", "log: line 1 is empty; it must name the columns$"),
    (f"\n{HEAD}", "log: line 1 is empty; it must name the columns$"),
    ("time,set,\0client\n1,a,b\n", "log, line 1: a zero byte: remove it, or save UTF-16 as UTF-8$"),
    (HEAD.encode("utf-16-be"), "log, line 1: a zero byte: remove it, or save UTF-16 as UTF-8$"),
    (HEAD.replace("\n", "\r"), "log, line 1: a carriage return within the line: end lines with LF or CRLF$"),
    ('"time,set,client\n1,a,b\n', "log, line 1: unbalanced or stray quotes"),
    ("time,set,client,set\n1,a,b,c\n", "log has two columns 'set': rename one"),
    (gzipped(HEAD.encode() + b"1,a,b\n" * 999)[:-20], "the gzip data is damaged: compress the log again"),
    (gzipped(HEAD.encode())[:-8] + bytes(8), "the gzip data is damaged: compress the log again"),
    (gzipped(gzipped(HEAD.encode())), "log is gzip data: name the file .gz, and compress it once"),
    (b"PK\x03\x04", "log is a zip or Excel file: save it as CSV"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1", "log is an Excel file: save it as CSV"),
    (bz2.compress(HEAD.encode()), "log is bzip2 data: decompress it, or use gzip"),
    (lzma.compress(HEAD.encode()), "log is xz data: decompress it, or use gzip"),
    (b"ARROW1\0\0", "log is an Arrow or Feather file: write it as Parquet"),
    (gzipped(PARQUET), "log is Parquet, which is read from its end: give the name of a file, not gzipped"),
    (HEAD.encode("utf-16"), "log is UTF-16: save it as UTF-8"),
    ('[{"time": 1, "set": "a", "client": "b"},', "log: not a JSON array of objects: write one object per line"),
    ("[1]", "log: not a JSON array of objects"),
    (f"[{OBJECT}] {{}}", "log: not a JSON array of objects"),
    (as_parquet(time=[1], set=[b"a"], client=["b"]), "column 'set' holds binary: only text, numbers, dates and"),
    (as_parquet(time=[1], set=UUIDS, client=["b"]), "column 'set' holds fixed_size_binary.*: only text, num"),
    (as_parquet(time=[1], set=[["a"]], client=["b"]), "column 'set' holds list.*: only text, numbers, dates and"),
    (as_parquet(time=[1], set=["a"]), "'client': it has 2 columns; expected time, set, client; check the names of col"),
    (PARQUET[:-20], "log is not readable as Parquet: write the file again"),
]


@pytest.mark.parametrize(("content", "message"), FILES, ids=range(len(FILES)))
def test_an_unreadable_file_says_what_to_change_and_shows_no_value(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    (path := tmp_path / "log").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(LogError, match=message) as found:
        list(read_joins(path, reading=LogReading(skip=True)))
    assert str(found.value).startswith(str(path))
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("1767225600", 1767225600),
        (" 1767225600.25 ", 1767225600.25),
        ("1767225600250", 1767225600.25),
        ("1767225600250000", 1767225600.25),
        ("1767225600250000000", 1767225600.25),
        ("2026-01-01", 1767225600),
        ("2026/01/01 00:00", 1767225600),
        ("2026-01-01 01:00:00.250+01:00", 1767225600.25),
        ("2026-01-01T00:00:00,250Z", 1767225600.25),
        ("2026-01-01 00:00:00 UTC", 1767225600),
        ("20260101T000000", 1767225600),
    ],
)
def test_times_are_read_in_every_usual_form(tmp_path: Path, time: str, seconds: float) -> None:
    (path := tmp_path / "log").write_text(f'time,set,client\n"{time}",a,b\n')
    assert [join.time for join in read_joins(path)] == [seconds]


@pytest.mark.parametrize(
    ("time", "month_first", "day_first"),
    [
        ("1/2/2026", "2026-01-02", "2026-02-01"),
        ("01.02.2026 13:05", "2026-01-02T13:05", "2026-02-01T13:05"),
        ("01/31/2026 1:05:06 PM", "2026-01-31T13:05:06", None),
        ("01/31/2026 12:05 am", "2026-01-31T00:05", None),
        ("31-01-2026", None, "2026-01-31"),
        ("2026-01-31", "2026-01-31", "2026-01-31"),
    ],
)
def test_dates_with_day_or_month_first_are_read_in_the_order_that_is_said(
    tmp_path: Path, time: str, month_first: str | None, day_first: str | None
) -> None:
    (path := tmp_path / "log").write_text(f"time,set,client\n{time},a,b\n")
    orders: tuple[tuple[Dates, str | None], ...] = (("mdy", month_first), ("dmy", day_first))
    for dates, expected in orders:
        if expected is None:
            with pytest.raises(LogError, match="line 2, column time: a date that does not exist in this order"):
                list(read_joins(path, reading=LogReading(dates)))
        else:
            moment = datetime.fromisoformat(expected).replace(tzinfo=UTC).timestamp()
            assert [join.time for join in read_joins(path, reading=LogReading(dates))] == [moment]


@pytest.mark.parametrize(
    ("text", "scale", "number"),
    [
        ("10", None, 10), (" +10 ", None, 10), ("1e1", None, 10), ("10.00", None, 10), ("-0", None, 0),
        ("10.50", None, DECIMALS), ("1e-1", None, DECIMALS), ("10.5", 0, 10), ("11.5", 0, 12), ("-2.5", 0, -2),
        ("1.005", 2, 100), ("1.015", 2, 102), ("0.30000000000000004", 2, 30), (".5", 1, 5), ("5.", 1, 50),
        ("1.23E+2", 2, 12300), ("4611686018427387904", 0, 1 << 62), ("4611686018427387905", 0, TOO_LARGE),
        ("46116860184273879.041", 2, 1 << 62), ("1e9999", 0, TOO_LARGE), ("0e9999", 0, 0), ("9" * 40, None, TOO_LARGE),
        ("12,50", 2, NOT_A_NUMBER), ("$9.50", 2, NOT_A_NUMBER), ("1,234.50", 2, NOT_A_NUMBER), ("nan", 2, NOT_A_NUMBER),
        ("0x10", 2, NOT_A_NUMBER), ("1_000", 2, NOT_A_NUMBER), ("\uff11", 2, NOT_A_NUMBER), ("--1", 2, NOT_A_NUMBER),
        (" ", 2, EMPTY),
    ],
)  # fmt: skip
def test_numbers_are_read_exactly_and_rounded_half_to_even(text: str, scale: int | None, number: int | str) -> None:
    try:
        found: int | str = values.number(text, scale)
    except values.Unreadable as error:
        found = str(error)
    assert found == number


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
def test_the_separator_is_the_one_of_the_header(tmp_path: Path, separator: str) -> None:
    lines = [["client", "time", "set"], ["c", "1", '"a,b;c\td|"'], ["d", "2", "e"]]
    (path := tmp_path / "log").write_text("\r\n".join(map(separator.join, lines)))
    assert list(read_joins(path)) == [LoggedJoin(1.0, "a,b;c\td|", "c"), LoggedJoin(2.0, "e", "d")]


def test_json_may_be_an_array_over_several_lines_and_hold_line_ends(tmp_path: Path) -> None:
    sets = ["a\nb" + "é" * n for n in range(1_200)]
    rows = [{"time": n, "set": set_, "client": "[{,"} for n, set_ in enumerate(sets)]
    (path := tmp_path / "log").write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8-sig")
    assert list(read_joins(path)) == [LoggedJoin(n, set_, "[{,") for n, set_ in enumerate(sets)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert [join.set for join in read_joins(path)] == sets


def test_the_lines_before_an_invalid_line_are_read(tmp_path: Path) -> None:
    (path := tmp_path / "log").write_text(HEAD + "x,a,b\n")
    joins = read_joins(path)
    assert next(joins) == LoggedJoin(1.0, "a", "b")
    with pytest.raises(LogError, match="line 3"):
        next(joins)


def test_a_missing_file_and_a_folder_say_to_check_the_path(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "nothing.csv", "there is no file"), (tmp_path, "cannot be read")):
        with pytest.raises(LogError, match=f"{message}.*: check the path"):
            next(read_joins(path))


@pytest.mark.parametrize("digits", [np.float16, np.float32, np.float64])
def test_a_number_that_is_missing_is_no_client_called_nan(tmp_path: Path, digits: type) -> None:
    content = as_parquet(time=[1, 2], set=["a", "b"], client=np.array([1, math.nan], digits))
    (path := tmp_path / "log").write_bytes(content)
    with pytest.raises(LogError, match=f"row 2, column client: {EMPTY}"):
        list(read_joins(path))


def test_without_pyarrow_parquet_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "log.parquet").write_bytes(PARQUET)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LogError, match=r"is Parquet, and pyarrow is missing: pip install .*, or run `make simulate`"):
        next(read_joins(path))


@pytest.mark.slow
def test_parquet_from_a_pipe_asks_for_a_file() -> None:
    program = "from kanon.joinlog import read_joins; next(read_joins('-'))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=PARQUET, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert b"standard input is Parquet, which is read from its end: give the name of a file" in ran.stderr
