"""The columnar reader of join logs: the same joins and the same errors as the reader row by row."""

import gzip
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kanon.joinlog import Columns, LogError, LoggedJoin, LogReading, read_joins
from kanon.joinlog import batches as batches_module
from kanon.joinlog.batches import read_tables
from kanon.joinlog.numbered import JoinBatch, Texts, read_batches
from kanon.joinlog.rows import Fault, LogLayout, Where, judged, row_of
from kanon.joinlog.wanted import Column, Wanted
from tests.unit.test_joinlog import FORMS, PARQUET, as_parquet


def joins_of(batches: Iterable[JoinBatch]) -> list[LoggedJoin]:
    return [
        LoggedJoin(*row)
        for batch in batches
        for row in zip(batch.times.tolist(), rows_of(batch.sets), rows_of(batch.clients), strict=True)
    ]


def rows_of(column: Texts) -> list[str]:
    return [column.texts[number].decode() for number in column.numbers.tolist()]


def outcome(read: Callable[[LogReading], Iterable[Any]], *, skip: bool) -> tuple[object, LogReading]:
    """What a reader yields, in any order, or its error; and what it counted."""
    reading = LogReading(skip=skip)
    try:
        return sorted(map(repr, read(reading))), reading
    except LogError as error:
        return str(error), LogReading()


def alike(path: Path) -> None:
    """The readers agree on this log: on its joins, on what is wrong with it, and on what is left out."""
    for skip in (False, True):
        rows = outcome(lambda reading: read_joins(path, reading=reading), skip=skip)
        columns = outcome(lambda reading: joins_of(read_batches(path, reading=reading)), skip=skip)
        assert columns == rows
        with pytest.MonkeyPatch.context() as without_pyarrow:
            without_pyarrow.setitem(sys.modules, "pyarrow", None)
            without = outcome(lambda reading: joins_of(read_batches(path, reading=reading)), skip=skip)
        if path.read_bytes().startswith(b"PAR1"):
            assert "pyarrow is missing" in str(without[0])
        else:
            assert without == rows


CONTENTS = [*FORMS.values(), PARQUET, gzip.compress(FORMS["CSV"], mtime=0)]


@pytest.mark.parametrize("read", [read_joins, read_batches])
@pytest.mark.parametrize("content", CONTENTS)
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, content: bytes, read: Any) -> None:
    (path := tmp_path / "log").write_bytes(content)
    rows = read(path)
    next(rows)
    os.utime(path, ns=(0, 0))  # as if somebody wrote into it
    with pytest.raises(LogError, match="log changed while it was read: copy it"):
        list(rows)


@pytest.mark.parametrize("content", CONTENTS)
def test_every_form_gives_the_same_joins(tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "log").write_bytes(content)
    alike(path)
    assert joins_of(read_batches(path))


TIMES = ["7200", "3700.5", "1e3", " 7", "1_000", "", "x", "nan", "-1", "9e12", "2024-02-03", "2024-02-03T04:05:06Z"]
TIMES += ["2024-02-03 04:05:06.123456", "2024-02-03T04:05:06+01:00", "2024-02-03T04:05:06.1234567Z", "20240203T040506"]
VALUES = ["a", "ü", "", " ", 'say "hi"', "a,b", "a\nb", "1", "007", "a\rb", "\0", '"', "x" * 70]


def csv_text(rows: list[tuple[str, str, str]], quote: str) -> str:
    def field(value: str) -> str:
        if quote == "never" or (quote == "needed" and not set(value) & set(',"\n\r')):
            return value
        return '"' + value.replace('"', '""') + '"'

    return "time,set,client\n" + "".join(",".join(map(field, row)) + "\n" for row in rows)


ROW = st.tuples(st.sampled_from(TIMES), st.sampled_from(VALUES), st.sampled_from(VALUES))
GOOD = st.tuples(st.sampled_from(TIMES[:3]), st.sampled_from(["a", "ü", "a,b"]), st.sampled_from(["1", "c d", "c"]))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    rows=st.one_of(st.lists(GOOD, max_size=30), st.lists(ROW, max_size=6)),
    quote=st.sampled_from(["always", "needed", "never"]),
    ending=st.sampled_from(["", "\n", "\r\n", "\n\n", '"', ",", "1,2\n", "1,2,3,4\n", '1,a"b,c\n', '1,"a"b,c\n']),
    block=st.sampled_from([16, 64, 1 << 19]),
)
@example(rows=[("1", "a", "b"), ("2024-02-03", "c", "d")], quote="needed", ending="", block=1 << 19)
def test_csv_gives_the_same_joins_or_the_same_error(tmp_path_factory, rows, quote, ending, block) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.getbasetemp() / f"log-{os.getpid()}"
    path.write_bytes((csv_text(rows, quote) + ending).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_module, "BLOCK_BYTES", block)
        alike(path)


JSON_VALUES = [*VALUES, 1, 0, -5, 2**70, 1.5, True, None, [1], {"a": 1}]
JSON_TIMES = [*TIMES, 7200, 3700.5, True, None, -1, 2**70]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"time": st.sampled_from(JSON_TIMES), "set": st.sampled_from(JSON_VALUES)},
            optional={"client": st.sampled_from(JSON_VALUES), "more": st.sampled_from(JSON_VALUES)},
        ),
        max_size=6,
    ),
    ending=st.sampled_from(["", "\n", "\r\n", "{", "[1]\n", '{"time":1,"set":"a","set":"b","client":"c"}\n', "\ufeff"]),
    block=st.sampled_from([16, 64, 1 << 19]),
)
@example(rows=[{"time": 1, "set": 2, "client": "x"}] * 3, ending="", block=64)
@example(rows=[{"time": 1, "set": "2", "client": 3}] * 3, ending="", block=1 << 19)
def test_json_lines_give_the_same_joins_or_the_same_error(tmp_path_factory, rows, ending, block) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.getbasetemp() / f"log-{os.getpid()}"
    path.write_text('{"time":1,"set":"s","client":"c"}\n' + "".join(f"{json.dumps(r)}\n" for r in rows) + ending)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_module, "BLOCK_BYTES", block)
        alike(path)


@pytest.mark.parametrize(
    "columns",
    [
        {"time": pa.array([1, 2]), "set": ["a", "b"], "client": [1, 2]},
        {"time": pa.array([1.5, 2]), "set": pa.array(["a", "b"]).dictionary_encode(), "client": ["x", "y"]},
        {"time": pa.array([1, None]), "set": ["a", "b"], "client": [1, 2]},
        {"time": pa.array(["1", "2024-02-03"]), "set": ["a", ""], "client": [1, 2]},
        {"time": pa.array([1, 2]), "set": [True, False], "client": [1, 2]},
        {"time": pa.array([1, 2]), "set": [b"a", b"b"], "client": [1, 2]},
        {"time": pa.array([1, 2], pa.date32()), "set": ["a", "b"], "client": [1, 2]},
        {"time": pa.array([1, -2], pa.date32()), "set": ["a", "b"], "client": [1.5, 1e30]},
        {"time": pa.array([1, 1 << 60], pa.timestamp("ms")), "set": ["a", "b"], "client": [1, 2]},
        {"time": pa.array([1.5, 1.7e12]), "set": [" ", "b"], "client": pa.array([1, 2], pa.decimal128(9, 2))},
        {"time": pa.array([None, None]), "set": ["a", "b"], "client": [1, 2]},
        {"time": pa.array([1, 2]), "set": ["a", "b"], "client": [1.0, math.nan]},
    ],
)
def test_parquet_gives_the_same_joins_or_the_same_error(tmp_path: Path, columns: dict[str, object]) -> None:
    (path := tmp_path / "log").write_bytes(as_parquet(**columns))
    alike(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"time,set\n1,2\n",
        b"time,set,client,set\n1,a,b,c\n",
        b'time,"set",client\n1,a,b\n',
        b'time,"set\n",client\n1,a,b\n',
        b'time,"set"x,client\n1,a,b\n',
        b"time,set,client\r\n1,a,b\r\n",
        b"time,set,client\n1,a,b\r2,c,d\n\n",  # as many rows as lines, if a lone return ended one
        b"time,set,client\n\xff,a,b\n",
        b"time,set,client\n" + b"1,a,b\n" * 9 + b"1," + b"x" * (1 << 20) + b",b\n1,a,b\n",
        gzip.compress(b"time,set,client\n1,a,b\n" * 50, mtime=0)[:-9],
        b'{"time":1,"set":"' + b"x" * (1 << 21) + b'","client":"c"}\n',
    ],
)
def test_odd_files_give_the_same_joins_or_the_same_error(tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "log").write_bytes(content)
    alike(path)


TYPED = {
    "u": ["a", "ü", '"q ""x"" y"', "", " ", 'a"b', '"a', "\xff", "x\0y", "1"],
    "o": ["", "a", " ", "z"],
    "n": ["1", "-2.25", " 3", "1e2", "1.005", "abc", "", "0.30000000000000004", "9" * 20, "4611686018427387904", "5."],
    "t": ["1767225600", "2026-01-05", "2026-01-05T12:00:00Z", "20260105", "01/02/2026", "1767225600000", "", "soon"],
    "c": ["x", "y", "", "\xff"],
}
PLAIN = {"u": ["a", '"q, x"'], "o": ["", "a"], "n": ["1", "2.50"], "t": ["1767225600"], "c": ["x", "y"]}
LINE = st.one_of(
    *(
        st.tuples(*(st.sampled_from(cells[name]) for name in TYPED)).map(",".join)
        for cells in (PLAIN, {**PLAIN, "n": TYPED["n"]}, TYPED)
    ),
    st.text(st.sampled_from('a",\r\0\xff1'), max_size=12),
)
COLUMNS = (Column("u", "text"), Column("o", "optional"), Column("n", "number"), Column("t", "time"), Column("t", "day"))


@settings(max_examples=int(os.environ.get("FUZZ_EXAMPLES", "100")), deadline=None, derandomize=True)
@given(
    lines=st.lists(LINE, max_size=12),
    end=st.sampled_from([b"\n", b"\r\n"]),
    block=st.sampled_from([16, 64, 1 << 19]),
    more=st.sampled_from([{}, {"conditions": (("c", False, "x"),)}, {"days": ((20454, 20459),), "time": "t"}]),
    scale=st.sampled_from([2, 2, None]),
)
def test_columns_of_every_kind_are_read_as_the_definition_says(  # type: ignore[no-untyped-def]
    tmp_path_factory, lines, end, block, more, scale
) -> None:
    path = tmp_path_factory.getbasetemp() / f"log-{os.getpid()}"
    path.write_bytes(end.join(line.encode("latin-1" if "\xff" in line else "utf-8") for line in ["u,o,n,t,c", *lines]))
    wanted = Wanted(COLUMNS, scale, **more)

    def columns(reading: LogReading) -> Iterable[Any]:
        for table in read_tables(path, wanted, reading):
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_module, "BLOCK_BYTES", block)
        for skip in (False, True):
            assert outcome(columns, skip=skip) == outcome(partial(_defined, path, wanted), skip=skip)


def _defined(path: Path, wanted: Wanted, reading: LogReading) -> Iterable[Any]:
    """The rows by the definition alone."""
    layout, where = LogLayout(("u", "o", "n", "t", "c"), ","), Where.of(path)
    for line in path.read_bytes().split(b"\n")[1:]:
        where.line += 1
        line = line.removesuffix(b"\r")
        if line:
            reading.rows += 1
            found = judged(row_of(line, layout), wanted)
            if isinstance(found, Fault):
                reading.add(found, Where(str(path), line=where.line + 1))
            elif found is not None:
                yield found


def test_regular_blocks_are_not_read_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("2024-02-03T04:05:06Z", "a,b", 'say "hi"')] * 20_000
    (path := tmp_path / "log").write_text(csv_text(rows, "needed"))
    monkeypatch.setattr(batches_module, "judged", lambda *_: pytest.fail("read row by row"))
    assert len(joins_of(read_batches(path))) == 20_000


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    (path := tmp_path / "log").write_text("when,what,who\n1,a,b\n")
    assert joins_of(read_batches(path, Columns("when", "what", "who"))) == [LoggedJoin(1.0, "a", "b")]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(FORMS["CSV"]))))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", text)
    assert len(joins_of(read_batches("-"))) == 4
