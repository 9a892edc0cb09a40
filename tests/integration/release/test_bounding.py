"""The bounded table of DuckDB equals a plain Python computation, for every measure, unit, period and odd row."""

import csv
import gzip
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kanon.release.accounting import Period
from kanon.release.bounding import (
    LEFT_OUT,
    Bins,
    Bounding,
    Cells,
    Centred,
    Condition,
    CountedRows,
    Distinct,
    Squares,
    Sum,
    UserMeans,
    bin_edges,
    decoded,
    encoded,
)
from kanon.release.engines.duckdb import DuckDB
from kanon.release.errors import InputError, SpecificationError
from kanon.release.noising import keyed_digest
from tests.unit.release import naive
from tests.unit.release.made import groups_of
from tests.unit.release.naive import bin_of

SECRET = "5e" * 32
COLUMNS = ["time", "set", "country", "client", "amount", "price", "page"]
MEASURES = (
    CountedRows(2),
    Sum("amount", -500, 1000),
    Sum("price", 0, 700),
    UserMeans("amount", -300, 300),
    Centred("amount", -300, 400, 2),
    Squares("amount", -300, 400, 2),
    Centred("price", 0, 100, 1),
    Cells("amount", -300, 400, 16),
    Distinct("page", 2),
    Bins("amount"),
)
TIMES = [
    "1767225600", "1767225599.75", "2026-01-31T23:30:00-01:00", "2026-02-01 00:30:00+0100", "2026-01-05",
    "2026-01-05T12:00Z", "2026-02-28T23:59:59.5+00:30", "2025-12-31T23:00:00-02",
]  # fmt: skip
ODD = [
    {"client": ""}, {"set": ""}, {"amount": "NaN"}, {"amount": "inf"}, {"amount": ""}, {"amount": "1e3"},
    {"amount": "4611686018427387905"}, {"amount": "99999999999999999999999"}, {"amount": "1.234"}, {"amount": "0x10"},
    {"amount": " 1"}, {"amount": "1 "}, {"amount": "--1"}, {"amount": "1\n"}, {"page": ""},
]  # fmt: skip
ODD_TIMES = ["2026-13-01", "2026-02-30", "soon", "-5", "2026-01-05T25:00", "1970-01-01T00:00+14:00", ""]


def rows(seed, number=300):
    draw = random.Random(seed)
    made = [
        {
            "time": draw.choice(TIMES),
            "set": draw.choice(["a", "b,b", 'c "q"', "d\td", "é", "名", "zz", "f'f"]),
            "country": draw.choice(["x", "1:y"]),
            "client": draw.choice(["u", "v"]) + str(draw.randrange(12)),
            "amount": draw.choice(["1.5", "-2.25", "3", "0", "-0.50", "700.10", "-41", "2.500"]),
            "price": str(draw.randrange(30)),
            "page": draw.choice(["p", "q", "r", "s", "t"]),
        }
        for _ in range(number)
    ]
    made += [{**draw.choice(made), **odd} for odd in ODD]
    draw.shuffle(made)
    return made


def write(path, made):
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(made)
    return path


def table(paths, bounding):
    with DuckDB().table(paths, bounding, SECRET) as found:
        groups = [(group.name, group.users, group.measures) for group in groups_of(found)]
        return groups, dict(found._bins), keyed_digest(found, b"k" * 32)


@pytest.mark.parametrize(("kappa", "unit"), [(1, "user"), (2, "user-day"), (3, "user-month"), (100, "user")])
def test_the_engine_computes_the_definition(tmp_path, kappa, unit):
    made = rows(kappa)
    if unit != "user":
        made += [{**made[0], "time": time} for time in ODD_TIMES]
    bounding = Bounding("client", ("set",), MEASURES, kappa, scale=2, unit=unit, skip_bad_rows=True)
    groups, bins, _ = table([write(tmp_path / "log.csv", made)], bounding)
    assert groups == naive.bounded(made, bounding, SECRET)
    assert bins == {"amount": naive.entries(made, bounding, "amount", SECRET)}
    assert len(groups) >= 6


@pytest.mark.parametrize(
    "more",
    [
        {"groups": ("set", "country")},
        {"period": Period.read("2026-01").days},
        {"period": Period.read("2025-12-31,2026-02-01..2026-02-28").days, "unit": "user-day"},
        {"where": (Condition("country", equal=True, text="1:y"), Condition("page", equal=False, text="p"))},
        {"where": (Condition("set", equal=True, text="f'f"),)},
        {"listed": ("a", "nowhere", "é")},
    ],
    ids=str,
)
def test_groups_by_columns_periods_conditions_and_lists_follow_the_definition(tmp_path, more):
    made = rows(7)
    bounding = Bounding(
        **{"user": "client", "groups": ("set",), "measures": MEASURES, "kappa": 2, "scale": 2, **more},
        skip_bad_rows=True,
    )
    groups, bins, _ = table([write(tmp_path / "log.csv", made)], bounding)
    assert groups == naive.bounded(made, bounding, SECRET)
    assert bins == {"amount": naive.entries(made, bounding, "amount", SECRET)}
    assert groups


@pytest.mark.parametrize("kappa", [1, 3, 7, 100])
@pytest.mark.parametrize("more", [{}, {"unit": "user-day"}, {"listed": ("a", "nowhere", "é")}], ids=str)
def test_the_users_with_too_many_groups_are_counted_and_each_group_lacks_at_most_so_many(tmp_path, kappa, more):
    made = rows(5)
    asked = {"user": "client", "groups": ("set",), "left_out": True, "skip_bad_rows": True, **more}
    path = write(tmp_path / "log.csv", made)
    kept, bins, _ = table([path], Bounding(kappa=kappa, **asked))
    everybody, _, _ = table([path], Bounding(kappa=1000, **asked))
    assert bins == {LEFT_OUT: {0: naive.left_out(made, Bounding(kappa=kappa, **asked))}}
    counted = {name: users for name, users, _ in kept}
    assert all(users - counted.get(name, 0) <= bins[LEFT_OUT][0] for name, users, _ in everybody)


def test_order_split_compression_and_format_of_the_files_do_not_matter(tmp_path):
    made = rows(3)
    bounding = Bounding("client", ("set", "country"), MEASURES, 2, scale=2, skip_bad_rows=True)
    expected = table([write(tmp_path / "log.csv", made)], bounding)
    shuffled = made[::-1]
    half = len(made) // 2
    gzipped, plain = write(tmp_path / "1.csv.gz", shuffled[:half]), tmp_path / "2.parquet"
    columns = {name: [row[name] for row in shuffled[half:]] for name in reversed(COLUMNS)}
    pq.write_table(pa.table(columns), plain)
    assert table([gzipped, plain], bounding) == expected
    assert table([plain, gzipped], bounding) == expected


def test_numbers_in_parquet_are_read_like_their_texts(tmp_path):
    path = tmp_path / "log.parquet"
    columns = {"g": ["a", "a", "b"], "client": [1, 2, 3], "amount": [1.5, -2.0, float("nan")], "price": [7, 8, None]}
    pq.write_table(pa.table(columns), path)
    bounding = Bounding("client", ("g",), (Sum("amount", -1000, 1000),), scale=2, skip_bad_rows=True)
    assert table([path], bounding)[0] == [("a", 2, (-50,))]
    bounding = Bounding("client", ("g",), (Sum("price", 0, 9),), skip_bad_rows=True)
    assert table([path], bounding)[0] == [("a", 2, (15,))]


def test_a_value_of_two_to_the_sixty_second_is_a_row_error_and_sums_do_not_overflow(tmp_path):
    path, largest = tmp_path / "log.csv", 1 << 62
    path.write_text("g,client,x\n" + f"a,u,{largest}\n" * 9 + f"a,v,{largest + 1}\na,w,{-largest}\n")
    bounding = Bounding(
        "client", ("g",), (Sum("x", -(1 << 61), 1 << 61), Bins("x"), UserMeans("x", 0, 10)), skip_bad_rows=True
    )
    ((_, users, (clamped, bins, _)),), _, _ = table([path], bounding)
    assert (users, clamped) == (2, 0)
    assert bins == ((-63, 1, -largest), (64, 1, 1 << 63))


def test_a_damaged_file_is_refused_without_its_content(tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"set": ["SECRET"], "client": ["SECRET"]}), path)
    content = bytearray(path.read_bytes())
    content[8:40] = b"X" * 32
    path.write_bytes(bytes(content))
    with pytest.raises(InputError) as caught:
        table([path], Bounding("client", ("set",)))
    assert "SECRET" not in str(caught.value)
    assert caught.value.__suppress_context__
    with pytest.raises(SpecificationError, match="--memory"), DuckDB("much").table([], Bounding("c", ("s",)), ""):
        pass


@pytest.mark.parametrize("x", [0, 1, -1, 2, 3, 4, 5, -8, -9, 1 << 62, (1 << 62) + 1, 1 << 63, -(1 << 63), 1 << 90])
def test_every_integer_has_one_bin(x):
    low, high = bin_edges(bin_of(x))
    assert low <= max(-(1 << 63), min(1 << 63, x)) <= high
    assert [b for b in range(-64, 65) if bin_edges(b)[0] <= max(-(1 << 63), min(1 << 63, x)) <= bin_edges(b)[1]] == [
        bin_of(x)
    ]


@pytest.mark.parametrize("group", [("a",), ("1:a", "b"), ("", "é:", "3:x"), ("a1:b", "")])
def test_the_name_of_a_group_can_be_read_back(group):
    assert decoded(encoded(group), len(group)) == group
