"""Pictures of plans and of the paper's Figure 1, as PNG."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kanon.pictures import BLUE, GREEN, PINK, TEXT, YELLOW, panels, saved
from kanon.plan import paper
from kanon.plan.planner import Plan, least_width

INTEGERS = "#B36B00"
COLOURS = (BLUE, GREEN, YELLOW, PINK)
GREY = "#C4C4C4"
BOX = {"boxstyle": "round,pad=0.15", "facecolor": "white", "linewidth": 0}


def draw_plans(plans: Sequence[Plan]) -> bytes:
    """Operating curve and expected delay of plans with the same k and window, a column for each."""
    p = plans[0].parameters
    figure, axes = panels(2, len(plans), (max(6.0, 3.5 * len(plans)), 7), sharex=True, sharey="row")
    for plan, (curve, delay) in zip(plans, axes.T, strict=True):
        for other in plans:
            _draw_plan(curve, delay, other, GREY)
        _draw_plan(curve, delay, plan, COLOURS[0])
        low, high = plan.zone
        curve.axvspan(low, high, color=COLOURS[2], alpha=0.18, linewidth=0)
        label = {"color": COLOURS[0], "fontsize": 9, "textcoords": "offset points", "va": "center"}
        within = _first_above(plan, plan.true_within_instance, 0.5)
        curve.annotate("within a\nwindow", within, xytext=(-8, 0), ha="right", bbox=BOX, **label)
        immediately = _first_above(plan, plan.true_at_once, 0.5)
        curve.annotate("immediately", immediately, xytext=(8, -6), ha="left", bbox=BOX, **label)
        curve.set_title(_title(plan), fontsize=9, color=TEXT, loc="left")
        least = least_width(p.window, plan.proved.interval_aware)
        middle = (low + high) / 2
        curve.plot((middle - least / 2, middle + least / 2), (1.06, 1.06), color=COLOURS[3], linewidth=3)
        delay.axhline(p.window, color=TEXT, linewidth=0.8, linestyle=":")
        delay.set_xlabel("clients in the window", fontsize=10, color=TEXT)
        for panel in (curve, delay):
            panel.axvline(p.k, color=TEXT, linewidth=0.8, linestyle=":")
    axes[0, 0].set_xlim(min(plan.zone[0] for plan in plans) - 8, max(plan.zone[1] for plan in plans) + 8)
    axes[0, 0].set_ylabel("probability of true", fontsize=10, color=TEXT)
    axes[0, 0].set_ylim(-0.02, 1.1)
    axes[0, 0].annotate(f"k = {p.k}", (p.k, 0.03), xytext=(3, 0), textcoords="offset points", fontsize=9)
    first = axes[1, 0]
    first.set_ylabel("expected steps until true", fontsize=10, color=TEXT)
    first.set_yscale("log")
    first.set_ylim(0.01, 100 * p.window)
    right = first.get_xlim()[1]
    axes[0, 0].annotate("possible at best", (axes[0, 0].get_xlim()[0], 1.06), fontsize=8, va="center",
                        xytext=(2, 0), textcoords="offset points", color=COLOURS[3])  # fmt: skip
    first.annotate("a window", (right, p.window), xytext=(-2, 3), textcoords="offset points", fontsize=9, ha="right")
    title = f"k = {p.k}, window = {p.window} steps"
    if len(plans) > 1:
        title += "; the other columns' lines in grey"
    figure.suptitle(title, x=0.012, ha="left", color=TEXT)
    return _png(figure)


def _title(plan: Plan) -> str:
    """The name, the zone with its price in time, and epsilon for both units."""
    low, high = plan.zone
    (_, year), one = plan.proved.rejoining[-1], plan.proved.interval_aware
    return (
        f"{plan.name}: {high - low} users, {low} to {high}\n"
        f"delay {plan.delay_at_zone:.2f} steps, partial counts {plan.partial_share:.1%}\n"
        f"epsilon {float(one.epsilon):g} a join, {float(year.epsilon):g} a year of joins"
    )


def _draw_plan(curve: Any, delay: Any, plan: Plan, colour: str) -> None:
    width = 1.0 if colour == GREY else 1.9
    curve.plot(plan.counts, plan.true_at_once, color=colour, linewidth=width)
    curve.plot(plan.counts, plan.true_within_instance, color=colour, linewidth=width, linestyle="--")
    shown = np.isfinite(plan.expected_delay) & (plan.expected_delay > 0)
    delay.plot(np.array(plan.counts)[shown], plan.expected_delay[shown], color=colour, linewidth=width)


def _first_above(plan: Plan, probabilities: Any, level: float) -> tuple[float, float]:
    """The first point of a curve at which it reaches a level."""
    place = int(np.argmax(np.asarray(probabilities) >= level))
    return plan.counts[place], probabilities[place]


def draw_figure_1() -> bytes:
    """The paper's Figure 1: continuous noise as a line, the service's integers as steps."""
    epsilon, truncation = float(paper.EPSILON_PER_NOISE), paper.TRUNCATION
    figure, axes = panels(1, 2, (11, 4.2))
    titles = (
        f"(a) max additive error over {paper.WINDOW} steps (false positives)",
        "(b) additive error in one step (false negatives)",
    )
    for panel, title, steps, span, probability in zip(
        axes.flat, titles, (paper.WINDOW, 1), ((0, 25), (-20, 20)), (0.99, 0.01), strict=True
    ):
        fine, whole = np.linspace(*span, 400), np.arange(span[0], span[1] + 1)
        continuous = paper.continuous_error_cdf(epsilon, truncation, steps, fine)
        panel.plot(fine, continuous, color=COLOURS[0], linewidth=1.8)
        discrete = paper.discrete_error_cdf(steps, whole)
        panel.step(whole, discrete, where="post", color=INTEGERS, linewidth=1.4)
        label = {"textcoords": "offset points", "fontsize": 9, "arrowprops": {"arrowstyle": "-", "linewidth": 0.6}}
        middle = int(np.argmax(continuous >= 0.6))
        panel.annotate(
            "the paper's\ncontinuous noise", (fine[middle], continuous[middle]), xytext=(-25, 20), ha="right",
            va="center", color=COLOURS[0], **label,
        )  # fmt: skip
        corner = int(np.argmax(discrete >= 0.4))
        panel.annotate(
            "integer noise,\nas drawn", (whole[corner] + 0.5, discrete[corner]), xytext=(40, -20), ha="left",
            va="center", color=INTEGERS, **label,
        )  # fmt: skip
        point = paper.continuous_point(epsilon, truncation, steps, probability)
        panel.axhline(probability, color=TEXT, linewidth=0.8, linestyle=":")
        panel.annotate(
            f"{probability:.0%} at {point:.2f}",
            (point, probability),
            xytext=(-70, 20) if probability < 0.5 else (15, -45),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": TEXT},
            color=TEXT,
            fontsize=9,
        )
        panel.set_title(title, fontsize=10, color=TEXT, loc="left")
        panel.set_xlabel("additive error")
        panel.set_ylabel("CDF")
    title = f"Figure 1 of the paper; each noise has epsilon = {epsilon:g} and truncation A = {truncation:g}"
    figure.suptitle(title, x=0.012, ha="left", color=TEXT)
    return _png(figure)


def _png(figure: Any) -> bytes:
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9, colors=TEXT)
    figure.tight_layout()
    return saved(figure)
