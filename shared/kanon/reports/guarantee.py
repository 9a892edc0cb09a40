"""The guarantee in words, with its numbers. Bounds are rounded up."""

from fractions import Fraction

from kanon.noise.bound import posterior
from kanon.noise.exact import exp_bounds, written_up
from kanon.reports.parameters import Parameters

PRIOR = Fraction(1, 100)
RECOMMENDED = 10
SAMPLER_BITS = 232
"""The sampler is within 2^-232 of the exact distribution, for the 65,536 keys that one unit may touch."""


def of_job(parameters: Parameters) -> list[str]:
    """The guarantee of one summary, and its limits."""
    epsilon, delta, bound = parameters.epsilon, parameters.delta, parameters.contribution_bound
    deviation = f"{parameters.standard_deviation:,.0f}"
    lines = [
        f"A unit is one source, or one device in one window; its reports carry at most {bound:,} in all.",
        f"If the contributions of any one unit were zero, {_change('this summary', epsilon, delta)}",
        f"The noise of a key has a standard deviation of {deviation}, however many users there are.",
    ]
    if parameters.threshold is not None:
        shown = f"A key is shown if its noisy sum is above {parameters.threshold:,}"
        lines.append(f"{shown}: the key itself has the same protection.")
    return [*lines, *_limits(epsilon)]


def of_all(epsilon: Fraction, delta: Fraction) -> list[str]:
    """The guarantee of all summaries, if the jobs of any one report spend at most ``epsilon`` and ``delta``."""
    change = _change("all summaries together", epsilon, delta)
    condition = (
        "It holds if the jobs that include a report spend at most this epsilon and delta together, also if later jobs"
        " are chosen after seeing earlier summaries."
    )
    unit = "If the contributions of any one unit (a source, or a device in one window) were zero,"
    return [f"{unit} {change}", condition, *_limits(epsilon)]


def _change(what: str, epsilon: Fraction, delta: Fraction) -> str:
    factor = written_up(exp_bounds(epsilon)[1], 3)
    belief = written_up(100 * posterior(PRIOR, epsilon), 4)
    shown = f"{factor:,.2f}" if factor < 10_000 else f"{factor:.2e}"
    but = f", except with a probability of {_up(delta)} (delta)" if delta else ""
    except_then = ", except with that probability" if delta else ""
    return (
        f"the probability of {what} would change by a factor of at most {shown} (e^epsilon, epsilon = {_up(epsilon)})"
        f"{but}. Somebody who was {float(100 * PRIOR):g}% sure of something about the unit is at most"
        f" {belief}% sure of it afterwards{except_then}."
    )


def _up(number: Fraction) -> str:
    """At most 6 digits, rounded up: a float prints such a decimal unchanged."""
    return f"{float(written_up(number, 6)):g}"


def _limits(epsilon: Fraction) -> list[str]:
    lines = [
        "It is not a guarantee for a person with many units: k of them have k times this epsilon.",
        "Their delta is (e^(k epsilon) - 1) / (e^epsilon - 1) times as large.",
        f"The random numbers add less than 2^-{SAMPLER_BITS} (1 + e^epsilon) to delta.",
    ]
    if epsilon > RECOMMENDED:
        lines.append(f"An epsilon of {_up(epsilon)} protects nobody by itself: use {RECOMMENDED} or less.")
    return lines
