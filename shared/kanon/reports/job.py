"""A job as it is asked for, and its guarantee in words, with its numbers. Bounds are rounded up."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from kanon.noise.bound import posterior
from kanon.noise.exact import exp_bounds, written_up
from kanon.reports.parameters import CONTRIBUTION_BOUND, Amount, Mode, Parameters
from kanon.reports.shared_info import HOUR, MAX_AGE, MAX_AHEAD, Rules, Wanted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


DEFAULT_ERROR_THRESHOLD = Fraction(10)
"""Percent of the reports of a job that may be in error."""


@dataclass(frozen=True)
class Domain:
    """Where the declared keys are."""

    bucket: str
    prefix: str


@dataclass(frozen=True)
class JobRequest:
    """A job as it was asked for.

    Attributes:
        job: its id.
        input_bucket: where the reports are.
        input_prefixes: under which prefixes.
        output_bucket: where the summary goes.
        output_prefix: under which name.
        report_to: the only reporting origin, or None.
        reporting_site: the only site of reporting origins, or None.
        domain: the declared keys, None in discovery.
        parameters: the privacy parameters; delta is 0 if keys are declared.
        filtering_ids: ascending, each once.
        error_threshold: the largest percentage of reports in error, None if left out.
        destinations: the only attribution destinations, or None.
        hours: the only hours of ``scheduled_report_time``, since 1970, or None.
        skip_exhausted: leave out the reports of units that are short of budget, instead of refusing the job.
        check_age: refuse reports that are too old or in the future. Only the local tool may leave it out.
        report_bound: the largest sum of one report's values; None for no bound (local tool only).
    """

    job: str
    input_bucket: str
    input_prefixes: tuple[str, ...]
    output_bucket: str
    output_prefix: str
    report_to: str | None
    reporting_site: str | None
    domain: Domain | None
    parameters: Parameters
    filtering_ids: tuple[int, ...]
    error_threshold: Fraction | None
    destinations: tuple[str, ...] | None = None
    hours: range | None = None
    skip_exhausted: bool = False
    check_age: bool = True
    report_bound: int | None = CONTRIBUTION_BOUND

    @property
    def mode(self) -> Mode:
        """Declared or discover."""
        return self.parameters.mode

    @property
    def amount(self) -> Amount:
        """What the job takes from the budget of each unit."""
        return Amount.of(self.parameters.epsilon, self.parameters.delta)

    @property
    def wanted(self) -> Wanted:
        """Whose reports count."""
        return Wanted(None if self.destinations is None else frozenset(self.destinations), self.hours)

    def rules(self, received_at: int, keys: "Mapping[str, X25519PrivateKey]") -> Rules:
        """Which of the reports are accepted, if the job is received at this time and has these private keys."""
        return Rules(received_at, keys, self.report_to, self.reporting_site, self.check_age, self.report_bound)

    def hours_at(self, received_at: int) -> range:
        """The hours of the reports that the job may accept, if it is received at this time."""
        first, last = (received_at - MAX_AGE) // HOUR, (received_at + MAX_AHEAD) // HOUR
        return range(first, last + 1) if self.hours is None else self.hours


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
