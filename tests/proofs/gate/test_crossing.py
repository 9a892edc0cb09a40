"""Restart after the crossing (docs/proofs/crossing.md), on every small case there is, and its near misses refuted.

Whole transcripts of several searches and epochs: every integer count sequence, chosen again after each answer, every
way in which a join can show, both directions, both shapes of law.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from kanon.gate.mechanism.bounds import interval_aware, of_runs, watching
from kanon.gate.mechanism.parameters import CrossingRestart, Parameters, most_searches
from kanon.noise.laws import Shape, one_sided
from tests.proofs.gate.composition import Claims, costs
from tests.proofs.gate.crossing import Again, Counts, Every, Game, Joins, Machine, OneJoin, Rules, leaks, ratio_of
from tests.proofs.gate.enumeration import Claim, Ratio, Small, describe, mechanisms, wide


def searches_in(rules: Rules, steps: int) -> int:
    """The most searches that begin within so many consecutive steps."""
    return most_searches(CrossingRestart(rules.hold, rules.epoch), steps)


def of_one_join(small: Small, rules: Rules, begin: int | None) -> Claims:
    """The theorem's claims for a join at ``begin``, or at any step of the game."""
    (e1, d1), (e2, d2) = costs(small)
    w, y = rules.window, rules.epoch
    within = y + w - 1 if begin is not None else rules.steps + w - 1
    return Claims(Claim((e1, e2), searches_in(rules, within) * d1 + (y - 1) * d2), Claim((e2,), w * d2))


def worst(small: Small, rules: Rules, joins: Joins, claims: Claims) -> Ratio:
    """The largest ratio of both directions."""
    found = [
        replace(ratio_of(Game(small.threshold_law, small.query_law, rules, joins, adding), claim), where=name)
        for adding, claim, name in ((False, claims.removing, "removing"), (True, claims.adding, "adding"))
    ]
    return max(found, key=lambda ratio: ratio.value)


def of_every_join(small: Small, rules: Rules) -> Iterator[tuple[Ratio, str]]:
    """A join at each step fixed beforehand, and one whose step is chosen by the answers."""
    for begin in (None, *range(rules.steps - 1)):
        ratio = worst(small, rules, OneJoin(rules.window, begin), of_one_join(small, rules, begin))
        yield ratio, f"{describe(small)} {rules} join at {begin}, {ratio.where}"


def largest(small_and_rules: Iterator[tuple[Small, Rules]], what: str) -> float:
    """The largest ratio, printed with where it was found."""
    ratio, where = max(
        (one for small, rules in small_and_rules for one in of_every_join(small, rules)), key=lambda one: one[0].value
    )
    print(f"\n{what}: largest ratio to the claim {ratio.value:.6f}: {where}")
    return ratio.value


FEW = [Rules(2, 2, 3, 7), Rules(2, 1, 3, 6), Rules(3, 3, 4, 7), Rules(3, 1, 4, 6)]
MORE = [
    *FEW, Rules(2, 3, 3, 8), Rules(2, 2, 4, 9), Rules(2, 1, 2, 8), Rules(2, 5, 3, 9), Rules(3, 2, 4, 8),
]  # fmt: skip
"""Window, hold, epoch and steps. The theorem needs no hold as long as a window."""
SHAPES = ["one-sided", pytest.param("two-sided", marks=pytest.mark.prove)]
"""The second one takes four times as long."""


@pytest.mark.parametrize("shape", SHAPES)
def test_no_join_leaks_more_than_the_theorem_says(shape: Shape) -> None:
    cases = ((s, rules) for rules in FEW for s in mechanisms(shape, rules.window, 1 if rules.window == 3 else 2))
    assert 0.5 < largest(cases, f"{shape}, several searches") <= 1


@pytest.mark.prove
@pytest.mark.parametrize("shape", ["one-sided", "two-sided"])
@pytest.mark.parametrize("rules", MORE, ids=str)
def test_no_join_leaks_more_over_more_searches(shape: Shape, rules: Rules) -> None:
    cases = ((s, rules) for s in mechanisms(shape, rules.window, 2 if rules.steps < 8 else 1))
    assert 0.4 < largest(cases, f"{shape}, {rules}") <= 1


def test_wide_laws_show_that_epsilon_is_right_and_no_larger_than_needed() -> None:
    """Their delta is small: what they leak tries the claim's epsilon."""
    rules = Rules(2, 2, 3, 6)
    small = Small(one_sided(Fraction(9, 10), 8), one_sided(Fraction(6, 5), 8), 2)
    assert 0.5 < largest(iter([(small, rules)]), "wide laws") <= 1
    claims = of_one_join(small, rules, None)
    for parts in ((Fraction(9, 10),), (Fraction(6, 5),), (Fraction(9, 10), Fraction(11, 10))):
        smaller = Claims(Claim(parts, claims.removing.delta), claims.adding)
        assert worst(small, rules, OneJoin(2), smaller).value > 10
    smaller = Claims(claims.removing, Claim((Fraction(11, 10),), claims.adding.delta))
    assert worst(small, rules, OneJoin(2), smaller).value > 10


@pytest.mark.prove
def test_no_join_leaks_more_with_wide_laws() -> None:
    assert 0.5 < largest(((s, Rules(2, 2, 3, 7)) for s in wide(2)), "wide laws, both shapes") <= 1


WIDE = Small(one_sided(Fraction(9, 10), 8), one_sided(Fraction(6, 5), 8), 2)
WIDE_10 = Small(one_sided(Fraction(9, 10), 10), one_sided(Fraction(6, 5), 9), 3)
WIDE_3 = Small(one_sided(Fraction(9, 10), 4), one_sided(Fraction(6, 5), 4), 3)


@pytest.mark.parametrize("again", ["of all its steps", "of its last step"])
@pytest.mark.parametrize(
    ("small", "rules", "begin"),
    [
        (WIDE, Rules(2, 2, 3, 6), 2),
        (WIDE_3, Rules(3, 3, 4, 7), 3),
        (WIDE, Rules(2, 1, 3, 6), 0),
        (WIDE_3, Rules(3, 2, 4, 7), 0),
    ],
    ids=["an epoch ends, w=2", "an epoch ends, w=3", "a hold below the window, w=2", "a hold below the window, w=3"],
)
def test_a_join_that_counts_in_two_searches_costs_more(small: Small, rules: Rules, begin: int, again: Again) -> None:
    claims = of_one_join(small, rules, begin)
    assert worst(small, rules, OneJoin(rules.window, begin), claims).value <= 1
    assert worst(small, rules, OneJoin(rules.window, begin, again), claims).value > 2


def of_a_cut(small: Small, rules: Rules) -> Claims:
    """A join that meets one log generation that cuts the running search."""
    (e1, d1), (e2, d2) = costs(small)
    labels = searches_in(rules, rules.epoch + rules.window - 1) + 1
    return Claims(Claim((e1, e1, e2), labels * d1 + (rules.epoch - 1) * d2), Claim((e2, e2), rules.window * d2))


def test_a_generation_whose_searches_count_earlier_joins_costs_one_more_e1_and_no_more() -> None:
    """Every epoch's end stands for such a generation."""
    for small, rules in ((WIDE, Rules(2, 2, 3, 7)), (WIDE_3, Rules(3, 3, 4, 7))):
        for begin in range(rules.epoch):
            joins = OneJoin(rules.window, begin, "of all its steps")
            assert worst(small, rules, joins, of_a_cut(small, rules)).value <= 1


def test_a_generation_that_is_an_epochs_end_costs_no_epsilon() -> None:
    """At every place."""
    narrower = Small(one_sided(Fraction(9, 10), 5), one_sided(Fraction(6, 5), 5), 2)
    for small, rules in ((narrower, Rules(2, 2, 4, 8)), (WIDE_3, Rules(3, 3, 4, 8))):
        for generation in range(1, rules.epoch + 1):
            changed = replace(rules, generation=generation)
            for begin in range(rules.epoch):
                claims = of_one_join(small, rules, begin)
                assert worst(small, changed, OneJoin(rules.window, begin), claims).value <= 1


def searching(step: int, begin: int = 2, length: int = 2) -> bool:
    return begin <= step < begin + length


def constant(*counts: int) -> Counts:
    return lambda _, step: counts[step]


VERY_WIDE = Small(one_sided(Fraction(9, 10), 14), one_sided(Fraction(6, 5), 12), 2)
MACHINE = Machine(VERY_WIDE.threshold_law, VERY_WIDE.query_law, Rules(2, 2, 8, 8))
"""One epoch of four windows."""


@pytest.mark.parametrize(
    ("machine", "counts"),
    [
        (replace(MACHINE, forgets=True), (2, -1, 1, 2, 3, 2, 3, 2)),
        (replace(MACHINE, empty_restarts=-13), (2, -12, -13, -10, 2, -14, 1, -1)),
        (replace(MACHINE, generations=(3,)), (-13, -14, -1, -1, 0, 4, -8, 4)),
    ],
    ids=["a crossing is forgotten", "a restart where the set is empty", "a generation that counts earlier joins"],
)
def test_a_search_that_depends_on_joins_or_goes_on_costs_more(machine: Machine, counts: tuple[int, ...]) -> None:
    claims = of_one_join(VERY_WIDE, machine.rules, 2)
    shows = constant(*counts)
    assert leaks(MACHINE, shows, lambda _, step: searching(step), claims) <= 1
    assert leaks(machine, shows, lambda _, step: searching(step), claims) > 1000


def shown(rules: Rules, begin: int) -> Callable[[tuple[int, ...], int], bool]:
    """Where a join at ``begin`` shows: for a window, but in one search only."""
    steps = range(begin, begin + rules.window)
    return lambda crossings, step: step in steps and ended_before(rules, crossings, step) < begin


def chosen_at_random(seed: int, low: int, high: int) -> Counts:
    return lambda crossings, step: Random(repr((seed, crossings, step))).randint(low, high)


def test_both_programs_agree() -> None:
    """The machine's strategies, in rationals, never leak more than the edges say that any strategy does."""
    small = Small(one_sided(Fraction(9, 10), 2), one_sided(Fraction(6, 5), 2), 2)
    rules = Rules(2, 2, 3, 6)
    machine = Machine(small.threshold_law, small.query_law, rules)
    reached = 0.0
    for begin in range(rules.steps - 1):
        claims = of_one_join(small, rules, begin)
        most = worst(small, rules, OneJoin(2, begin), claims).value
        for seed in range(20):
            leaked = leaks(machine, chosen_at_random(seed, -2, 3), shown(rules, begin), claims)
            assert leaked <= most + 1e-12
            reached = max(reached, float(leaked) / most)
    assert reached > 0.8


# The law of mu ends early, and nu hardly moves: a set at one less than certainty is silent only if mu is at its end.
TELLING = Small(one_sided(Fraction(1, 2), 4), one_sided(Fraction(5, 2), 9), 2)


def surely_but_one(small: Small) -> int:
    return small.threshold_law.max - 1


def test_for_a_step_fixed_beforehand_the_silence_of_a_search_costs_d1_more_than_once() -> None:
    """The search that runs at the join's step is the one that was silent so far: its mu is large more often."""
    rules = Rules(2, 2, 13, 13)
    machine = Machine(TELLING.threshold_law, TELLING.query_law, rules)
    claims = of_one_join(TELLING, rules, 11)
    (_, d1), (_, d2) = costs(TELLING)
    once = Claims(replace(claims.removing, delta=d1 + rules.epoch * d2), claims.adding)
    telling = surely_but_one(TELLING)
    shows = lambda _, step: step == 11  # noqa: E731
    assert leaks(machine, lambda *_: telling, shows, claims) <= 1
    assert leaks(machine, lambda *_: telling, shows, once) > 2


def first_silence(crossings: tuple[int, ...]) -> int:
    """The first even step without a crossing."""
    return next(step for step in range(0, 100, 2) if step not in crossings)


def test_a_join_that_waits_for_silence_costs_d1_for_each_search_that_it_watches() -> None:
    rules = Rules(2, 2, 15, 14)
    machine = Machine(TELLING.threshold_law, TELLING.query_law, rules)
    claims = of_one_join(TELLING, rules, None)
    (_, d1), (_, d2) = costs(TELLING)
    once = Claims(replace(claims.removing, delta=d1 + rules.epoch * d2), claims.adding)

    def shows(crossings: tuple[int, ...], step: int) -> bool:
        return step == first_silence(crossings) + 1

    telling = surely_but_one(TELLING)
    assert leaks(machine, lambda *_: telling, shows, claims) <= 1
    assert leaks(machine, lambda *_: telling, shows, once) > 3


def test_a_client_that_looks_at_many_sets_finds_one_whose_silence_tells() -> None:
    """The bound for one set is exceeded; that for all of them holds."""
    rules = Rules(2, 2, 7, 2)
    machine = Machine(TELLING.threshold_law, TELLING.query_law, rules)
    telling = surely_but_one(TELLING)
    silent = sum(p for crossings, p in machine.transcripts(lambda *_: telling).items() if not crossings)
    once = sum(p for crossings, p in machine.transcripts(lambda *_: telling).items() if 0 not in crossings)
    parameters = with_restart(TELLING, rules)
    for sets in (1, 10, 40):
        # It joins the first set that is silent at its first step; with the join that one surely crosses at the second.
        leaked = (1 - (1 - once) ** sets) / once * silent
        assert leaked <= watching(parameters, 1, sets).delta
    assert leaked > 2 * watching(parameters, 1).delta


def with_restart(small: Small, rules: Rules) -> Parameters:
    return replace(small.parameters, window=rules.window, restart=CrossingRestart(rules.hold, rules.epoch))


def of_all_joins(small: Small, rules: Rules, lengths: list[int]) -> Claims:
    """The theorem's claims for runs of so many steps."""
    (e1, d1), (e2, d2) = costs(small)
    met = sum(1 + searches_in(rules, n - rules.window) for n in lengths)
    possible = sum(searches_in(rules, n + rules.epoch - 1) for n in lengths)
    runs = len(lengths)
    return Claims(
        Claim((e1,) * met + (e2,) * runs, possible * d1 + runs * (rules.epoch - 1) * d2),
        Claim((e2,) * met, sum(lengths) * d2),
    )


def patterns(rules: Rules) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Every pattern of joins from the first step on, and the lengths of the runs of steps in which they may show."""
    for joins in product((False, True), repeat=rules.steps - rules.window + 1):
        joined = tuple(s for s, joined in enumerate(joins) if joined)
        if joined:
            ends = [n for n, s in enumerate(joined) if s + rules.window < (*joined, rules.steps * 3)[n + 1]]
            begins = [0, *(n + 1 for n in ends[:-1])]
            yield joined, [joined[b] - joined[a] + rules.window for a, b in zip(begins, ends, strict=True)]


def largest_of_all_joins(small: Small, rules: Rules, claims: Callable[[Small, Rules, list[int]], Claims]) -> Ratio:
    found = [
        replace(worst(small, rules, Every(rules.window, joined), claims(small, rules, lengths)), where=str(joined))
        for joined, lengths in patterns(rules)
    ]
    return max(found, key=lambda ratio: ratio.value)


ALL_JOINS = [
    (Rules(2, 2, 3, 6), 2),
    pytest.param(Rules(2, 1, 3, 7), 1, marks=pytest.mark.prove),
    pytest.param(Rules(2, 3, 3, 8), 1, marks=pytest.mark.prove),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("rules", "most"), ALL_JOINS, ids=str)
def test_all_joins_of_a_client_cost_at_most_their_bound(shape: Shape, rules: Rules, most: int) -> None:
    ratio, small = max(
        ((largest_of_all_joins(s, rules, of_all_joins), s) for s in mechanisms(shape, rules.window, most)),
        key=lambda one: one[0].value,
    )
    print(
        f"\n{shape}, all joins, {rules}: largest ratio to the claim {ratio.value:.6f}: {describe(small)} {ratio.where}"
    )
    assert 0.2 < ratio.value <= 1


def test_the_bounds_are_the_claims_that_are_tried() -> None:
    for rules in MORE:
        small = VERY_WIDE
        if rules.hold < rules.window or rules.epoch <= rules.window:
            continue  # a type may not have them
        parameters = with_restart(small, rules)
        for bound, claims in (
            (interval_aware(parameters), of_one_join(small, rules, 0)),
            (
                watching(parameters, rules.steps),
                of_one_join(small, replace(rules, steps=rules.steps + rules.epoch - 1), None),
            ),
            (of_runs(parameters, CrossingRestart(rules.hold, rules.epoch), [5, 3]), of_all_joins(small, rules, [5, 3])),
        ):
            directions = claims.removing, claims.adding
            assert bound.epsilon == max(sum(claim.parts) for claim in directions)
            assert bound.delta == max(claim.delta for claim in directions)


def without_one_search(small: Small, rules: Rules, lengths: list[int]) -> Claims:
    claims = of_all_joins(small, rules, lengths)
    return Claims(
        replace(claims.removing, parts=claims.removing.parts[1:]), replace(claims.adding, parts=claims.adding.parts[1:])
    )


def without_the_query_epsilon(small: Small, rules: Rules, lengths: list[int]) -> Claims:
    claims = of_all_joins(small, rules, lengths)
    return Claims(replace(claims.removing, parts=claims.removing.parts[: -len(lengths)]), claims.adding)


@pytest.mark.parametrize("claims", [without_one_search, without_the_query_epsilon])
def test_a_bound_for_all_joins_that_is_too_strong_is_refuted(
    claims: Callable[[Small, Rules, list[int]], Claims],
) -> None:
    rules = Rules(2, 2, 3, 6)
    small = Small(one_sided(Fraction(9, 10), 6), one_sided(Fraction(6, 5), 6), 2)
    assert largest_of_all_joins(small, rules, of_all_joins).value <= 1
    assert largest_of_all_joins(small, rules, claims).value > 2


def ended_before(rules: Rules, crossings: tuple[int, ...], step: int) -> int:
    """The step at which the search before that of ``step`` ended."""
    begin, ended = 0, -1
    for crossing in (*crossings, None):
        while rules.last(begin) < (step if crossing is None else crossing):
            ended, begin = rules.last(begin), rules.next_after(begin, None)
        if crossing is not None:
            ended, begin = crossing, rules.next_after(begin, crossing)
    return ended


@pytest.mark.parametrize("again", ["", "of its last step", "of all its steps"])
def test_the_joins_of_a_client_of_which_one_is_removed_cost_no_more(again: Again) -> None:
    """Counted from the joins themselves, not from the steps at which they show: hold 1, window 3."""
    rules = Rules(3, 1, 4, 7)
    machine = Machine(WIDE_10.threshold_law, WIDE_10.query_law, rules)
    claims = of_one_join(WIDE_10, rules, None)
    earlier = {"": 1, "of its last step": 0, "of all its steps": -rules.steps}[again]

    def leaked(counts: list[int], joins: set[int], removed: int) -> float:
        def counted(joined: set[int], crossings: tuple[int, ...], step: int) -> bool:
            since = max(step - rules.window + 1, ended_before(rules, crossings, step) + earlier)
            return any(since <= s <= step for s in joined)

        return float(
            leaks(
                machine,
                lambda crossings, step: counts[step] + counted(joins - {removed}, crossings, step),
                lambda crossings, step: (
                    counted(joins, crossings, step) and not counted(joins - {removed}, crossings, step)
                ),
                claims,
            )
        )

    draw = Random(7)
    tried = [([-7, -2, -7, -1, -2, -7, -8], {2, 5, 6}, 2), ([-7, -7, -7, -1, -2, -7, -8], {3}, 3)]
    for _ in range(60):
        joins = {draw.randrange(rules.steps) for _ in range(3)}
        tried.append(([draw.randint(-9, 2) for _ in range(rules.steps)], joins, draw.choice(sorted(joins))))
    most = max(leaked(*one) for one in tried)
    assert most > 100 if again else 0.3 < most <= 1
