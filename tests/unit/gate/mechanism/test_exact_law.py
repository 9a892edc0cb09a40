"""The exact law: floats against rationals, rationals against the algorithm itself."""

import random
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from kanon.gate.mechanism.above_threshold import crosses
from kanon.gate.mechanism.exact_law import (
    Span,
    false_after_silence,
    first_crossing,
    given_threshold,
    never_at_constant,
    over_span,
)
from kanon.gate.mechanism.parameters import PROFILES, CrossingRestart, Parameters
from kanon.gate.mechanism.searches import Search, Searches
from kanon.noise.laws import one_sided, two_sided
from tests.divergence import hockey_stick, hockey_stick_exact, two_instances
from tests.exact_law import first_crossing_exact
from tests.unit.examples import ONE_SIDED, SMALL, of_profile


def sequences(window: int) -> dict[str, list[int]]:
    draw = random.Random(window)
    return {
        "constant, far below": [33] * window,
        "constant, at the false-positive point": [42] * window,
        "constant, at k": [50] * window,
        "ramp": [30 + 40 * i // window for i in range(window)],
        "pulses": [50 if i % 24 == 0 else 38 for i in range(window)],
        "any": [draw.randrange(0, 120) for _ in range(window)],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROFILES))
@pytest.mark.parametrize("window", [24, 168])
def test_floats_differ_from_the_rationals_by_less_than_1e_14(name: str, window: int) -> None:
    parameters = of_profile(name, window)
    for counts in sequences(window).values():
        exact = first_crossing_exact(parameters, counts)
        floats = first_crossing(parameters, counts)
        assert sum(exact) == 1
        assert max(abs(Fraction(float(p)) - q) for p, q in zip(floats, exact, strict=True)) < Fraction(1, 10**14)


@pytest.mark.slow
def test_floats_differ_from_the_rationals_by_less_than_1e_14_over_720_steps() -> None:
    parameters = of_profile("sharp", 720)
    for name in ("any", "pulses"):
        counts = sequences(720)[name]
        exact, floats = first_crossing_exact(parameters, counts), first_crossing(parameters, counts)
        assert max(abs(Fraction(float(p)) - q) for p, q in zip(floats, exact, strict=True)) < Fraction(1, 10**14)


def by_enumeration(parameters: Parameters, counts: tuple[int, ...]) -> list[Fraction]:
    """Algorithm 2 as printed, run on every possible noise."""
    mu, nu = parameters.threshold_law, parameters.query_law
    law = [Fraction(0)] * (len(counts) + 1)
    for u in range(mu.min, mu.max + 1):
        for noises in product(range(nu.min, nu.max + 1), repeat=len(counts)):
            chance = mu.probability(u)
            for v in noises:
                chance *= nu.probability(v)
            crossed = [crosses(c, v, parameters.k, u) for c, v in zip(counts, noises, strict=True)]
            law[crossed.index(True) if True in crossed else len(counts)] += chance
    return law


@pytest.mark.parametrize("parameters", [SMALL, ONE_SIDED], ids=["two-sided", "one-sided"])
@pytest.mark.parametrize("counts", [(3, 3, 3), (0, 9, 4), (4, 2, 5), (5, 5, 1), (1, 2, 3)])
def test_the_rationals_are_the_law_of_the_algorithm(parameters: Parameters, counts: tuple[int, ...]) -> None:
    assert list(first_crossing_exact(parameters, counts)) == by_enumeration(parameters, counts)


def test_many_sequences_at_once_give_the_laws_of_each() -> None:
    counts = np.array([[3, 4, 2], [0, 9, 4], [5, 5, 5]])
    together = first_crossing(SMALL, counts)
    assert together.shape == (3, 4)
    for sequence, law in zip(counts, together, strict=True):
        assert np.array_equal(law, first_crossing(SMALL, sequence))


def test_the_law_is_the_mixture_over_the_threshold_noise() -> None:
    given = given_threshold(SMALL, [3, 4, 2])
    weights = [float(SMALL.threshold_law.probability(u)) for u in (-1, 0, 1)]
    assert np.allclose(given.sum(axis=-1), 1, rtol=0, atol=1e-15)
    assert np.allclose(np.array(weights) @ given, first_crossing(SMALL, [3, 4, 2]), rtol=0, atol=1e-15)


def test_certain_counts_have_degenerate_laws() -> None:
    parameters = of_profile("published", 24)
    assert first_crossing(parameters, [parameters.never_true_below - 1] * 24)[-1] == pytest.approx(1, abs=1e-15)
    assert first_crossing(parameters, [parameters.surely_true_from] * 24)[0] == pytest.approx(1, abs=1e-15)
    possible = first_crossing_exact(parameters, [parameters.never_true_below])
    assert 0 < possible[0] < Fraction(1, 10**15)


def test_the_law_of_a_certain_count_stays_exact_in_a_long_instance() -> None:
    parameters = of_profile("sharp", 10_000)
    law = first_crossing(parameters, np.full(10_000, 64))
    assert law[0] == pytest.approx(1, abs=1e-15)
    assert np.all(law[1:] == 0)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_constant_count_needs_no_sequence(name: str) -> None:
    parameters = of_profile(name, 168)
    counts = np.arange(30, 60)
    sequences_ = np.repeat(counts[:, None], 168, axis=1)
    whole = never_at_constant(parameters, counts, 168)
    assert np.allclose(whole, first_crossing(parameters, sequences_)[:, -1], rtol=0, atol=1e-14)
    assert np.allclose(
        1 - never_at_constant(parameters, counts, 1), first_crossing(parameters, sequences_)[:, 0], rtol=0, atol=1e-14
    )


def test_two_instances_are_independent() -> None:
    joint = two_instances(SMALL, [3, 4], [4, 4, 5])
    assert joint.shape == (3, 4)
    assert np.allclose(joint.sum(axis=1), first_crossing(SMALL, [3, 4]), rtol=0, atol=1e-15)
    assert np.allclose(joint.sum(axis=0), first_crossing(SMALL, [4, 4, 5]), rtol=0, atol=1e-15)


def test_the_hockey_stick_is_the_least_delta_over_every_set_of_outcomes() -> None:
    p, q = [0.5, 0.3, 0.2], [0.2, 0.5, 0.3]
    for epsilon in (0.0, 0.3, 1.0):
        every_set = [sum(p[o] - np.exp(epsilon) * q[o] for o in range(3) if chosen >> o & 1) for chosen in range(8)]
        assert hockey_stick(p, q, epsilon) == pytest.approx(max(every_set))


def test_the_exact_hockey_stick_encloses_the_one_in_floats() -> None:
    lower, higher = ([3, 3, 4], [3, 4, 4])
    for first, second in ((lower, higher), (higher, lower)):
        p, q = first_crossing_exact(SMALL, first), first_crossing_exact(SMALL, second)
        low, high = hockey_stick_exact(p, q, Fraction(1, 5))
        assert low <= high < low + Fraction(1, 2**200)
        assert float(low) == pytest.approx(
            hockey_stick(first_crossing(SMALL, first), first_crossing(SMALL, second), 0.2), abs=1e-15
        )


def test_both_laws_of_a_wide_table_fit_into_floats() -> None:
    parameters = Parameters(500, 10, 60, two_sided(Fraction(1, 10), 200), one_sided(Fraction(1, 10), 250))
    law = first_crossing(parameters, [450] * 10)
    assert law.sum() == pytest.approx(1, abs=1e-14)


TINY = Parameters(4, 2, 3600, one_sided(Fraction(1, 2), 2), one_sided(Fraction(1, 2), 2), 8, phase="zero")
RESTARTS = [None, *(CrossingRestart(*each) for each in ((2, 3), (2, 4), (3, 4), (4, 3)))]


def transcripts(searches: Searches, joined: list[set[int]]) -> dict[tuple[int, ...], Fraction]:
    """Every sequence of crossings with its probability: the rules of ``searches``, step by step, over all noise."""
    p, found = searches.parameters, defaultdict[tuple[int, ...], Fraction](Fraction)

    def walk(step: int, crossings: tuple[int, ...], chance: Fraction, running: tuple[Search, int] | None) -> None:
        if step == len(joined) or not chance:
            found[crossings] += chance
            return
        search = searches.at(step, crossings[-1] if crossings else None)
        if search.first > step:
            walk(step + 1, crossings, chance, None)
            return
        mu = p.threshold_law
        drawn = {u: mu.probability(u) for u in range(mu.min, mu.max + 1)}
        if running is not None and running[0] == search:
            drawn = {running[1]: Fraction(1)}
        count = len(set().union(*joined[max(0, searches.counts_from(search, step)) : step + 1]))
        for u, of_u in drawn.items():
            nus = range(max(p.query_law.min, p.k + u - count), p.query_law.max + 1)
            crosses = sum((p.query_law.probability(v) for v in nus), Fraction(0))
            walk(step + 1, (*crossings, step), chance * of_u * crosses, None)
            walk(step + 1, crossings, chance * of_u * (1 - crosses), (search, u))

    walk(0, (), Fraction(1), None)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("restart", RESTARTS, ids=str)
def test_the_law_of_a_span_is_that_of_all_transcripts(restart: CrossingRestart | None, seed: int) -> None:
    """Over several searches, holds and epochs (instances), with members that come, return and leave."""
    parameters, draw = replace(TINY, restart=restart), random.Random(seed)
    joined = [set(draw.sample(range(6), draw.randrange(2, 6))) for _ in range(7)]
    begun = seed % parameters.cycle

    def counts_since(since: int) -> list[int]:
        return [len(set().union(*joined[max(since, r - 1) : r + 1])) for r in range(len(joined))]

    searches = Searches(parameters, -begun % parameters.cycle)
    law, exact = over_span(parameters, Span(len(joined), counts_since, begun)), transcripts(searches, joined)
    assert sum(exact.values()) == 1
    assert max(map(len, exact)) > 1
    for r in range(len(joined)):
        first = sum(p for found, p in exact.items() if found[:1] == (r,))
        crosses = sum(p for found, p in exact.items() if r in found)
        true = sum(p for found, p in exact.items() if any(x <= r <= searches.last_true(x) for x in found))
        expected = [float(each) for each in (first, crosses, true)]
        assert [law.first[r], law.crosses[r], law.true[r]] == pytest.approx(expected, rel=0, abs=1e-14)
    assert law.first[-1] == pytest.approx(float(exact[()]), abs=1e-14)


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("restart", [None, CrossingRestart(6, 15), CrossingRestart(8, 40)], ids=str)
def test_the_law_of_a_span_agrees_with_the_rise_after_long_silence(restart: CrossingRestart | None, count: int) -> None:
    parameters = replace(SMALL, restart=restart)
    counts = [count] * (parameters.cycle - 1) + [6]
    late = 1 - over_span(parameters, Span(parameters.cycle, lambda _: counts)).true[-1]
    assert late == pytest.approx(false_after_silence(parameters, count, 6), abs=1e-12)
