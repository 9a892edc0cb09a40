"""A job as it is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from kanon.reports.acceptance import Rules
from kanon.reports.account import HOUR, MAX_AGE, MAX_AHEAD, Wanted
from kanon.reports.parameters import CONTRIBUTION_BOUND, Amount, Mode, Parameters

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
        report_count: the expected number of reports, or None.
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
    report_count: int | None = None
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

    def rules(self, received_at: int, keys: "Mapping[str, X25519PrivateKey] | None") -> Rules:
        """Which of the reports are accepted, if the job is received at this time and has these private keys."""
        return Rules(received_at, keys, self.report_to, self.reporting_site, self.check_age, self.report_bound)

    def hours_at(self, received_at: int) -> range:
        """The hours of the reports that the job may accept, if it is received at this time."""
        first, last = (received_at - MAX_AGE) // HOUR, (received_at + MAX_AHEAD) // HOUR
        return range(first, last + 1) if self.hours is None else self.hours
