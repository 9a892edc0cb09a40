"""The paper's numbers, recomputed."""

import numpy as np
import pytest

from kanon.plan.paper import (
    READINGS,
    WINDOW,
    continuous_delta,
    continuous_error_cdf,
    continuous_point,
    discrete_error_cdf,
)


def test_the_delta_of_the_continuous_noise_has_its_known_value() -> None:
    assert continuous_delta(0.75, 25) == pytest.approx(4.01792338609910e-9, rel=1e-12)


@pytest.mark.parametrize(("window", "delta"), [(168, 2.716e-6), (720, 1.159e-5)])
def test_the_papers_delta_with_its_noise_has_the_stated_value(window: int, delta: float) -> None:
    assert 4 * continuous_delta(0.75, 25) * (window + 1) == pytest.approx(delta, rel=5e-4)


def test_figure_1a_the_largest_error_of_a_week_is_below_15_with_99_percent() -> None:
    assert continuous_error_cdf(0.75, 25, WINDOW, 15) >= 0.99
    assert continuous_point(0.75, 25, WINDOW, 0.99) == pytest.approx(13.67, abs=0.01)
    cdf = discrete_error_cdf(WINDOW, np.arange(10, 20))
    assert cdf[15 - 10] >= 0.99
    assert np.arange(10, 20)[cdf >= 0.99].min() == 14


def test_figure_1b_the_error_of_one_step_is_at_least_minus_8_with_99_percent() -> None:
    assert 1 - continuous_error_cdf(0.75, 25, 1, -8) >= 0.99
    assert continuous_point(0.75, 25, 1, 0.01) == pytest.approx(-6.92, abs=0.01)
    # P(nu - mu >= x) = 1 - P(nu - mu <= x - 1)
    errors = np.arange(-12, 0)
    at_least = 1 - discrete_error_cdf(1, errors - 1)
    assert at_least[errors == -8] >= 0.99
    assert errors[at_least >= 0.99].max() == -7


def test_both_panels_of_the_service_are_sums_over_the_tables() -> None:
    outcomes = np.arange(-25, 26)
    chance = np.exp(-0.75 * abs(outcomes))
    chance /= chance.sum()
    for x in range(-20, 26):
        below = np.array([chance[outcomes <= x + u].sum() for u in outcomes])
        for steps in (1, WINDOW):
            assert discrete_error_cdf(steps, x) == pytest.approx(chance @ below**steps, abs=1e-12)


def test_the_continuous_curve_agrees_with_simulated_noise() -> None:
    draw = np.random.default_rng(7)
    number = 20_000

    def noise(*shape: int) -> np.ndarray:
        # By inversion: |x| has the distribution of an exponential conditioned on [0, 25].
        size = -np.log1p(-draw.random(shape) * (1 - np.exp(-0.75 * 25))) / 0.75
        return size * draw.choice((-1, 1), shape)

    errors = noise(number, WINDOW).max(axis=1) - noise(number)
    for x in (4, 7, 10, 14):
        # Five standard deviations at most: 0.018.
        assert (errors <= x).mean() == pytest.approx(float(continuous_error_cdf(0.75, 25, WINDOW, x)), abs=0.018)


def test_the_integral_has_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = continuous_point(0.75, 25, WINDOW, 0.99)
    monkeypatch.setattr("kanon.plan.paper._CELLS", 40_000)
    assert continuous_point(0.75, 25, WINDOW, 0.99) == pytest.approx(coarse, abs=1e-3)


def test_three_quarters_and_25_for_each_noise_is_the_only_reading_that_fits_delta_and_figure_1() -> None:
    def fits(reading: object) -> bool:
        epsilon, delta = reading.bound
        # The figure's points are read off a curve: within two users.
        figure = abs(reading.false_positive_point - 15) < 2 and abs(reading.false_negative_point + 8) < 2
        return epsilon == 3 and delta < 1e-5 and figure

    assert [(float(r.epsilon), r.truncation) for r in READINGS if fits(r)] == [(0.75, 25)]
