import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from kanon.risk.hashing import HashKey, registers_of
from kanon.risk.sketch_leak import Attack, false_rate, false_rate_spread, ignored, leak

KEY = HashKey(bytes(range(32)))


def people(number: int) -> list[bytes]:
    return [b"person %d" % n for n in range(number)]


def test_the_closed_form_is_the_chance_that_a_random_register_is_large_enough() -> None:
    """One insertion into 2^p registers hides a stranger in the same register whose rank is at most as large."""
    for p in (4, 9, 15):
        same_or_smaller = sum(4.0**-rank for rank in range(1, 64)) + sum(
            2.0**-rank * 2.0**-other for rank in range(1, 64) for other in range(1, rank)
        )
        assert false_rate(p, 1) == pytest.approx(2.0**-p * same_or_smaller, rel=1e-12)
    assert false_rate(12, 0) == 0
    assert false_rate(12, 10**12) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("p", "n"), [(4, 3), (6, 100), (9, 1_000), (9, 20)])
def test_the_false_rate_and_its_spread_are_as_predicted(p: int, n: int) -> None:
    """400 sketches, 100 strangers each: the mean within 5 standard errors, the spread within a fifth."""
    random = np.random.default_rng(1000 * p + n)
    rates = [
        ignored(registers_of(random.integers(0, 2**64, n, np.uint64), p), random.integers(0, 2**64, 100, np.uint64), p)
        .mean()
        for _ in range(400)
    ]  # fmt: skip
    spread = false_rate_spread(p, n, 100)
    assert abs(np.mean(rates) - false_rate(p, n)) < 5 * spread / math.sqrt(400)
    assert 0.8 * spread < np.std(rates) < 1.2 * spread


def test_every_member_is_found_under_a_public_hash() -> None:
    result = leak(people(500), people(5_000), 12, KEY)
    assert (result.public.found, result.public.members, result.public.strangers) == (500, 500, 4_500)
    assert abs(result.public.false_rate - result.predicted_false_rate) < 4 * result.predicted_spread
    assert result.public.chance < 1e-100
    assert abs(result.estimate / 500 - 1) < 0.05


def test_a_secret_key_hides_members_among_strangers() -> None:
    """100 keys. A chance below 1e-6 alone, or too many small ones (binomial), has probability below 1e-4."""
    results = [leak(people(300), people(1_000), 9, HashKey(bytes([n] * 32))).keyed for n in range(100)]
    chances = sorted(one.chance for one in results)
    assert chances[0] > 1e-6
    assert chances[20] > 0.05  # 5 expected below it
    difference = np.mean([one.hit_rate - one.false_rate for one in results])
    assert abs(difference) < 4 * 0.5 * math.sqrt((1 / 300 + 1 / 700) / 100)


def test_the_chance_equals_the_hypergeometric_tail() -> None:
    def by_counting(members: int, strangers: int, found: int, false: int) -> Fraction:
        hits = found + false
        ways = sum(comb(members, x) * comb(strangers, hits - x) for x in range(found, hits + 1))
        return Fraction(ways, comb(members + strangers, hits))

    for members in (1, 3, 5):
        for strangers in (0, 2, 6):
            for found in range(members + 1):
                for false in range(strangers + 1):
                    expected = by_counting(members, strangers, found, false)
                    assert Attack(members, strangers, found, false).chance == pytest.approx(float(expected))


def test_json_has_hits_rates_and_the_closed_form() -> None:
    told = leak(people(50), people(100), 12, KEY).as_json()
    assert told["public"]["found"] == 50
    assert told["public"]["hit_rate"] == 1.0
    assert told["public"]["precision"] == 50 / (50 + told["public"]["false"])
    assert told["predicted_false_rate"] == false_rate(12, 50)
    assert told["keyed"].keys() == told["public"].keys()
