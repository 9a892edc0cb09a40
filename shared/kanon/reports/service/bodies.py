"""From request bodies to jobs: the aggregation service's JSON as models, then what depends on several fields.

The models also describe the bodies of createJob, jobs:preflight and jobs:publish for OpenAPI. Every error names the
field and what to change. No message repeats a part of the request.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from aws_lambda_powertools.event_handler.openapi.params import Body as InBody
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from kanon.errors import reason
from kanon.http.answers import STORED, Body, Problem, error_answer
from kanon.http.bodies import RequestError
from kanon.reports.errors import JobError
from kanon.reports.job import (
    DEFAULT_DELTA,
    DEFAULT_EPSILON,
    DEFAULT_ERROR_THRESHOLD,
    EPSILON_CAP,
    LEAST_DELTA,
    Domain,
    JobRequest,
    Mode,
    ParameterError,
    PrivacyParameters,
    decimal,
    written,
)
from kanon.reports.settings import Jobs
from kanon.reports.shared_info import END_OF_TIME, HOUR
from kanon.reports.storage.report_jobs import BEFORE_COMMIT, JobRow

RefusalReason = Literal["JSON_ERROR", "VALIDATION_FAILED", "ARGUMENT_MISSING"]

MOST_PREFIXES = 50
MOST_FILTERING_IDS = 64
MOST_DESTINATIONS = 100

_ID = re.compile(r"[ -{}~]{1,128}")
_PREFIX = re.compile(r"[^\x00-\x1f\x7f]+")
_PREFIX_BYTES = 900
"""A name in S3 has at most 1,024 bytes; the numbers of the parts follow the prefix."""
PREFIX_FORM = f"1 to {_PREFIX_BYTES} bytes without control characters"
_COUNT = re.compile(r"[0-9]{1,12}")
LISTED_TYPE = "output_domain.type"


class RequestRefusedError(RequestError):
    """A request that cannot be a job. It is answered 400, with a reason of the aggregation service's list."""

    def __init__(self, reason: RefusalReason, field: str, message: str) -> None:
        super().__init__(error_answer(400, f"{field}: {message}", Problem(field=field, reason=reason)))
        self.field = field


def invalid(field: str, message: str) -> RequestRefusedError:
    """The error for a field that is there, with a value that a job cannot have."""
    return RequestRefusedError("VALIDATION_FAILED", field, message)


# The form of each field. Null and an empty text mean that a field is left out, as in the aggregation service.


def _wrong(message: str, reason: RefusalReason = "VALIDATION_FAILED") -> PydanticCustomError:
    return PydanticCustomError(reason, message)


def _id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise _wrong("give 1 to 128 printable ASCII characters, without a bar")
    return text


def is_prefix(text: str) -> bool:
    """Whether the names of objects may begin with a text."""
    return _PREFIX.fullmatch(text) is not None and len(text.encode()) <= _PREFIX_BYTES


def _prefix(text: str) -> str:
    if not is_prefix(text):
        raise _wrong(f"give {PREFIX_FORM}")
    return text


def _unless_empty(value: Any) -> Any:
    return None if value == "" else value


def _in_text(value: Any) -> Any:
    """A parameter as text. As in the aggregation service it may be a number, which is read as its shortest decimal."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else _unless_empty(value)


def _decimal(value: Any) -> Fraction:
    """A decimal text. A JSON number is refused, because it would be read as a float first."""
    try:
        return decimal(value if isinstance(value, str) else "", "")
    except ParameterError:
        raise _wrong('give a decimal as a text, such as "10" or "1e-8"') from None


def _percentage(text: str) -> Fraction:
    percent = _decimal(text)
    if percent > 100:
        raise _wrong("give a percentage from 0 to 100")
    return percent


def _count(text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise _wrong("give a whole number")
    return int(text)


def is_filtering_id(text: str) -> bool:
    """Whether a text is a number below 2^64."""
    return text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 1 << 64


def _filtering_ids(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(map(is_filtering_id, parts)) or len(set(parts)) > MOST_FILTERING_IDS:
        raise _wrong(f"give at most {MOST_FILTERING_IDS} numbers below 2^64, separated by commas")
    return tuple(sorted({int(part) for part in parts}))


def _destinations(text: str) -> frozenset[str]:
    parts = frozenset(part.strip() for part in text.split(",")) - {""}
    if not 1 <= len(parts) <= MOST_DESTINATIONS:
        raise _wrong(f"give 1 to {MOST_DESTINATIONS} destinations, separated by commas")
    return parts


def _hour(text: str) -> int:
    """An hour since 1970."""
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


def _mode(value: Any) -> Any:
    if value not in get_args(Mode):
        raise _wrong("use declared, discover or kanon")
    return value


def _skip(value: Any) -> Any:
    if value in ("false", "true"):
        return value == "true"
    if not isinstance(value, bool):
        raise _wrong("give true or false", "JSON_ERROR")
    return value


# The bodies

AS_TEXT = WithJsonSchema({"type": "string"})
"""What stands in JSON for a value that is read from a text, or left out."""

Text = Annotated[StrictStr, Field(min_length=1)]
Prefix = Annotated[Text, AfterValidator(_prefix)]
JOB_ID: JsonDict = {"pattern": f"^{_ID.pattern}$"}
JobId = Annotated[
    Text,
    AfterValidator(_id),
    Field(description="1 to 128 printable ASCII characters, no bar", json_schema_extra=JOB_ID),
]
OptionalText = Annotated[StrictStr | None, BeforeValidator(_unless_empty), AS_TEXT]
OptionalPrefix = Annotated[Prefix | None, BeforeValidator(_unless_empty), AS_TEXT]
Parameter = Annotated[StrictStr | None, BeforeValidator(_in_text), AS_TEXT]


def _read_by(read: Callable[[str], Any], if_left_out: Any = None) -> PlainValidator:
    """Read the text of a parameter."""

    def value_of(value: Any) -> Any:
        text = _in_text(value)
        if text is not None and not isinstance(text, str):
            raise _wrong("give a text", "JSON_ERROR")
        return if_left_out if text is None else read(text)

    return PlainValidator(value_of)


Epsilon = Annotated[Fraction | None, _read_by(_decimal), AS_TEXT]
Percentage = Annotated[Fraction | None, _read_by(_percentage), AS_TEXT]
Count = Annotated[int | None, _read_by(_count), AS_TEXT]
FilteringIds = Annotated[tuple[int, ...], _read_by(_filtering_ids, (0,)), AS_TEXT]
Destinations = Annotated[frozenset[str] | None, _read_by(_destinations), AS_TEXT]
Hour = Annotated[int | None, _read_by(_hour), AS_TEXT]
Decimal = Annotated[Fraction | None, PlainValidator(_decimal), AS_TEXT]
OnlyFalse = Annotated[None, PlainValidator(_no_debug_run), AS_TEXT]
KeyMode = Annotated[Mode, BeforeValidator(_mode)]
Skip = Annotated[bool, BeforeValidator(_skip)]
Prefixes = Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "string"}, "maxItems": MOST_PREFIXES})]
AnyText = Annotated[Any, AS_TEXT]


class JobFields(Body):
    """A part of a body, with the aggregation service's names."""

    model_config = ConfigDict(alias_generator=None)


class JobParameters(JobFields):
    """Texts. Exactly one of attribution_report_to and reporting_site."""

    attribution_report_to: Parameter = Field(None, description="The only reporting origin")
    reporting_site: Parameter = Field(
        None, description="The only site of reporting origins, such as https://example.com"
    )
    output_domain_bucket_name: OptionalText = Field(None, description="Where the declared keys are; only for them")
    output_domain_blob_prefix: OptionalPrefix = Field(None, description="Their name, or what the names begin with")
    debug_privacy_epsilon: Epsilon = Field(
        None, description=f"Above 0, at most EpsilonCap, at most 3 decimals; {DEFAULT_EPSILON} if left out"
    )
    report_error_threshold_percentage: Percentage = Field(
        None,
        description=f"0 to 100; if left out {DEFAULT_ERROR_THRESHOLD}, but no limit for the bucket of the collector",
    )
    input_report_count: Count = Field(None, description="A whole number")
    filtering_ids: FilteringIds = Field(
        default_factory=lambda: (0,),
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

    mode: KeyMode = Field("declared", description="kanon: the values of a listed type")
    type: OptionalText = Field(None, description="The listed type; for kanon only")


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
    postback_url: OptionalText = Field(
        None, description="Ignored: the aggregation service has it, and nobody is called. Ask getJob"
    )
    account_identity: OptionalText = Field(
        None, description="Ignored: the aggregation service has it. Here the signature names the caller"
    )


class PublicationBody(JobFields):
    """What to publish, and where; by default at the place of the job."""

    job_request_id: JobId
    output_data_bucket_name: OptionalText = Field(None, description="Where the summary goes")
    output_data_blob_prefix: OptionalPrefix = Field(None, description="The name of the summary")


def _described(model: type[JobFields], description: str) -> Any:
    return InBody(title=model.__name__, description=description, json_schema_extra=model.model_json_schema())


JobInBody = Annotated[dict[str, Any], _described(JobBody, "A job")]
PublicationInBody = Annotated[dict[str, Any], _described(PublicationBody, "What to publish")]
"""For OpenAPI. A job is stored as it was sent, so the function itself calls :func:`read_request`."""


_Fields = TypeVar("_Fields", bound=JobFields)


def read_body(model: type[_Fields], body: Any, *, stored: bool = False) -> _Fields:
    """Read a body. In a ``stored`` one, unknown fields are ignored: earlier versions accepted them.

    Raises:
        RequestRefusedError: with the first problem.
    """
    try:
        json.dumps(body, ensure_ascii=False).encode()
        return model.model_validate(body, context=STORED if stored else None)
    except RecursionError:
        raise RequestRefusedError("JSON_ERROR", "body", "it is nested too deeply") from None
    except UnicodeEncodeError:
        raise RequestRefusedError("JSON_ERROR", "body", "a text holds half of a character (a lone surrogate)") from None
    except ValidationError as error:
        raise _first(error) from None


def _first(error: ValidationError) -> RequestRefusedError:
    """The first problem, with the aggregation service's reason."""
    problem = error.errors(include_url=False)[0]
    where = ".".join(map(str, problem["loc"])) or "body"
    match problem["type"]:
        case "string_type" | "string_too_short" if problem["input"] in (None, ""):
            return RequestRefusedError("ARGUMENT_MISSING", where, "is missing")
        case "string_type":
            return RequestRefusedError("JSON_ERROR", where, "give a text")
        case "missing":
            return RequestRefusedError("ARGUMENT_MISSING", where, "is missing")
        case "model_type":
            return RequestRefusedError("JSON_ERROR", where, "give a JSON object")
        case "JSON_ERROR":
            return RequestRefusedError("JSON_ERROR", where, problem["msg"])
    return invalid(where, reason(problem))


# ---------------------------------------------------------------- what depends on several fields, or on the stack
def read_request(
    body: Any, delta_cap: Fraction, buckets: frozenset[str], epsilon_cap: Fraction, *, stored: bool = False
) -> JobRequest:
    """Check a body of createJob, which may name these buckets. For a ``stored`` one see :func:`read_body`.

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
def read_stored(row: JobRow) -> JobRequest:
    """The request of a job. Its buckets may no longer be listed.

    Raises:
        RuntimeError: it was accepted once and is refused now: not an error of the caller.
    """
    try:
        return read_request(row.request, Fraction(1), named_buckets(row.request), Fraction(EPSILON_CAP), stored=True)
    except RequestRefusedError as error:
        raise RuntimeError("a stored request is no longer valid") from error


def reader(settings: Jobs) -> Callable[[JobRow], JobRequest]:
    """Read stored requests under the settings of a function.

    The reader raises a ``JobError`` if the settings no longer allow the request. They are not asked for a job
    that has begun to commit: its budget is returned, or its summary published, whatever a deployment has changed.
    """

    def read(row: JobRow) -> JobRequest:
        if row.state not in BEFORE_COMMIT:
            return read_stored(row)
        try:
            return read_request(row.request, settings.delta_cap, settings.buckets, settings.epsilon_cap, stored=True)
        except RequestRefusedError as error:
            message = f"{error.field} is no longer allowed: put it back into the parameters of the stack"
            raise JobError("INVALID_JOB", message) from None

    return read
