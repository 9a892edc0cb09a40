"""The parameters of a job: exact decimals, the threshold, and the guarantee in words, rounded up."""

from fractions import Fraction

import pytest

from kanon.noise.bound import Bound
from kanon.reports import job as module
from kanon.reports.job import ParameterError, PrivacyParameters, decimal, of_all, of_both, threshold, with_gate
from kanon.reports.noise import DiscreteLaplace

TABLE = {
    (10, "1e-5"): (136_444, 140_988, 160_620, 180_253),
    (10, "1e-8"): (181_715, 186_258, 205_891, 225_524),
    (64, "1e-8"): (83_689, 84_399, 87_467, 90_535),
    (1, "1e-8"): (1_197_268, 1_272_754, 1_469_083, 1_665_411),
}


@pytest.mark.parametrize(("epsilon", "delta"), TABLE)
def test_thresholds_equal_those_of_the_design(epsilon, delta):
    budget = Fraction(epsilon), Fraction(delta), 65_536
    paper = [threshold(*budget, "paper", sparsity) for sparsity in (1, 20, 400)]
    assert (threshold(*budget), *paper) == TABLE[epsilon, delta]


def test_a_threshold_is_at_least_the_bound():
    assert threshold(Fraction(64), Fraction(4, 10), 100) == 100


def test_a_comparison_uses_more_bits_until_it_is_certain(monkeypatch):
    coarse = []

    def bounds(x, bits=256):
        coarse.append(bits)
        low, high = module_bounds(x, bits)
        return (low, high) if bits > 1000 else (low * Fraction(1, 2), high * 2)

    module_bounds = module.exp_bounds
    monkeypatch.setattr(module, "exp_bounds", bounds)
    assert threshold(Fraction(10), Fraction("1e-5"), 65_536) == 136_444
    assert max(coarse) > 1000


@pytest.mark.parametrize(
    "arguments",
    [(0, "1e-8", 1), (1, "0", 1), (1, "0.5", 1), (1, "1e-8", 0), (1, "1e-8", 1, "paper", 0)],
)
def test_a_budget_out_of_range_is_refused(arguments):
    epsilon, delta, *rest = arguments
    with pytest.raises(ValueError, match="threshold takes"):
        threshold(Fraction(epsilon), Fraction(delta), *rest)


@pytest.mark.parametrize("fields", [
    {"epsilon": Fraction(0)}, {"epsilon": Fraction(641, 10)}, {"epsilon": Fraction(1, 3000)},
    {"delta": Fraction(1, 10**8)}, {"mode": "discover"},
    {"mode": "discover", "delta": Fraction(1, 1000), "epsilon": Fraction(99, 1000)},
    {"mode": "discover", "delta": Fraction(1, 100)},
    {"mode": "discover", "delta": Fraction(1, 3 * 10**8)}, {"contribution_bound": 0}, {"sparsity": 0},
])  # fmt: skip
def test_parameters_out_of_range_are_refused(fields):
    with pytest.raises(ParameterError):
        PrivacyParameters(**{"mode": "declared", "epsilon": Fraction(10)} | fields)


def test_declared_keys_have_no_threshold_and_unbounded_noise():
    declared = PrivacyParameters("declared", Fraction(10))
    assert (declared.threshold, DiscreteLaplace.of(declared).most) == (None, None)
    discover = PrivacyParameters("discover", Fraction(10), Fraction(1, 10**8))
    assert discover.threshold == DiscreteLaplace.of(discover).most == 181_715
    assert round(declared.standard_deviation) == 9268


@pytest.mark.parametrize(("text", "number"), [("10", 10), ("0.125", Fraction(1, 8)), ("1e-8", Fraction(1, 10**8))])
def test_a_decimal_is_read_exactly(text, number):
    assert decimal(text, "--epsilon") == number


@pytest.mark.parametrize("text", ["", "1/3", "nan", "inf", "-1", "1e999999999", "ten", "1" * 40, "1_0", "٣"])
def test_text_that_is_not_a_decimal_is_refused(text):
    with pytest.raises(ParameterError, match="--epsilon must be a decimal"):
        decimal(text, "--epsilon")


def test_epsilon_and_delta_are_rounded_up():
    text = " ".join(of_all(Fraction("10.000041"), Fraction("1.2345641e-8")))
    assert "epsilon = 10.0001)" in text
    assert "a probability of 1.23457e-08 (delta)" in text
    assert "An epsilon of 10.0001 protects nobody" in text


def test_the_belief_is_bounded_except_with_probability_delta():
    assert "afterwards, except with that probability." in of_all(Fraction(1), Fraction("1e-8"))[0]
    assert of_all(Fraction(1), Fraction(0))[0].endswith("% sure of it afterwards.")


SPENT, JOIN = Bound(Fraction(4), Fraction(0)), Bound(Fraction("2.25"), Fraction("1.2345641e-7"))


def test_released_keys_add_what_each_join_costs_in_the_gate():
    assert with_gate(SPENT, JOIN) == Bound(Fraction("6.25"), JOIN.delta)
    assert with_gate(Bound(Fraction(4), Fraction("1e-8")), JOIN, 3) == Bound(
        Fraction("10.75"), 3 * JOIN.delta + Fraction("1e-8")
    )


def test_the_sum_of_summaries_and_gate_is_rounded_up():
    parts, change, rest = of_both("all summaries", SPENT, JOIN, 3)
    assert "also caused 3 joins, each in another set" in parts
    assert "epsilon 10.75 = 4 + 3 x 2.25, delta 3.7037e-07 = 0 + 3 x 1.23457e-07" in parts
    assert "epsilon = 10.75), except with a probability of 3.7037e-07 (delta)" in change
    assert "Each further join costs the gate's part once more." in rest
    assert "also caused a join, the parts" in of_both("this summary", SPENT, JOIN)[0]
