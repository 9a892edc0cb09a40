"""docs/proofs/privacy.md and crossing.md state figures; they must be the code's."""

from dataclasses import replace
from fractions import Fraction

import pytest

from kanon.gate.mechanism.bounds import PRIOR, guarantee, interval_aware, over_generations, paper, rejoining
from kanon.gate.mechanism.parameters import (
    CURRENT_PROFILES,
    PROFILES,
    losses,
    steps_in_a_year,
)
from kanon.noise.bound import Bound, posterior
from kanon.noise.exact import written_up
from kanon.noise.laws import Law
from kanon.plan.paper import READINGS, Reading
from kanon.plan.planner import Plan, Target, best_plan, zone
from tests.paths import ROOT
from tests.unit.examples import of_profile

PAGE = (ROOT / "docs" / "proofs" / "privacy.md").read_text()
CROSSING = (ROOT / "docs" / "proofs" / "crossing.md").read_text()


def cell(bound: Bound | None) -> str:
    return str(bound or "does not apply")


def law(of: Law) -> str:
    return f"{float(of.epsilon):g},{of.truncation}"


def profile_row(name: str, window: int) -> str:
    p = of_profile(name, window)
    false, true = zone(p)
    return (
        f"| `{name}`, {window} | {p.threshold_law.shape} {law(p.threshold_law)} / {law(p.query_law)} |"
        f" {cell(interval_aware(p))} | {cell(guarantee(p).watched)} | {cell(guarantee(p).watched_sets)} |"
        f" {cell(paper(p))} |"
        f" {p.never_true_below} | {p.surely_true_from} |"
        f" {false}..{true} ({true - false} users) |"
    )


def rejoining_row(label: str, steps: int) -> str:
    cells = [cell(rejoining(of_profile(name, w), steps)) for name in ("published", "sharp") for w in (168, 720)]
    return f"| {label} | {' | '.join(cells)} |"


def reading_row(reading: Reading) -> str:
    epsilon, delta = reading.bound
    return (
        f"| {reading.meaning} | {float(reading.epsilon):g}, A={reading.truncation:g} | ({epsilon:g}, {delta:.2e}) |"
        f" {reading.false_positive_point:.2f} | {reading.false_negative_point:.2f} |"
    )


def crossing_row(name: str, window: int) -> str:
    p = of_profile(name, window)
    proved, plan = guarantee(p), Plan(name, p)
    false, true = plan.zone
    assert p.restart is not None
    return (
        f"| `{name}`, {window} | {law(p.threshold_law)} / {law(p.query_law)} | {p.restart.hold // window} w,"
        f" {p.restart.epoch // window} w | {proved.interval_aware} | {proved.watched_sets} |"
        f" {proved.rejoining[-1][1]} |"
        f" {p.never_true_below} | {p.surely_true_from} | {false}..{true} ({true - false} users) |"
        f" {plan.delay_at_zone:.2f} | {plan.partial_share:.1%} | {plan.late:.1%} |"
    )


def epoch_row(windows: int) -> str:
    plans = [
        Plan("", replace(p, restart=replace(p.restart, epoch=windows * p.window)))
        for p in (of_profile("crossing", window) for window in (24, 168, 720))
        if p.restart is not None
    ]
    return f"| {windows} w | {plans[-1].partial_share:.1%} | {' | '.join(f'{plan.late:.1%}' for plan in plans)} |"


@pytest.mark.parametrize("window", [24, 168, 720])
@pytest.mark.parametrize("name", PROFILES)
def test_the_page_states_the_figures_of_the_profiles(name: str, window: int) -> None:
    if PROFILES[name].hold:
        assert crossing_row(name, window) in CROSSING
    else:
        assert profile_row(name, window) in PAGE


def delta(bound: Bound) -> str:
    return str(bound).split(", ")[1].removesuffix(")")


@pytest.mark.parametrize("name", CURRENT_PROFILES)
def test_the_guide_states_the_figures_of_the_profiles(name: str) -> None:
    p = of_profile(name, 168)
    plan, proved = Plan(name, p), guarantee(p)
    false, true = plan.zone
    row = (
        f"| `{name}` | {float(proved.interval_aware.epsilon):g} | {float(proved.rejoining[-1][1].epsilon):g} |"
        f" {delta(proved.watched)} | {delta(proved.watched_sets)} | {p.never_true_below} | {p.surely_true_from} |"
        f" {false} to {true} | {plan.delay_at_zone:.2f} |"
    )
    assert row in (ROOT / "docs" / "guides" / "choose.md").read_text()


@pytest.mark.parametrize(("label", "steps"), [("one hour", 1), ("one week", 168), ("30 days", 720), ("one year", 8760)])
def test_the_page_of_what_is_promised_states_the_cost_of_rejoining(label: str, steps: int) -> None:
    types = [of_profile(name, window) for name in ("crossing", "returning", "published") for window in (168, 720)]
    row = f"| {label} | {' | '.join(cell(rejoining(p, steps)) for p in types)} |"
    assert row in (ROOT / "docs" / "explanation" / "guarantee.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("windows", [4, 13, 26, 53])
def test_the_page_states_what_an_epoch_costs(windows: int) -> None:
    assert epoch_row(windows) in CROSSING


@pytest.mark.parametrize(("label", "steps"), [("one hour", 1), ("one week", 168), ("30 days", 720), ("one year", 8760)])
def test_the_page_states_the_cost_of_rejoining(label: str, steps: int) -> None:
    assert rejoining_row(label, steps) in PAGE


@pytest.mark.parametrize(
    ("label", "changes", "forgotten"),
    [
        ("no change", 0, 0),
        ("one change, states kept", 1, 0),
        ("one change, states lost", 1, 1),
        ("two changes, states kept", 2, 0),
    ],
)
def test_the_page_states_the_cost_of_a_change_of_the_log(label: str, changes: int, forgotten: int) -> None:
    types = [of_profile(name, w) for name in ("published", "sharp") for w in (168, 720)]
    cells = [cell(over_generations(parameters, changes, forgotten)) for parameters in types]
    assert f"| {label} | {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.meaning)
def test_the_page_states_every_reading_of_the_papers_setting(reading: Reading) -> None:
    assert reading_row(reading) in PAGE


@pytest.mark.slow
def test_the_page_states_the_laws_the_planner_finds() -> None:
    for window in (168, 720):
        plan = best_plan(Target(50, window, 3600, Fraction(3), Fraction(1, 100_000), restart="grid"))
        p = plan.parameters
        false, true = plan.zone
        assert f"{true - false} users at w=168" in PAGE or f"{true - false} at w=720" in PAGE
        assert f"(one-sided {law(p.threshold_law)} and {law(p.query_law)})" in PAGE


def test_the_page_states_the_cost_of_a_year_of_watching() -> None:
    assert losses(168, steps=steps_in_a_year(3600)).threshold == 54 + 1
    assert "54 instances" in PAGE
    for name, stated in (("published", "1.06e-6"), ("balanced", "1.60e-4"), ("sharp", "1.16e-4")):
        assert str(guarantee(of_profile(name, 168)).watched).endswith(f" {stated})")
        assert stated in PAGE


def test_the_page_states_the_belief_after_the_answers() -> None:
    stated = [f"{written_up(100 * posterior(PRIOR, Fraction(epsilon)), 3)}% at {epsilon}" for epsilon in ("2.25", "3")]
    assert ", ".join(stated) in PAGE
