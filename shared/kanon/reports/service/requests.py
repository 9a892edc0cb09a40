"""The bodies of createJob, jobs:preflight and jobs:publish: the aggregation service's JSON; and what these calls write.

The models also describe the bodies for OpenAPI. Every error names the field and what to change. No message repeats a
part of the request.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Annotated, Any, Literal, Self, TypeVar

from aws_lambda_powertools.event_handler.openapi.params import Body as InBody
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kanon.errors import reason
from kanon.http.answers import STORED, Body, Problem, error_answer
from kanon.http.bodies import RequestError
from kanon.reports.errors import JobError
from kanon.reports.job import DEFAULT_ERROR_THRESHOLD, Domain, JobRequest
from kanon.reports.parameters import (
    DEFAULT_DELTA,
    DEFAULT_EPSILON,
    EPSILON_CAP,
    LEAST_DELTA,
    Mode,
    ParameterError,
    Parameters,
    decimal,
    written,
)
from kanon.reports.service.answers import refusal
from kanon.reports.settings import Jobs
from kanon.reports.shared_info import END_OF_TIME, HOUR
from kanon.reports.storage.report_jobs import BEFORE_COMMIT, STAGED_KEPT, ReportJobs, Row, State, output_of

Reason = Literal["JSON_ERROR", "VALIDATION_FAILED", "ARGUMENT_MISSING"]

MOST_PREFIXES = 50
MOST_FILTERING_IDS = 64
MOST_DESTINATIONS = 100

_ID = re.compile(r"[ -{}~]{1,128}")
_PREFIX = re.compile(r"[^\x00-\x1f\x7f]+")
_PREFIX_BYTES = 900
"""A name in S3 has at most 1,024 bytes; the numbers of the parts follow the prefix."""
_PREFIX_FORM = f"1 to {_PREFIX_BYTES} bytes without control characters"
_COUNT = re.compile(r"[0-9]{1,12}")

_T = TypeVar("_T")


class RequestRefusedError(RequestError):
    """A request that cannot be a job. It is answered 400.

    Args:
        reason: from the aggregation service's list.
        field: the invalid field.
        message: what to change.
    """

    def __init__(self, reason: Reason, field: str, message: str) -> None:
        super().__init__(error_answer(400, f"{field}: {message}", Problem(field=field, reason=reason)))
        self.field = field


def invalid(field: str, message: str) -> RequestRefusedError:
    """The error for a field that is there, with a value that a job cannot have."""
    return RequestRefusedError("VALIDATION_FAILED", field, message)


# The form of each field


def _wrong(message: str, reason: Reason = "VALIDATION_FAILED") -> PydanticCustomError:
    return PydanticCustomError(reason, message)


def _text(value: Any) -> str:
    if value in (None, ""):
        raise _wrong("is missing", "ARGUMENT_MISSING")
    if not isinstance(value, str):
        raise _wrong("give a text", "JSON_ERROR")
    return value


def _id(value: Any) -> str:
    if not _ID.fullmatch(text := _text(value)):
        raise _wrong("give 1 to 128 printable ASCII characters, without a bar")
    return text


def _is_prefix(text: str) -> bool:
    return _PREFIX.fullmatch(text) is not None and len(text.encode()) <= _PREFIX_BYTES


def _prefix(value: Any) -> str:
    if not _is_prefix(text := _text(value)):
        raise _wrong(f"give {_PREFIX_FORM}")
    return text


def _unless_empty(read: Callable[[Any], _T]) -> Callable[[Any], _T | None]:
    return lambda value: None if value in (None, "") else read(value)


def _parameter(value: Any) -> str | None:
    """A parameter as text. As in the aggregation service it may be a number, which is read as its shortest decimal."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return None if value in (None, "") else _text(value)


def _decimal(value: Any) -> Fraction:
    """A decimal text. A JSON number is refused, because it would be read as a float first."""
    try:
        return decimal(value if isinstance(value, str) else "", "")
    except ParameterError:
        raise _wrong('give a decimal as a text, such as "10" or "1e-8"') from None


def _epsilon(value: Any) -> Fraction | None:
    text = _parameter(value)
    return None if text is None else _decimal(text)


def _threshold(value: Any) -> Fraction | None:
    text = _parameter(value)
    percent = None if text is None else _decimal(text)
    if percent is not None and percent > 100:
        raise _wrong("give a percentage from 0 to 100")
    return percent


def _count(value: Any) -> int | None:
    if (text := _parameter(value)) is None:
        return None
    if not _COUNT.fullmatch(text):
        raise _wrong("give a whole number")
    return int(text)


def _filtering_ids(value: Any) -> tuple[int, ...]:
    parts = [part.strip() for part in (_parameter(value) or "0").split(",")]
    if (
        not all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts)
        or len(set(parts)) > MOST_FILTERING_IDS
        or any(int(part) >> 64 for part in parts)
    ):
        raise _wrong(f"give at most {MOST_FILTERING_IDS} numbers below 2^64, separated by commas")
    return tuple(sorted({int(part) for part in parts}))


def _destinations(value: Any) -> tuple[str, ...] | None:
    if (text := _parameter(value)) is None:
        return None
    parts = sorted({part.strip() for part in text.split(",")} - {""})
    if not 1 <= len(parts) <= MOST_DESTINATIONS:
        raise _wrong(f"give 1 to {MOST_DESTINATIONS} destinations, separated by commas")
    return tuple(parts)


def _hour(value: Any) -> int | None:
    """An hour since 1970."""
    if (text := _parameter(value)) is None:
        return None
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:00:00Z").replace(tzinfo=UTC)
    except ValueError:
        raise _wrong("give a full hour, such as 2026-01-31T00:00:00Z") from None
    return int(moment.timestamp()) // HOUR


def _no_debug_run(value: Any) -> None:
    if str(value).lower() != "false":
        raise _wrong(
            "no stack shows sums without noise: run `kanon reports aggregate --no-noise --debug` on your files"
        )


def _mode(value: Any) -> Mode:
    if value == "kanon":
        raise _wrong("kanon is not built yet: use declared or discover")
    if value == "declared" or value == "discover":
        return "discover" if value == "discover" else "declared"
    raise _wrong("use declared or discover")


def _skip(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("false", "true"):
        return bool(value == "true")
    raise _wrong("give true or false", "JSON_ERROR")


# The bodies


def _read_by(read: Callable[[Any], Any], form: str = "string", **more: Any) -> tuple[PlainValidator, WithJsonSchema]:
    return PlainValidator(read), WithJsonSchema({"type": form, **more})


Text = Annotated[str, BeforeValidator(_text)]
Prefix = Annotated[str, BeforeValidator(_prefix)]
JobId = Annotated[str, BeforeValidator(_id), Field(description="1 to 128 printable ASCII characters, no bar")]
OptionalText = Annotated[str | None, *_read_by(_unless_empty(_text))]
OptionalPrefix = Annotated[str | None, *_read_by(_unless_empty(_prefix))]
Parameter = Annotated[str | None, *_read_by(_parameter)]
Epsilon = Annotated[Fraction | None, *_read_by(_epsilon)]
Decimal = Annotated[Fraction | None, *_read_by(_decimal)]
Threshold = Annotated[Fraction | None, *_read_by(_threshold)]
Count = Annotated[int | None, *_read_by(_count)]
FilteringIds = Annotated[tuple[int, ...], *_read_by(_filtering_ids)]
Destinations = Annotated[tuple[str, ...] | None, *_read_by(_destinations)]
Hour = Annotated[int | None, *_read_by(_hour)]
OnlyFalse = Annotated[None, *_read_by(_no_debug_run)]
KeyMode = Annotated[Mode, *_read_by(_mode, enum=["declared", "discover"])]
Skip = Annotated[bool, *_read_by(_skip, "boolean")]
Prefixes = Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "string"}, "maxItems": MOST_PREFIXES})]
AnyText = Annotated[Any, WithJsonSchema({"type": "string"})]


class JobFields(Body):
    """A part of a body, with the aggregation service's names."""

    model_config = ConfigDict(alias_generator=None)


class JobParameters(JobFields):
    """Texts. Exactly one of attribution_report_to and reporting_site."""

    attribution_report_to: Parameter = Field(None, description="The only reporting origin")
    reporting_site: Parameter = Field(
        None, description="The only site of reporting origins, such as https://example.com"
    )
    output_domain_bucket_name: OptionalText = Field(None, description="Where the declared keys are; not for discovery")
    output_domain_blob_prefix: OptionalPrefix = Field(
        None, description="Their name, or what the names begin with; not for discovery"
    )
    debug_privacy_epsilon: Epsilon = Field(
        None, description=f"Above 0, at most EpsilonCap, at most 3 decimals; {DEFAULT_EPSILON} if left out"
    )
    report_error_threshold_percentage: Threshold = Field(
        None,
        description=f"0 to 100; if left out {DEFAULT_ERROR_THRESHOLD}, but no limit for the bucket of the collector",
    )
    input_report_count: Count = Field(None, description="A whole number")
    filtering_ids: FilteringIds = Field(
        default_factory=lambda: _filtering_ids(None),
        description=f"At most {MOST_FILTERING_IDS} numbers below 2^64, with commas; 0 if left out",
    )
    attribution_destinations: Destinations = Field(
        None, description=f"The only destinations, at most {MOST_DESTINATIONS}, with commas"
    )
    scheduled_from: Hour = Field(
        None, description="The first hour of scheduled_report_time, such as 2026-01-31T00:00:00Z"
    )
    scheduled_before: Hour = Field(None, description="The hour after the last one")
    debug_run: OnlyFalse = Field(None, description="Only false")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.attribution_report_to is None) == (self.reporting_site is None):
            raise _wrong("name exactly one of attribution_report_to and reporting_site")
        return self


class OutputDomain(JobFields):
    """Which keys the summary has."""

    mode: KeyMode = "declared"


class LaplaceParams(JobFields):
    """The budget that the job asks for."""

    job_epsilon: Decimal = Field(None, description="In place of debug_privacy_epsilon")
    job_delta: Decimal = Field(None, description=f"For discovery, 1e-12 up to DeltaCap; {DEFAULT_DELTA} if left out")


class PrivacyParams(JobFields):
    """The budget that the job asks for."""

    laplace_dp_params: Annotated[LaplaceParams, WithJsonSchema(LaplaceParams.model_json_schema())] = Field(
        default_factory=LaplaceParams
    )


class JobBody(JobFields):
    """A job."""

    job_request_id: JobId
    input_data_bucket_name: Text = Field(description="Where the reports are")
    input_data_blob_prefix: AnyText = Field(None, description="What the names of their objects begin with")
    input_data_blob_prefixes: Prefixes = Field(None, description="In place of input_data_blob_prefix")
    output_data_bucket_name: Text = Field(description="Where the summary goes")
    output_data_blob_prefix: Prefix = Field(
        description="The name of the summary; -1-of-1 is put behind it, before .avro"
    )
    job_parameters: Annotated[JobParameters, WithJsonSchema(JobParameters.model_json_schema())]
    output_domain: Annotated[OutputDomain, WithJsonSchema(OutputDomain.model_json_schema())] = Field(
        default_factory=OutputDomain
    )
    privacy_params: Annotated[PrivacyParams, WithJsonSchema(PrivacyParams.model_json_schema())] = Field(
        default_factory=PrivacyParams
    )
    skip_exhausted: Skip = Field(
        default=False, description="Leave out the reports of units that are short of budget, rather than refuse the job"
    )
    postback_url: AnyText = Field(
        None, description="Ignored: the aggregation service has it, and nobody is called. Ask getJob"
    )
    account_identity: AnyText = Field(
        None, description="Ignored: the aggregation service has it. Here the signature names the caller"
    )


class PublicationBody(JobFields):
    """What to publish, and where; by default at the place of the job."""

    job_request_id: JobId
    output_data_bucket_name: OptionalText = Field(None, description="Where the summary goes")
    output_data_blob_prefix: OptionalPrefix = Field(None, description="The name of the summary")


JobInBody = Annotated[dict[str, Any], InBody(description="A job", json_schema_extra=JobBody.model_json_schema())]
PublicationInBody = Annotated[
    dict[str, Any], InBody(description="What to publish", json_schema_extra=PublicationBody.model_json_schema())
]
"""For OpenAPI. A job is stored as it was sent, so the function itself calls :func:`read_request`."""


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
    fields = _read(JobBody, body, stored=stored)
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
        parameters=Parameters(mode, epsilon, _delta_of(fields, epsilon, delta_cap)),
        filtering_ids=parameters.filtering_ids,
        error_threshold=parameters.report_error_threshold_percentage,
        report_count=parameters.input_report_count,
        destinations=parameters.attribution_destinations,
        hours=_hours(parameters.scheduled_from, parameters.scheduled_before),
        skip_exhausted=fields.skip_exhausted,
    )


@dataclass(frozen=True)
class Publication:
    """A job whose summary is published again, and the place; None: the place of the job."""

    job: str
    bucket: str | None
    prefix: str | None


def read_publication(body: Any, buckets: frozenset[str]) -> Publication:
    """Check a body of jobs:publish.

    Raises:
        RequestRefusedError: with the first problem.
    """
    fields = _read(PublicationBody, body)
    bucket = fields.output_data_bucket_name
    return Publication(
        fields.job_request_id,
        None if bucket is None else _bucket("output_data_bucket_name", bucket, buckets),
        fields.output_data_blob_prefix,
    )


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
    return _read(PublicationBody, {"job_request_id": text}).job_request_id


_Fields = TypeVar("_Fields", bound=JobFields)


def _read(model: type[_Fields], body: Any, *, stored: bool = False) -> _Fields:
    try:
        json.dumps(body, ensure_ascii=False).encode()
        return model.model_validate(body, context=STORED if stored else None)
    except UnicodeEncodeError:
        raise RequestRefusedError("JSON_ERROR", "body", "a text holds half of a character (a lone surrogate)") from None
    except ValidationError as error:
        raise _first(error) from None


def _first(error: ValidationError) -> RequestRefusedError:
    """The first problem, with the aggregation service's reason."""
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, problem["loc"])) or "body"
    match problem["type"]:
        case "missing":
            return RequestRefusedError("ARGUMENT_MISSING", where, "is missing")
        case "model_type":
            return RequestRefusedError("JSON_ERROR", where, "give a JSON object")
        case "JSON_ERROR" | "ARGUMENT_MISSING" as code:
            return RequestRefusedError(code, where, problem["msg"])
    return invalid(where, reason(problem))


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
    if len(asked) > MOST_PREFIXES or not all(map(_is_prefix, asked)):
        raise invalid("input_data_blob_prefixes", f"give at most {MOST_PREFIXES} texts of {_PREFIX_FORM}")
    return tuple(asked)


def _domain(mode: Mode, parameters: JobParameters, buckets: frozenset[str]) -> Domain | None:
    """Where the declared keys are; None in discovery."""
    names = ("output_domain_bucket_name", "output_domain_blob_prefix")
    bucket, prefix = parameters.output_domain_bucket_name, parameters.output_domain_blob_prefix
    for name, value in zip(names, (bucket, prefix), strict=True):
        if mode == "discover" and value is not None:
            raise invalid(f"job_parameters.{name}", "discovery takes no declared keys: leave it out")
        if mode == "declared" and value is None:
            raise RequestRefusedError("ARGUMENT_MISSING", f"job_parameters.{name}", "is missing")
    if bucket is None or prefix is None:
        return None
    return Domain(_bucket(f"job_parameters.{names[0]}", bucket, buckets), prefix)


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
    if fields.output_domain.mode == "declared":
        if given is not None:
            raise invalid(where, "declared keys need no delta: leave it out")
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
def reader(settings: Jobs) -> Callable[[Row], JobRequest]:
    """Read stored requests under the settings of a function.

    The reader raises a ``JobError`` if the settings no longer allow the request. They are not asked for a job
    that has begun to commit: its budget is returned, or its summary published, whatever a deployment has changed.
    """

    def read(row: Row) -> JobRequest:
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


def create(jobs: ReportJobs, job: str, request: Mapping[str, Any], now: float) -> bool:
    """Store a new job with a new secret; False if another job has this id.

    The client retries a call whose answer was lost. Then the row exists with the same secret.
    """
    secret = secrets.token_bytes(SECRET_BYTES)
    if jobs.create(job, request, int(now), secret):
        return True
    row = jobs.read(job)
    return row is not None and row.secret == secret


def publish_again(jobs: ReportJobs, row: Row, request: JobRequest, wanted: Publication, now: float) -> None:
    """Record a new place for the summary of a committed job. It costs no budget.

    Raises:
        NotPublishableError: the job has not committed, or its parts are gone.
    """
    if row.state is not State.COMMITTED:
        raise NotPublishableError(_why_not(row))
    if now >= row.values["committed_at"] + STAGED_KEPT:
        raise NotPublishableError("the parts of the summary were deleted after 30 days: create a new job, which spends")
    bucket, prefix = output_of(row, request)
    output = [wanted.bucket or bucket, wanted.prefix or prefix]
    if not jobs.move(row, State.COMMITTED, now, output=output, code="", message=""):
        raise NotPublishableError("the job is being published: ask getJob for its state")


def _why_not(row: Row) -> str:
    if row.state is not State.FINISHED:
        return "the job has not committed yet: wait until getJob shows it as FINISHED"
    if row.committed:
        return "the summary is published already: copy its objects"
    return "the job ended without a summary, see getJob: create a new job"
