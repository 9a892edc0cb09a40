import json
import math
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.risk.errors import RiskError
from kanon.risk.no_noise import EPSILONS, PlainThreshold
from tests.paths import SHARED

VECTORS = SHARED / "vectors" / "release" / "numbers.json"


def vectors(name: str) -> dict[str, dict[str, float]]:
    if not VECTORS.exists():
        pytest.skip(f"{VECTORS.name} is not beside the checkout")
    values: dict[str, dict[str, float]] = json.loads(VECTORS.read_text())["figures"]["values"][name]
    return values


def agrees(case: PlainThreshold, expected: dict[str, float]) -> None:
    told = case.as_json()
    for name, value in expected.items():
        assert told[name] == pytest.approx(value, rel=1e-6, abs=0), name  # some are 1e-219


def test_figure_3_4_is_reproduced_to_6_digits() -> None:
    for name, expected in vectors("fig3.4").items():
        clients, threshold = (int(part.split("=")[1]) for part in name.split(","))
        agrees(PlainThreshold(clients, 0.005, threshold), expected)


def test_a_threshold_of_50_is_reproduced_to_6_digits() -> None:
    for name, expected in vectors("k50").items():
        agrees(PlainThreshold(100_000, int(name.split()[1]) / 100_000, 50), expected)


def test_a_threshold_of_50_with_fakes_is_reproduced_to_6_digits() -> None:
    for name, expected in vectors("k50 active").items():
        words = name.replace(",", "").split()
        agrees(PlainThreshold(100_000, int(words[1]) / 100_000, 50, fakes=int(words[2])), expected)


def exact_by_rationals(case: PlainThreshold, epsilon: float) -> float:
    """The hockey-stick of the outputs "nothing", T + 1, T + 2, ... from exact binomial chances."""
    others, p = case.clients - 1, Fraction(case.rate)
    chances = [comb(others, j) * p**j * (1 - p) ** (others - j) for j in range(others + 1)]
    left = case.threshold - case.fakes

    def law(own: int) -> list[Fraction]:
        published = [Fraction(0)] * (case.clients + 1)
        nothing = Fraction(0)
        for j, chance in enumerate(chances):
            if j + own > left:
                published[j + own] += chance
            else:
                nothing += chance
        return [nothing, *published]

    factor = Fraction(math.exp(epsilon))
    return max(
        float(sum(max(a - factor * b, Fraction(0)) for a, b in zip(p, q, strict=True)))
        for p, q in [(law(1), law(0)), (law(0), law(1))]
    )


@pytest.mark.slow
@given(st.integers(2, 40), st.floats(0.001, 0.999), st.integers(0, 45), st.integers(0, 10), st.floats(0, 4))
def test_the_exact_delta_equals_the_delta_of_exact_binomials(clients, rate, threshold, fakes, epsilon) -> None:
    case = PlainThreshold(clients, rate, threshold + fakes, fakes)
    assert case.exact_delta(epsilon) == pytest.approx(exact_by_rationals(case, epsilon), rel=1e-7, abs=1e-13)


@given(st.integers(2, 100_000), st.floats(1e-6, 0.9), st.integers(1, 2_000), st.integers(0, 1_000))
def test_the_exact_delta_is_never_above_the_theorems_bound(clients, rate, threshold, fakes) -> None:
    case = PlainThreshold(clients, rate, threshold + fakes, fakes)
    if case.delta_bound is None or case.eps_bound is None:
        return
    assert case.exact_delta(case.eps_bound) <= case.delta_bound * (1 + 1e-9) + 1e-15
    for epsilon in EPSILONS:
        if epsilon >= case.eps_bound:
            assert case.exact_delta(epsilon) <= case.delta_bound * (1 + 1e-9) + 1e-15


def test_the_exact_delta_is_never_above_the_bound_on_a_grid_up_to_the_point_where_it_ends() -> None:
    bounded = 0
    for clients in (100, 1_000, 10_000):
        for threshold in (1, 2, 5, 10, 20, 49):
            for percent in range(1, 100):
                rate = percent / 100 * threshold / clients
                case = PlainThreshold(clients, rate, threshold)
                if case.delta_bound is not None and case.eps_bound is not None:
                    bounded += 1
                    assert case.exact_delta(case.eps_bound) <= case.delta_bound * (1 + 1e-9)
    assert bounded > 1_000


def test_a_group_that_expects_more_than_the_threshold_has_no_bound_but_an_exact_delta() -> None:
    case = PlainThreshold(1_000, 0.06, 49)
    assert case.r > 1
    assert case.delta_bound is None
    assert case.eps_bound is None
    assert 0 < case.exact_delta(0.1) < 1
    told = case.as_json()
    assert told["exact_delta_at_eps_bound"] is None


def test_fakes_up_to_the_threshold_leave_no_privacy() -> None:
    case = PlainThreshold(1_000, 0.001, 49, fakes=49)
    assert case.delta_bound is None
    assert case.as_json()["r"] is None
    assert case.exact_delta(3) > 0.35  # the one client is alone with probability 0.37, and then shows


def test_a_published_group_of_all_clients_protects_nobody() -> None:
    assert PlainThreshold(10, 1.0, 5).exact_delta(3) == 1
    assert PlainThreshold(10, 1.0, 9).exact_delta(3) == 1
    assert PlainThreshold(10, 1.0, 10).exact_delta(3) == 0
    assert PlainThreshold(10, 1.0, 10).delta_bound is None


def test_a_threshold_above_the_number_of_clients_reveals_nothing() -> None:
    case = PlainThreshold(10, 0.1, 10)
    assert (case.delta_bound, case.exact_delta(0.1), case.tail_exact) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 0.1, 10), "at least 2 clients, not 1"),
        ((10, 0.0, 10), "above 0 and at most 1, not 0"),
        ((10, 1.1, 10), "above 0 and at most 1, not 1.1"),
        ((10, 0.1, 10, 11), "with 11 fakes a threshold of more than 10 protects nobody: give 0 to 10 fakes"),
        ((10, 0.1, 10, -1), "give 0 to 10 fakes"),
    ],
)
def test_numbers_out_of_range_are_named(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(RiskError, match=message):
        PlainThreshold(*arguments)  # type: ignore[arg-type]
