"""Pictures of plans and of the paper's Figure 1, as PNG files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kanon.plan import paper
from kanon.plan.planner import Plan

COLOURS = ("#0072B2", "#009E73", "#E69F00", "#CC79A7")  # Okabe and Ito
TEXT = "#333333"


def draw_plans(plans: Sequence[Plan], path: Path) -> None:
    """Operating curves and expected delays of plans with the same k and window."""
    from matplotlib import pyplot as plt

    plt.switch_backend("agg")
    p = plans[0].parameters
    figure, (curve, delay) = plt.subplots(1, 2, figsize=(11, 4.6))
    for plan, colour in zip(plans, COLOURS, strict=False):
        curve.plot(plan.counts, plan.true_at_once, color=colour, linewidth=1.8, label=f"{plan.name}: at once")
        curve.plot(
            plan.counts,
            plan.true_within_instance,
            color=colour,
            linewidth=1.8,
            linestyle="--",
            label=f"{plan.name}: within an instance",
        )
        if len(plans) == 1:
            curve.axvspan(*plan.zone, color=COLOURS[2], alpha=0.18, linewidth=0)
        possible = np.isfinite(plan.expected_delay) & (plan.expected_delay < 10 * p.window)
        # A delay of 0 has no place on a logarithmic axis: 0.01 step stands for "at once".
        delay.plot(
            np.array(plan.counts)[possible],
            np.maximum(plan.expected_delay[possible], 0.01),
            color=colour,
            linewidth=1.8,
            label=plan.name,
        )
    curve.set_xlim(min(plan.zone[0] for plan in plans) - 8, max(plan.zone[1] for plan in plans) + 8)
    curve.set_ylabel("probability of true")
    delay.set_ylabel("expected steps until true")
    delay.set_yscale("log")
    delay.axhline(p.window, color=TEXT, linewidth=0.8, linestyle=":")
    for panel in (curve, delay):
        panel.axvline(p.k, color=TEXT, linewidth=0.8, linestyle=":")
        panel.set_xlabel("clients in the window")
        panel.legend(frameon=False, fontsize=8)
    figure.suptitle(f"k = {p.k}, window = {p.window} steps", x=0.012, ha="left", color=TEXT)
    _save(figure, path)


def draw_figure_1(path: Path) -> None:
    """The paper's Figure 1: continuous noise as a line, the service's integers as steps."""
    from matplotlib import pyplot as plt

    plt.switch_backend("agg")
    epsilon, truncation = float(paper.EPSILON_PER_NOISE), paper.TRUNCATION
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2))
    titles = (
        f"(a) max additive error over {paper.WINDOW} steps (false positives)",
        "(b) additive error in one step (false negatives)",
    )
    for panel, title, steps, span, probability in zip(
        panels, titles, (paper.WINDOW, 1), ((0, 25), (-20, 20)), (0.99, 0.01), strict=True
    ):
        fine, whole = np.linspace(*span, 400), np.arange(span[0], span[1] + 1)
        panel.plot(
            fine,
            paper.continuous_error_cdf(epsilon, truncation, steps, fine),
            color=COLOURS[0],
            linewidth=1.8,
            label="the paper's continuous noise",
        )
        panel.step(
            whole,
            paper.discrete_error_cdf(steps, whole),
            where="post",
            color=COLOURS[2],
            linewidth=1.4,
            label="integer noise, as drawn",
        )
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
        panel.legend(frameon=False, fontsize=9, loc="lower right" if probability > 0.5 else "upper left")
    figure.suptitle("Figure 1 with 0.75 and A = 25 for each noise", x=0.012, ha="left", color=TEXT)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9, colors=TEXT)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the date and version a picture changes only if what it shows does.
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
