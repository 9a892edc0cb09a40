"""The acceptance figures of ``kanon risk`` on the public join log."""

import csv
import gzip
import json
from collections import defaultdict
from functools import cache
from hashlib import sha256

import numpy as np
import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.risk.hashing import HashKey
from kanon.risk.scan import batches
from kanon.risk.sketch_leak import leak, users_of
from kanon.risk.sketching import of_batches
from kanon.risk.uniqueness import curve
from tests.paths import REAL_LOG

pytestmark = pytest.mark.skipif(not REAL_LOG.exists(), reason="the real join log is not beside the checkout")

KS = (2, 3, 5, 10, 20, 50)
DAY = 86_400


@cache
def rows() -> list[list[str]]:
    with gzip.open(REAL_LOG, "rt") as text:
        return list(csv.reader(text))


def exact(day: bool) -> tuple[dict[int, float], dict[int, float], int]:
    """For each k the exact shares of values and of rows with fewer than k clients; the number of values."""
    clients: dict[tuple[str, ...], set[str]] = defaultdict(set)
    number: dict[tuple[str, ...], int] = defaultdict(int)
    for time, name, client in rows()[1:]:
        value = (name, str(int(time) // DAY)) if day else (name,)
        clients[value].add(client)
        number[value] += 1
    total = sum(number.values())
    values, of_rows = {}, {}
    for k in (*KS, 11):
        below = [value for value, those in clients.items() if len(those) < k]
        values[k] = len(below) / len(clients)
        of_rows[k] = sum(number[value] for value in below) / total
    return values, of_rows, len(clients)


def key(number: int) -> HashKey:
    return HashKey(sha256(b"key %d" % number).digest())


def test_over_31_keys_the_curve_is_within_its_standard_errors() -> None:
    """Values: within 4 standard errors for each key, within 1 for 60%; rows within 4; 11,454 values within 8%."""
    values, of_rows, number = exact(day=False)
    published = (0.22682, 0.60686, 0.82294, 0.94954, 0.97573, 0.98882)
    assert [round(values[k], 5) for k in KS] == list(published)
    assert number == 11_454
    read = list(batches(REAL_LOG, ["set"], "client"))
    off_values, off_rows, off_number = [], [], []
    for n in range(31):
        made = of_batches(read, [("set",)], "client", key=key(n), size=2_048)[0].sketch
        points = curve(made, KS)
        off_values.append([(point.values - values[point.k]) / point.standard_error for point in points])
        off_rows.append([(point.rows - of_rows[point.k]) / point.rows_standard_error for point in points])
        off_number.append(made.number_of_values / number - 1)
        assert all(point.standard_error <= 0.0111 for point in points)
    assert np.abs(off_values).max() <= 4
    assert (np.abs(off_values) <= 1).mean(axis=0).min() >= 0.6
    assert np.abs(off_rows).max() <= 4
    assert np.abs(off_number).max() <= 0.08


@pytest.mark.parametrize("precision", [12, 15])
@pytest.mark.parametrize(
    ("group", "size"), [("lib/ansible/galaxy*", 72), ("docs*", 1_458), ("lib/ansible/modules*", 3_924)]
)
def test_every_member_is_found_and_strangers_as_often_as_predicted(group: str, size: int, precision: int) -> None:
    members, candidates = users_of(REAL_LOG, group, "set", "client")
    assert (len(members), len(candidates)) == (size, 6_674)
    result = leak(members, candidates, precision, key(1))
    assert result.public.found == size
    assert abs(result.public.false_rate - result.predicted_false_rate) <= 4 * result.predicted_spread
    assert result.public.chance < 1e-30
    assert result.keyed.chance > 1e-4  # fixed key: a right program passes always


def test_the_report_names_set_and_day_as_dangerous_and_says_what_thresholds_cost() -> None:
    command = ["risk", "uniqueness", str(REAL_LOG), "--combinations", "set,set+day,set+client", "--json"]
    told = json.loads(CliRunner().invoke(app, command).stdout)
    assert told["dangerous"] == ["(set, day)"]
    by_name = {one["name"]: one for one in told["columns"]}
    assert by_name["(set, client)"]["verdict"] == "identifier"

    values, of_rows, number = exact(day=True)
    assert (number, round(values[11], 3), round(values[2], 3)) == (120_590, 0.987, 0.780)
    days = by_name["(set, day)"]
    assert abs(days["numberOfValues"] / number - 1) < 0.1
    for k in (2, 11):
        point = days["curve"][k - 2]
        assert abs(point["values"] - values[k]) <= 5 * point["standardError"]  # fresh key: false alarm below 1e-5

    _, of_rows, _ = exact(day=False)
    assert [round(of_rows[k], 3) for k in (5, 10, 50)] == [0.105, 0.171, 0.271]
    for k in (5, 10, 50):
        point = by_name["(set)"]["curve"][k - 2]
        assert abs(point["rows"] - of_rows[k]) <= 6 * point["rowsStandardError"]
