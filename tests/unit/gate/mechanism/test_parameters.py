"""The constants of a type: what follows from them, and what is refused."""

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kanon.gate.mechanism.parameters import (
    PROFILE_DELTA,
    PROFILES,
    CrossingRestart,
    InvalidParametersError,
    losses,
    profile,
    smallest_laws,
)
from kanon.noise.laws import one_sided, two_sided
from tests.unit.examples import ONE_SIDED, PUBLISHED, SMALL


def test_the_published_profile_is_never_true_below_1_and_surely_true_from_99() -> None:
    assert PUBLISHED.never_true_below == 1
    assert PUBLISHED.surely_true_from == PUBLISHED.members_kept == 99


def test_the_certain_counts_come_from_the_ends_of_the_laws() -> None:
    assert (SMALL.never_true_below, SMALL.members_kept) == (4 - 1 - 2, 4 + 1 + 2)
    assert (ONE_SIDED.never_true_below, ONE_SIDED.members_kept) == (5 + 0 - 3, 5 + 2 - 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k must be at least 1, not 0"),
        ({"window": 1}, "window must lie between 2 and 65535 steps, not 1"),
        ({"window": 65_536}, "window must lie between 2 and 65535 steps, not 65536"),
        ({"period": 0}, "period must be at least 1 second, not 0"),
        (
            {"restart": CrossingRestart(5, 15)},
            (
                "hold must lie between the window of 6 steps and 10000000, not 5: a search counts the joins after the"
                " last one, so a set would read false while as many clients join"
            ),
        ),
        (
            {"restart": CrossingRestart(6, 6)},
            "epoch must be longer than the window of 6 steps and at most 10000000, not 6",
        ),
        ({"phase": "random"}, "phase must be 'hash' or 'zero', not 'random'"),
        (
            {"k": 2},
            (
                "an empty set could be released as true: k + min(threshold noise) - max(query noise) is -1"
                " and must be at least 1; raise k by 2 or lower the truncations by as much"
            ),
        ),
        (
            {"k": 66_664, "client_bits": 32},
            (
                "a set would keep 66667 members, more than the 66666 that fit into 400,000 bytes at client_bits 32:"
                " lower k to at most 66663, or client_bits"
            ),
        ),
        (
            {"client_bits": 7},
            "client_bits must lie between 8 (2^client_bits >= 8 x 7 members kept) and 32, not 7",
        ),
        (
            {"k": 100, "client_bits": 9},
            "client_bits must lie between 10 (2^client_bits >= 8 x 103 members kept) and 32, not 9",
        ),
        (
            {"client_bits": 33},
            "client_bits must lie between 8 (2^client_bits >= 8 x 7 members kept) and 32, not 33",
        ),
    ],
)
def test_invalid_parameters_are_refused_with_what_to_change(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParametersError, match=f"^{re.escape(message)}$"):
        replace(SMALL, **change)


def test_the_change_named_in_the_message_about_an_empty_set_is_enough() -> None:
    assert replace(SMALL, k=2 + 2).never_true_below == 1


def test_the_least_client_bits_distinguish_eight_times_the_members() -> None:
    exact = replace(SMALL, k=64 - 3, client_bits=9)  # M = 64, 8 M = 2^9
    assert exact.members_kept == 64
    with pytest.raises(InvalidParametersError, match="between 10"):
        replace(exact, k=62)


def test_the_fingerprint_of_the_published_type_never_changes() -> None:
    assert PUBLISHED.fingerprint.hex() == "09c8d31067bc64ea6888b9b01446d5c88f755ba7f66926597f627e0a2d59c2a0"


def test_every_parameter_changes_the_fingerprint() -> None:
    others = [
        replace(SMALL, k=5),
        replace(SMALL, window=7),
        replace(SMALL, period=60),
        replace(SMALL, threshold_law=two_sided(Fraction(1), 1)),
        replace(SMALL, query_law=two_sided(Fraction(1), 2)),
        replace(SMALL, phase="zero"),
        replace(SMALL, client_bits=9),
        replace(SMALL, restart=CrossingRestart(6, 15)),
        replace(SMALL, restart=CrossingRestart(7, 15)),
        replace(SMALL, restart=CrossingRestart(6, 16)),
    ]
    assert len({p.fingerprint for p in (SMALL, *others)}) == 1 + len(others)


def test_exchanged_laws_are_other_parameters() -> None:
    first, second = two_sided(Fraction(1), 1), two_sided(Fraction(1), 2)
    one = replace(SMALL, threshold_law=first, query_law=second)
    other = replace(SMALL, threshold_law=second, query_law=first)
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize("window", [168, 720])
def test_the_published_profile_has_the_truncations_25_and_24_at_every_window(window: int) -> None:
    assert profile("published", window) == (
        two_sided(Fraction(3, 4), 25),
        two_sided(Fraction(3, 4), 24),
    )


@pytest.mark.parametrize("name", ["balanced", "sharp"])
@pytest.mark.parametrize("window", [24, 168, 720])
def test_a_profile_by_window_reaches_its_delta_with_the_least_total_truncation(name: str, window: int) -> None:
    first, second = profile(name, window)
    lost = losses(window)
    assert lost.delta(first, second) <= PROFILE_DELTA
    make = one_sided if PROFILES[name].shape == "one-sided" else two_sided
    total = first.truncation + second.truncation
    for smaller in range(1, total - 1):
        laws = make(first.epsilon, smaller), make(second.epsilon, total - 1 - smaller)
        assert lost.delta(*laws) > PROFILE_DELTA


def test_a_delta_that_no_truncation_reaches_is_refused() -> None:
    with pytest.raises(
        InvalidParametersError,
        match=r"^no truncation reaches delta 1e-30 at epsilons 1 and 1 over 168 steps: raise delta",
    ):
        smallest_laws("two-sided", Fraction(1), Fraction(1), losses(168), Fraction(1, 10**30))


def test_the_delta_of_one_join_is_the_larger_of_the_two_directions() -> None:
    law, wide = two_sided(Fraction(1), 3), two_sided(Fraction(1), 9)
    assert losses(10).delta(law, wide) == 2 * law.shift_delta + 9 * wide.tail_delta
    assert losses(10).delta(wide, law) == 10 * law.tail_delta
