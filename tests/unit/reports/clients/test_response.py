"""Randomised response: outputs are counted and numbered as listed ones, and the law is exact over all of them."""

import json
import math
from fractions import Fraction
from itertools import combinations_with_replacement, product
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.noise.exact import exp_bounds
from kanon.reports.clients.events import (
    WORD,
    DatumSpec,
    EventSpec,
    Response,
    information_gain,
    keep_threshold,
    replace_probability,
    uniform,
)

VECTORS = Path(__file__).resolve().parents[5] / "shared" / "vectors" / "reports" / "event" / "privacy.json"


def limits(windows, buckets):
    """A datum with so many windows and buckets."""
    return DatumSpec(tuple(range(1, windows + 1)), tuple(range(1, buckets + 1)))


PAPER = EventSpec((limits(2, 2),) * 2, 3)
EVENT = EventSpec((limits(1, 1),) * 2, 1)
UNEVEN = EventSpec((limits(1, 2), limits(3, 1)), 2)
EPSILONS = [Fraction(1, 10), Fraction(1), Fraction(14)]


def published(what):
    if not VECTORS.exists():
        pytest.skip("the public vectors are not beside this checkout")
    return json.loads(VECTORS.read_text())[what]


def number(text):
    return math.log(3) if text == "ln 3" else text


def enumerated(data, max_reports):
    """All matrices, found by trying every one: the definition and nothing else."""
    cells = [len(datum.buckets) for datum in data for _ in range(len(datum.ends))]
    found = []
    for flat in product(*(range(most + 1) for most in cells)):
        rows, at = [], 0
        for datum in data:
            rows.append(flat[at : at + len(datum.ends)])
            at += len(datum.ends)
        if sum(flat) <= max_reports and all(sum(r) <= len(d.buckets) for r, d in zip(rows, data, strict=True)):
            found.append(tuple(rows))
    return found


small = st.builds(
    EventSpec,
    st.lists(st.builds(limits, st.integers(1, 3), st.integers(1, 3)), max_size=2).map(tuple),
    st.integers(0, 4),
)


@pytest.mark.slow
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
        for w in range(len(datum.ends)):
            mean, variance = outputs.moments[d]
            assert mean * len(members) == sum(member[d][w] for member in members)
            assert variance * len(members) == sum((member[d][w] - mean) ** 2 for member in members)


@pytest.mark.parametrize(
    ("data", "windows", "buckets", "reports", "count"),
    [(8, 3, 3, 3, 2925), (2, 2, 2, 3, 27), (2, 1, 1, 1, 3)],
    ids=["navigation", "the paper's example", "event"],
)
def test_the_known_examples_have_their_numbers_of_outputs(data, windows, buckets, reports, count):
    assert EventSpec((limits(windows, buckets),) * data, reports).count == count


def test_the_published_numbers_of_outputs_are_reproduced():
    for case in published("states"):
        data = (limits(case["windows"], case["buckets"]),) * case["data"]
        assert EventSpec(data, case["reports"]).count == case["states"], case["what"]


def test_each_trigger_datum_may_have_its_windows_and_buckets():
    outputs = EventSpec((limits(1, 2), limits(1, 2), limits(1, 2), limits(2, 2)), 2)

    members = [outputs.unrank(number) for number in range(21)]
    assert outputs.count == 21
    assert members.index(((0,), (0,), (0,), (0, 2))) < members.index(((0,), (0,), (0,), (2, 0)))


def test_the_largest_source_is_counted_and_numbered_without_listing():
    outputs = EventSpec((limits(5, 20),) * 32, 20)
    before = process_time()
    last = outputs.unrank(outputs.count - 1)

    assert outputs.count > 10**24
    assert last == ((20, 0, 0, 0, 0), *[(0, 0, 0, 0, 0)] * 31)
    assert process_time() - before < 5


@pytest.mark.parametrize("number", [-1, 27])
def test_a_number_without_an_output_is_refused(number):
    with pytest.raises(IndexError, match="no output"):
        EventSpec((limits(2, 2),) * 2, 3).unrank(number)


@pytest.mark.parametrize(
    ("data", "reports"), [((limits(1, 1),) * 33, 1), ((), 21), ((), -1), ((limits(6, 1),), 1), ((limits(1, 21),), 1)]
)
def test_a_source_beyond_the_limits_is_refused(data, reports):
    with pytest.raises(ValueError, match=r"at most|1 to 5"):
        EventSpec(data, reports)


# --- randomised response over them ---


class Script:
    """Random bits as written down; it fails if more or other draws are asked for."""

    def __init__(self, *draws):
        self.draws = list(draws)

    def __call__(self, bits):
        expected, value = self.draws.pop(0)
        assert bits == expected
        return value


def law(response, truth):
    """The exact law of what is emitted for ``truth``, by running ``decide`` on every distinct course of draws.

    The first draw decides by one comparison only, so the two words at the threshold stand for all words below
    and all others. Every index is drawn; an index that is drawn again starts over, so it does not change the law.
    """
    outputs, threshold = response.outputs, response.threshold
    assert response.decide(Script((WORD, threshold - 1))) is None
    found = dict.fromkeys((outputs.unrank(i) for i in range(outputs.count)), Fraction(0))
    found[truth] += Fraction(threshold, 1 << WORD)
    bits = (outputs.count - 1).bit_length()
    for index in range(outputs.count):
        emitted = response.decide(Script((WORD, threshold), (bits, index)))
        found[emitted] += Fraction((1 << WORD) - threshold, (1 << WORD) * outputs.count)
    return found


@pytest.mark.parametrize("epsilon", EPSILONS, ids=str)
@pytest.mark.parametrize("outputs", [PAPER, EVENT, UNEVEN], ids=["paper", "event", "uneven"])
def test_the_law_is_exact_over_all_outputs(outputs, epsilon):
    response = Response(outputs, epsilon)
    low, high = exp_bounds(epsilon, 600)
    slack = Fraction(1, 1 << WORD)

    for number in range(outputs.count):
        truth = outputs.unrank(number)
        found = law(response, truth)
        assert sum(found.values()) == 1
        for output, probability in found.items():
            own = output == truth
            least, most = (
                (low if own else 1) / (high + outputs.count - 1),
                (high if own else 1) / (low + outputs.count - 1),
            )
            assert least - slack <= probability <= most + slack


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS, ids=str)
@pytest.mark.parametrize("outputs", [PAPER, EVENT, UNEVEN], ids=["paper", "event", "uneven"])
def test_no_output_distinguishes_two_truths_by_more_than_epsilon(outputs, epsilon):
    laws = [law(Response(outputs, epsilon), outputs.unrank(number)) for number in range(outputs.count)]
    low, _ = exp_bounds(epsilon, 600)

    for one in laws:
        for other in laws:
            assert all(one[output] <= low * other[output] for output in one)


@pytest.mark.parametrize("epsilon", EPSILONS, ids=str)
def test_every_output_lies_within_the_bounds_of_the_theorem(epsilon):
    response = Response(PAPER, epsilon)
    _, high = exp_bounds(epsilon, 600)
    scale = high + PAPER.count - 1

    for probability in law(response, PAPER.unrank(5)).values():
        assert 1 <= probability * scale <= high + Fraction(scale, 1 << WORD)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2924])
def test_the_law_of_a_default_click_is_exact_over_its_2925_outputs(number):
    click = Response(EventSpec((limits(3, 3),) * 8, 3), Fraction(14))
    truth = click.outputs.unrank(number)
    found = law(click, truth)
    low, high = exp_bounds(Fraction(14), 600)
    others = {probability for output, probability in found.items() if output != truth}

    assert (len(found), sum(found.values()), len(others)) == (2925, 1, 1)
    (other,) = others
    assert found[truth] <= low * other
    assert found[truth] + Fraction(1, 1 << WORD) >= high / (high + 2924)


def test_a_uniform_number_maps_each_index_once_and_draws_again_beyond_them():
    assert [uniform(5, Script((3, i))) for i in range(5)] == list(range(5))
    assert [uniform(5, Script((3, i), (3, 2))) for i in (5, 6, 7)] == [2, 2, 2]
    assert uniform(1, Script()) == 0


@pytest.mark.parametrize("states", [2, 3, 27, 2925, 10**20])
@pytest.mark.parametrize("epsilon", [Fraction(1, 1000), Fraction(1), Fraction(14)], ids=str)
def test_the_threshold_is_the_floor_of_the_exact_probability(states, epsilon):
    threshold = keep_threshold(states, epsilon)
    low, high = exp_bounds(epsilon, 1200)

    assert Fraction(threshold, 1 << WORD) <= (low - 1) / (low + states - 1)
    assert Fraction(threshold + 1, 1 << WORD) > (high - 1) / (high + states - 1)


def test_epsilon_zero_never_keeps_the_truth_and_a_single_output_always_does():
    assert keep_threshold(27, Fraction(0)) == 0
    assert keep_threshold(1, Fraction(1)) == 1 << WORD


@pytest.mark.parametrize(("states", "epsilon"), [(27, Fraction(-1)), (27, Fraction(15)), (0, Fraction(1))])
def test_parameters_out_of_range_are_refused(states, epsilon):
    with pytest.raises(ValueError, match=r"between 0 and 14|at least one"):
        keep_threshold(states, epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS[:2], ids=str)
@pytest.mark.parametrize("outputs", [EVENT, UNEVEN], ids=["event", "uneven"])
def test_estimates_and_their_variances_have_no_bias_for_any_truths_of_two_sources(outputs, epsilon):
    """Over all outputs of two sources: the mean is the truth, and the mean variance is the variance. In rationals."""
    response = Response(outputs, epsilon)
    truths = [outputs.unrank(number) for number in range(outputs.count)]
    laws = {truth: law(response, truth) for truth in truths}
    estimates = {pair: response.estimates(pair) for pair in product(truths, repeat=2)}

    for first, second in combinations_with_replacement(truths, 2):
        weighted = [(p * q, estimates[o, u]) for o, p in laws[first].items() for u, q in laws[second].items()]
        for d, row in enumerate(first):
            for w, count in enumerate(row):
                truth = count + second[d][w]
                assert sum(p * found[d][w].reports for p, found in weighted) == truth
                exact = sum(p * (found[d][w].reports - truth) ** 2 for p, found in weighted)
                assert sum(p * found[d][w].variance for p, found in weighted) == exact


def test_a_standard_error_is_the_root_of_a_variance_and_0_without_noise():
    sure = Response(EventSpec((limits(1, 1),), 0), Fraction(1)).estimates([((0,),)] * 3)

    assert [(one.reports, one.standard_error) for row in sure for one in row] == [(0, 0.0)]
    ((one,),) = Response(EventSpec((limits(1, 1),), 1), Fraction(1)).estimates([((1,),), ((0,),)])
    assert one.standard_error == pytest.approx(float(one.variance) ** 0.5)


def test_epsilon_zero_allows_no_estimate():
    with pytest.raises(ValueError, match="no information"):
        Response(PAPER, Fraction(0)).estimates([((0, 0), (0, 0))])


def test_the_published_flip_probabilities_are_reproduced_to_the_last_digit():
    for case in published("flip_probability"):
        assert replace_probability(case["states"], number(case["epsilon"])) == case["value"]


def test_the_published_information_gains_are_reproduced():
    for case in published("information_gain"):
        assert abs(information_gain(case["states"], number(case["epsilon"])) - case["bits"]) < 2e-14


@pytest.mark.parametrize(("outputs", "rate"), [(EVENT, 2.5e-06), (EventSpec((limits(3, 3),) * 8, 3), 0.0024263)])
def test_the_rates_of_browsers_are_reproduced(outputs, rate):
    assert round(replace_probability(outputs.count, 14), 7) == rate
    assert float(1 - Response(outputs, Fraction(14)).keep) == pytest.approx(rate, rel=0.03)
