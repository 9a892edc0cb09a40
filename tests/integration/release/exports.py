"""Fifty messy exports of the same rows. Each gives the right numbers, or an error that says what to change."""

import gzip
import io
import json
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kanon.release.accounting import Period
from kanon.release.bounding import Bounding, Sum

RIGHT = [("a", 2, (3050,)), ("b", 1, (325,))]
"""Group, users, and the sum of the amounts in hundredths."""
JANUARY = Bounding(
    "client", ("set",), (Sum("amount", -(10**6), 10**6),), kappa=9, scale=2, period=Period.read("2026-01").days
)
ROWS = (("a", "u1", "10.50"), ("a", "u2", "20"), ("b", "u1", "3.25"))
HEAD = "time,set,client,amount"


class Export(NamedTuple):
    """A file, what is asked of it, and the message of its refusal: none, if it is read."""

    content: bytes
    refused: str = ""
    more: dict[str, Any] = {}  # noqa: RUF012, read only
    whole_file: bool = False  # refused also with --skip-bad-rows
    suffix: str = ".csv"


def lines(*more: str, time: str = "2026-01-05", end: str = "\n", separator: str = ",") -> bytes:
    """CSV with the rows, each with the time, and with more lines after the second one."""
    made = [",".join((time, *row)) for row in ROWS]
    text = end.join([HEAD, *made[:2], *more, *made[2:]]) + end
    return text.replace(",", separator).encode()


def amounts(*texts: str) -> bytes:
    """CSV with these amounts in the rows."""
    made = [f"2026-01-05,{group},{user},{text}" for (group, user, _), text in zip(ROWS, texts, strict=True)]
    return "\n".join([HEAD, *made]).encode()


def objects(**cells: Any) -> list[dict[str, Any]]:
    return [{"time": "2026-01-05", "set": g, "client": u, "amount": float(x), **cells} for g, u, x in ROWS]


def json_lines(*more: str) -> bytes:
    return "\n".join([*map(json.dumps, objects()), *more]).encode()


def parquet(**columns: Any) -> Export:
    groups, users, values = zip(*ROWS, strict=True)
    known = {"time": ["2026-01-05"] * 3, "set": groups, "client": users, "amount": [float(x) for x in values]}
    pq.write_table(pa.table({**known, **columns}), file := io.BytesIO())
    return Export(file.getvalue(), suffix=".parquet")


def with_refusal(export: Export, refused: str, *, whole_file: bool = False) -> Export:
    return export._replace(refused=refused, whole_file=whole_file)


MOMENT = datetime(2026, 1, 5, 12, tzinfo=UTC)
SECONDS = int(MOMENT.timestamp())

EXPORTS = {
    # decimals and numbers
    "decimals": Export(lines()),
    "decimals without a scale": Export(
        lines(), "amount: numbers with decimals: name --scale", {"scale": None}, whole_file=True
    ),
    "trailing zeros without a scale": Export(amounts("3050.00", "0.0", "325.0"), "", {"scale": None}),
    "more decimals than the scale, rounded half to even": Export(amounts("10.495", "20.005", "3.245000000000000001")),
    "noise of floats": Export(amounts("10.500000000000002", "19.999999999999996", "3.2500000000000004")),
    "exponents": Export(amounts("1.05e1", "2E+1", "325e-2")),
    "signs and spaces": Export(amounts("+10.50", " 20 ", "\t3.25")),
    "no digit before the point": Export(amounts("10.5", "20.", "03.25")),
    "a currency sign": Export(lines("2026-01-05,a,u3,$9.50"), "line 4, column amount: not a number: write 1234.50"),
    "a currency code": Export(lines("2026-01-05,a,u3,9.50 EUR"), "line 4, column amount: not a number"),
    "a decimal comma": Export(lines('2026-01-05,a,u3,"9,50"'), "line 4, column amount: not a number.*decimal comma"),
    "separators of thousands": Export(lines('2026-01-05,a,u3,"1,234.50"'), "line 4, column amount: .*thousands"),
    "an empty amount": Export(lines("2026-01-05,a,u3,"), "line 4, column amount: it is empty"),
    "NULL as text": Export(lines("2026-01-05,a,u3,NULL"), "line 4, column amount: not a number"),
    "not a number": Export(lines("2026-01-05,a,u3,NaN"), "line 4, column amount: not a number"),
    "an enormous amount": Export(lines("2026-01-05,a,u3,1e30"), r"line 4, column amount: a number beyond 2\^62"),
    # times
    "unix seconds": Export(lines(time=f"{SECONDS}")),
    "unix milliseconds": Export(lines(time=f"{SECONDS}250")),
    "unix seconds with a fraction": Export(lines(time=f"{SECONDS}.25")),
    "a time of day with milliseconds": Export(lines(time="2026-01-05 12:00:00.250")),
    "an offset": Export(lines(time="2026-02-01T00:30:00+01:00")),
    "UTC in words": Export(lines(time="2026-01-05 12:00:00 UTC")),
    "US dates, said": Export(lines(time="01/31/2026 1:05:00 PM"), "", {"dates": "mdy"}),
    "European dates, said": Export(lines(time="31.01.2026 13:05"), "", {"dates": "dmy"}),
    "dates in an unsaid order": Export(lines("01/02/2026,a,u3,1"), "line 4, column time: a date such as 01/02/2026"),
    "two date formats": Export(lines("31/01/2026,b,u1,0"), "", {"dates": "dmy"}),
    "a date in the other order": Export(lines("01/31/2026,a,u3,1"), "line 4, column time: .*check", {"dates": "dmy"}),
    "a date of eight digits": Export(lines("20260105,a,u3,1"), "line 4, column time: eight digits"),
    "a day that does not exist": Export(lines("2026-02-30,a,u3,1"), "line 4, column time: not a time"),
    "no time": Export(lines(",a,u3,1"), "line 4, column time: it is empty"),
    # quotes and fields
    "every value in quotes": Export(lines().replace(b"u1", b'"u1"').replace(b"10.50", b'"10.50"')),
    "a quote that is not closed": Export(lines('2026-01-05,"a,u3,1'), "line 4: unbalanced or stray quotes"),
    "a stray quote": Export(lines('2026-01-05,5" disk,u3,1'), "line 4: unbalanced or stray quotes"),
    "text after a quote": Export(lines('2026-01-05,"a"b,u3,1'), "line 4: unbalanced or stray quotes"),
    "a line end in quotes": Export(lines('2026-01-05,"a', 'b",u3,1'), "line 4: .*write values with line ends as JSON"),
    "too many values": Export(lines("2026-01-05,a,u3,1,2"), "line 4: more values than columns"),
    "too few values": Export(lines("2026-01-05,a,u3"), "line 4: fewer values than columns"),
    "an empty user": Export(lines("2026-01-05,a,,1"), "line 4, column client: it is empty"),
    "a blank group": Export(lines("2026-01-05, ,u3,1"), "line 4, column set: it is empty"),
    "bytes of another encoding": Export(lines("2026-01-05,a,u3,1").replace(b"u3", b"\xfc3"), "line 4.*: not UTF-8"),
    # lines and files
    "mixed line ends": Export(lines(end="\r\n").replace(b"10.50\r\n", b"10.50\n\n")),
    "a lone carriage return": Export(lines("2026-01-05,a,u3,1\r2026-01-05,a,u4,1"), "line 4: a carriage return"),
    "a byte order mark": Export(b"\xef\xbb\xbf" + lines()),
    "tabs": Export(lines(separator="\t")),
    "semicolons": Export(lines(separator=";")),
    "gzip": Export(gzip.compress(lines(), mtime=0), suffix=".csv.gz"),
    "UTF-16": Export(lines().decode().encode("utf-16"), "UTF-16: save it as UTF-8", whole_file=True),
    "no header": Export(lines().partition(b"\n")[2], "no column 'time': line 1 has .*; expected ", whole_file=True),
    "a header in capitals": Export(lines().replace(b"client", b"Client"), "it has 'Client'", whole_file=True),
    "a column twice": Export(lines().replace(b"\n", b",set\n"), "two columns 'set': rename", whole_file=True),
    "JSON lines": Export(json_lines()),
    "a broken line of JSON": Export(json_lines('{"time": "2026-01-05", '), "line 4: not a JSON object"),
    "a JSON array": Export(json.dumps(objects(), indent=2).encode()),
    "a broken JSON array": Export(json.dumps(objects())[:-1].encode(), "not a JSON array of", whole_file=True),
    "Parquet": parquet(),
    "times and decimals of Parquet": parquet(
        time=pa.array([MOMENT] * 3, pa.timestamp("us", "Europe/Paris")),
        amount=pa.array(["10.50", "20.00", "3.25"]).cast(pa.decimal128(9, 2)),
    ),
    "dates of Parquet": parquet(time=pa.array([date(2026, 1, 5)] * 3, pa.date32())),
    "a null in Parquet": with_refusal(
        parquet(
            time=["2026-01-05"] * 4,
            set=["a", "a", "a", "b"],
            client=["u1", "u2", None, "u1"],
            amount=[10.5, 20.0, 1.0, 3.25],
        ),
        "row 3, column client: it is empty",
    ),
    "lists in Parquet": with_refusal(parquet(set=[["a"], ["a"], ["b"]]), "only text, numbers, dates", whole_file=True),
}  # fmt: skip
