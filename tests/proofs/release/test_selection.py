"""No selection exceeds its claim: every outcome of every table, both directions."""

from fractions import Fraction
from itertools import combinations, combinations_with_replacement, product

import numpy as np
import pytest

from kanon.noise.words import TOTAL
from kanon.release.bounding import Bounding
from kanon.release.deltas import of_all
from kanon.release.gaussian import gaussian, gaussian_choice, ideal_delta, noise_delta
from kanon.release.mechanism import Mechanism
from kanon.release.noising import PrivateTable, _possible, publish
from kanon.release.selection import GaussianSelection, PublicCount, counted_selection, optimal_selection, widest
from tests.proofs.release.enumeration import delta, distribution, joint, selected, words
from tests.unit.release.made import spec

BUDGETS = [("1", "0.05"), ("1", "1e-5"), ("1/3", "0.01"), ("3", "1e-5"), ("0.1", "0.01")]


@pytest.mark.parametrize("floor", [1, 2, 4])
@pytest.mark.parametrize(("epsilon", "most"), BUDGETS)
def test_counted_selection_reaches_its_claim_and_never_exceeds_it(epsilon, most, floor):
    rule = counted_selection(Fraction(epsilon), Fraction(most), floor)
    found = [
        delta(selected(rule, n), selected(rule, n + 1), rule.law.epsilon)
        for n in range(2 * rule.law.truncation + floor + 2)
    ]
    assert max(found) == rule.delta <= Fraction(most)


@pytest.mark.parametrize("floor", [1, 3])
@pytest.mark.parametrize(("epsilon", "most"), BUDGETS)
def test_optimal_selection_reaches_its_claim_and_never_exceeds_it(epsilon, most, floor):
    rule = optimal_selection(Fraction(epsilon), Fraction(most), floor)
    found = [
        delta(selected(rule, n), selected(rule, n + 1), rule.epsilon) for n in range(len(rule.weights) + floor + 1)
    ]
    assert max(found) == rule.delta <= Fraction(most)
    assert rule.delta > Fraction(most) * Fraction(999, 1000)


@pytest.mark.parametrize("epsilon", ["1/2", "3"])
def test_counts_of_public_groups_reach_their_claim(epsilon):
    rule = PublicCount(widest(Fraction(epsilon)))
    assert delta(selected(rule, 0), selected(rule, 1), rule.law.epsilon) == rule.delta < Fraction("1e-15")


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(1), Fraction(9, 4)])
@pytest.mark.parametrize("shifted", [1, 2, pytest.param(3, marks=pytest.mark.prove)])
def test_gaussian_noise_of_several_groups_keeps_to_its_claim(variance, shifted):
    table = gaussian(variance)
    here = joint(*[distribution(table.draw, table.cumulative)] * shifted)
    there = joint(*[distribution(lambda word: table.draw(word) + 1, table.cumulative)] * shifted)
    for epsilon in (Fraction(1, 2), Fraction(1), Fraction(3)):
        found = delta(here, there, epsilon)
        claim = noise_delta(variance, shifted, epsilon)
        assert found <= claim
        assert claim <= found * (1 + Fraction(1, 10**6)) + Fraction(1, 10**15)
        assert ideal_delta(variance, shifted, epsilon) <= noise_delta(variance, shifted + 1, epsilon)


@pytest.mark.parametrize(("groups", "epsilon"), [(1, "1/100"), (2, "1/100"), (2, "1/20"), (2, "3")])
def test_the_ideal_delta_of_gaussian_noise_is_never_too_small(groups, epsilon):
    """Against 400 bits: what rounding loses in fixed point is added, so the claim lies above the truth."""
    import mpmath

    variance, reach, epsilon = Fraction(9, 4), 40, Fraction(epsilon)
    with mpmath.workprec(400):
        weights = [mpmath.exp(-mpmath.mpf(2 * x * x) / 9) for x in range(-reach, reach + 1)]
        single = {x: weight / sum(weights) for x, weight in enumerate(weights, -reach)}
        sums = {0: mpmath.mpf(1)}
        for _ in range(groups):
            found = {}
            for (x, p), (y, q) in product(sums.items(), single.items()):
                found[x + y] = found.get(x + y, 0) + p * q
            sums = found
        c = (Fraction(groups, 2) - epsilon * variance).__floor__()
        here, there = (sum(p for s, p in sums.items() if s <= c - shift) for shift in (0, groups))
        truth = here - mpmath.exp(mpmath.mpf(epsilon.numerator) / epsilon.denominator) * there
        claim = ideal_delta(variance, groups, epsilon)
        assert 0 < mpmath.mpf(claim.numerator) / claim.denominator - truth < mpmath.mpf(2) ** -90


@pytest.mark.parametrize("kappa", [2, pytest.param(3, marks=pytest.mark.prove)])
def test_gaussian_selection_of_all_groups_of_a_user_keeps_to_its_claim(kappa):
    epsilon, most = Fraction(3), Fraction(1, 5)
    choice = gaussian_choice(kappa, epsilon, most, 2)
    cache = {n: selected(choice.selection, n) for n in range(6)}
    worst = Fraction(0)
    for fewer in combinations_with_replacement(range(5), kappa):
        here, there = (joint(*(cache[n + more] for n in fewer)) for more in (0, 1))
        worst = max(worst, delta(here, there, epsilon))
    assert most / 3 < worst <= choice.delta <= most


class Chosen:
    """A tape whose words are given, group by group."""

    def __init__(self, given):
        self.given = given

    def words(self, role, groups):
        return np.array([self.given[group] for group in groups.to_pylist()], np.uint64)


def released(mechanism, counts):
    """The distribution of what ``publish`` returns for exact counts of groups."""
    present = {name: n for name, n in counts if n}
    found = {}
    bounding = Bounding("client", ("set",))
    for drawn in product(words(mechanism.rule.law.cumulative), repeat=len(present)):
        given = {name: word for name, (word, _) in zip(present, drawn, strict=True)}
        table = PrivateTable.of_rows(bounding, lambda: iter(present.items()), {})
        outcome = publish(table, mechanism, Chosen(given)).rows
        weight = 1
        for _, part in drawn:
            weight *= part
        found[outcome] = found.get(outcome, 0) + weight
    total = sum(found.values())
    return {outcome: Fraction(weight, total) for outcome, weight in found.items()}


@pytest.mark.parametrize("users", [2, pytest.param(4, marks=pytest.mark.prove)])
@pytest.mark.parametrize("floor", [1, 2])
def test_a_release_with_two_groups_a_user_keeps_to_its_claim_over_all_samples(users, floor):
    """A user with three groups counts in two of them, each pair with the same probability, as the keyed hash gives."""
    mechanism = Mechanism(spec(epsilon=Fraction(2), delta=Fraction(1, 4), groups_per_user=2, floor=floor))
    names = "abc"
    kinds = [kind for size in (1, 2, 3) for kind in combinations(names, size)]
    cache = {}

    def output(data):
        samples = product(*(list(combinations(kind, 2)) if len(kind) > 2 else [kind] for kind in data))
        found, number = {}, 0
        for sample in samples:
            counts = tuple((name, sum(name in kept for kept in sample)) for name in names)
            if counts not in cache:
                cache[counts] = released(mechanism, counts)
            number += 1
            for outcome, p in cache[counts].items():
                found[outcome] = found.get(outcome, 0) + p
        return {outcome: p / number for outcome, p in found.items()}

    worst = Fraction(0)
    for number in range(users):
        for fewer in combinations_with_replacement(kinds, number):
            here = output(fewer)
            for kind in kinds:
                worst = max(worst, delta(here, output((*fewer, kind)), Fraction(2)))
    # An error of less than 2^-200 in e^epsilon makes the composed claim inexact by as much.
    assert worst <= of_all(mechanism.rule.delta, 2) + Fraction(1, 1 << 200)
    assert mechanism.claim.delta == of_all(mechanism.rule.delta, 2) <= Fraction(1, 4)
    assert worst > mechanism.rule.delta


@pytest.mark.parametrize("floor", [1, 3])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_groups_that_are_left_out_at_once_are_those_that_the_rule_does_not_release(noise, floor):
    """For every number of users, and the last word of each outcome and the one after it."""
    rule = Mechanism(spec(epsilon=Fraction(9), groups_per_user=3, noise=noise, floor=floor)).rule
    drawn = sorted({word for last, _ in words(rule.law.cumulative) for word in (last, last + 1)} - {TOTAL})
    for users in range(rule.sure_from + 3):
        found = _possible(rule, np.full(len(drawn), users), np.array(drawn, np.uint64)).tolist()
        kept = [place for place, word in enumerate(drawn) if rule.released(users, word) is not None]
        assert found == kept or (users < floor and not kept)


def test_the_rule_of_a_mechanism_follows_from_public_parameters():
    assert isinstance(Mechanism(spec(groups_per_user=20)).rule, GaussianSelection)
    assert not isinstance(Mechanism(spec(groups_per_user=2)).rule, GaussianSelection)
    assert not isinstance(Mechanism(spec(groups_per_user=20, noise="laplace")).rule, GaussianSelection)
