"""Releases of real files: values without noise, independent noise for every cell, public groups, floors."""

import csv
import gzip
import math
import random
import statistics
from fractions import Fraction

import pytest

from kanon.noise.laws import Table
from kanon.noise.words import TOTAL
from kanon.release import Ledger, release
from kanon.release.accounting import Period
from kanon.release.aggregate_noise import half_width
from kanon.release.bounding import LEFT_OUT, Condition
from kanon.release.deltas import shift_delta
from kanon.release.engines.duckdb import DuckDB
from kanon.release.errors import NoBoundsError, SpecificationError
from kanon.release.mechanism import Mechanism
from kanon.release.noising import PrivateTable, keyed_digest, publish
from kanon.release.selection import below_or_at, widest
from kanon.release.tape import Tape
from tests.paths import REAL_LOG
from tests.unit.release.made import Given, groups_of, spec


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Three groups of 300, 200 and 1 users with one or two amounts each."""
    path = tmp_path_factory.mktemp("log") / "log.csv"
    draw = random.Random(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["set", "client", "amount", "page"])
        for group, users in (("é", 300), ("b", 200), ("lonely", 1)):
            for user in range(users):
                for _ in range(1 + (user % 3 == 0)):
                    writer.writerow(
                        [group, f"{group}{user}", f"{draw.randrange(-500, 9000) / 100}", draw.choice("pqr")]
                    )
    return path


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(path, place, *, name=None, engine=None, **more):
    scale = {"scale": 2} if "amount" in str(more.get("aggregates")) else {}
    asked = spec(**{"epsilon": Fraction(4), "delta": Fraction("1e-5"), **scale, **more})
    return release(path, asked, Ledger.at(place), dataset="d", name=name, engine=engine)


def cells(made):
    return {names: dict(zip(made.released.columns, row, strict=True)) for names, row in made.released.rows}


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(Table, "draw", lambda self, word: 0)


def test_without_noise_the_values_equal_the_data(log, tmp_path, silent):
    made = run(
        log, tmp_path / "l", values_per_group=2,
        aggregates=(
            "rows:2", "sum:amount:-1000:1000", "mean:amount:-10:100", "var:amount:-10:200", "stddev:amount:-10:200",
            "mean:amount:-10:100:per-user", "distinct:page",
        ),
    )  # fmt: skip
    found = cells(made)
    assert set(found) == {("é",), ("b",)}
    for group, users in (("é", 300), ("b", 200)):
        rows = [row for row in rows_of(log) if row["set"] == group]
        amounts = [float(row["amount"]) for row in rows]
        one = {name: float(cell) for name, cell in found[group,].items()}
        by_user = {}
        for row in rows:
            by_user.setdefault(row["client"], []).append(float(row["amount"]))
        assert one["users_counted"] == users
        assert one["rows"] == len(rows)
        assert one["sum_amount"] == pytest.approx(sum(amounts), abs=20)  # the grid of a sum is 1000 / 256 wide
        assert one["mean_amount"] == pytest.approx(statistics.fmean(amounts), rel=1e-2)
        assert one["var_amount"] == pytest.approx(statistics.pvariance(amounts), rel=5e-2)
        assert one["stddev_amount"] == pytest.approx(math.sqrt(one["var_amount"]), rel=1e-12)
        assert one["mean_amount_per_user"] == pytest.approx(
            statistics.fmean(statistics.fmean(own) for own in by_user.values()), rel=1e-2
        )
        assert one["distinct_page"] == 3
        assert one["mean_amount_low"] < one["mean_amount"] < one["mean_amount_high"]


def test_without_noise_an_automatic_sum_is_clamped_to_the_edges_of_its_outermost_full_bins(log, tmp_path, silent):
    made = run(log, tmp_path / "l", epsilon=Fraction(8), aggregates=("sum:amount:auto",))
    low, high = made.released.bounds["sum:amount:auto"]
    assert (low, high) == (Fraction(513, 100), Fraction(16384, 100))
    assert cells(made).keys() == {("é",), ("b",)}
    for (group,), one in cells(made).items():
        by_user = {}
        for row in rows_of(log):
            if row["set"] == group:
                by_user[row["client"]] = by_user.get(row["client"], 0) + Fraction(row["amount"])
        expected = sum(min(max(own, low), high) for own in by_user.values())
        assert abs(one["sum_amount"] - expected) <= high / 512 / 2


def test_quantiles_of_many_users_are_close_to_those_of_the_data(log, tmp_path):
    made = run(
        log,
        tmp_path / "l",
        epsilon=Fraction(20),
        aggregates=("quantile:amount:-10:100:0.25,0.5,0.75", "max:amount:-10:100"),
    )
    assert cells(made).keys() == {("é",), ("b",)}
    for (group,), one in cells(made).items():
        amounts = sorted(float(row["amount"]) for row in rows_of(log) if row["set"] == group)
        for q in (0.25, 0.5, 0.75):
            place = int(q * len(amounts))
            found = float(one[f"quantile_amount_{q:g}"])
            assert amounts[place - 25] <= found <= amounts[place + 25]
        assert float(one["max_amount"]) > amounts[-10]


def test_two_equal_aggregates_of_a_group_have_different_noise(log, tmp_path):
    made = run(log, tmp_path / "l", aggregates=("rows:2", "rows:2", "quantile:amount:-10:100:0.5"))
    assert cells(made).keys() == {("é",), ("b",)}
    for one in cells(made).values():
        assert one["rows"] != one["rows_2"]


ALL = ("rows:2", "rows:2", "sum:amount:auto", "sum:amount:auto", "all-users", "quantile:amount:0:9:0.2,0.5")


def test_no_two_roles_or_groups_read_the_same_words(log, tmp_path, monkeypatch):
    read = []
    one, several = Tape.bytes, Tape.words

    def words(tape, role, groups):
        read.extend((role, group, 0) for group in groups.to_pylist())
        return several(tape, role, groups)

    monkeypatch.setattr(Tape, "bytes", lambda tape, *place: read.append(place[:3]) or one(tape, *place))
    monkeypatch.setattr(Tape, "words", words)
    run(log, tmp_path / "l", aggregates=(*ALL, "var:amount:0:9", "min:amount:0:9"))
    assert len(read) == len(set(read))


def test_public_groups_are_all_released_and_others_are_not(log, tmp_path):
    made = run(log, tmp_path / "l", public_groups=(("é",), ("nowhere",), ("lonely",)), delta=Fraction("1e-12"))
    found = cells(made)
    assert set(found) == {("é",), ("nowhere",), ("lonely",)}
    assert abs(found[("nowhere",)]["users_counted"]) < 15
    assert made.guarantee.delta < Fraction("1e-15")


@pytest.mark.parametrize(("only_groups", "columns"), [(False, 3), (True, 0)])
def test_safe_groups_are_released_in_the_order_of_their_bytes(log, tmp_path, only_groups, columns):
    made = run(log, tmp_path / "l", only_groups=only_groups)
    assert len(made.released.columns) == columns
    assert [names for names, _ in made.released.rows] == [("b",), ("é",)]


def test_automatic_bounds_that_find_nothing_end_the_release_and_the_cost_is_spent(log, tmp_path):
    asked = {"aggregates": ("sum:amount:auto",), "where": (Condition("set", equal=True, text="lonely"),)}
    for _ in range(2):
        with pytest.raises(NoBoundsError, match="cost is spent"):
            run(log, tmp_path / "l", **asked)
    assert len(Ledger.at(tmp_path / "l").spends()) == 1


def test_a_user_that_is_removed_changes_only_what_it_touches_before_noise(log, tmp_path):
    bounding = spec(scale=2, aggregates=("sum:amount:-10:100", "distinct:page")).bounding
    rows = log.read_text().splitlines(keepends=True)
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("".join(row for row in rows if not row.startswith("b,b7,")))
    tables = []
    for path in (log, fewer):
        with DuckDB().table([path], bounding, "s") as table:
            tables.append({group.name: (group.users, group.measures) for group in groups_of(table)})
    changed = {name for name in tables[0] if tables[0][name] != tables[1].get(name)}
    assert changed == {"b"}
    assert tables[0]["b"][0] - tables[1]["b"][0] == 1


def test_the_interval_is_the_narrowest_of_its_level():
    for law in (Mechanism(spec()).rule.law, Mechanism(spec(groups_per_user=20)).rule.law):
        a = half_width(law, Fraction(95, 100))

        def within(a, law=law):
            return Fraction(below_or_at(law, a) - below_or_at(law, -a - 1), TOTAL)

        assert within(a - 1) < Fraction(95, 100) <= within(a)


def test_intervals_cover_the_truth_at_their_stated_level(tmp_path):
    """2,000 groups of 100 users, seeded: a miss rate of 5% at most, off by less than 2.5 points (5 standard errors)."""
    mechanism = Mechanism(spec(aggregates=("rows:3",), delta=Fraction("1e-3")))
    table = PrivateTable.of_rows(mechanism.spec.bounding, lambda: ((f"{i}", 100, 200) for i in range(2000)), {})
    made = publish(table, mechanism, Tape(b"7" * 32, "id"))
    assert len(made.rows) == 2000
    for column, exact in ((0, 100), (3, 200)):
        missed = sum(not low <= exact <= high for _, row in made.rows for low, high in [row[column + 1 : column + 3]])
        assert 0.025 * 2000 / 5 < missed < 0.075 * 2000


def test_intervals_of_all_users_cover_them_even_if_every_user_with_many_groups_belongs_to_the_group():
    """1,000 releases of groups with none, some and all of 50 such users; a miss rate of 5% at most, as above."""
    mechanism = Mechanism(spec(aggregates=("rows:3", "all-users"), weights=(1, 1, 1), epsilon=Fraction(3)))
    truth, missed = {"a": 100, "b": 130, "c": 150}, 0
    table = PrivateTable.of_rows(mechanism.spec.bounding, lambda: ((g, 100, 0) for g in truth), {LEFT_OUT: {0: 50}})
    for i in range(1000):
        made = publish(table, mechanism, Tape(i.to_bytes(32, "big"), "id"))
        assert made.columns[-2:] == ("all_users_low", "all_users_high")
        for (name,), row in made.rows:
            assert row[0] - row[-2] == row[-1] - row[0] - made.left_out
            missed += not row[-2] <= truth[name] <= row[-1]
    assert 0 < missed < 0.05 * 3000


@pytest.mark.parametrize(("values", "parts"), [(1, 2), (2, 2)])
def test_the_interval_of_a_mean_holds_if_all_of_its_parts_hold(silent, values, parts):
    """A sum and a number share the 5%: of the users if each has one value, otherwise of the values."""
    mechanism = Mechanism(spec(aggregates=("mean:x:0:100",), values_per_group=values, epsilon=Fraction(8)))
    row = ("a", 1000, 2000, 1000)[: 3 + (values > 1)]
    ((_, cells),) = publish(
        PrivateTable.of_rows(mechanism.spec.bounding, lambda: iter([row]), {}), mechanism, Tape(b"7" * 32, "id")
    ).rows
    level = 1 - Fraction(5, 100) / parts
    totals = [total.half_width(level) for total in mechanism.totals(0)]
    number = totals[1] if values > 1 else half_width(mechanism.rule.law, level)
    sums = [mechanism.totals(0)[0].noisy(2000, 0) + sign * totals[0] for sign in (-1, 1)]
    ends = [50 + one / (1000 + sign * number) / 2 for one in sums for sign in (-1, 1)]
    assert number > 0
    assert (cells[4], cells[5]) == (min(ends), max(ends))


def test_the_users_left_out_are_noisy_never_negative_and_their_claim_is_a_part_of_the_release():
    mechanism = Mechanism(spec(aggregates=("all-users",), weights=(3, 1)))
    found = []
    for users in (0, 7):
        table = PrivateTable.of_rows(mechanism.spec.bounding, lambda: iter(()), {LEFT_OUT: {0: users}})
        found.append([publish(table, mechanism, Tape(bytes([i]) * 32, "id")).left_out for i in range(200)])
    assert all(more == max(0, fewer + 7) or fewer == 0 for fewer, more in zip(*found, strict=True))
    assert min(found[0]) == 0
    assert sum(more >= 7 for more in found[1]) > 190  # its end lies above with 97.5%
    assert len(set(found[0])) > 5
    part = mechanism.parts[1]
    law = widest(Fraction(1, 4))
    assert (part.name, part.epsilon, part.delta) == ("all-users", Fraction(1, 4), shift_delta(law, 1, Fraction(1, 4)))
    assert part.tables == (law.digest,)


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, ["users_counted", "users_counted_low", "users_counted_high"]),
        ({"unit": "user-day"}, ["user_days_counted", "user_days_counted_low", "user_days_counted_high"]),
        ({"public_groups": (("a",), ("b",))}, ["users_counted", "users_counted_low", "users_counted_high"]),
        ({"public_groups": (("a",), ("b",)), "groups_per_user": 2}, ["users", "users_low", "users_high"]),
        ({"unit": "user-month", "public_groups": (("a",),)}, ["user_months", "user_months_low", "user_months_high"]),
    ],
)
def test_a_count_is_named_for_what_it_counts(tmp_path, more, names):
    made = release([], spec(**more), Ledger.at(tmp_path / "l"), dataset="d", engine=Given(("a", 100)))
    assert list(made.released.columns) == names
    told = made.described()["counts"]
    assert told["column"] == names[0]
    assert told["meaning"].startswith(names[0])
    assert (" all " in told["meaning"]) is ("counted" not in names[0])


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real log is not beside the checkout")
def test_the_real_log_in_another_order_and_in_parts_gives_the_same_table(tmp_path):
    header, *lines = gzip.decompress(REAL_LOG.read_bytes()).decode().splitlines(keepends=True)
    random.Random(2).shuffle(lines)
    parts = [tmp_path / "1.csv", tmp_path / "2.csv"]
    for path, some in zip(parts, (lines[:99_999], lines[99_999:]), strict=True):
        path.write_text(header + "".join(some))
    for kappa in (1, 10):
        digests = set()
        for sources in ([REAL_LOG], parts):
            with DuckDB().table(sources, spec(groups_per_user=kappa).bounding, "a" * 64) as table:
                digests.add(keyed_digest(table, b"k" * 32))
        assert len(digests) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"groups": ()}, "at least one column"),
        ({"groups": "set"}, "tuple of column names"),
        ({"epsilon": 0.1}, "epsilon is a Fraction"),
        ({"delta": "1e-6"}, "delta is a Fraction"),
        ({"groups": ("client",)}, "user column"),
        ({"epsilon": Fraction(0)}, "--epsilon"),
        ({"delta": Fraction(0)}, "--delta must be above 0"),
        ({"floor": 2, "unit": "user-day"}, "needs --unit user"),
        ({"unit": "device"}, "--unit is one of"),
        ({"aggregates": ("rows:1",), "weights": (1,)}, "--weight takes 2 numbers"),
        ({"groups_per_user": 0}, "--groups-per-user"),
        ({"only_groups": True, "aggregates": ("rows:1",)}, "releases no aggregates"),
        ({"public_groups": (("a",),), "floor": 3}, "leave out --floor"),
        ({"public_groups": (("a",),), "noise": "laplace"}, "leave out --noise"),
        ({"only_groups": True, "noise": "laplace"}, "leave out --noise"),
        ({"aggregates": ("mean:x:0:1:per-user", "rows:9"), "values_per_group": 2}, "--values-per-group has no effect"),
        ({"aggregates": ("median:x:0:1",)}, "write one of rows, sum"),
        ({"aggregates": ("all-users", "all-users")}, "given twice"),
        ({"aggregates": ("all-users:5",)}, "write all-users"),
        ({"aggregates": ("all-users",), "public_groups": (("a",),)}, "every user counts"),
        ({"aggregates": ("sum:x:5:5",)}, "below the upper one"),
        ({"aggregates": ("sum:x:0:0.5",)}, "raise --scale"),
        ({"aggregates": ("sum:x:0:1e40",)}, "too large"),
        ({"aggregates": ("sum:x:0:nan",)}, "not a number"),
        ({"aggregates": ("mean:x:auto",)}, "no automatic bounds"),
        ({"aggregates": ("var:x:auto",)}, "no automatic bounds"),
        ({"aggregates": ("var:x:0:99999999999999",)}, "too far apart"),
        ({"aggregates": ("quantile:x:0:1:0.12345",)}, "at most 3 decimal places"),
        ({"aggregates": ("quantile:x:0:1:half",)}, "fractions such as"),
        ({"aggregates": ("rows:0",)}, "MOST at least 1"),
        ({"aggregates": ("rows:5",) * 300}, "share of epsilon"),
        ({"epsilon": Fraction(60), "aggregates": ("rows:5",)}, "share of epsilon"),
        ({"aggregates": ("rows:5",), "delta": Fraction("1e-17")}, "truncation of the tables"),
        ({"public_groups": (("a",),), "delta": Fraction("1e-30")}, "more than the requested"),
    ],
)
def test_an_impossible_question_is_refused_with_what_to_change(more, message):
    with pytest.raises(SpecificationError, match=message):
        _ = Mechanism(spec(**more)).claim


@pytest.mark.parametrize(
    "text", ["2026", "2026-13", "2026-02-30", "1969-12", "2026-03..2026-01", "2026-01..", "..2026-01", "", "x..y"]
)
def test_an_impossible_period_is_refused(text):
    with pytest.raises(SpecificationError, match="--days"):
        Period.read(text)


def test_the_claim_never_exceeds_what_is_asked_and_the_parts_add_up():
    for more in (
        {"aggregates": ("rows:3", "mean:x:0:5", "quantile:x:0:5:0.5", "sum:x:auto")},
        {"aggregates": ("rows:3",), "weights": (3, 1), "groups_per_user": 12},
        {"only_groups": True, "groups_per_user": 4},
        {"public_groups": (("a",),), "aggregates": ("rows:3",)},
    ):
        mechanism = Mechanism(spec(**more))
        assert mechanism.claim.epsilon == sum(part.epsilon for part in mechanism.parts) == 1
        assert 0 < mechanism.claim.delta <= Fraction("1e-5")


def test_whole_numbers_are_accepted_as_exact_shares():
    assert Mechanism(spec(epsilon=1, aggregates=("rows:3", "rows:4"))).shares == (Fraction(1, 3),) * 3


def test_the_number_of_queries_does_not_depend_on_the_data(tmp_path):
    engines = [Given(("a", 100), ("b", 3)), Given(("a", 99), ("b", 3)), Given()]
    for i, engine in enumerate(engines):
        run([], tmp_path / str(i), engine=engine)
    assert [engine.queries for engine in engines] == [1, 1, 1]
