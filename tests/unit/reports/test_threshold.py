from fractions import Fraction

import pytest

from kanon.reports import job as module
from kanon.reports.job import ParameterError, PrivacyParameters, decimal, threshold
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
