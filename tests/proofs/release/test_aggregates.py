"""No aggregate exceeds its claim on any data set of at most 4 users with values on 5 points."""

from fractions import Fraction
from functools import cached_property, partial
from itertools import combinations_with_replacement

import pytest

from kanon.noise.laws import two_sided
from kanon.release.aggregate_noise import AutomaticBounds, NoisyTotal, Quantile, half_width
from kanon.release.aggregates import Interval, TotalsAggregate, aggregate
from kanon.release.bounding import Centred, CountedRows, Distinct, Squares, Sum, UserMeans
from kanon.release.deltas import shift_delta
from kanon.release.selection import counted_selection
from tests.proofs.release.enumeration import delta, distribution, joint, neighbours, selected

LOW, HIGH = -2, 5
POINTS = (-2, 0, 1, 4, 5)  # both ends included


def exact(measure, data):
    """The exact total of a measure, for users with one value each (of ``CountedRows``: with so many rows)."""
    match measure:
        case CountedRows(most):
            return sum(min(rows, most) for rows in data)
        case Sum(_, low, high):
            return sum(max(low, min(high, x)) for x in data)
        case Centred(_, low, high, _) | UserMeans(_, low, high):
            return sum(2 * x - low - high for x in data)
        case Squares(_, low, high, _):
            return sum(2 * (2 * x - low - high) ** 2 - (high - low) ** 2 for x in data)
    raise AssertionError(measure)


ASKED = [
    "rows:3", f"sum:x:{LOW}:{HIGH}", "sum:x:4:5", f"mean:x:{LOW}:{HIGH}", f"mean:x:{LOW}:{HIGH}:per-user",
    f"var:x:{LOW}:{HIGH}", "mean:x:1:4",
]  # fmt: skip


def needs(text):
    asked = aggregate(text, scale=0, values=1, cells=4)
    assert isinstance(asked, TotalsAggregate)
    return asked.needs


def points(text):
    if text.startswith("rows"):
        return (1, 2, 3, 4, 9)
    low, high = (int(part) for part in text.split(":")[2:4])
    return tuple(sorted({low, high, *(p for p in POINTS if low <= p <= high)}))


@pytest.mark.parametrize("text", ASKED)
@pytest.mark.parametrize("epsilon", ["1/2", "1", "9"])
def test_one_user_moves_a_total_by_at_most_the_steps_of_its_sensitivity(text, epsilon):
    for need in needs(text):
        total = NoisyTotal(need.sensitivity, Fraction(epsilon))
        assert 100 < total.steps / total.epsilon <= 200
        moved = {
            total.rounded(exact(need.measure, more)) - total.rounded(exact(need.measure, fewer))
            for fewer, more in neighbours(points(text))
        }
        assert max(map(abs, moved)) <= total.steps
        if "mean:x:1:4" not in text:  # every point but the middle is an end of another aggregate
            assert max(map(abs, moved)) == total.steps


SEVERAL = ["rows:3", "mean:x:-2:5", "var:x:-2:5", "var:x:1:4", "stddev:x:0:5", "distinct:x"]


@pytest.mark.parametrize("values", [1, 2, 3])
@pytest.mark.parametrize("text", SEVERAL)
def test_the_sensitivity_of_each_total_is_the_most_that_a_user_with_several_values_adds(text, values):
    """A user adds at most ``values`` values, so the worst user is among all multisets of at most that size."""
    ends = (1, 4) if text.endswith("1:4") else (0, 5) if text.endswith("0:5") else (LOW, HIGH)
    users = [own for n in range(1, 5) for own in combinations_with_replacement(range(ends[0], ends[1] + 1), n)]

    def added(measure, own):
        match measure:
            case CountedRows(most):
                return min(len(own), most)
            case Distinct(_, most):
                return min(len(set(own)), most)
        return exact(measure, own[: measure.values])

    for need in aggregate(text, scale=0, values=values, cells=4).needs:
        assert max(abs(added(need.measure, own)) for own in users) == need.sensitivity


@pytest.mark.parametrize(
    ("text", "totals", "users", "expected"),
    [
        ("mean:x:0:10", [-1000], 1, 0),  # clamped to the bounds
        ("mean:x:0:10", [1000], -3, 10),
        ("mean:x:0:10", [4], 0, 7),  # a number below 1 counts as 1
        ("mean:x:0:10", [8], 2, 7),
        ("var:x:0:10", [0, 10**9], 5, 25),  # no spread is larger
        ("var:x:0:10", [0, -(10**9)], 5, 0),
        ("var:x:0:10", [0, -60], 1, 5),
        ("var:x:0:10", [4, -60], 0, 1),
        ("stddev:x:0:10", [0, -28], 1, 3),
    ],
)
def test_a_value_follows_from_its_totals(text, totals, users, expected):
    one = aggregate(text, scale=0, values=1, cells=4)
    *drawn, number = [Interval(*[Fraction(exact)] * 3) for exact in (*totals, users)]
    found = one.value(drawn, number)[0]
    assert abs(found - expected) < Fraction(1, 1 << 50)


def test_the_edges_of_a_quantile_divide_its_bounds_evenly():
    one = aggregate("quantile:x:-1:3:0.5", scale=1, values=1, cells=8)
    assert [one.edge(i) for i in range(9)] == [Fraction(i, 2) - 1 for i in range(9)]
    least, most = (aggregate(f"{kind}:x:0:1", scale=0, values=1, cells=4) for kind in ("min", "max"))
    assert (least.qs, most.qs) == ((0,), (1,))


@pytest.mark.parametrize("epsilon", ["1/2", "9", pytest.param("1/200", marks=pytest.mark.prove)])
def test_every_shift_within_the_steps_stays_within_the_claimed_delta(epsilon):
    total = NoisyTotal(7, Fraction(epsilon))
    shifts = sorted({0, 1, total.steps // 3, total.steps - 1, total.steps})
    found = [shift_delta(total.law, shift, total.epsilon) for shift in shifts]
    assert found == sorted(found)
    assert found[-1] == total.delta < Fraction("1e-11")


@pytest.mark.prove
def test_every_shift_stays_within_the_claimed_delta():
    for epsilon in ("1/2", "1", "3"):
        total = NoisyTotal(7, Fraction(epsilon))
        for shift in range(total.steps + 1):
            assert shift_delta(total.law, shift, total.epsilon) <= total.delta


def test_the_table_of_a_total_has_at_most_two_to_the_fourteen_entries_and_its_rounding_is_felt_little():
    for epsilon in ("1/200", "0.3", "1", "3", "10"):
        total = NoisyTotal(1, Fraction(epsilon))
        assert len(total.law.weights) <= 1 << 14
        squares = sum(x * x * w for x, w in enumerate(total.law.weights, total.law.min))
        noise = Fraction(squares, sum(total.law.weights))
        assert Fraction(1, 12) < Fraction("5e-6") * noise


class Coarse(NoisyTotal):
    """The same mechanism with few steps and a short table, so that several totals can be enumerated together."""

    steps = 2

    @cached_property
    def law(self):
        return two_sided(self.epsilon / 2, 9)


@pytest.mark.parametrize("text", [one for one in ASKED if not one.startswith("var")])
def test_count_and_total_of_a_group_stay_within_the_sum_of_their_claims(text):
    check_together(text, users=3, truncation=Fraction(1, 20))


@pytest.mark.prove
@pytest.mark.parametrize("text", ASKED)
def test_count_and_all_totals_of_a_group_keep_to_the_sum_of_their_claims(text):
    check_together(text, users=4, truncation=Fraction(1, 20))


def check_together(text, users, truncation):
    """Count and totals, released together if the count passes: at most the sum of all epsilons and deltas."""
    rule = counted_selection(Fraction(1), truncation)
    totals = [(need.measure, Coarse(need.sensitivity, Fraction(1))) for need in needs(text)]
    claim = rule.delta + sum(total.delta for _, total in totals)
    epsilon = Fraction(1 + len(totals))
    cache, worst = {}, Fraction(0)

    def output(data):
        key = (len(data), *(total.rounded(exact(measure, data)) for measure, total in totals))
        if key not in cache:
            counts = selected(rule, len(data))
            parts = [
                distribution(partial(total.noisy, exact(measure, data)), total.law.cumulative)
                for measure, total in totals
            ]
            shown = {}
            for outcome, weight in joint(counts, *parts).items():
                seen = outcome if outcome[0] is not None else None
                shown[seen] = shown.get(seen, 0) + weight
            cache[key] = key, shown
        return cache[key]

    compared = set()
    for fewer, more in neighbours(points(text), users):
        (key, here), (other, there) = output(fewer), output(more)
        if (key, other) not in compared:
            compared.add((key, other))
            worst = max(worst, delta(here, there, epsilon))
    assert claim / 1000 < worst <= claim


@pytest.mark.parametrize("q", ["0", "1/2", "9/10", "1"])
@pytest.mark.parametrize(
    ("cells", "users"),
    [(4, 3), pytest.param(6, 6, marks=pytest.mark.prove), pytest.param(1, 6, marks=pytest.mark.prove)],
)
def test_no_quantile_exceeds_its_claim(q, cells, users):
    one = Quantile(Fraction(q), cells, Fraction(1))
    cache = {}

    def weights(data):
        if data not in cache:
            histogram = tuple((cell, data.count(cell)) for cell in sorted(set(data)))
            cache[data] = dict(enumerate(one.weights(histogram)))
        return cache[data]

    worst = max(
        delta(weights(fewer), weights(tuple(sorted(more))), one.epsilon)
        for fewer, more in neighbours(range(cells), users)
    )
    assert worst <= one.delta


def test_an_edge_far_from_the_quantile_has_weight_zero_which_costs_delta():
    one = Quantile(Fraction(1, 2), 2, Fraction(9))
    fewer, more = [(0, 20)], [(0, 21)]
    weights = [dict(enumerate(one.weights(data))) for data in (fewer, more)]
    assert weights[0][0] > 0 == weights[0][2] == weights[1][2] or weights[0][1] > 0
    assert delta(*weights, one.epsilon) <= one.delta


@pytest.mark.parametrize(("data", "q", "expected"), [((0, 0, 1, 3), "1/2", {1}), ((2,) * 9, "0", {0, 1, 2})])
def test_the_edge_with_the_best_score_is_the_quantile(data, q, expected):
    one = Quantile(Fraction(q), 4, Fraction(1))
    losses = one.losses([(cell, data.count(cell)) for cell in set(data)])
    assert {i for i, loss in enumerate(losses) if loss == 0} == expected


def test_the_weights_of_a_quantile_are_floors_of_the_exact_exponentials():
    import mpmath

    mpmath.mp.prec = 400
    one = Quantile(Fraction(1, 2), 8, Fraction(2))
    rate = (mpmath.mpf(2) - mpmath.mpf(2) ** -36) / 2
    for loss, weight in enumerate(one.weights_by_loss):
        assert weight == int(mpmath.floor(mpmath.mpf(2) ** 128 * mpmath.exp(-rate * loss)))
    assert one.weights_by_loss[-1] >= 1 << 38 > int(mpmath.mpf(2) ** 128 * mpmath.exp(-rate * len(one.weights_by_loss)))


class Given:
    """A tape whose numbers are given."""

    def __init__(self, number):
        self.number = number

    def below(self, bound, role, group):
        return self.number(bound)

    def word(self, role, group):
        return self.number


def test_each_edge_of_a_quantile_is_drawn_for_as_many_numbers_as_its_weight():
    one = Quantile(Fraction(1, 2), 3, Fraction(1))
    data = [(0, 2), (2, 3)]
    weights = one.weights(data)
    starts = [sum(weights[:i]) for i in range(5)]
    for edge in range(4):
        for number in (starts[edge], starts[edge + 1] - 1):
            assert one.draw(data, Given(lambda bound, number=number: number), "", "") == edge
    assert one.draw(data, Given(lambda bound: bound - 1), "", "") == 3


def test_automatic_bounds_take_the_bins_above_their_threshold_and_no_others():
    one = AutomaticBounds(Fraction(1))
    silent = Given(next(word for word in range(0, 1 << 64, 1 << 54) if one.law.draw(word) == 0))
    users = {3: one.threshold, 5: one.threshold + 1, 7: one.threshold + 1, 9: one.threshold}
    assert one.draw(users, silent, "") == (9, 64)


def test_the_width_of_a_total_covers_noise_and_the_worst_rounding():
    total, level = Coarse(40, Fraction(1)), Fraction(19, 20)
    errors = {
        abs(total.rounded(exact) + noise - exact / total.grid) - abs(noise)
        for exact in range(80)
        for noise in range(-9, 10)
    }
    assert max(errors) == Fraction(1, 2)
    assert total.half_width(level) == (half_width(total.law, level) + max(errors)) * total.grid


def test_every_multiset_of_values_is_enumerated():
    assert len({fewer for fewer, _ in neighbours(POINTS)}) == sum(
        len(list(combinations_with_replacement(POINTS, number))) for number in range(4)
    )
