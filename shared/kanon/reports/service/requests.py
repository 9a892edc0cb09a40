"""The body of createJob: the aggregation service's JSON, checked field by field.

Every error names the field and what to change. No message repeats a part of the request.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Literal

from kanon.http.answers import Problem, error_answer
from kanon.http.bodies import RequestError
from kanon.reports.account import HOUR, MAX_AGE, MAX_AHEAD, Wanted
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
from kanon.reports.shared_info import END_OF_TIME
from kanon.reports.storage.budgets import Amount

Reason = Literal["JSON_ERROR", "VALIDATION_FAILED", "ARGUMENT_MISSING"]

MOST_PREFIXES = 50
MOST_FILTERING_IDS = 64
MOST_DESTINATIONS = 100
DEFAULT_ERROR_THRESHOLD = "10"

_ID = re.compile(r"[ -{}~]{1,128}")
_PREFIX = re.compile(r"[^\x00-\x1f\x7f]+")
_PREFIX_BYTES = 900
"""A name in S3 has at most 1,024 bytes; the numbers of the parts follow the prefix."""
_COUNT = re.compile(r"[0-9]{1,12}")
_FALSE, _TRUE = "false", "true"


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
        mode: declared or discover.
        domain: the declared keys, None in discovery.
        epsilon: at most 3 decimals.
        delta: 0 if keys are declared.
        filtering_ids: ascending, each once.
        error_threshold: the largest percentage of reports in error.
        report_count: the expected number of reports, or None.
        destinations: the only attribution destinations, or None.
        hours: the only hours of ``scheduled_report_time``, since 1970, or None.
        skip_exhausted: leave out the reports of units that are short of budget, instead of refusing the job.
    """

    job: str
    input_bucket: str
    input_prefixes: tuple[str, ...]
    output_bucket: str
    output_prefix: str
    report_to: str | None
    reporting_site: str | None
    mode: Mode
    domain: Domain | None
    epsilon: Fraction
    delta: Fraction
    filtering_ids: tuple[int, ...]
    error_threshold: Fraction
    report_count: int | None
    destinations: tuple[str, ...] | None
    hours: range | None
    skip_exhausted: bool

    @property
    def parameters(self) -> Parameters:
        """The privacy parameters."""
        return Parameters(self.mode, self.epsilon, self.delta)

    @property
    def amount(self) -> Amount:
        """What the job takes from the budget of each unit."""
        return Amount.of(self.epsilon, self.delta)

    @property
    def wanted(self) -> Wanted:
        """Whose reports count."""
        return Wanted(None if self.destinations is None else frozenset(self.destinations), self.hours)

    def hours_at(self, received_at: int) -> range:
        """The hours of the reports that the job may accept, if it is received at this time."""
        first, last = (received_at - MAX_AGE) // HOUR, (received_at + MAX_AHEAD) // HOUR
        return range(first, last + 1) if self.hours is None else self.hours


def read_request(body: Any, delta_cap: Fraction, buckets: frozenset[str], epsilon_cap: Fraction) -> JobRequest:
    """Check a body of createJob.

    Args:
        body: parsed JSON.
        delta_cap: the most delta of a job.
        buckets: the buckets that jobs may name.
        epsilon_cap: the most epsilon of a job.

    Raises:
        RequestRefusedError: with the first problem.
    """
    fields = _body(body)
    parameters = _object(fields.get("job_parameters", {}), "job_parameters")
    prefixes = _prefixes(fields)
    report_to, site = (_optional(parameters, name) for name in ("attribution_report_to", "reporting_site"))
    if (report_to is None) == (site is None):
        raise invalid("job_parameters", "name exactly one of attribution_report_to and reporting_site")
    _no_debug_run(parameters)
    mode, domain = _domain(fields, parameters, buckets)
    epsilon, delta = _amounts(fields, parameters, mode, epsilon_cap, delta_cap)
    count = _optional(parameters, "input_report_count")
    if count is not None and not _COUNT.fullmatch(count):
        raise invalid("job_parameters.input_report_count", "give a whole number")
    return JobRequest(
        job=_id(fields),
        input_bucket=_bucket(fields, "input_data_bucket_name", buckets),
        input_prefixes=prefixes,
        output_bucket=_bucket(fields, "output_data_bucket_name", buckets),
        output_prefix=_prefix(fields, "output_data_blob_prefix"),
        report_to=report_to,
        reporting_site=site,
        mode=mode,
        domain=domain,
        epsilon=epsilon,
        delta=delta,
        filtering_ids=_filtering_ids(parameters),
        error_threshold=_threshold(parameters),
        report_count=None if count is None else int(count),
        destinations=_destinations(parameters),
        hours=_hours(parameters),
        skip_exhausted=_skip(fields),
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
    fields = _body(body)
    bucket, prefix = "output_data_bucket_name", "output_data_blob_prefix"
    return Publication(
        _id(fields),
        _bucket(fields, bucket, buckets) if fields.get(bucket) else None,
        _prefix(fields, prefix) if fields.get(prefix) else None,
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
    return _id({"job_request_id": text})


def _body(value: Any) -> Mapping[str, Any]:
    fields = _object(value, "body")
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestRefusedError("JSON_ERROR", "body", "a text holds half of a character (a lone surrogate)") from None
    return fields


def _object(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RequestRefusedError("JSON_ERROR", field, "give a JSON object")
    return value


def _ours(fields: Mapping[str, Any], name: str, *known: str, within: str = "") -> Mapping[str, Any]:
    """An object that only kanon has. The aggregation service ignores unknown fields, but a misspelt epsilon spends."""
    found = _object(fields.get(name, {}), within + name)
    if not found.keys() <= set(known):
        raise invalid(within + name, f"give only {' and '.join(known)} there")
    return found


def _text(fields: Mapping[str, Any], name: str, within: str = "") -> str:
    if fields.get(name) in (None, ""):
        raise RequestRefusedError("ARGUMENT_MISSING", within + name, "is missing")
    value = fields[name]
    if not isinstance(value, str):
        raise RequestRefusedError("JSON_ERROR", within + name, "give a text")
    return value


def _optional(parameters: Mapping[str, Any], name: str) -> str | None:
    """A parameter as text. As in the aggregation service it may be a number, which is read as its shortest decimal."""
    value = parameters.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return None if value in (None, "") else _text(parameters, name, "job_parameters.")


def _id(fields: Mapping[str, Any]) -> str:
    text = _text(fields, "job_request_id")
    if not _ID.fullmatch(text):
        raise invalid("job_request_id", "give 1 to 128 printable ASCII characters, without a bar")
    return text


def _bucket(fields: Mapping[str, Any], name: str, buckets: frozenset[str], within: str = "") -> str:
    text = _text(fields, name, within)
    if text not in buckets:
        raise invalid(within + name, "name a bucket of this stack, or one of the parameter ReportBuckets")
    return text


def _prefixes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    one, several = fields.get("input_data_blob_prefix"), fields.get("input_data_blob_prefixes")
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


_PREFIX_FORM = f"1 to {_PREFIX_BYTES} bytes without control characters"


def _is_prefix(text: str) -> bool:
    return _PREFIX.fullmatch(text) is not None and len(text.encode()) <= _PREFIX_BYTES


def _prefix(fields: Mapping[str, Any], name: str, within: str = "") -> str:
    text = _text(fields, name, within)
    if not _is_prefix(text):
        raise invalid(within + name, f"give {_PREFIX_FORM}")
    return text


def _no_debug_run(parameters: Mapping[str, Any]) -> None:
    if str(parameters.get("debug_run", _FALSE)).lower() != _FALSE:
        raise invalid(
            "job_parameters.debug_run",
            "no stack shows sums without noise: run `kanon reports aggregate --no-noise --debug` on your files",
        )


def _domain(
    fields: Mapping[str, Any], parameters: Mapping[str, Any], buckets: frozenset[str]
) -> tuple[Mode, Domain | None]:
    """The mode, and where the declared keys are."""
    asked = _ours(fields, "output_domain", "mode").get("mode", "declared")
    if asked == "kanon":
        raise invalid("output_domain.mode", "kanon is not built yet: use declared or discover")
    if asked not in ("declared", "discover"):
        raise invalid("output_domain.mode", "use declared or discover")
    names = ("output_domain_bucket_name", "output_domain_blob_prefix")
    given = [name for name in names if parameters.get(name) not in (None, "")]
    if asked == "discover":
        if given:
            raise invalid(f"job_parameters.{given[0]}", "discovery takes no declared keys: leave it out")
        return "discover", None
    bucket = _bucket(parameters, names[0], buckets, "job_parameters.")
    return "declared", Domain(bucket, _prefix(parameters, names[1], "job_parameters."))


def _amounts(
    fields: Mapping[str, Any], parameters: Mapping[str, Any], mode: Mode, epsilon_cap: Fraction, delta_cap: Fraction
) -> tuple[Fraction, Fraction]:
    """Epsilon and delta, exactly."""
    ours = _ours(fields, "privacy_params", "laplace_dp_params")
    ours = _ours(ours, "laplace_dp_params", "job_epsilon", "job_delta", within="privacy_params.")
    theirs = _optional(parameters, "debug_privacy_epsilon")
    where = "privacy_params.laplace_dp_params.job_epsilon"
    if theirs is not None:
        if "job_epsilon" in ours:
            raise invalid(where, "excludes debug_privacy_epsilon: give one of them")
        where = "job_parameters.debug_privacy_epsilon"
    epsilon = _decimal(theirs if theirs is not None else ours.get("job_epsilon", DEFAULT_EPSILON), where)
    most = min(Fraction(EPSILON_CAP), epsilon_cap)
    if not 0 < epsilon <= most or 1000 % epsilon.denominator:
        raise invalid(where, f"give a number above 0, at most {written(most)}, with at most 3 decimals")
    where = "privacy_params.laplace_dp_params.job_delta"
    if mode == "declared":
        if "job_delta" in ours:
            raise invalid(where, "declared keys need no delta: leave it out")
        return epsilon, Fraction(0)
    delta = _decimal(ours.get("job_delta", DEFAULT_DELTA), where)
    if not LEAST_DELTA <= delta <= delta_cap or 10**15 % delta.denominator or delta * 100 > epsilon:
        raise invalid(
            where, f"give 1e-12 up to {float(delta_cap):g} and a hundredth of epsilon, with at most 15 decimals"
        )
    return epsilon, delta


def _decimal(text: Any, where: str) -> Fraction:
    """A decimal text. A JSON number is refused, because it would be read as a float first."""
    try:
        return decimal(text if isinstance(text, str) else "", where)
    except ParameterError:
        raise invalid(where, 'give a decimal as a text, such as "10" or "1e-8"') from None


def _threshold(parameters: Mapping[str, Any]) -> Fraction:
    where = "job_parameters.report_error_threshold_percentage"
    text = _optional(parameters, "report_error_threshold_percentage")
    percent = _decimal(text if text is not None else DEFAULT_ERROR_THRESHOLD, where)
    if percent > 100:
        raise invalid(where, "give a percentage from 0 to 100")
    return percent


def _filtering_ids(parameters: Mapping[str, Any]) -> tuple[int, ...]:
    text = _optional(parameters, "filtering_ids")
    if text is None:
        return (0,)
    parts = [part.strip() for part in text.split(",")]
    if (
        not all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts)
        or len(set(parts)) > MOST_FILTERING_IDS
        or any(int(part) >> 64 for part in parts)
    ):
        raise invalid(
            "job_parameters.filtering_ids", f"give at most {MOST_FILTERING_IDS} numbers below 2^64, separated by commas"
        )
    return tuple(sorted({int(part) for part in parts}))


def _destinations(parameters: Mapping[str, Any]) -> tuple[str, ...] | None:
    text = _optional(parameters, "attribution_destinations")
    if text is None:
        return None
    parts = sorted({part.strip() for part in text.split(",")} - {""})
    if not 1 <= len(parts) <= MOST_DESTINATIONS:
        raise invalid(
            "job_parameters.attribution_destinations",
            f"give 1 to {MOST_DESTINATIONS} destinations, separated by commas",
        )
    return tuple(parts)


def _hours(parameters: Mapping[str, Any]) -> range | None:
    first, end = (_hour(parameters, name) for name in ("scheduled_from", "scheduled_before"))
    if first is None and end is None:
        return None
    hours = range(first or 0, END_OF_TIME // HOUR if end is None else end)
    if not hours:
        raise invalid("job_parameters.scheduled_before", "give an hour after scheduled_from")
    return hours


def _hour(parameters: Mapping[str, Any], name: str) -> int | None:
    """An hour since 1970."""
    text = _optional(parameters, name)
    if text is None:
        return None
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:00:00Z").replace(tzinfo=UTC)
    except ValueError:
        raise invalid(f"job_parameters.{name}", "give a full hour, such as 2026-01-31T00:00:00Z") from None
    return int(moment.timestamp()) // HOUR


def _skip(fields: Mapping[str, Any]) -> bool:
    value = fields.get("skip_exhausted", False)
    if isinstance(value, bool):
        return value
    if value in (_FALSE, _TRUE):
        return bool(value == _TRUE)
    raise RequestRefusedError("JSON_ERROR", "skip_exhausted", "give true or false")
