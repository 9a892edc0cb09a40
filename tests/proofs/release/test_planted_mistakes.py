"""Known and likely mistakes, each with its exact delta.

The numbers are those of an independent computation in floating point (laws truncated at 28 scales).
"""

from fractions import Fraction
from itertools import pairwise
from math import floor

import pytest

from kanon.noise.exact import exp_bounds
from kanon.noise.laws import two_sided
from kanon.release import Ledger, release
from kanon.release.aggregate_noise import NoisyTotal, Quantile
from kanon.release.deltas import of_all, shift_delta
from kanon.release.noising import clamped_sum
from kanon.release.selection import CountedSelection, counted_selection, optimal_selection
from kanon.release.tape import Tape
from tests.proofs.release.enumeration import delta, distribution, joint, selected
from tests.proofs.release.test_aggregates import Coarse
from tests.unit.release.made import Given, spec

ONE = Fraction(1)


def laplace(scale, epsilon=ONE, scales=28):
    """Noise with epsilon / scale for each unit."""
    return two_sided(epsilon / scale, int(scales * scale))


def one_way(here, there, epsilon):
    """The hockey-stick of one direction."""
    low, _ = exp_bounds(epsilon)
    return float(sum(max(0, p - low * there.get(o, 0)) for o, p in here.items()) / sum(here.values()))


def outcomes(law, value):
    return distribution(lambda word: value(law.draw(word)), law.cumulative)


def near(found, known):
    return float(found) == pytest.approx(known, rel=1e-8)


def test_scaling_a_sum_by_the_width_of_its_bounds_breaks_the_claim():
    assert near(shift_delta(laplace(1), 6, ONE), 0.9272054731303337)
    assert shift_delta(laplace(6), 6, ONE) < Fraction("1e-12")


@pytest.mark.parametrize(("scale", "known"), [(4, 0.49226816547515423), (8, 0.49805195002721364)])
def test_a_mean_that_divides_by_the_exact_count_breaks_the_claim(scale, known):
    law = laplace(scale)
    fewer = outcomes(law, lambda x: Fraction(4 + x, 1))
    more = outcomes(law, lambda x: Fraction(4 + 4 + x, 2))
    assert near(one_way(more, fewer, ONE), known)


def test_a_mean_that_divides_by_the_exact_count_breaks_the_claim_even_as_a_histogram():
    """Algorithm 2.3 of Li et al. 2016 at epsilon 1/2, in cells of width 4."""
    half = Fraction(1, 2)
    law = laplace(8, half, scales=56)
    fewer = outcomes(law, lambda x: floor(Fraction(x) / 4))
    more = outcomes(law, lambda x: floor(Fraction(8 + x, 2) / 4))
    assert near(one_way(fewer, more, half), 0.16800179085363096)


def test_a_noisy_sum_and_a_noisy_count_as_a_pair_are_right():
    law = laplace(2, Fraction(1, 2))
    count = laplace(1, Fraction(1, 2))
    here = joint(outcomes(law, lambda x: x), outcomes(count, lambda x: x))
    there = joint(outcomes(law, lambda x: 2 + x), outcomes(count, lambda x: 1 + x))
    claim = shift_delta(law, 2, Fraction(1, 2)) + shift_delta(count, 1, Fraction(1, 2))
    assert delta(here, there, ONE) <= claim < Fraction("2e-6")


def thesis(epsilon, most, n1, n2):
    """pi_opt by the printed closed form (Theorem 13), with its two switching points given."""
    from math import exp

    def pi(n):
        if n <= n1:
            return (exp(n * epsilon) - 1) / (exp(epsilon) - 1) * most
        before = pi(n1)
        if n <= n2:
            m = n - n1
            inner = most * (exp(m * epsilon) - 1) / (exp(epsilon) - 1)
            return 1 - exp(-m * epsilon) * (1 - before) + exp(-m * epsilon) * inner
        return 1.0

    return [pi(n) for n in range(n2 + 3)]


def excess(probabilities, epsilon):
    from math import exp

    worst = 0.0
    for p, q in pairwise(probabilities):
        for a, b in ((p, q), (q, p), (1 - p, 1 - q), (1 - q, 1 - p)):
            worst = max(worst, a - exp(epsilon) * b)
    return worst


def test_the_ceilings_printed_for_the_optimal_selection_break_the_claim():
    assert excess(thesis(1, 1e-5, 11, 22), 1) == pytest.approx(1e-5, rel=1e-6)
    assert excess(thesis(1, 1e-5, 12, 23), 1) == pytest.approx(0.5079975028829724, rel=1e-6)
    assert optimal_selection(ONE, Fraction("1e-5")).delta <= Fraction("1e-5")


class AtThreshold(CountedSelection):
    """Releases a group whose noisy count is only at the truncation, though never an empty one."""

    def released(self, users, word):
        noisy = users + self.law.draw(word)
        return noisy if users and noisy >= self.law.truncation else None


def test_releasing_a_count_at_the_threshold_breaks_the_claim():
    law = counted_selection(ONE, Fraction("1e-5")).law
    rule = AtThreshold(law)
    worst = max(delta(selected(rule, n), selected(rule, n + 1), ONE) for n in range(26))
    assert near(worst, 2.86984867867683e-05)


class EmptyToo(CountedSelection):
    def released(self, users, word):
        noisy = users + self.law.draw(word)
        return noisy if noisy >= self.law.truncation else None


def test_a_wrong_selection_releases_a_group_without_users():
    rule = EmptyToo(two_sided(ONE, 5))
    assert set(selected(rule, 0)) == {None, 5}
    assert set(selected(CountedSelection(two_sided(ONE, 5)), 0)) == {None}


class BelowFloor(CountedSelection):
    """Adds the floor to the threshold and forgets that m must be at least 1."""

    def released(self, users, word):
        noisy = users + self.law.draw(word)
        return noisy if noisy > self.law.truncation + self.floor - 2 else None


def test_a_floor_that_is_a_threshold_lets_smaller_groups_pass():
    law = two_sided(ONE, 5)
    assert set(selected(BelowFloor(law, 4), 3)) != {None}
    assert set(selected(CountedSelection(law, 4), 3)) == {None}


class HalfToEven(NoisyTotal):
    """Python's and numpy's rounding."""

    def rounded(self, exact):
        return round(Fraction(exact * self.steps, self.sensitivity))


def test_rounding_half_to_even_moves_a_total_by_more_steps():
    """With one step for a user, 0.5 and 1.5 go to 0 and 2."""
    epsilon = Fraction(1, 200)
    moved = {}
    for kind in (NoisyTotal, HalfToEven):
        total = kind(2, epsilon)
        assert total.steps == 1
        moved[kind] = max(total.rounded(x + 2) - total.rounded(x) for x in range(-9, 9))
    assert moved == {NoisyTotal: 1, HalfToEven: 2}
    law = NoisyTotal(2, epsilon).law
    assert shift_delta(law, 1, epsilon) < Fraction("1e-14")
    assert shift_delta(law, 2, epsilon) > Fraction(2, 1000)


def test_rounding_the_middle_of_the_bounds_to_the_grid_breaks_the_claim():
    """Bounds 1 and 4: M = 5/2 exactly, or the multiple of the grid below it."""
    right = NoisyTotal(3, ONE)  # of 2 x - 5
    wrong = right.grid * (5 // right.grid)
    values = [Fraction(2 * x) for x in (1, 2, 3, 4)]
    totals = [a - middle for a in values for middle in (5, wrong)]

    def step(total):
        return floor(total / right.grid + Fraction(1, 2))

    def moved(middle):
        return max(abs(step(start + value - middle) - step(start)) for start in totals for value in values)

    assert moved(5) == right.steps
    assert moved(wrong) == right.steps + 1
    assert float(shift_delta(right.law, right.steps + 1, ONE)) == pytest.approx(0.0039, abs=5e-5)


def test_two_sums_of_a_group_that_share_their_noise_break_the_claim():
    law = two_sided(ONE, 9)
    shared = distribution(lambda word: (3 + law.draw(word)) - (1 + law.draw(word)), law.cumulative)
    assert set(shared) == {2}, "their difference is exact"
    assert delta(shared, distribution(lambda word: 3, law.cumulative), ONE) == 1


def test_two_groups_that_share_one_tape_break_the_claim():
    law = two_sided(ONE, 9)
    here, there = (
        distribution(lambda word, n=n: (20 + n + law.draw(word), 20 + law.draw(word)), law.cumulative) for n in (0, 1)
    )
    assert delta(here, there, Fraction(2)) == 1


class KeyedByData(Ledger):
    """Draws the noise from a digest of the table instead of a random secret."""

    def begin(self, wanted, digest):
        spend, _ = super().begin(wanted, digest)
        return spend, Tape(bytes.fromhex(digest(b"k" * 32)), "id")


@pytest.mark.parametrize(("kind", "told"), [(KeyedByData, True), (Ledger, False)])
def test_noise_that_is_keyed_by_the_data_tells_whether_a_repeated_release_has_changed(tmp_path, kind, told):
    """Equal bytes under two names: the data are equal. One user less: they are not. Delta is 1."""
    tables = [Given(*((name, 40 + n) for name in "abcdefgh")) for n in (0, 0, 1)]
    rows = []
    for name, table in enumerate(tables):
        ledger = kind.at(tmp_path / kind.__name__)
        rows.append(release([], spec(), ledger, dataset="d", name=str(name), engine=table).released.rows)
    assert (rows[0] == rows[1]) is told
    assert rows[0] != rows[2]


def test_clamping_after_the_noise_breaks_the_claim():
    """One value of 1000 with bounds 0 and 5: the noise is scaled for 5."""
    total = Coarse(5, ONE)
    fewer, more = (
        distribution(lambda word, x=x: min(5, max(0, total.noisy(x, word))), total.law.cumulative) for x in (0, 1000)
    )
    assert delta(fewer, more, ONE) > Fraction(3, 4)
    clamped = distribution(lambda word: total.noisy(clamped_sum([(11, 1, 1000)], 0, 5), word), total.law.cumulative)
    assert delta(distribution(lambda word: total.noisy(0, word), total.law.cumulative), clamped, ONE) <= total.delta


def test_a_missing_bound_on_the_groups_of_a_user_breaks_the_claim():
    rule = counted_selection(ONE, Fraction(1, 20))
    cache = [selected(rule, n) for n in (5, 6)]
    assert delta(joint(cache[0], cache[0]), joint(cache[1], cache[1]), ONE) > 5 * rule.delta
    assert delta(joint(cache[0], cache[0]), joint(cache[1], cache[1]), 2 * ONE) <= of_all(rule.delta, 2)


def test_a_missing_bound_on_the_rows_of_a_user_breaks_the_claim():
    total = NoisyTotal(1, ONE)
    assert shift_delta(total.law, 2 * total.steps, ONE) > Fraction(39, 100)


class NoHalf(Quantile):
    """The exponential mechanism without the 2 in its exponent."""

    @property
    def sensitivity(self):
        return Fraction(super().sensitivity, 2)


def test_a_quantile_without_the_factor_two_breaks_the_claim():
    worst = {}
    for kind in (Quantile, NoHalf):
        one = kind(Fraction(1, 2), 2, ONE)
        tables = [[dict(enumerate(one.weights([(0, n + more), (1, 4 - n)]))) for more in (0, 1)] for n in range(5)]
        worst[kind] = max(delta(*pair, ONE) for pair in tables)
    assert worst[Quantile] < Fraction("1e-20")
    assert worst[NoHalf] > Fraction(1, 100)
