"""Every part of a claim, recomputed exactly from its noise tables, and never written too small."""

import json
from fractions import Fraction

import pytest

from kanon.noise.exact import exp_bounds
from kanon.release import Ledger, release
from kanon.release.bounding import LEFT_OUT
from kanon.release.mechanism import Mechanism
from tests.proofs.release.enumeration import delta
from tests.unit.release.made import Given, spec

KAPPA = 3
ASKED = ("rows:3", "mean:x:0:9", "var:x:0:9", "quantile:x:0:9:0.25,0.5", "sum:x:auto", "all-users")
SHARE = Fraction(4, 1 + len(ASKED))


@pytest.fixture(scope="module")
def mechanism() -> Mechanism:
    return Mechanism(
        spec(epsilon=4, aggregates=ASKED, groups_per_user=KAPPA, values_per_group=2, cells=8, noise="laplace")
    )


def shifted(law, steps, epsilon):
    """The delta of a shift, outcome by outcome."""
    here = dict(enumerate(law.weights))
    return delta(here, {outcome + steps: weight for outcome, weight in here.items()}, epsilon)


def of_groups(one):
    """At most kappa groups, of which none may go wrong."""
    good = Fraction(1)
    for _ in range(KAPPA):
        good *= 1 - one
    return 1 - good


def expected(mechanism, i):
    """(epsilon, delta) of aggregate i, from the definition of each kind."""
    text, one = ASKED[i], SHARE / KAPPA
    if text == "all-users":
        return [(SHARE, shifted(mechanism.left_out(i).law, 1, SHARE))]
    if text.startswith("quantile"):
        return [(SHARE, of_groups(2 * (8 + 1) * exp_bounds(one / 2)[1] / 2**90))]
    if text.endswith("auto"):
        law = mechanism.automatic_total(i, 1).law
        steps = mechanism.automatic_total(i, 1).steps
        bins = (SHARE / 2, shifted(mechanism.bounds_of(i).law, 1, SHARE / 2))
        return [bins, (SHARE / 2, of_groups(shifted(law, steps, one / 2)))]
    totals = mechanism.totals(i)
    deltas = [shifted(total.law, total.steps, one / len(totals)) for total in totals]
    return [(SHARE, of_groups(sum(deltas)))]


def test_each_part_of_a_claim_is_that_of_its_tables(mechanism):
    parts = [part for i in range(len(ASKED)) for part in expected(mechanism, i)]
    assert [(part.epsilon, part.delta) for part in mechanism.aggregate_parts] == parts
    assert all(part.delta > 0 for part in mechanism.parts)
    assert len(mechanism.totals(2)) == 3
    assert mechanism.claim.delta == sum(part for _, part in parts) + of_groups(mechanism.rule.delta)
    assert mechanism.claim.epsilon == 4


@pytest.mark.parametrize("kappa", [2, 5])
def test_the_part_of_gaussian_noise_has_noise_and_all_thresholds(kappa):
    mechanism = Mechanism(spec(noise="gaussian", groups_per_user=kappa))
    rule = mechanism.rule
    above = sum(rule.law.weight(x) for x in range(rule.threshold, rule.law.max + 1))  # 1 + X > T
    threshold = 1 - (1 - Fraction(above, sum(rule.law.weights))) ** kappa
    assert mechanism.parts[0].delta == mechanism._gaussian.noise_delta + threshold


def test_a_selection_leaves_room_for_the_truncation_of_all_aggregates():
    """With this delta the truncations are most of it: a selection that ignored them would pass the whole delta."""
    asked = {"aggregates": ("rows:3", "quantile:x:0:9:0.5"), "groups_per_user": 2, "epsilon": 8}
    tails = sum(part.delta for part in Mechanism(spec(**asked)).aggregate_parts)
    mechanism = Mechanism(spec(**asked, delta=tails * Fraction(9, 8)))
    assert mechanism.selection_part.delta <= tails / 8
    assert mechanism.claim.delta <= mechanism.spec.delta


def test_no_published_figure_of_a_guarantee_is_rounded_down(tmp_path):
    engine = Given(("a", 100, 200), bins={LEFT_OUT: {0: 5}})
    for i, epsilon in enumerate((Fraction(1, 3), Fraction(2, 3), Fraction(7, 11), Fraction(1, 7))):
        asked = spec(epsilon=epsilon, delta=Fraction(2, 3_000_007 + i), aggregates=("rows:3", "all-users"))
        made = release([], asked, Ledger.at(tmp_path / "l"), dataset="d", engine=engine)
        told = json.loads(json.dumps(made.described()["guarantee"]), parse_float=Fraction)
        pairs = [
            (told, made.guarantee),
            (told["charged"], asked),
            *zip(told["parts"], made.mechanism.parts, strict=True),
        ]
        for shown, exact in pairs:
            for name in ("epsilon", "delta"):
                assert getattr(exact, name) <= shown[name] <= getattr(exact, name) * (1 + Fraction(1, 1 << 51))
