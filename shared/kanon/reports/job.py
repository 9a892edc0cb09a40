"""A job: its privacy parameters, what it asks for, and its guarantee in words. Bounds in words are rounded up.

The threshold of key discovery: the least integer tau at which releasing key names costs at most delta.

With ``q = e**-a``, ``a = epsilon / bound`` and X a discrete Laplace number conditioned on ``|X| <= tau``, a sum of v
passes the threshold with probability ``g(v) = P(X > tau - v) = q^(tau-v+1) (1 - q^v) / (1 + q - 2 q^(tau+1))``.
Theorem T of docs/proofs/reports.md: releasing the keys whose noisy sum is *above* tau is ``(epsilon, g(bound))``-DP
for a unit that changes the sums by at most ``bound`` in all, however many keys it touches.

* ``sharp``: the least ``tau >= bound`` with ``g(bound) <= delta``. No bound on the number of keys is needed.
* ``paper``: Algorithm 1 of "On the Differential Privacy and Interactivity of Privacy Sandbox Reports",
  ``ceil(bound (1 + ln(sparsity / delta) / epsilon))`` for units of at most ``sparsity`` keys.

Every comparison is exact: it uses rational bounds of the exponentials, with more bits until they decide.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from kanon.errors import Error
from kanon.noise.bound import Bound, posterior
from kanon.noise.exact import exp_bounds, written_up
from kanon.reports.shared_info import CONTRIBUTION_BOUND, HOUR, MAX_AGE, MAX_AHEAD, Rules

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


ThresholdRule = Literal["sharp", "paper"]
_Bounds = tuple[Fraction, Fraction]
Powers = Callable[[int, int], _Bounds]
"""``powers(n, bits)``: bounds of ``q**-n``, about ``2**-bits`` apart."""


def powers_of(a: Fraction) -> Powers:
    """The powers of ``q**-1 = e**a``."""
    return lambda n, bits: exp_bounds(a * n, bits)


def sharp(powers: Powers, delta: Fraction, bound: int) -> int:
    """The least ``tau >= bound`` with ``g(bound) <= delta``."""

    def margin(tau: int, bits: int) -> _Bounds:
        # g(bound) <= delta, with the fraction cleared: delta (q^-(tau+1) + q^-tau) >= q^-bound - 1 + 2 delta.
        above, at, full = (powers(n, bits) for n in (tau + 1, tau, bound))
        return (
            delta * (above[0] + at[0]) - (full[1] - 1 + 2 * delta),
            delta * (above[1] + at[1]) - (full[0] - 1 + 2 * delta),
        )

    return _least(margin, bound)


def paper(powers: Powers, delta: Fraction, bound: int, sparsity: int) -> int:
    """The least integer ``tau >= bound (1 + ln(sparsity / delta) / epsilon)``."""

    def margin(tau: int, bits: int) -> _Bounds:
        low, high = powers(tau - bound, bits)
        return low - sparsity / delta, high - sparsity / delta

    return _least(margin, bound)


def threshold(epsilon: Fraction, delta: Fraction, bound: int, rule: ThresholdRule = "sharp", sparsity: int = 1) -> int:
    """Tau for the budget ``(epsilon, delta)`` of a unit whose values sum to at most ``bound``.

    Raises:
        ValueError: epsilon, delta, bound or sparsity are out of range.
    """
    if epsilon <= 0 or not 0 < delta < Fraction(1, 2) or bound < 1 or sparsity < 1:
        raise ValueError("a threshold takes epsilon above 0, delta between 0 and 1/2, bound and sparsity from 1 on")
    powers = powers_of(epsilon / bound)
    return sharp(powers, delta, bound) if rule == "sharp" else paper(powers, delta, bound, sparsity)


def _least(margin: Callable[[int, int], _Bounds], start: int) -> int:
    """The least ``tau >= start`` whose margin is not negative; margins grow with tau."""
    if _reaches(margin, start):
        return start
    below, step = start, 1
    while not _reaches(margin, below + step):
        below, step = below + step, 2 * step
    above = below + step
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if _reaches(margin, middle) else (middle, above)
    return above


def _reaches(margin: Callable[[int, int], _Bounds], tau: int, bits: int = 256) -> bool:
    """Whether the margin is at least 0. The loop ends: by Lindemann's theorem the margin is never exactly 0."""
    low, high = margin(tau, bits)
    if low >= 0 or high < 0:
        return low >= 0
    return _reaches(margin, tau, 2 * bits)


Mode = Literal["declared", "discover", "kanon"]
EPSILON_CAP = 64
MOST_KEYS = 10**7
"""The largest number of declared or released keys: a worker holds all of them while it divides them into parts."""
LEAST_DELTA, DELTA_CAP = Fraction(1, 10**12), Fraction(1, 1000)
DEFAULT_EPSILON, DEFAULT_DELTA = "10", "1e-8"
EPSILON_STEPS, DELTA_STEPS = 1000, 10**15


_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,18})?([eE]-?[0-9]{1,2})?")


class ParameterError(Error, ValueError):
    """A parameter is out of range; the message says what to change."""


@dataclass(frozen=True)
class PrivacyParameters:
    """The privacy parameters of one job.

    Privacy guarantee: ``(epsilon, delta)`` for a unit whose reports' values sum to at most ``contribution_bound``:
    R1 and Theorem T of docs/proofs/reports.md.

    Args:
        mode: ``declared`` releases every key of a list; ``discover`` releases the keys above the threshold; ``kanon``
            releases every key of a list that the gate has released.
        epsilon: above 0, at most 64, at most 3 decimals.
        delta: 0 unless keys are discovered; then from 1e-12 to 0.001 and to epsilon / 100, at most 15 decimals.
        contribution_bound: Lambda_1.
        rule: ``sharp`` or ``paper``.
        sparsity: Lambda_0 of the paper's rule.

    Raises:
        ParameterError: a parameter is out of range.
    """

    mode: Mode
    epsilon: Fraction
    delta: Fraction = Fraction(0)
    contribution_bound: int = CONTRIBUTION_BOUND
    rule: ThresholdRule = "sharp"
    sparsity: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= EPSILON_CAP or 1000 % self.epsilon.denominator:
            raise ParameterError(f"epsilon must be above 0 and at most {EPSILON_CAP}, with at most 3 decimals")
        if self.mode != "discover" and self.delta:
            raise ParameterError(f"{self.mode} keys need no delta: leave it out")
        in_range = LEAST_DELTA <= self.delta <= DELTA_CAP and not 10**15 % self.delta.denominator
        if self.mode == "discover" and not in_range:
            raise ParameterError("delta must be from 1e-12 to 0.001, with at most 15 decimals")
        if self.delta * 100 > self.epsilon:  # else the noise would seldom be within the threshold
            raise ParameterError("delta must be at most a hundredth of epsilon")
        if not 1 <= self.contribution_bound <= 1 << 32 or self.sparsity < 1:
            raise ParameterError("the contribution bound must be from 1 to 2^32, the sparsity at least 1")

    @cached_property
    def threshold(self) -> int | None:
        """Tau: a key is released if its noisy sum is above it; ``None`` without discovery."""
        if self.mode != "discover":
            return None
        return threshold(self.epsilon, self.delta, self.contribution_bound, self.rule, self.sparsity)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of one key's noise: ``sqrt(2) contribution_bound / epsilon``, before conditioning."""
        return float(2**0.5 * self.contribution_bound / self.epsilon)


@dataclass(frozen=True)
class Amount:
    """A budget: epsilon in thousandths, delta in 10^-15."""

    epsilon: int
    delta: int

    @classmethod
    def of(cls, epsilon: Fraction, delta: Fraction) -> "Amount":
        """The exact amount.

        Raises:
            ValueError: epsilon has more than 3 decimals, or delta more than 15.
        """
        steps = epsilon * EPSILON_STEPS, delta * DELTA_STEPS
        if any(step.denominator != 1 for step in steps):
            raise ValueError("epsilon has at most 3 decimals, delta at most 15")
        return cls(int(steps[0]), int(steps[1]))

    @property
    def exact(self) -> tuple[Fraction, Fraction]:
        """Epsilon and delta."""
        return Fraction(self.epsilon, EPSILON_STEPS), Fraction(self.delta, DELTA_STEPS)

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.epsilon + other.epsilon, self.delta + other.delta)

    def within(self, other: "Amount") -> bool:
        """Whether both parts are at most the other's."""
        return self.epsilon <= other.epsilon and self.delta <= other.delta


def decimal(text: str, name: str) -> Fraction:
    """Read a decimal such as ``10``, ``0.125`` or ``1e-8`` exactly.

    Raises:
        ParameterError: the text is not a decimal.
    """
    if not _DECIMAL.fullmatch(text):
        raise ParameterError(f"{name} must be a decimal such as 10, 0.125 or 1e-8")
    return Fraction(text)


def written(number: Fraction) -> str:
    """A number that has a decimal of at most 28 digits, exactly: ``10``, ``0.125`` or ``0.00000001``."""
    return f"{Decimal(number.numerator) / number.denominator:f}"


# -------------------------------------------------------------------------------------------- what it asks for
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
        report_to: the only reporting origin, or None.
        reporting_site: the only site of reporting origins, or None.
        domain: the declared keys, None in the other modes.
        parameters: the privacy parameters; delta is 0 unless keys are discovered.
        filtering_ids: ascending, each once.
        error_threshold: the largest percentage of reports in error, None if left out.
        destinations: the only attribution destinations, or None.
        hours: the only hours of ``scheduled_report_time``, since 1970, or None.
        skip_exhausted: leave out the reports of units that are short of budget, instead of refusing the job.
        listed_type: the type whose released values are the keys; None in the other modes.
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
    parameters: PrivacyParameters
    filtering_ids: tuple[int, ...]
    error_threshold: Fraction | None
    destinations: frozenset[str] | None = None
    hours: range | None = None
    skip_exhausted: bool = False
    listed_type: str | None = None
    check_age: bool = True
    report_bound: int | None = CONTRIBUTION_BOUND

    @property
    def mode(self) -> Mode:
        """Where the keys come from."""
        return self.parameters.mode

    @property
    def amount(self) -> Amount:
        """What the job takes from the budget of each unit."""
        return Amount.of(self.parameters.epsilon, self.parameters.delta)

    def rules(self, received_at: int, keys: "Mapping[str, X25519PrivateKey]") -> Rules:
        """Which of the reports are accepted, if the job is received at this time and has these private keys."""
        checked = self.check_age, self.report_bound
        return Rules(received_at, keys, self.report_to, self.reporting_site, *checked, self.destinations, self.hours)

    def hours_at(self, received_at: int) -> range:
        """The hours of the reports that the job may accept, if it is received at this time."""
        first, last = (received_at - MAX_AGE) // HOUR, (received_at + MAX_AHEAD) // HOUR
        return range(first, last + 1) if self.hours is None else self.hours


# ----------------------------------------------------------------------------------------------- its guarantee
PRIOR = Fraction(1, 100)
RECOMMENDED = 10
SAMPLER_BITS = 232
"""The sampler is within 2^-232 of the exact distribution, for the 65,536 keys that one unit may touch."""


def of_job(parameters: PrivacyParameters) -> list[str]:
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


def with_gate(spent: Bound, join: Bound, joins: int = 1) -> Bound:
    """R4: what a unit loses by summaries that spend ``spent`` and by ``joins`` joins, each in another set."""
    gate = join.times(joins)
    return Bound(spent.epsilon + gate.epsilon, spent.delta + gate.delta)


def of_both(what: str, spent: Bound, join: Bound, joins: int = 1) -> list[str]:
    """The guarantee of summaries, named by ``what``, together with the gate, whose answers are their keys."""
    both = with_gate(spent, join, joins)
    epsilon, delta = (
        f"{name} {rounded_up(total)} = {rounded_up(of_reports)} + {joins} x {rounded_up(of_join)}"
        for name, total, of_reports, of_join in (
            ("epsilon", both.epsilon, spent.epsilon, join.epsilon),
            ("delta", both.delta, spent.delta, join.delta),
        )
    )
    caused = "a join" if joins == 1 else f"{joins} joins, each in another set"
    add_up = f"For a unit that also caused {caused}, the parts of summary and gate add up: {epsilon}, {delta}."
    change = _change(f"{what} and all answers of the gate", both.epsilon, both.delta)
    watched = "The gate's delta is that of a join whose step may depend on a year of its set's answers."
    return [
        f"The keys are answers of the gate. {add_up}",
        f"If its contributions were zero and it had not joined, {change}",
        f"{watched} Each further join costs the gate's part once more.",
    ]


def _change(what: str, epsilon: Fraction, delta: Fraction) -> str:
    factor = written_up(exp_bounds(epsilon)[1], 3)
    belief = written_up(100 * posterior(PRIOR, epsilon), 4)
    shown = f"{factor:,.2f}" if factor < 10_000 else f"{factor:.2e}"
    known = f"e^epsilon, epsilon = {rounded_up(epsilon)}"
    but = f", except with a probability of {rounded_up(delta)} (delta)" if delta else ""
    except_then = ", except with that probability" if delta else ""
    return (
        f"the probability of {what} would change by a factor of at most {shown} ({known})"
        f"{but}. Somebody who was {float(100 * PRIOR):g}% sure of something about the unit is at most"
        f" {belief}% sure of it afterwards{except_then}."
    )


def rounded_up(number: Fraction) -> str:
    """At most 6 digits, rounded up: a float prints such a decimal unchanged."""
    return f"{float(written_up(number, 6)):g}"


def _limits(epsilon: Fraction) -> list[str]:
    lines = [
        "It is not a guarantee for a person with many units: k of them have k times this epsilon.",
        "Their delta is (e^(k epsilon) - 1) / (e^epsilon - 1) times as large.",
        f"The random numbers add less than 2^-{SAMPLER_BITS} (1 + e^epsilon) to delta.",
    ]
    if epsilon > RECOMMENDED:
        lines.append(f"An epsilon of {rounded_up(epsilon)} protects nobody by itself: use {RECOMMENDED} or less.")
    return lines
