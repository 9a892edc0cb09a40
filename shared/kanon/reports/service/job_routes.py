"""The HTTP routes of jobs: they create jobs, and tell their state and what is left of budgets.

They read no secret, and no sum of any report.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import BaseModel
from pydantic.config import JsonDict

from kanon import clock
from kanon.http.answers import unknown_field
from kanon.http.bodies import RequestError
from kanon.http.edge import SIGNED, described
from kanon.noise.bound import Bound
from kanon.reports.errors import Counter, JobError, ReportRefusedError
from kanon.reports.job import MOST_KEYS, JobRequest
from kanon.reports.service.answers import (
    DUPLICATE,
    NO_SUCH_JOB,
    AcceptedAnswer,
    BudgetAnswer,
    JobAnswer,
    JobsErrorAnswer,
    PreflightAnswer,
    bad_input,
    budget_answer,
    job_answer,
    preflight_answer,
    refusal,
)
from kanon.reports.service.bodies import (
    JOB_ID,
    LISTED_TYPE,
    JobInBody,
    PublicationBody,
    PublicationInBody,
    check_output,
    invalid,
    is_filtering_id,
    read_job_id,
    read_publication,
    read_request,
    read_stored,
)
from kanon.reports.settings import Jobs
from kanon.reports.shared_info import (
    ATTRIBUTION_APIS,
    DAY,
    END_OF_TIME,
    ReportSource,
    Unit,
    host_of,
    parse,
    source_of,
    units,
)
from kanon.reports.storage.budgets import BudgetsLeft
from kanon.reports.storage.objects import ObjectStore
from kanon.reports.storage.report_jobs import STAGED_KEPT, JobRow, JobsTable, ReleasedKeys, State, output_of

NOT_EMPTY: JsonDict = {"minLength": 1}
"""In OpenAPI such a parameter is required. Here the handler says that it is missing, in the form of its errors."""


def answers(model: type[BaseModel], *codes: int, answer: str, success: int = 200) -> dict[int, Any]:
    """The OpenAPI responses of a route."""
    found = described(answer, *codes, 401, 403, 503, success=success, errors=JobsErrorAnswer)
    found[success]["content"] = {"application/json": {"model": model}}
    return found


def answered(answer: BaseModel) -> Response[str]:
    """An answer without its empty fields."""
    return Response(200, "application/json", answer.model_dump_json(exclude_none=True), {"Cache-Control": "no-store"})


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


@dataclass(frozen=True)
class KeyLists:
    """The published lists of a deployment as keys of jobs.

    Attributes:
        joins: the listed types, each with the gate's bound for one join.
        kept: keeps the keys of a type's list in the work folder of a job, and returns their name; "" for a list that
            the plan reads.
    """

    joins: Mapping[str, Bound]
    newest: Callable[[str], ListOf | None]
    kept: Callable[[str, str, ListOf], str] = lambda *_: ""

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


NO_LISTS = KeyLists({}, lambda _: None)


@dataclass(frozen=True)
class JobRoutes:
    """The routes of jobs.

    Attributes:
        settings: which buckets jobs may name, and the caps.
        budgets: provides the budgets, which these routes only read.
        wake: starts a job. Without it the job starts at the next sweep.
    """

    settings: Jobs
    jobs: Callable[[], JobsTable]
    budgets: Callable[[], BudgetsLeft]
    bucket: Callable[[str], ObjectStore]
    wake: Callable[[str], None]
    lists: Callable[[], KeyLists] = lambda: NO_LISTS

    def add_to(self, app: APIGatewayHttpResolver) -> None:
        """Let a resolver answer these routes."""
        for add, path, route, name, summary, responses in (
            (app.post, "/v1alpha/createJob", self.create_job, "createJob", "Create a job",
             answers(AcceptedAnswer, 400, 409, 413, answer="The job is stored, and will run", success=202)),
            (app.get, "/v1alpha/getJob", self.get_job, "getJob", "How is this job?",
             answers(JobAnswer, 400, 404, answer="The job")),
            (app.post, "/v1/jobs:preflight", self.preflight, "preflight", "What would this job meet?",
             answers(PreflightAnswer, 400, 413, answer="What a job would meet now")),
            (app.get, "/v1/budget", self._budget_of(app), "getBudget", "What is left of a budget?",
             answers(BudgetAnswer, 400, answer="The 24 hours of a day, and the jobs that took from them")),
            (app.post, "/v1/jobs:publish", self.publish, "publish", "Publish a summary again",
             answers(AcceptedAnswer, 400, 404, 409, 413, answer="The summary will be published", success=202)),
        ):  # fmt: skip
            if path.startswith("/v1alpha"):
                add(f"/stage{path}", include_in_schema=False)(route)
            add(path, summary=summary, operation_id=name, responses=responses, security=SIGNED)(route)

    def create_job(self, body: JobInBody) -> Response[str]:
        """Store a job: reports, keys and a budget. It spends budget and makes one noisy histogram final, or neither.

        A histogram that cannot be written within 30 days is lost, and its budget stays spent.
        """
        request = self._read(body)
        if not create(self.jobs(), request.job, body, clock.now(), **self._pinned(request)):
            raise RequestError(DUPLICATE)
        self.wake(request.job)
        return Response(202, "application/json", "{}")

    def get_job(
        self,
        job_request_id: Annotated[
            str, Query(description="The id of the job", json_schema_extra=NOT_EMPTY | JOB_ID)
        ] = "",
    ) -> Response[str]:
        """The state of a job, its result, and its guarantee."""
        row = self._found(read_job_id(job_request_id))
        caps = self.settings.epsilon_cap, self.settings.delta_cap
        return answered(job_answer(row, read_stored(row), *caps))

    def preflight(self, body: JobInBody) -> Response[str]:
        """Count the reports and units of a job, without creating it. It opens no report and spends nothing."""
        request = self._read(body)
        if request.listed_type is not None:
            self.lists().check(request.listed_type)
        try:
            return answered(preflight_answer(request, self.bucket, self.budgets(), int(clock.now())))
        except JobError as error:
            raise RequestError(bad_input(str(error))) from None

    def _budget_of(self, app: APIGatewayHttpResolver) -> Callable[..., Response[str]]:
        def get_budget(
            api: Annotated[str, Query(description="As in shared_info", json_schema_extra=NOT_EMPTY)] = "",
            version: Annotated[str, Query(description="As in shared_info", json_schema_extra=NOT_EMPTY)] = "",
            reporting_origin: Annotated[str, Query(description="As in shared_info", json_schema_extra=NOT_EMPTY)] = "",
            attribution_destination: Annotated[str, Query(description="As in shared_info; attribution only")] = "",
            source_registration_time: Annotated[str, Query(description="As in shared_info; attribution only")] = "",
            filtering_id: Annotated[str, Query(description="0 if left out")] = "0",
            day: Annotated[
                str, Query(description="Of scheduled_report_time, UTC, such as 2026-01-31", json_schema_extra=NOT_EMPTY)
            ] = "",
        ) -> Response[str]:
            """The epsilon and delta left for reports with these clear fields."""
            query = {
                "api": api,
                "version": version,
                "reporting_origin": reporting_origin,
                "attribution_destination": attribution_destination,
                "source_registration_time": source_registration_time,
                "filtering_id": filtering_id,
                "day": day,
            }
            check_names(app.current_event.query_string_parameters, query)
            return answered(budget_answer(self.budgets(), read_unit(query)))

        return get_budget

    def publish(self, body: PublicationInBody) -> Response[str]:
        """Publish the summary of a committed job again, elsewhere if asked. It costs no budget."""
        wanted = read_publication(body, self.settings.buckets)
        check_output(wanted.output_data_bucket_name, self.settings.reports_bucket)
        row = self._found(wanted.job_request_id)
        publish_again(self.jobs(), row, wanted, clock.now())
        self.wake(row.job)
        return Response(202, "application/json", "{}")

    def _read(self, body: Any) -> JobRequest:
        """The job of a request body."""
        settings = self.settings
        request = read_request(body, settings.delta_cap, settings.buckets, settings.epsilon_cap)
        check_output(request.output_bucket, settings.reports_bucket)
        return request

    def _pinned(self, request: JobRequest) -> dict[str, Any]:
        """What is recorded with a new job: the keys that the gate has released by now, if it asks for them."""
        if request.listed_type is None:
            return {}
        if self.jobs().read(request.job) is not None:  # before anything is written for a job that exists
            raise RequestError(DUPLICATE)
        try:
            return self.lists().pinned(request.job, request.listed_type).recorded
        except JobError as error:
            raise invalid(LISTED_TYPE, str(error)) from None

    def _found(self, job: str) -> JobRow:
        """A job; 404 if there is none."""
        row = self.jobs().read(job)
        if row is None:
            raise RequestError(NO_SUCH_JOB)
        return row


# -------------------------------------------------------------------------- what createJob and jobs:publish write
SECRET_BYTES = 32


def create(jobs: JobsTable, job: str, request: Mapping[str, Any], now: float, **values: Any) -> bool:
    """Store a new job with a new secret and recorded values; False if another job has this id.

    The client retries a call whose answer was lost. Then the row exists with the same secret.
    """
    secret = secrets.token_bytes(SECRET_BYTES)
    if jobs.create(job, request, int(now), secret, **values):
        return True
    row = jobs.read(job)
    return row is not None and row.secret == secret


def publish_again(jobs: JobsTable, row: JobRow, wanted: PublicationBody, now: float) -> None:
    """Record a new place for the summary of a committed job. It costs no budget.

    Raises:
        RequestError: 409, the job has not committed, or its parts are gone.
    """
    bucket, prefix = output_of(row, read_stored(row))
    output = [wanted.output_data_bucket_name or bucket, wanted.output_data_blob_prefix or prefix]
    problem = _why_not(row, now)
    if problem is None and not jobs.move(row, State.COMMITTED, now, output=output, code="", message=""):
        problem = "the job is being published: ask getJob for its state"
    if problem is not None:
        raise RequestError(refusal(409, "VALIDATION_FAILED", "job_request_id", problem))


def _why_not(row: JobRow, now: float) -> str | None:
    """Why the summary of a job cannot be published now; None if it can."""
    if row.state is State.COMMITTED:
        gone = now >= row.values["committed_at"] + STAGED_KEPT
        return "the parts of the summary were deleted after 30 days: create a new job, which spends" if gone else None
    if row.state is not State.FINISHED:
        return "the job has not committed yet: wait until getJob shows it as FINISHED"
    if row.committed:
        return "the summary is published already: copy its objects"
    return "the job ended without a summary, see getJob: create a new job"


# -------------------------------------------------------------------------------------------- the unit of a query
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
    if not is_filtering_id(text):
        raise invalid("filtering_id", "give a number below 2^64")
    (unit,) = units([_source(query, day * DAY)], [int(text)])
    return unit


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
