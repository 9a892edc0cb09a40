"""The answers of the function ``jobs``, in the aggregation service's JSON; ``privacy`` and budgets are ours.

Every number of a budget is an exact decimal text. What is left of a unit's budget, and what a job would meet, is read
without spending anything or opening a report.
"""

import re
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from io import BytesIO
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from kanon.http.answers import ErrorAnswer, Problem, error_answer
from kanon.http.bodies import Bodies
from kanon.noise.bound import Bound
from kanon.noise.exact import exp_bounds, written_up
from kanon.reports.errors import NOT_WRITTEN, Counter, JobError, ReportRefusedError
from kanon.reports.job import (
    Amount,
    JobRequest,
    Mode,
    PrivacyParameters,
    of_all,
    of_both,
    of_job,
    rounded_up,
    with_gate,
    written,
)
from kanon.reports.shared_info import CONTRIBUTION_BOUND, Clear, Unit, accept_clear, moment, units
from kanon.reports.storage.budgets import BudgetsLeft, named_exhausted, rows_charged
from kanon.reports.storage.objects import ObjectStore, Stored, inputs
from kanon.reports.storage.report_jobs import JobRow, ReleasedKeys, State, output_of

DOMAIN = "kanon"
CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 413: 3, 429: 8, 500: 13, 503: 14}
"""The number of an error (google.rpc.Code) by its HTTP status."""
REASONS = frozenset(
    {"JSON_ERROR", "VALIDATION_FAILED", "ARGUMENT_MISSING", "DUPLICATE_JOB_KEY", "JOB_NOT_FOUND", "SERVER_ERROR"}
)
UNIT = "one source, or one device in one window of 600 seconds"
SUCCEEDED = "the summary is written"
ALL_ERRORS = "NUM_REPORTS_WITH_ERRORS"

Deviation = Annotated[float, Field(description="Of the noise of one key")]
Threshold = Annotated[int | None, Field(description="A key is shown if its noisy sum is above; discover only")]


# Errors


class ErrorDetail(BaseModel):
    """The invalid field and its problem."""

    reason: str
    domain: str = DOMAIN
    metadata: dict[str, str]


class JobsError(BaseModel):
    """Why a request was refused and what to change."""

    code: int
    message: str
    status: str
    details: list[ErrorDetail]


class JobsErrorAnswer(BaseModel):
    """An error in the form of the aggregation service."""

    error: JobsError


def jobs_form(answer: ErrorAnswer) -> BaseModel:
    """An error in the form of the aggregation service."""
    error = answer.error
    details = [ErrorDetail(reason=_reason(problem), metadata={"field": problem.field}) for problem in error.details]
    if error.code >= 500:
        details = [ErrorDetail(reason="SERVER_ERROR", metadata={})]
    status = "INVALID_ARGUMENT" if CODES[error.code] == CODES[400] else error.status
    return JobsErrorAnswer(
        error=JobsError(code=CODES[error.code], message=error.message, status=status, details=details)
    )


def _reason(problem: Problem) -> str:
    """The reason of a problem. A body that cannot be read has a sentence instead."""
    return problem.reason if problem.reason in REASONS else "JSON_ERROR"


def refusal(code: int, reason: str, field: str, message: str) -> ErrorAnswer:
    """The error of a refused request."""
    return error_answer(code, message, Problem(field=field, reason=reason))


def bad_input(message: str) -> ErrorAnswer:
    """The error of a request whose input cannot be read."""
    return refusal(400, "VALIDATION_FAILED", "body", message)


JOB_BODIES = Bodies(64 << 10, re.compile(".*", re.DOTALL), "name fewer or shorter prefixes")
"""A job is stored as it was sent, in one item. The aggregation service reads any content type as JSON."""
DUPLICATE = refusal(
    409, "DUPLICATE_JOB_KEY", "job_request_id", "there is a job with this job_request_id: choose another one"
)
NO_SUCH_JOB = refusal(404, "JOB_NOT_FOUND", "job_request_id", "there is no job with this job_request_id")


# createJob, jobs:publish and jobs:preflight


class AcceptedAnswer(BaseModel):
    """An empty object: the request is accepted."""


class BudgetFields(BaseModel):
    """The clear fields of the reports of a unit, as the aggregation service writes them."""

    api: str
    attribution_destination: str | None = None
    reporting_origin: str
    scheduled_report_time: float
    source_registration_time: int | None = None
    version: str


class BudgetId(BaseModel):
    """A unit of budget."""

    filtering_id: int
    relevant_shared_info: BudgetFields


class ShortUnit(BaseModel):
    """A unit with less budget left than the job asks for, and the jobs that took from it."""

    aggregateable_input_budget_id: BudgetId
    epsilon_left: str
    delta_left: str
    jobs: list[str]


class PreflightAnswer(BaseModel):
    """The reports and budgets that a job would meet now, by clear fields alone."""

    reports: Annotated[int, Field(description="In the files")]
    accepted: Annotated[int, Field(description="Whose clear fields a job accepts")]
    duplicates: Annotated[int, Field(description="Accepted ones whose report_id was there before")]
    left_out: Annotated[int, Field(description="Of other origins, destinations or hours than those of the job")]
    errors: Annotated[dict[str, int], Field(description="How many are not accepted, by reason")]
    units: Annotated[int, Field(description="Units whose budget the job would spend")]
    rows: Annotated[int, Field(description="Rows of the budget table they stand in")]
    would_fail: Annotated[
        list[ShortUnit], Field(description="Units with less left than the job asks for; the first 100")
    ]
    standard_deviation: Deviation
    threshold: Threshold = None


# getJob


class ErrorCount(BaseModel):
    """The number of reports left out for one reason. NUM_REPORTS_WITH_ERRORS counts all, and comes last."""

    category: str
    count: int


class ErrorSummary(BaseModel):
    """Which reports were left out."""

    error_counts: list[ErrorCount]
    error_messages: list[str]


class ResultInfo(BaseModel):
    """How a job ended."""

    return_code: str
    return_message: str
    error_summary: ErrorSummary
    finished_at: str


class ReleasedList(BaseModel):
    """The list of the gate whose values are the keys, and the guarantee for a unit that also caused one join."""

    type: str
    step: int
    keys: int
    join_epsilon: Annotated[str, Field(description="Of the gate, for one join")]
    join_delta: Annotated[str, Field(description="The same if the step of the join may depend on a year of answers")]
    sum_epsilon: Annotated[str, Field(description="Of this summary and the gate together")]
    sum_delta: str


class Privacy(BaseModel):
    """The guarantee of a job's summary, and that of all summaries of the stack together."""

    unit: str
    epsilon: str
    delta: str
    contribution_bound: int
    mode: Mode
    threshold: Threshold = None
    standard_deviation: Deviation
    rows_charged: Annotated[int, Field(description="Rows of the budget table; 0 until the job has spent")]
    epsilon_cap: str
    delta_cap: str
    e_epsilon_cap: Annotated[str, Field(description="e to the power of epsilon_cap, rounded up")]
    this_summary: list[str]
    all_summaries: list[str]
    released_keys: ReleasedList | None = None


class JobAnswer(BaseModel):
    """A job. ``request_processing_started_at`` is there once it is planned, ``result_info`` once it is finished."""

    job_status: Literal["RECEIVED", "IN_PROGRESS", "FINISHED"]
    request_received_at: str
    request_processing_started_at: str | None = None
    request_updated_at: str
    job_request_id: str
    input_data_bucket_name: str
    input_data_blob_prefix: str | None = None
    input_data_blob_prefixes: list[str] | None = None
    output_data_bucket_name: str
    output_data_blob_prefix: str
    job_parameters: dict[str, str]
    result_info: ResultInfo | None = None
    privacy: Privacy


def job_answer(row: JobRow, request: JobRequest, epsilon_cap: Fraction, delta_cap: Fraction) -> JobAnswer:
    """The answer of getJob."""
    result, begun = _result(row), row.state is not State.RECEIVED
    bucket, prefix = output_of(row, request)
    one = row.request.get("input_data_blob_prefix")
    return JobAnswer(
        job_status="FINISHED" if result is not None else "IN_PROGRESS" if begun else "RECEIVED",
        request_received_at=moment(row.received_at),
        request_processing_started_at=moment(row.values["started"]) if "started" in row.values else None,
        request_updated_at=moment(row.updated_at),
        job_request_id=row.job,
        input_data_bucket_name=request.input_bucket,
        input_data_blob_prefix=one or None,
        input_data_blob_prefixes=None if one else list(request.input_prefixes),
        output_data_bucket_name=bucket,
        output_data_blob_prefix=prefix,
        job_parameters={name: _text(value) for name, value in row.request.get("job_parameters", {}).items()},
        result_info=result,
        privacy=privacy_of(row, request, epsilon_cap, delta_cap),
    )


def privacy_of(row: JobRow, request: JobRequest, epsilon_cap: Fraction, delta_cap: Fraction) -> Privacy:
    """The guarantee of a job with its numbers, and its spent budget."""
    parameters, released = request.parameters, ReleasedKeys.of(row)
    this_summary, all_summaries = of_job(parameters), of_all(epsilon_cap, delta_cap)
    if released is not None:
        this_summary += of_both("this summary", Bound(parameters.epsilon, parameters.delta), released.join)
        all_summaries += of_both("all summaries", Bound(epsilon_cap, delta_cap), released.join)
    return Privacy(
        unit=UNIT,
        epsilon=written(parameters.epsilon),
        delta=written(parameters.delta),
        contribution_bound=CONTRIBUTION_BOUND,
        mode=request.mode,
        threshold=parameters.threshold,
        standard_deviation=parameters.standard_deviation,
        rows_charged=row.values["counters"]["rows"] if row.committed else 0,
        epsilon_cap=written(epsilon_cap),
        delta_cap=written(delta_cap),
        e_epsilon_cap=f"{float(written_up(exp_bounds(epsilon_cap)[1], 6)):g}",
        this_summary=this_summary,
        all_summaries=all_summaries,
        released_keys=None if released is None else _released_list(released, parameters),
    )


def _released_list(released: ReleasedKeys, parameters: PrivacyParameters) -> ReleasedList:
    both = with_gate(Bound(parameters.epsilon, parameters.delta), released.join)
    return ReleasedList(
        type=released.type_name,
        step=released.step,
        keys=released.count,
        join_epsilon=rounded_up(released.join.epsilon),
        join_delta=rounded_up(released.join.delta),
        sum_epsilon=rounded_up(both.epsilon),
        sum_delta=rounded_up(both.delta),
    )


def _result(row: JobRow) -> ResultInfo | None:
    """How the job ended; None before. A summary that could not be written leaves the job open for jobs:publish."""
    code = row.values.get("code")
    if row.state is not State.FINISHED and not (row.state is State.COMMITTED and code == NOT_WRITTEN):
        return None
    return ResultInfo(
        return_code=code or "INTERNAL_ERROR",
        return_message=row.values.get("message") or SUCCEEDED,
        error_summary=ErrorSummary(error_counts=_error_counts(row), error_messages=[]),
        finished_at=moment(row.updated_at),
    )


def _error_counts(row: JobRow) -> list[ErrorCount]:
    errors: dict[str, int] = row.values.get("counters", {}).get("errors", {})
    counts = [ErrorCount(category=category, count=count) for category, count in sorted(errors.items())]
    return [*counts, ErrorCount(category=ALL_ERRORS, count=sum(errors.values()))] if errors else []


def _text(value: Any) -> str:
    """A parameter as text, as in the aggregation service."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


# ----------------------------------------------------------------------------------------------------- budgets
class HourAnswer(BaseModel):
    """The budget left in one hour of the day, UTC."""

    hour: int
    epsilon_left: str
    delta_left: str


class SpentAnswer(BaseModel):
    """The budget that one job took from each of these hours. A job that has not ended yet may give it back."""

    job_request_id: str
    hours: list[int]
    epsilon: str
    delta: str


class BudgetAnswer(BaseModel):
    """The budget of one day."""

    day: str
    epsilon_cap: str
    delta_cap: str
    charged: Annotated[
        bool, Field(description="Whether a job has ever taken from this unit. If not, check how the fields are spelt")
    ]
    hours: list[HourAnswer]
    jobs: list[SpentAnswer]


def budget_answer(budgets: BudgetsLeft, unit: Unit) -> BudgetAnswer:
    """The budget left in each hour of the unit's day, and the jobs that took from it. It spends nothing."""
    left, taken = budgets.left([unit.row])[unit.row], list(budgets.taken(unit.row))
    hours = [(hour, left.get(hour, budgets.cap)) for hour in range(24)]
    return BudgetAnswer(
        day=datetime.fromtimestamp(unit.hour * 3600, UTC).strftime("%Y-%m-%d"),
        epsilon_cap=_epsilon(budgets.cap),
        delta_cap=_delta(budgets.cap),
        charged=bool(taken),
        hours=[HourAnswer(hour=hour, epsilon_left=_epsilon(has), delta_left=_delta(has)) for hour, has in hours],
        jobs=[
            SpentAnswer(job_request_id=job, hours=list(of), epsilon=_epsilon(took), delta=_delta(took))
            for job, of, took in taken
        ],
    )


def _epsilon(amount: Amount) -> str:
    return written(amount.exact[0])


def _delta(amount: Amount) -> str:
    return written(amount.exact[1])


MOST_REPORTS = 20_000
MOST_BYTES = 32 << 20
MOST_OBJECTS = 500
MOST_UNITS = 200_000
MOST_NAMED = 100
NOT_READABLE = (
    "preflight may not read the bucket or an object of the input: it reads the bucket of reports and the buckets of the"
    " parameter ReportBuckets; only jobs read the bucket of summaries"
)
BY_PARTS = "use longer prefixes, one part at a time; a job may take them all"


def preflight_answer(
    request: JobRequest, bucket: Callable[[str], ObjectStore], budgets: BudgetsLeft, received_at: int
) -> PreflightAnswer:
    """Read the clear fields of a job's reports and compare its budget with what is left.

    Raises:
        JobError: the input is too large for one answer, or cannot be read; the message says what to change.
    """
    try:
        seen = list(_clear(bucket(request.input_bucket), request, received_at))
    except JobError as error:
        if error.code != "PERMISSION_ERROR":
            raise
        raise JobError(error.code, NOT_READABLE) from None
    accepted = [found for found in seen if isinstance(found, tuple)]
    sources = {source for _, source in accepted}
    if len(sources) * len(request.filtering_ids) > MOST_UNITS:
        raise JobError("INVALID_JOB", f"the reports belong to more than {MOST_UNITS:,} units: {BY_PARTS}")
    charged = units(sources, request.filtering_ids)
    rows = rows_charged(charged)
    short = named_exhausted(budgets, sources, request.filtering_ids, request.amount, MOST_NAMED)
    parameters = request.parameters
    return PreflightAnswer(
        reports=len(seen),
        accepted=len(accepted),
        duplicates=len(accepted) - len({report_id for report_id, _ in accepted}),
        left_out=seen.count(None),
        errors=dict(sorted(Tally(one for one in seen if isinstance(one, Counter)).items())),
        units=len(charged),
        rows=rows,
        would_fail=[ShortUnit.model_validate(unit) for unit in short],
        standard_deviation=parameters.standard_deviation,
        threshold=parameters.threshold,
    )


def _objects(place: ObjectStore, request: JobRequest, received_at: int) -> list[Stored]:
    """The objects of all prefixes, each once, as the job would plan them."""
    found = inputs(place, request, received_at, MOST_OBJECTS)
    if sum(one.size for one in found) > MOST_BYTES:
        raise JobError("INVALID_JOB", f"the reports have more than {MOST_BYTES >> 20} MiB: {BY_PARTS}")
    return found


def _clear(place: ObjectStore, request: JobRequest, received_at: int) -> Iterator[Clear | Counter | None]:
    """The id and the source of each report that is accepted, the error of one that is not; None for one left out."""
    from kanon.reports.avro import read_reports  # only a preflight reads files

    rules = request.rules(received_at, {})
    files = (place.read(one.key, one.etag) for one in _objects(place, request, received_at))
    for number, report in enumerate(chain.from_iterable(read_reports(BytesIO(file)) for file in files)):
        if number >= MOST_REPORTS:
            raise JobError("INVALID_JOB", f"there are more than {MOST_REPORTS:,} reports: {BY_PARTS}")
        try:
            yield accept_clear(report.shared_info, rules)
        except ReportRefusedError as error:
            yield error.counter
