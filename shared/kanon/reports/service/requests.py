"""From bodies to jobs: what depends on several fields or on the stack, and what createJob and jobs:publish write."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from kanon.http.bodies import RequestError
from kanon.noise.bound import Bound
from kanon.reports.errors import JobError
from kanon.reports.job import (
    DEFAULT_DELTA,
    DEFAULT_EPSILON,
    EPSILON_CAP,
    LEAST_DELTA,
    MOST_KEYS,
    Domain,
    JobRequest,
    Mode,
    PrivacyParameters,
    written,
)
from kanon.reports.service.answers import refusal
from kanon.reports.service.bodies import (
    LISTED_TYPE,
    MOST_PREFIXES,
    PREFIX_FORM,
    JobBody,
    JobParameters,
    OutputDomain,
    PublicationBody,
    RequestRefusedError,
    invalid,
    is_prefix,
    read_body,
)
from kanon.reports.settings import Jobs
from kanon.reports.shared_info import END_OF_TIME, HOUR
from kanon.reports.storage.report_jobs import (
    BEFORE_COMMIT,
    STAGED_KEPT,
    AllJobs,
    JobRow,
    JobsTable,
    ReleasedKeys,
    State,
    output_of,
)


def read_request(
    body: Any, delta_cap: Fraction, buckets: frozenset[str], epsilon_cap: Fraction, *, stored: bool = False
) -> JobRequest:
    """Check a body of createJob.

    Args:
        body: parsed JSON.
        delta_cap: the most delta of a job.
        buckets: the buckets that jobs may name.
        epsilon_cap: the most epsilon of a job.
        stored: whether it was accepted before. Earlier versions accepted unknown fields, which are ignored.

    Raises:
        RequestRefusedError: with the first problem.
    """
    fields = read_body(JobBody, body, stored=stored)
    parameters, mode = fields.job_parameters, fields.output_domain.mode
    epsilon = _epsilon_of(fields, epsilon_cap)
    return JobRequest(
        job=fields.job_request_id,
        input_bucket=_bucket("input_data_bucket_name", fields.input_data_bucket_name, buckets),
        input_prefixes=_prefixes(fields.input_data_blob_prefix, fields.input_data_blob_prefixes),
        output_bucket=_bucket("output_data_bucket_name", fields.output_data_bucket_name, buckets),
        output_prefix=fields.output_data_blob_prefix,
        report_to=parameters.attribution_report_to,
        reporting_site=parameters.reporting_site,
        domain=_domain(mode, parameters, buckets),
        listed_type=_listed_type(fields.output_domain),
        parameters=PrivacyParameters(mode, epsilon, _delta_of(fields, epsilon, delta_cap)),
        filtering_ids=parameters.filtering_ids,
        error_threshold=parameters.report_error_threshold_percentage,
        destinations=parameters.attribution_destinations,
        hours=_hours(parameters.scheduled_from, parameters.scheduled_before),
        skip_exhausted=fields.skip_exhausted,
    )


def read_publication(body: Any, buckets: frozenset[str]) -> PublicationBody:
    """Check a body of jobs:publish.

    Raises:
        RequestRefusedError: with the first problem.
    """
    fields = read_body(PublicationBody, body)
    if fields.output_data_bucket_name is not None:
        _bucket("output_data_bucket_name", fields.output_data_bucket_name, buckets)
    return fields


def check_output(bucket: str | None, reports_bucket: str) -> None:
    """Refuse the bucket of reports as the place of a summary: no function of jobs may write to it.

    Raises:
        RequestRefusedError: ``bucket`` is the bucket of reports.
    """
    if bucket == reports_bucket:
        raise invalid(
            "output_data_bucket_name",
            "no summary may go to the bucket of reports: name the bucket of summaries, or one of the parameter"
            " ReportBuckets",
        )


def named_buckets(body: Mapping[str, Any]) -> frozenset[str]:
    """The buckets that a stored request names."""
    names = {body[name] for name in ("input_data_bucket_name", "output_data_bucket_name")}
    return frozenset(names | {body["job_parameters"].get("output_domain_bucket_name", "")})


def read_job_id(text: str) -> str:
    """Check the id of a job.

    Raises:
        RequestRefusedError: it is missing or invalid.
    """
    return read_body(PublicationBody, {"job_request_id": text}).job_request_id


class ListOf(Protocol):
    """A published list: its step, the bits of the names of its objects, the number of its values, and its run."""

    @property
    def step(self) -> int: ...  # noqa: D102
    @property
    def bits(self) -> int: ...  # noqa: D102
    @property
    def values(self) -> int: ...  # noqa: D102
    @property
    def run(self) -> str: ...  # noqa: D102


def left_to_the_plan(*_: object) -> str:
    """Keep no keys: the plan reads the list."""
    return ""


@dataclass(frozen=True)
class Lists:
    """The published lists of a deployment as keys of jobs.

    Attributes:
        joins: the listed types, each with the gate's bound for one join.
        newest: the newest list of a type.
        kept: keeps the keys of a type's list in the work folder of a job, and returns their name.
    """

    joins: Mapping[str, Bound]
    newest: Callable[[str], ListOf | None]
    kept: Callable[[str, str, ListOf], str] = left_to_the_plan

    def check(self, type_name: str) -> ListOf:
        """The newest list of a type, which must have values.

        Raises:
            RequestRefusedError: it has none; the message says what to change.
        """
        if type_name not in self.joins:
            known = ", ".join(sorted(self.joins)) or "none; declare a type with listed, or use declared or discover"
            raise invalid(LISTED_TYPE, f"is no listed type of this deployment. Listed types: {known}")
        found = self.newest(type_name)
        if found is None:
            raise invalid(LISTED_TYPE, "this type has no list yet: create the job after the next tick")
        if not found.values:
            raise invalid(LISTED_TYPE, "the newest list is empty: no value is shared yet, create the job later")
        if found.values > MOST_KEYS:
            raise invalid(LISTED_TYPE, f"the list has more than {MOST_KEYS:,} values, the most of a job: declare keys")
        return found

    def pinned(self, job: str, type_name: str) -> ReleasedKeys:
        """The keys of a new job: those of the newest list of a type.

        Raises:
            RequestRefusedError: there are none, or too many.
            JobError: the list is gone.
        """
        found = self.check(type_name)
        name, join = self.kept(job, type_name, found), self.joins[type_name]
        return ReleasedKeys(type_name, found.step, found.values, join, name, found.bits, found.run)


NO_LISTS = Lists({}, lambda _: None)


# What depends on several fields, or on the stack


def _bucket(where: str, name: str, buckets: frozenset[str]) -> str:
    if name not in buckets:
        raise invalid(where, "name a bucket of this stack, or one of the parameter ReportBuckets")
    return name


def _prefixes(one: Any, several: Any) -> tuple[str, ...]:
    if (one in (None, "")) == (several in (None, [])):
        raise invalid(
            "input_data_blob_prefix", "name exactly one of input_data_blob_prefix and input_data_blob_prefixes"
        )
    asked = [one] if several in (None, []) else several
    if not isinstance(asked, list) or not all(isinstance(prefix, str) for prefix in asked):
        raise RequestRefusedError("JSON_ERROR", "input_data_blob_prefixes", "give a list of texts")
    if len(asked) > MOST_PREFIXES or not all(map(is_prefix, asked)):
        raise invalid("input_data_blob_prefixes", f"give at most {MOST_PREFIXES} texts of {PREFIX_FORM}")
    return tuple(asked)


def _domain(mode: Mode, parameters: JobParameters, buckets: frozenset[str]) -> Domain | None:
    """Where the declared keys are; None in the other modes."""
    names = ("output_domain_bucket_name", "output_domain_blob_prefix")
    bucket, prefix = parameters.output_domain_bucket_name, parameters.output_domain_blob_prefix
    for name, value in zip(names, (bucket, prefix), strict=True):
        if mode != "declared" and value is not None:
            raise invalid(f"job_parameters.{name}", f"the mode {mode} takes no declared keys: leave it out")
        if mode == "declared" and value is None:
            raise RequestRefusedError("ARGUMENT_MISSING", f"job_parameters.{name}", "is missing")
    if bucket is None or prefix is None:
        return None
    return Domain(_bucket(f"job_parameters.{names[0]}", bucket, buckets), prefix)


def _listed_type(domain: OutputDomain) -> str | None:
    """The type whose released values are the keys; None in the other modes."""
    if domain.mode != "kanon" and domain.type is not None:
        raise invalid(LISTED_TYPE, f"the mode {domain.mode} takes no type: leave it out")
    if domain.mode == "kanon" and domain.type is None:
        raise RequestRefusedError("ARGUMENT_MISSING", LISTED_TYPE, "is missing: name a listed type")
    return domain.type


def _epsilon_of(fields: JobBody, epsilon_cap: Fraction) -> Fraction:
    theirs, ours = fields.job_parameters.debug_privacy_epsilon, fields.privacy_params.laplace_dp_params.job_epsilon
    where = "privacy_params.laplace_dp_params.job_epsilon"
    if theirs is not None:
        if ours is not None:
            raise invalid(where, "excludes debug_privacy_epsilon: give one of them")
        where = "job_parameters.debug_privacy_epsilon"
    epsilon = next((given for given in (theirs, ours) if given is not None), Fraction(DEFAULT_EPSILON))
    most = min(Fraction(EPSILON_CAP), epsilon_cap)
    if not 0 < epsilon <= most or 1000 % epsilon.denominator:
        raise invalid(where, f"give a number above 0, at most {written(most)}, with at most 3 decimals")
    return epsilon


def _delta_of(fields: JobBody, epsilon: Fraction, delta_cap: Fraction) -> Fraction:
    given, where = fields.privacy_params.laplace_dp_params.job_delta, "privacy_params.laplace_dp_params.job_delta"
    mode = fields.output_domain.mode
    if mode != "discover":
        if given is not None:
            raise invalid(where, f"{mode} keys need no delta: leave it out")
        return Fraction(0)
    delta = Fraction(DEFAULT_DELTA) if given is None else given
    if not LEAST_DELTA <= delta <= delta_cap or 10**15 % delta.denominator or delta * 100 > epsilon:
        raise invalid(
            where, f"give 1e-12 up to {float(delta_cap):g} and a hundredth of epsilon, with at most 15 decimals"
        )
    return delta


def _hours(first: int | None, end: int | None) -> range | None:
    if first is None and end is None:
        return None
    hours = range(first or 0, END_OF_TIME // HOUR if end is None else end)
    if not hours:
        raise invalid("job_parameters.scheduled_before", "give an hour after scheduled_from")
    return hours


# ----------------------------------------------------------------------------------------------- stored jobs
def reader(settings: Jobs) -> Callable[[JobRow], JobRequest]:
    """Read stored requests under the settings of a function.

    The reader raises a ``JobError`` if the settings no longer allow the request. They are not asked for a job
    that has begun to commit: its budget is returned, or its summary published, whatever a deployment has changed.
    """

    def read(row: JobRow) -> JobRequest:
        if row.state not in BEFORE_COMMIT:
            buckets = named_buckets(row.request)
            return read_request(row.request, Fraction(1), buckets, Fraction(EPSILON_CAP), stored=True)
        try:
            return read_request(row.request, settings.delta_cap, settings.buckets, settings.epsilon_cap, stored=True)
        except RequestRefusedError as error:
            message = f"{error.field} is no longer allowed: put it back into the parameters of the stack"
            raise JobError("INVALID_JOB", message) from None

    return read


SECRET_BYTES = 32


class NotPublishableError(RequestError):
    """The summary of a job cannot be published now; the message says what to do. It is answered 409."""

    def __init__(self, message: str) -> None:
        super().__init__(refusal(409, "VALIDATION_FAILED", "job_request_id", message))


def create(jobs: AllJobs, job: str, request: Mapping[str, Any], now: float, **values: Any) -> bool:
    """Store a new job with a new secret and recorded values; False if another job has this id.

    The client retries a call whose answer was lost. Then the row exists with the same secret.
    """
    secret = secrets.token_bytes(SECRET_BYTES)
    if jobs.create(job, request, int(now), secret, **values):
        return True
    row = jobs.read(job)
    return row is not None and row.secret == secret


def publish_again(jobs: JobsTable, row: JobRow, request: JobRequest, wanted: PublicationBody, now: float) -> None:
    """Record a new place for the summary of a committed job. It costs no budget.

    Raises:
        NotPublishableError: the job has not committed, or its parts are gone.
    """
    if row.state is not State.COMMITTED:
        raise NotPublishableError(_why_not(row))
    if now >= row.values["committed_at"] + STAGED_KEPT:
        raise NotPublishableError("the parts of the summary were deleted after 30 days: create a new job, which spends")
    bucket, prefix = output_of(row, request)
    output = [wanted.output_data_bucket_name or bucket, wanted.output_data_blob_prefix or prefix]
    if not jobs.move(row, State.COMMITTED, now, output=output, code="", message=""):
        raise NotPublishableError("the job is being published: ask getJob for its state")


def _why_not(row: JobRow) -> str:
    if row.state is not State.FINISHED:
        return "the job has not committed yet: wait until getJob shows it as FINISHED"
    if row.committed:
        return "the summary is published already: copy its objects"
    return "the job ended without a summary, see getJob: create a new job"
