"""Several joins of one client, shared tokens and a forced key change (docs/proofs/privacy.md), on every small case.

Everybody else's joins may answer to answers: the counts in an instance are the worst for what came before it.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations, pairwise, product

import pytest

from kanon.gate.mechanism.bounds import all_joins, rejoining
from kanon.gate.mechanism.steps import first_step
from kanon.noise.bound import Bound
from kanon.noise.laws import Law, Shape, one_sided, two_sided
from tests.proofs.gate.composition import Case, Claims, Leak, Part, costs, in_turn, of_one_join, one_run, worst
from tests.proofs.gate.enumeration import Claim, Small, largest, mechanisms, wide

Steps = tuple[bool, ...]


def patterns(window: int, instances: int) -> dict[tuple[Steps, ...], tuple[int, ...]]:
    """Every D that begins in the first of so many instances, meets a second and fits, with joins that make it.

    D is given as the steps of each instance at which the client counts; joins as steps after the first instance's.
    """
    found: dict[tuple[Steps, ...], tuple[int, ...]] = {}
    starts = range(window * (instances - 1) + 1)
    for number in range(1, len(starts) + 1):
        for joined in combinations(starts, number):
            counted = [any(s <= t < s + window for s in joined) for t in range(window * instances)]
            each = tuple(tuple(counted[q * window :][:window]) for q in range(instances))
            if any(each[0]) and any(counted[window:]):
                found.setdefault(each, joined)
    return found


def shown(counted: tuple[Steps, ...]) -> str:
    return " ".join("".join("#" if here else "." for here in steps) for steps in counted)


def of_all_joins(small: Small, met: list[Steps]) -> Claims:
    """Removing costs e1 and d1 an instance, e2 and d2 if steps without the client follow; adding e2, and d2 a step."""
    (e1, d1), (e2, d2) = costs(small)
    outside = [steps[steps.index(True) :].count(False) for steps in met]
    interrupted = sum(n > 0 for n in outside)
    return Claims(
        Claim((e1,) * len(met) + (e2,) * interrupted, len(met) * d1 + sum(outside) * d2),
        Claim((e2,) * len(met), sum(steps.count(True) for steps in met) * d2),
    )


def larger(claims: Claims) -> Bound:
    """The larger of removing and adding."""
    both = (claims.removing, claims.adding)
    return Bound(max(sum(c.parts, Fraction(0)) for c in both), max(c.delta for c in both))


def all_joins_of_a_client(
    small: Small, instances: int, claims: Callable[[Small, list[Steps]], Claims] = of_all_joins
) -> Iterator[Case]:
    """Every pattern of joins."""
    for counted in patterns(small.window, instances):
        met = [steps for steps in counted if any(steps)]
        yield Case(shown(counted), in_turn(*[[steps] for steps in met]), claims(small, met))


@pytest.mark.parametrize(
    ("shape", "window", "most", "instances"),
    [
        ("one-sided", 2, 3, 3),
        ("two-sided", 2, 3, 3),
        ("one-sided", 3, 2, 3),
        ("two-sided", 3, 1, 3),
        pytest.param("one-sided", 2, 2, 5, marks=pytest.mark.prove),
        pytest.param("one-sided", 3, 3, 3, marks=pytest.mark.prove),
        pytest.param("two-sided", 3, 3, 3, marks=pytest.mark.prove),
        pytest.param("one-sided", 4, 2, 3, marks=pytest.mark.prove),
        pytest.param("two-sided", 4, 1, 3, marks=pytest.mark.prove),
    ],
)
def test_no_joins_of_one_client_leak_more_than_the_bound_for_all(
    shape: Shape, window: int, most: int, instances: int
) -> None:
    cases = [(s, worst(s, all_joins_of_a_client(s, instances))) for s in mechanisms(shape, window, most)]
    ratio = largest(cases, f"{shape}, all joins over {instances} instances")
    assert 0.5 < ratio.value <= 1


def test_no_joins_of_one_client_leak_more_than_the_bound_for_all_with_wide_laws() -> None:
    ratio = largest([(s, worst(s, all_joins_of_a_client(s, 3))) for s in wide(2)], "wide laws, all joins")
    assert 0.9 < ratio.value <= 1


@pytest.mark.parametrize("window", [2, 3, 4])
def test_the_bound_for_all_joins_is_the_claim_that_is_tried(window: int) -> None:
    """At every phase; and :func:`rejoining` is no less for a client that joins at least once a window."""
    for small in [*mechanisms("one-sided", window, 2), *mechanisms("two-sided", window, 1)]:
        for counted, joined in patterns(window, 3).items():
            claimed = larger(of_all_joins(small, [steps for steps in counted if any(steps)]))
            for phase in range(window):
                start = first_step(1000, phase, window)
                assert all_joins(small.parameters, [start + s for s in joined], phase) == claimed
            if all(after - before <= window for before, after in pairwise(joined)):
                longest = rejoining(small.parameters, joined[-1] - joined[0] + 1)
                assert claimed.epsilon <= longest.epsilon
                assert claimed.delta <= longest.delta


def without_query_epsilon(small: Small, met: list[Steps]) -> Claims:
    """g dropped."""
    claims = of_all_joins(small, met)
    return Claims(Claim((small.threshold_law.epsilon,) * len(met), claims.removing.delta), claims.adding)


def with_one_instance_less(small: Small, met: list[Steps]) -> Claims:
    """I less one, but for delta."""
    claims = of_all_joins(small, met)
    return Claims(Claim(claims.removing.parts[1:], claims.removing.delta), claims.adding)


def with_one_instance_less_to_add(small: Small, met: list[Steps]) -> Claims:
    """The same in the other direction."""
    claims = of_all_joins(small, met)
    return Claims(claims.removing, Claim(claims.adding.parts[1:], claims.adding.delta))


def with_half_of_delta(small: Small, met: list[Steps]) -> Claims:
    claims = of_all_joins(small, met)
    return Claims(*(Claim(c.parts, c.delta / 2) for c in (claims.removing, claims.adding)))


@pytest.mark.parametrize(
    "claims", [without_query_epsilon, with_one_instance_less, with_one_instance_less_to_add, with_half_of_delta]
)
def test_a_bound_for_all_joins_that_is_too_strong_is_refuted(claims: Callable[[Small, list[Steps]], Claims]) -> None:
    small = Small(one_sided(Fraction(9, 10), 8), one_sided(Fraction(6, 5), 8), 2)
    with pytest.raises(AssertionError, match="exceeds its claim"):
        worst(small, all_joins_of_a_client(small, 3, claims))


def of_a_shared_token(small: Small, met: list[Steps]) -> Claims:
    """Every instance pays for holes."""
    (e1, d1), (e2, d2) = costs(small)
    return Claims(
        Claim((e1, e2) * len(met), len(met) * (d1 + (small.window - 1) * d2)),
        Claim((e2,) * len(met), sum(steps.count(True) for steps in met) * d2),
    )


def shared_token(
    small: Small, instances: int, claims: Callable[[Small, list[Steps]], Claims] = of_a_shared_token
) -> Iterator[Case]:
    """Every pattern of joins, in which others with the same token cut any holes, as the answers so far suggest."""
    for counted in patterns(small.window, instances):
        met = [steps for steps in counted if any(steps)]
        yield Case(f"{shown(counted)} with holes", in_turn(*map(with_holes, met)), claims(small, met))


def with_holes(steps: Steps) -> list[Steps]:
    ways = product(*[(True, False) if here else (False,) for here in steps])
    return [way for way in ways if any(way)]


@pytest.mark.parametrize(
    ("shape", "window", "most"),
    [
        ("one-sided", 2, 3),
        ("two-sided", 2, 2),
        ("one-sided", 3, 1),
        pytest.param("two-sided", 2, 3, marks=pytest.mark.prove),
        pytest.param("one-sided", 3, 3, marks=pytest.mark.prove),
        pytest.param("two-sided", 3, 2, marks=pytest.mark.prove),
    ],
)
def test_a_shared_token_costs_at_most_its_bound(shape: Shape, window: int, most: int) -> None:
    cases = [(s, worst(s, shared_token(s, 3))) for s in mechanisms(shape, window, most)]
    ratio = largest(cases, f"{shape}, shared token over 3 instances")
    assert 0.5 < ratio.value <= 1


def test_a_shared_token_can_cost_more_than_the_bound_for_all_joins() -> None:
    """And in more than one instance: a bound that leaves out one e2 is refuted too."""
    small = Small(one_sided(Fraction(9, 10), 8), one_sided(Fraction(6, 5), 8), 2)
    assert worst(small, shared_token(small, 3)).value <= 1
    for claims in (of_all_joins, without_one_hole):
        with pytest.raises(AssertionError, match="exceeds its claim"):
            worst(small, shared_token(small, 3, claims))


def without_one_hole(small: Small, met: list[Steps]) -> Claims:
    claims = of_a_shared_token(small, met)
    return Claims(Claim(claims.removing.parts[:-1], claims.removing.delta), claims.adding)


def key_change(small: Small, pieces: int = 3) -> Iterator[Case]:
    """One join from any step of the first on in two instances, one of which is cut at any place."""
    w = small.window
    for cut in range(1, w):
        for lengths in ((cut, w - cut, w), (w, cut, w - cut)):
            for begin in range(lengths[0]):
                yield Case(f"{lengths}, join at {begin}", one_run(lengths, begin, w), of_one_join(small, pieces))


@pytest.mark.parametrize(
    ("shape", "window", "most"),
    [
        ("one-sided", 2, 3),
        ("two-sided", 2, 3),
        ("one-sided", 3, 3),
        ("two-sided", 3, 3),
        pytest.param("one-sided", 4, 3, marks=pytest.mark.prove),
        pytest.param("two-sided", 4, 3, marks=pytest.mark.prove),
    ],
)
def test_a_forced_key_change_costs_at_most_its_bound(shape: Shape, window: int, most: int) -> None:
    ratio = largest([(s, worst(s, key_change(s))) for s in mechanisms(shape, window, most)], f"{shape}, key change")
    assert 0.3 < ratio.value <= 1


def test_a_forced_key_change_can_cost_more_than_the_theorem_without_key_changes() -> None:
    small = Small(one_sided(Fraction(1, 2), 12), one_sided(Fraction(2), 8), 3)
    assert 0.8 < worst(small, key_change(small)).value <= 1
    with pytest.raises(AssertionError, match="exceeds its claim"):
        worst(small, key_change(small, pieces=2))


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("law", [one_sided, two_sided])
def test_the_leak_of_two_instances_equals_an_exhaustive_search(
    law: Callable[[Fraction, int], Law], adding: bool
) -> None:
    """The edges of ``composition`` against every sequence of counts after every outcome, one by one."""
    leak = Leak(law(Fraction(3, 4), 1), law(Fraction(5, 4), 2), adding)
    for parts in (
        in_turn([(True,)], [(True,)], [(True,)]),
        in_turn([(False, True)], [(True, False), (True, True)]),
        one_run((2, 2), 1, 2),
        one_run((2, 1), 0, 3),
    ):
        for odds in (Fraction(1), Fraction(5, 2)):
            found = leak.most(parts, odds)
            assert found == pytest.approx(by_trying_everything(leak, parts, 1.0, float(odds)), rel=1e-12)
            assert found == pytest.approx(float(leak.certified(parts, Fraction(1), odds)), rel=1e-12)


def by_trying_everything(leak: Leak, parts: tuple[Part, ...], p: float, q: float) -> float:
    if not parts or p == 0:
        return max(0.0, p - q)
    return max(
        sum(
            by_trying_everything(leak, part.then if outcome < part.until else (), p * a, q * b)
            for outcome, (a, b) in enumerate(zip(here, there, strict=True))
        )
        for part in parts
        for here, there in zip(*(law.tolist() for law in leak.laws(part.counted)), strict=True)
    )
