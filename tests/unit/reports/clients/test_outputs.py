"""The outputs of a source: counting and numbering agree with a plain enumeration."""

import json
from itertools import product
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.reports.clients.response import Limits, Outputs

VECTORS = Path(__file__).resolve().parents[5] / "shared" / "vectors" / "reports" / "event" / "privacy.json"


def enumerated(data, max_reports):
    """All matrices, found by trying every one: the definition and nothing else."""
    cells = [datum.buckets for datum in data for _ in range(datum.windows)]
    found = []
    for flat in product(*(range(most + 1) for most in cells)):
        rows, at = [], 0
        for datum in data:
            rows.append(flat[at : at + datum.windows])
            at += datum.windows
        if sum(flat) <= max_reports and all(sum(r) <= d.buckets for r, d in zip(rows, data, strict=True)):
            found.append(tuple(rows))
    return found


small = st.builds(
    Outputs,
    st.lists(st.builds(Limits, st.integers(1, 3), st.integers(0, 3)), max_size=2).map(tuple),
    st.integers(0, 4),
)


@settings(derandomize=True, max_examples=150)
@given(small)
def test_numbering_lists_every_output_once_and_in_order(outputs):
    expected = enumerated(outputs.data, outputs.max_reports)

    assert outputs.count == len(expected)
    assert [outputs.unrank(number) for number in range(outputs.count)] == expected


@settings(derandomize=True, max_examples=60)
@given(small)
def test_mean_and_variance_equal_those_of_the_listed_outputs(outputs):
    members = enumerated(outputs.data, outputs.max_reports)

    for d, datum in enumerate(outputs.data):
        for w in range(datum.windows):
            mean, variance = outputs.moments[d]
            assert mean * len(members) == sum(member[d][w] for member in members)
            assert variance * len(members) == sum((member[d][w] - mean) ** 2 for member in members)


@pytest.mark.parametrize(
    ("data", "windows", "buckets", "reports", "count"),
    [(8, 3, 3, 3, 2925), (2, 2, 2, 3, 27), (2, 1, 1, 1, 3)],
    ids=["navigation", "the paper's example", "event"],
)
def test_the_known_examples_have_their_numbers_of_outputs(data, windows, buckets, reports, count):
    assert Outputs((Limits(windows, buckets),) * data, reports).count == count


@pytest.mark.skipif(not VECTORS.exists(), reason="the public vectors are not beside this checkout")
def test_the_published_numbers_of_outputs_are_reproduced():
    for case in json.loads(VECTORS.read_text())["states"]:
        data = (Limits(case["windows"], case["buckets"]),) * case["data"]
        assert Outputs(data, case["reports"]).count == case["states"], case["what"]


def test_each_trigger_datum_may_have_its_windows_and_buckets():
    outputs = Outputs((Limits(1, 2), Limits(1, 2), Limits(1, 2), Limits(2, 2)), 2)

    members = [outputs.unrank(number) for number in range(21)]
    assert outputs.count == 21
    assert members.index(((0,), (0,), (0,), (0, 2))) < members.index(((0,), (0,), (0,), (2, 0)))


def test_the_largest_source_is_counted_and_numbered_without_listing():
    outputs = Outputs((Limits(5, 20),) * 32, 20)
    before = process_time()
    last = outputs.unrank(outputs.count - 1)

    assert outputs.count > 10**24
    assert last == ((20, 0, 0, 0, 0), *[(0, 0, 0, 0, 0)] * 31)
    assert process_time() - before < 5


@pytest.mark.parametrize("number", [-1, 27])
def test_a_number_without_an_output_is_refused(number):
    with pytest.raises(IndexError, match="no output"):
        Outputs((Limits(2, 2),) * 2, 3).unrank(number)


@pytest.mark.parametrize(
    ("data", "reports"), [((Limits(1, 1),) * 33, 1), ((), 21), ((), -1), ((Limits(6, 1),), 1), ((Limits(1, 21),), 1)]
)
def test_a_source_beyond_the_limits_is_refused(data, reports):
    with pytest.raises(ValueError, match=r"at most|1 to 5"):
        Outputs(data, reports)
