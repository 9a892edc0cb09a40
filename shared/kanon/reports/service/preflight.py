"""The reports and budgets that a job would meet, by clear fields alone. It opens no report and spends nothing.

Only the function ``jobs`` imports this, at the first preflight: it needs the readers of Avro files and public suffixes.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO

from kanon.reports import object_names
from kanon.reports.acceptance import Rules, accept_clear
from kanon.reports.account import Source, source_of, units
from kanon.reports.avro import Report, read_reports
from kanon.reports.errors import JobError, RefusedError
from kanon.reports.job import JobRequest
from kanon.reports.service.answers import PreflightAnswer
from kanon.reports.service.committing import named_exhausted
from kanon.reports.storage.budgets import Budgets, rows_charged
from kanon.reports.storage.objects import Objects, Stored, inputs

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


def preflight(
    request: JobRequest, bucket: Callable[[str], Objects], budgets: Budgets, received_at: int
) -> PreflightAnswer:
    """Read the clear fields of a job's reports and compare its budget with what is left.

    Raises:
        JobError: the input is too large for one answer, or cannot be read; the message says what to change.
    """
    seen = _Seen(request, request.rules(received_at, None))
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
        would_fail=short,
        standard_deviation=parameters.standard_deviation,
        threshold=parameters.threshold,
    )


def _objects(place: Objects, request: JobRequest, received_at: int) -> list[Stored]:
    """The objects of all prefixes, each once, as the job would plan them."""
    may_hold = partial(object_names.may_hold, report_to=request.report_to, hours=request.hours_at(received_at))
    found = inputs(place, request.input_prefixes, MOST_OBJECTS, may_hold)
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
        self.sources: set[Source] = set()

    def read(self, place: Objects) -> None:
        for one in _objects(place, self.request, self.rules.received_at):
            self.add(read_reports(BytesIO(place.read(one.key, one.etag))))

    def add(self, reports: Iterable[Report]) -> None:
        for report in reports:
            self.reports += 1
            if self.reports > MOST_REPORTS:
                raise JobError("INVALID_JOB", f"there are more than {MOST_REPORTS:,} reports: {BY_PARTS}")
            self._add(report)

    def _add(self, report: Report) -> None:
        try:
            info = accept_clear(report.shared_info, self.rules, self.request.wanted)
        except RefusedError as error:
            self.errors[error.counter] += 1
            return
        if info is None:
            self.left_out += 1
            return
        self.accepted += 1
        self.duplicates += info.report_id in self.ids
        self.ids.add(info.report_id)
        self.sources.add(source_of(info))
