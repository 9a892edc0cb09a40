"""The audit's statistical tests are right: tails, merged cells, false alarms."""

import math
from fractions import Fraction

import numpy as np
import pytest

from kanon.audit import goodness
from kanon.audit.mechanism import AUDITED
from kanon.audit.scenarios import rise_and_fall
from kanon.gate.mechanism.exact_law import first_crossing


@pytest.mark.parametrize("statistic", [0.1, 1.0, 10.0, 60.0, 400.0])
@pytest.mark.parametrize("half", [1, 2, 10, 60])
def test_the_tail_equals_its_closed_form_at_even_degrees(statistic, half):
    x = statistic / 2
    expected = math.exp(-x) * math.fsum(x**i / math.factorial(i) for i in range(half))
    assert goodness.tail(statistic, 2 * half) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("statistic", [0.5, 3.84, 40.0])
def test_one_degree_of_freedom_has_the_tail_of_a_squared_normal(statistic):
    assert goodness.tail(statistic, 1) == pytest.approx(math.erfc(math.sqrt(statistic / 2)), rel=1e-9)


def test_binomial_tails_are_exact():
    trials, p = 30, Fraction(1, 8)
    at_most, at_least = goodness.binomial_tails(trials, float(p))
    exact = [math.comb(trials, x) * p**x * (1 - p) ** (trials - x) for x in range(trials + 1)]
    for x in range(trials + 1):
        assert at_most[x] == pytest.approx(float(sum(exact[: x + 1])), rel=1e-10)
        assert at_least[x] == pytest.approx(float(sum(exact[x:])), rel=1e-10)


def test_merged_cells_keep_their_order_and_expect_enough():
    expected = np.array([0.5, 9.0, 1.0, 1.0, 4.0, 7.0, 0.1, 0.2])
    groups = goodness.merged(expected, 5.0)
    assert (np.diff(groups) >= 0).all()
    assert (np.bincount(groups, expected) >= 5.0).all()


def test_an_impossible_outcome_always_rejects():
    law = np.array([0.5, 0.5, 0.0])
    observed = np.array([0, 1] * 500 + [2])
    assert goodness.marginal(observed, law).p_value == 0.0


def test_equal_outcomes_are_counted_and_impossible_ones_left_out():
    law = np.array([0.25, 0.25, 0.5])
    same = np.array([0, 1, 2, 2] * 50)
    assert goodness.coincidences(same, same, law, law).statistic == 100
    assert goodness.coincidences(same, same, law, law).p_value < 1e-20


def test_outcomes_other_than_never_are_counted():
    law = np.array([0.25, 0.25, 0.5])
    assert goodness.crossings(np.array([0, 1, 2, 2] * 25), law).p_value == 1.0
    assert goodness.crossings(np.full(50, 2), law).p_value == pytest.approx(2 * 0.5**50)


def test_the_bound_of_pearsons_tail_holds_in_every_case_of_six_trials():
    law, n = np.array([0.2, 0.3, 0.5]), 6
    cases = [(a, b, n - a - b) for a in range(n + 1) for b in range(n + 1 - a)]
    weights = [math.factorial(n) / math.prod(map(math.factorial, case)) * math.prod(law**case) for case in cases]
    statistics = [float(((np.array(case) - n * law) ** 2 / (n * law)).sum()) for case in cases]
    for statistic in set(statistics) - {0.0}:
        exact = sum(w for w, s in zip(weights, statistics, strict=True) if s >= statistic - 1e-12)
        assert goodness.pearson_tail(statistic, n * law) >= exact * (1 - 1e-9)


def cells_of_an_audit(trials):
    """Expected counts of the chi-square tests of an audit, from the audit's own laws."""
    counts = rise_and_fall(AUDITED["two-sided"]).counts
    laws = [first_crossing(AUDITED["two-sided"], part) for part in (counts[:24], counts[24:])]
    least = math.sqrt(goodness.LEAST_EXPECTED / trials)
    yield from (np.bincount(goodness.merged(law * trials, 5.0), law) * trials for law in laws)
    yield np.outer(*(np.bincount(goodness.merged(law, least), law) for law in laws)).ravel() * trials


@pytest.mark.parametrize("trials", [50, 500])
def test_right_data_exceed_a_statistic_slightly_less_often_than_its_bound(trials):
    generator = np.random.default_rng(trials)
    for expected in cells_of_an_audit(trials):
        seen = generator.multinomial(trials, expected / expected.sum(), size=100_000)
        statistics = np.sort(((seen - expected) ** 2 / expected).sum(axis=1))
        for beyond in (1000, 100):  # of 100,000: a deviation of half the number is five of its standard deviations
            bound = goodness.pearson_tail(float(statistics[-beyond]), expected)
            assert bound > 0.5 * beyond / 100_000
            assert bound < 10 * math.sqrt(2 * math.pi * trials) * beyond / 100_000


def test_chi_square_alone_would_raise_false_alarms():
    expected = next(cells_of_an_audit(500))
    statistic = 90.0
    assert goodness.tail(statistic, expected.size - 1) < 1e-8
    assert goodness.pearson_tail(statistic, expected) > 10 * goodness.tail(statistic, expected.size - 1)


@pytest.mark.parametrize("trials", [50, 500])
def test_right_data_are_rejected_at_about_the_stated_level(trials):
    generator = np.random.default_rng(trials)
    for expected in cells_of_an_audit(trials):
        seen = generator.multinomial(trials, expected / expected.sum(), size=10_000)
        statistics = ((seen - expected) ** 2 / expected).sum(axis=1)
        rejected = sum(goodness.tail(float(statistic), expected.size - 1) < 0.01 for statistic in statistics)
        assert 50 < rejected < 200
