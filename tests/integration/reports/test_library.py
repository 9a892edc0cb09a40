"""The aggregation service's own test inputs, units and sample give their stated sums."""

import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from kanon.reports.aggregate import Job, aggregate, write
from kanon.reports.avro import listed, read_domain, read_reports, read_summary, write_reports
from kanon.reports.job import PrivacyParameters
from kanon.reports.shared_info import Rules, budget_key, parse, source_of, units
from tests.integration.reports.vectors import VECTORS, needs_vectors
from tests.unit.reports import made
from tests.unit.reports.made import SECRETS

pytestmark = needs_vectors
RULES = Rules(0, made.RULES.keys, check_age=False, contribution_bound=None)
DECLARED = PrivacyParameters("declared", Fraction(10))


def outcome_of(name, folder, parameters=DECLARED):
    inputs = VECTORS / "library" / f"input_set_{name}"
    domain = (inputs / "domain.avro",) if parameters.mode == "declared" else None
    job = Job((encrypted(inputs / "batch.avro", folder),), domain, parameters, RULES)
    return aggregate(job, SECRETS, undeclared=True)


def encrypted(batch, folder):
    """The reports of a file whose payloads are cleartext, encrypted to a key of the tests."""
    place = folder / batch.name
    write_reports(place, [made.sealed(report.payload, report.shared_info) for report in read_reports(batch)])
    return place


def exact(outcome):
    [part] = outcome.partitions
    return dict(zip(listed(part.exact.keys), part.exact.sums.tolist(), strict=True))


def expected(name):
    facts = json.loads((VECTORS / "library" / f"input_set_{name}" / "expected.json").read_text())
    return {fact["bucket"].encode().rjust(16, b"\0"): fact["metric"] for fact in facts}


@pytest.mark.parametrize(("name", "reports"), [("attribution_1", 10), ("attribution_3", 10), ("thresholding_1", 4)])
def test_an_input_with_stated_sums_gives_these_sums(name, reports, tmp_path):
    outcome = outcome_of(name, tmp_path)
    assert exact(outcome) == expected(name)
    assert (outcome.reports, outcome.accepted, outcome.errors.total()) == (reports, reports, 0)


def test_declared_keys_decide_what_is_released(tmp_path):
    outcome = outcome_of("attribution_3", tmp_path)
    sums = {key.lstrip(b"\0"): total for key, total in exact(outcome).items()}
    assert sums[b"key11"] == sums[b"key12"] == 0
    assert not {b"key5", b"key6"} & sums.keys()


def test_the_larger_sets_give_their_totals(tmp_path):
    fifth = outcome_of("attribution_5", tmp_path)
    assert (fifth.reports, len(exact(fifth)), sum(exact(fifth).values())) == (1000, 52, 283_418)
    debug = outcome_of("debug_mode", tmp_path)
    assert (len(exact(debug)), sum(exact(debug).values())) == (6, 39_000_000)


@pytest.mark.parametrize("epsilon", [1, 10, 64])
def test_keys_without_reports_have_noise_of_the_stated_spread(epsilon, tmp_path):
    """Fixed secrets. The bound is 5 standard errors: random ones would miss it once in a million runs."""
    outcome = outcome_of("protected_audience_2", tmp_path, PrivacyParameters("declared", Fraction(epsilon)))
    assert set(exact(outcome).values()) == {0}
    metrics = outcome.partitions[0].release().metrics
    assert len(metrics) == 10_000
    deviation = 2**0.5 * 65_536 / epsilon
    assert abs(np.std(metrics) / deviation - 1) < 5 * (5 / 4 / 10_000) ** 0.5
    makers = {64: (1024, 2048), 10: (6552, 13_108), 1: (65_536, 131_072)}
    assert makers[epsilon][0] <= np.std(metrics) <= makers[epsilon][1]


def test_discovery_hides_small_sums_with_any_threshold(tmp_path):
    for epsilon, delta in ((64, "1e-5"), (10, "1e-8"), (1, "1e-12")):
        outcome = outcome_of(
            "thresholding_1", tmp_path, PrivacyParameters("discover", Fraction(epsilon), Fraction(delta))
        )
        assert sorted(exact(outcome).values()) == [1, 1, 2, 3]
        assert not len(outcome.partitions[0].release().keys)


def test_discovery_shows_large_sums(tmp_path):
    outcome = outcome_of("attribution_1", tmp_path, PrivacyParameters("discover", Fraction(10), Fraction(1, 10**8)))
    assert set(listed(outcome.partitions[0].release().keys)) == expected("attribution_1").keys()


def test_the_sample_gives_its_summary(tmp_path):
    sample = VECTORS / "sample"
    job = Job(
        (encrypted(sample / "output_debug_reports.avro", tmp_path),),
        (sample / "output_domain.avro",),
        DECLARED,
        Rules(0, made.RULES.keys, check_age=False),
    )
    outcome = aggregate(job, SECRETS, undeclared=True)
    assert [len(histogram.keys) for histogram in outcome.seen] == [2]  # padding is no third key
    [place] = write(outcome.without_noise(), tmp_path / "summary.avro")
    assert sorted(read_summary(place)) == sorted(read_summary(sample / "output_reports.avro"))
    assert sorted(exact(outcome).values()) == [4400, 32_768]


def test_budget_keys_are_the_aggregation_services():
    cases = json.loads((VECTORS / "budget/budget_keys.json").read_text())
    assert len(cases) == 3
    for case in cases:
        found = budget_key(
            case["api"],
            case["version"],
            case["reporting_origin"],
            case.get("attribution_destination"),
            case.get("source_registration_time"),
            case.get("filtering_id", 0),
        )
        assert found == case["budget_key"]


def test_the_reports_of_the_budget_tool_belong_to_two_units():
    infos = [parse(report.shared_info) for report in read_reports(VECTORS / "budget/input_version_01.avro")]
    assert len({info.report_id for info in infos}) == len(infos) == 20
    assert Counter(source_of(info).hour for info in infos) == {475_079: 18, 475_080: 2}
    assert len(units([source_of(info) for info in infos], (0,))) == 2


def test_the_domain_of_the_first_set_holds_its_keys():
    keys = listed(read_domain(VECTORS / "library/input_set_attribution_1/domain.avro"))
    assert sorted(keys) == sorted(expected("attribution_1"))
