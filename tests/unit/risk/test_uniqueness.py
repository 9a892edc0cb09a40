import math

import numpy as np
import pytest

from kanon.gate.mechanism.parameters import Parameters, profile
from kanon.risk.khll import Sketch
from kanon.risk.sketching import Sketched
from kanon.risk.uniqueness import ColumnUniqueness, curve, lost_at, report, through_service
from tests.exact_law import first_crossing_exact
from tests.unit.risk.made import sketch_of

CHECK = b"12345678"
USERS = [1, 1, 1, 2, 3, 5, 9, 60, 128, 1]
ROWS = [1, 4, 1, 2, 9, 5, 10, 99, 128, 2]


def known(size: int, seed: int = 0) -> Sketch:
    """Ten values with ``USERS`` users and ``ROWS`` rows each, at random hashes."""
    random = np.random.default_rng(seed)
    names = random.integers(0, 2**64, len(USERS), np.uint64)
    values = np.repeat(names, ROWS)
    users = np.concatenate([np.arange(rows) % users for rows, users in zip(ROWS, USERS, strict=True)])
    return sketch_of(values, users.astype(np.uint64), size, CHECK)


def reported(columns: tuple[str, ...], sketch: Sketch) -> ColumnUniqueness:
    return report(Sketched(columns, sketch, left_out=3), "client")


def test_a_sketch_that_keeps_every_value_has_the_exact_curve_and_no_error() -> None:
    points = curve(known(16))
    assert [point.k for point in points] == list(range(2, 201))
    for point in points:
        lost = [users < point.k for users in USERS]
        assert point.values == pytest.approx(sum(lost) / len(USERS))
        assert point.rows == pytest.approx(sum(r for r, one in zip(ROWS, lost, strict=True) if one) / sum(ROWS))
        assert point.standard_error == point.rows_standard_error == 0


def test_the_standard_error_of_a_share_equals_that_of_a_sample_of_k_values() -> None:
    sketch = known(5)
    points = curve(sketch)
    assert any(0 < point.values < 1 for point in points)
    for point in points:
        assert point.standard_error == pytest.approx(math.sqrt(point.values * (1 - point.values) / 5))
        lost = sketch.counts < point.k
        scale = 2**64 / sketch.bound
        rows = scale * 4 / 5 * sketch.rows[lost].sum() / sum(ROWS)
        assert point.rows == pytest.approx(min(rows, 1))
        error = scale * math.sqrt((sketch.rows[lost] ** 2).sum()) / sum(ROWS)
        assert point.rows_standard_error == pytest.approx(error)


def test_the_estimates_of_a_full_sketch_are_unbiased_and_their_errors_are_right() -> None:
    """1,000 values, 2,000 sketches of 128: mean error within 5 standard errors of 0 (false alarm 6e-7 each), and the
    stated error between the true one and a quarter more (the sampled part of all values is left out of it)."""
    random = np.random.default_rng(5)
    counts = random.geometric(0.3, 1_000)
    rows = counts * random.integers(1, 4, 1_000)
    share, row_share = (counts < 3).mean(), rows[counts < 3].sum() / rows.sum()
    found = []
    for _ in range(500):
        hashes = random.integers(0, 2**64, 1_000, np.uint64)
        at = np.argsort(hashes)[:128]
        owners = np.repeat(np.arange(128), counts[at])
        sketch = Sketch(
            128, CHECK, int(rows.sum()), hashes[at], rows[at], owners, np.arange(len(owners), dtype=np.uint64),
            np.empty(0, np.int64), np.empty((0, 1024), np.uint8),
        )  # fmt: skip
        (point,) = curve(sketch, [3])
        found.append((point.values, point.rows, point.standard_error, point.rows_standard_error))
    values, of_rows, error, rows_error = np.array(found).T
    assert abs(values.mean() - share) < 5 * values.std() / math.sqrt(500)
    assert abs(of_rows.mean() - row_share) < 5 * of_rows.std() / math.sqrt(500)
    assert values.std() < error.mean() < 1.25 * values.std()
    assert of_rows.std() < rows_error.mean() < 1.25 * of_rows.std()


def test_the_least_k_that_loses_a_share_is_found_for_values_and_rows() -> None:
    assert lost_at(curve(known(16))) == {
        "5%": {"values": 2, "rows": 4},
        "10%": {"values": 2, "rows": 10},
        "25%": {"values": 2, "rows": 61},
    }


def test_a_share_that_is_never_lost_has_no_k() -> None:
    users = np.arange(128, dtype=np.uint64)
    assert lost_at(curve(sketch_of(np.zeros(128, np.uint64), users, 16, CHECK))[:127])["5%"] == {
        "values": None,
        "rows": None,
    }


def test_a_column_is_dangerous_if_half_of_its_values_have_one_user() -> None:
    def with_single(share: float) -> Sketch:
        values = np.concatenate([np.arange(100), np.arange(round(100 * share), 100)])
        return sketch_of(values.astype(np.uint64), np.arange(len(values), dtype=np.uint64), 128, CHECK)

    assert reported(("set",), with_single(0.5)).verdict == "dangerous"
    assert reported(("set",), with_single(0.49)).verdict == "not flagged"


def test_through_the_service_each_value_is_lost_with_the_chance_of_never_crossing() -> None:
    """The curve against the law in exact rationals, window 4."""
    sketch, window = known(16), 4
    service = through_service(sketch, "published", window)
    assert [point.k for point in service.curve] == list(range(50, 201))
    for k in (50, 61, 100):
        parameters = Parameters(k, window, 3600, *profile("published", window))
        never = [float(first_crossing_exact(parameters, [min(users, 250)] * window)[-1]) for users in USERS]
        point = next(point for point in service.curve if point.k == k)
        assert point.values == pytest.approx(np.mean(never), rel=1e-9)
        assert point.rows == pytest.approx(np.dot(never, ROWS) / sum(ROWS), rel=1e-9)


def test_json_has_the_curve_a_program_needs() -> None:
    told = reported(("set", "day"), known(5)).as_json()
    assert told["name"] == "(set, day)"
    assert told["columns"] == ["set", "day"]
    assert (told["rows"], told["rows_left_out"], told["exact"]) == (sum(ROWS), 3, False)
    assert [point["k"] for point in told["curve"]] == list(range(2, 201))
    assert {"k", "values", "rows", "standard_error"} <= told["curve"][0].keys()
    assert told["service"]["curve"][0]["k"] == 18  # the least of its profile
    assert told["lost_at"].keys() == told["service"]["lost_at"].keys() == {"5%", "10%", "25%"}
