"""The settings of the functions of reports, combined from small models; and which of their values never change.

The guarantee is a sum over all releases, so its inputs must never change: the contribution bound, the caps, the
threshold rule, and the largest age of a report. Control has their fingerprints, compared when a function starts.
"""

from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from kanon.dynamo.fingerprints import DEPLOYMENT, Fingerprints
from kanon.reports.job import DELTA_CAP, EPSILON_CAP, LEAST_DELTA, decimal
from kanon.reports.shared_info import CONTRIBUTION_BOUND, MAX_AGE, host_of
from kanon.settings import Deployment, Edge, Settings

ANY_ORIGIN = "*"
LEAST_EPSILON = Fraction(1, 1000)

Name = Annotated[str, Field(min_length=1)]
BucketName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]


def _listed(value: Any) -> Any:
    """The entries of a comma-separated list; none of an empty text."""
    if not isinstance(value, str):
        return value
    return tuple(entry.strip() for entry in value.split(",") if entry.strip())


def _exact(value: Any) -> Any:
    return decimal(value, "a cap") if isinstance(value, str) else value


CommaSeparated = BeforeValidator(_listed)
Exact = BeforeValidator(_exact)


class Caps(Settings):
    """The most that all jobs together may spend of one unit's budget, exactly."""

    epsilon_cap: Annotated[Fraction, Exact]
    delta_cap: Annotated[Fraction, Exact]

    @field_validator("epsilon_cap")
    @classmethod
    def _in_thousandths(cls, cap: Fraction) -> Fraction:
        if not LEAST_EPSILON <= cap <= EPSILON_CAP or 1000 % cap.denominator:
            raise ValueError(f"EpsilonCap must be from 0.001 to {EPSILON_CAP}, with at most 3 decimals")
        return cap

    @field_validator("delta_cap")
    @classmethod
    def _in_small_steps(cls, cap: Fraction) -> Fraction:
        if not LEAST_DELTA <= cap <= DELTA_CAP or 10**15 % cap.denominator:
            raise ValueError("DeltaCap must be from 1e-12 to 0.001, with at most 15 decimals")
        return cap


class Buckets(Settings):
    """The buckets that jobs may name: the stack's own two, and those of the parameter ReportBuckets."""

    reports_bucket: BucketName
    summaries_bucket: BucketName
    report_buckets: Annotated[tuple[BucketName, ...], CommaSeparated]

    @property
    def buckets(self) -> frozenset[str]:
        """All of these buckets."""
        return frozenset({self.reports_bucket, self.summaries_bucket, *self.report_buckets})


class Jobs(Deployment, Buckets, Caps):
    """What every function that reads a job needs."""

    report_jobs_table: Name
    stages_url: Name


class CollectSettings(Deployment, Edge):
    """The environment of ``collect``."""

    arrivals_url: Name
    allowed_origins: Annotated[tuple[str, ...], CommaSeparated]

    @field_validator("allowed_origins")
    @classmethod
    def _https(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        if origins == (ANY_ORIGIN,):
            return origins
        if not origins or not all(host_of(origin) for origin in origins):
            raise ValueError("list https origins such as https://report.example, separated by commas, or * for all")
        return origins

    def allows(self, origin: str) -> bool:
        """Whether reports of this reporting origin are collected."""
        return self.allowed_origins == (ANY_ORIGIN,) or origin in self.allowed_origins


class StoreSettings(Settings):
    """The environment of ``store``."""

    reports_bucket: BucketName


class JobsSettings(Jobs, Edge):
    """The environment of ``jobs``. ``listed_types`` are the types of the deployment; empty if it has no lister."""

    budgets_table: Name
    listed_types: str
    period: Annotated[int, Field(ge=1, le=86_400)]


class DecryptSettings(Jobs):
    """The environment of ``decrypt``."""

    work_bucket: BucketName
    report_key_prefix: Name


class AggregateSettings(Jobs):
    """The environment of ``aggregate``. ``list_bucket`` is empty if the deployment has no lister."""

    work_bucket: BucketName
    list_bucket: str
    period: Annotated[int, Field(ge=1, le=86_400)]
    budgets_table: Name
    maps_url: Name
    report_noise_key_secret: Name


class RotateSettings(Deployment):
    """The environment of ``rotate``."""

    budgets_table: Name
    report_jobs_table: Name
    report_key_prefix: Name
    kms_key: Name


RULE = "sharp"
"""The rule of every deployed stack; the local tool offers the paper's rule, too."""


class RecordedSettings(Fingerprints):
    """The recorded values of the functions of reports."""

    changed = (
        "EpsilonCap, DeltaCap, the contribution bound, the threshold rule or the age of reports differ from what this"
        " deployment started with; restore them, or deploy another stack for the new values"
    )

    def compare(self, function: str, settings: Jobs) -> None:
        """Compare the immutable values of a function with those recorded, and record them at its first start.

        Raises:
            FingerprintMismatchError: one of them has changed.
        """
        self.check(function, fingerprints(settings))


def fingerprints(settings: Jobs) -> dict[str, str]:
    """The immutable values, by the name of an attribute in Control."""
    return {
        DEPLOYMENT: settings.deployment,
        "contribution-bound": str(CONTRIBUTION_BOUND),
        "epsilon-cap": str(settings.epsilon_cap),
        "delta-cap": str(settings.delta_cap),
        "threshold-rule": RULE,
        "report-age": str(MAX_AGE),
    }
