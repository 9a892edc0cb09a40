"""What is left of a unit's budget, and what a job would meet. Both spend nothing and open no report."""

import json
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from io import BytesIO
from typing import Annotated, Any

from pydantic import BaseModel, Field

from kanon.http.answers import unknown_field
from kanon.reports.errors import Counter, JobError, ReportRefusedError
from kanon.reports.job import Amount, JobRequest, written
from kanon.reports.service.answers import PreflightAnswer, ShortUnit
from kanon.reports.service.bodies import invalid
from kanon.reports.shared_info import (
    ATTRIBUTION_APIS,
    DAY,
    END_OF_TIME,
    ReportSource,
    Rules,
    Unit,
    accept_clear,
    host_of,
    parse,
    source_of,
    units,
)
from kanon.reports.storage.budgets import BudgetsLeft, named_exhausted, rows_charged
from kanon.reports.storage.objects import ObjectStore, Stored, inputs

NO_REPORT = "00000000-0000-4000-8000-000000000000"
SIGNATURE = "X-Amz-"
"""How the names of a signature in the query begin."""
FIELDS = ("api", "version", "reporting_origin", "attribution_destination", "source_registration_time")
REFUSED = {
    Counter.UNSUPPORTED_SHAREDINFO_VERSION: ("version", "give 0.1 or 1.0"),
    Counter.UNSUPPORTED_REPORT_API_TYPE: ("api", "give the api of the reports, such as attribution-reporting"),
}
FORM = (
    "give api, version and reporting_origin as they stand in the reports, for attribution also attribution_destination"
    " and, if the reports have one, source_registration_time in unix seconds"
)


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


def check_names(sent: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a parameter that does not exist: the answer would be about another unit.

    Raises:
        RequestRefusedError: with the nearest known name.
    """
    names = list(known)
    for name in sent:
        if name and name not in names and not name.startswith(SIGNATURE):
            raise invalid("query", unknown_field(name, names))


def read_unit(query: Mapping[str, str]) -> Unit:
    """The unit of the first hour of the day that a query names.

    Raises:
        RequestRefusedError: with the first problem.
    """
    day = _day(query.get("day", ""))
    text = query.get("filtering_id") or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 1 << 64):
        raise invalid("filtering_id", "give a number below 2^64")
    (unit,) = units([_source(query, day * DAY)], [int(text)])
    return unit


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


def _source(query: Mapping[str, str], scheduled: int) -> ReportSource:
    """The clear fields, checked as those of a report are."""
    fields: dict[str, Any] = {name: query[name] for name in FIELDS if query.get(name)}
    text = json.dumps({**fields, "report_id": NO_REPORT, "scheduled_report_time": scheduled})
    try:
        info = parse(text)
    except ReportRefusedError as error:
        field, message = REFUSED.get(error.counter, ("reporting_origin", FORM))
        raise invalid(field, message) from None
    except JobError:
        raise invalid("version", "give 0.1 or 1.0") from None
    if host_of(info.reporting_origin) is None:
        raise invalid("reporting_origin", "give an https origin")
    if info.api not in ATTRIBUTION_APIS and len(fields) > 3:
        raise invalid("attribution_destination", "only reports of attribution have one: leave it out")
    return source_of(info)


def _day(text: str) -> int:
    """Days since 1970."""
    try:
        seconds = int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError:
        seconds = -1
    if not 0 <= seconds < END_OF_TIME:
        raise invalid("day", "give a day such as 2026-01-31, UTC") from None
    return seconds // DAY


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
    seen = _Seen(request, request.rules(received_at, {}))
    try:
        seen.read(bucket(request.input_bucket))
    except JobError as error:
        if error.code != "PERMISSION_ERROR":
            raise
        raise JobError(error.code, NOT_READABLE) from None
    if len(seen.sources) * len(request.filtering_ids) > MOST_UNITS:
        raise JobError("INVALID_JOB", f"the reports belong to more than {MOST_UNITS:,} units: {BY_PARTS}")
    charged = units(seen.sources, request.filtering_ids)
    rows = rows_charged(charged)
    short = named_exhausted(budgets, seen.sources, request.filtering_ids, request.amount, MOST_NAMED)
    parameters = request.parameters
    return PreflightAnswer(
        reports=seen.reports,
        accepted=seen.accepted,
        duplicates=seen.duplicates,
        left_out=seen.left_out,
        errors=dict(sorted(seen.errors.items())),
        units=len(charged),
        rows=rows,
        would_fail=[ShortUnit.model_validate(unit) for unit in short],
        standard_deviation=parameters.standard_deviation,
        threshold=parameters.threshold,
    )


def _objects(place: ObjectStore, request: JobRequest, received_at: int) -> list[Stored]:
    """The objects of all prefixes, each once, as the job would plan them."""
    found = inputs(place, request.input_prefixes, MOST_OBJECTS, request.report_to, request.hours_at(received_at))
    if sum(one.size for one in found) > MOST_BYTES:
        raise JobError("INVALID_JOB", f"the reports have more than {MOST_BYTES >> 20} MiB: {BY_PARTS}")
    return found


class _Seen:
    """The clear fields of the reports read so far."""

    def __init__(self, request: JobRequest, rules: Rules) -> None:
        self.request = request
        self.rules = rules
        self.reports = self.accepted = self.duplicates = self.left_out = 0
        self.errors: Tally[str] = Tally()
        self.ids: set[str] = set()
        self.sources: set[ReportSource] = set()

    def read(self, place: ObjectStore) -> None:
        from kanon.reports.avro import read_reports  # only a preflight reads files

        for one in _objects(place, self.request, self.rules.received_at):
            for report in read_reports(BytesIO(place.read(one.key, one.etag))):
                self._add(report.shared_info)

    def _add(self, shared_info: str) -> None:
        self.reports += 1
        if self.reports > MOST_REPORTS:
            raise JobError("INVALID_JOB", f"there are more than {MOST_REPORTS:,} reports: {BY_PARTS}")
        try:
            info = accept_clear(shared_info, self.rules, self.request.wanted)
        except ReportRefusedError as error:
            self.errors[error.counter] += 1
            return
        if info is None:
            self.left_out += 1
            return
        self.accepted += 1
        self.duplicates += info.report_id in self.ids
        self.ids.add(info.report_id)
        self.sources.add(source_of(info))
