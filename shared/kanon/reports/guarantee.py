"""The guarantee in words, with its numbers. What a number bounds is rounded up."""

from fractions import Fraction

from kanon.noise.bound import posterior
from kanon.noise.exact import exp_bounds, written_up
from kanon.reports.parameters import Parameters

PRIOR = Fraction(1, 100)
RECOMMENDED = 10
SAMPLER_BITS = 232
"""The sampler's distance from the exact distribution, conditioned or not, for 65,536 keys that one unit may touch."""


def of_job(parameters: Parameters) -> list[str]:
    """What one summary promises, and what it does not."""
    epsilon, delta, bound = parameters.epsilon, parameters.delta, parameters.contribution_bound
    deviation = f"{parameters.standard_deviation:,.0f}"
    lines = [
        f"A unit is one source, or one device in one window; its reports carry at most {bound:,} in all.",
        f"If the contributions of any one unit were zero, {_change('this summary', epsilon, delta)}",
        f"The noise of a key has a standard deviation of {deviation}, however many users there are.",
    ]
    if parameters.threshold is not None:
        shown = f"A key is shown if its noisy sum is above {parameters.threshold:,}"
        lines.append(f"{shown}: its name is as protected as its sum.")
    return [*lines, *_limits(epsilon)]


def of_all(epsilon: Fraction, delta: Fraction) -> list[str]:
    """What all summaries together promise, if no report is in jobs of more than ``epsilon`` and ``delta`` in all."""
    change = _change("what all summaries together show", epsilon, delta)
    condition = (
        "It holds if the jobs that include a report spend at most this epsilon and delta together, also if later jobs"
        " are chosen after seeing earlier summaries."
    )
    unit = "For any one impression this stack was told of: if its contributions were zero,"
    return [f"{unit} {change}", condition, *_limits(epsilon)]


def _change(what: str, epsilon: Fraction, delta: Fraction) -> str:
    factor = written_up(exp_bounds(epsilon)[1], 3)
    belief = written_up(100 * posterior(PRIOR, epsilon), 4)
    shown = f"{factor:,.2f}" if factor < 10_000 else f"{factor:.2e}"
    but = f", but for a probability of {_up(delta)} (delta)" if delta else ""
    except_then = ", but for that probability" if delta else ""
    return (
        f"{what} would change in probability by a factor of at most {shown} (e^epsilon, epsilon = {_up(epsilon)})"
        f"{but}. Somebody who believed something about the unit with {float(100 * PRIOR):g}% believes it with at most"
        f" {belief}% afterwards{except_then}."
    )


def _up(number: Fraction) -> str:
    """At most 6 digits, rounded up: such a decimal survives its way through a float."""
    return f"{float(written_up(number, 6)):g}"


def _limits(epsilon: Fraction) -> list[str]:
    lines = [
        "It is not a guarantee for a person with many impressions: k of them have k times this epsilon and delta.",
        f"The random numbers add less than 2^-{SAMPLER_BITS} (1 + e^epsilon) to delta.",
    ]
    if epsilon > RECOMMENDED:
        lines.append(f"An epsilon of {_up(epsilon)} protects nobody by itself: use {RECOMMENDED} or less.")
    return lines
