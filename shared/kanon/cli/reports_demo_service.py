"""``kanon reports demo-service``: sends the reports of a log to a running service, and checks three jobs."""

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from kanon.cli.errors import CommandError
from kanon.cli.files import Force, OutputFiles
from kanon.cli.options import DateOrder, SkipBadRows, log_reading
from kanon.cli.reports_demo import Log, both_parameters, encrypted, log_of
from kanon.cli.screen import progress, working
from kanon.cli.stacks import AwsProfile, Region, StackName, Url, find, stack_errors
from kanon.client import Auth, Client, Connection, RefusedError
from kanon.client.signing import SigV4
from kanon.errors import KanonError
from kanon.reports.job import PrivacyParameters, written

if TYPE_CHECKING:
    from kanon.demo.budgets import BudgetsAfterJobs
    from kanon.demo.logs import DemoLog
    from kanon.demo.reported_log import ReportedLog
    from kanon.operate.stacks import RunningStack
    from kanon.reports.avro import Report
    from kanon.reports.payload import EncryptionKey

EPSILON = "4"
DAYS = 60
"""Reports of the demo are scheduled at most so many days before now. Jobs accept 90 days."""
MOST = 2_000
"""The largest number of reports to send, spread over the log."""
SENDERS, A_CONNECTION = 8, 50
"""Connections at once, and reports that each sends."""
PREFIX = "reports/kanon/"
SECONDS_TO_STORE, SECONDS_A_JOB = 300, 900
Budget = dict[str, Any]
"""What getBudget answers for a day of the demo's units."""
PUBLIC_KEYS = "/.well-known/aggregation-service/v1/public-keys"


class DemoError(KanonError):
    """The service did not do what the demo asked; the message says what to check."""


@dataclass(frozen=True)
class RunningService:
    """A running service, as seen by an operator of jobs.

    Attributes:
        url: of its API.
        auth: signs the requests of operators; None on one machine.
        s3: a client.
        reports_bucket: the bucket of stored reports.
        summaries_bucket: declared keys and summaries.
        cap: epsilon and delta that jobs may spend of one unit.
        run: a unique name of this run.
        wait: waits the given number of seconds.
        clock: unix seconds.
    """

    url: str
    auth: Auth | None
    s3: Any
    reports_bucket: str
    summaries_bucket: str
    cap: tuple[Fraction, Fraction]
    run: str
    wait: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time

    @classmethod
    def of(cls, stack: "RunningStack") -> "RunningService":
        """The reports of a running stack."""
        if stack.reports is None:
            raise DemoError("this stack has no reports: deploy it with Reports=ON")
        jobs, credentials = stack.reports.jobs, stack.session.get_credentials()
        return cls(
            stack.url,
            SigV4(credentials, stack.session.region_name) if credentials and stack.reports.deployed else None,
            stack.client("s3"),
            jobs.reports_bucket,
            jobs.summaries_bucket,
            (jobs.epsilon_cap, jobs.delta_cap),
            f"demo-{secrets.token_hex(4)}",
        )

    @property
    def origin(self) -> str:
        """The reporting origin of this run. Every run has its own, and so its own budgets."""
        return f"https://{self.run}.test"

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """A signed call of the jobs API."""
        with Client(self.url, auth=self.auth) as client:
            return client.call(method, path, body)

    def until(self, what: str, seconds: float, done: Callable[[], Any]) -> Any:
        """Ask once a second until the answer is true, for at most so many seconds."""
        end = self.clock() + seconds
        with working(what):
            while not (found := done()):
                if self.clock() >= end:
                    raise DemoError(f"{what}: not within {seconds:.0f} s; see `kanon doctor`")
                self.wait(1)
        return found


def demo_service(
    context: typer.Context,
    log: Log = None,
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    stack: StackName = None,
    region: Region = None,
    profile: AwsProfile = None,
    url: Url = None,
    picture: Annotated[Path, typer.Option("--plot", help="File for the picture of the budgets (PNG).")] = Path(
        "build/demo-budgets.png"
    ),
    force: Force = False,
) -> None:
    """Send encrypted reports to a running service, run three jobs, check every number, and draw every budget.

    The first job has declared keys, the second discovers keys in the newer half of the windows, and the third is
    refused by the cap.

    Example: kanon reports demo-service --url http://127.0.0.1:8000
    """
    outputs = OutputFiles(context, force=force)
    outputs.picture(picture, "--plot")
    import matplotlib as mpl  # noqa: F401, fail now and not after the work

    from kanon.demo.budgets import draw

    with stack_errors(": docs/guides/operate.md#kanon-doctor names the permissions"):
        service = RunningService.of(find(stack, region, profile, url))
        try:
            reported = recent(log_of(log, log_reading(dates, skip_bad_rows)), service.clock())
            budgets = run(service, reported)
        except AssertionError as error:
            raise CommandError(f"a check failed: {error}", 1) from error
    outputs.write({picture: draw(budgets)})
    typer.echo(f"Picture: {picture}")


def recent(log: "DemoLog", now: float, most: int = MOST) -> "ReportedLog":
    """Joins of the log's last days, chosen evenly and moved by whole windows: the last window ends before ``now``."""
    from kanon.demo.reported_log import WINDOW, ReportedLog

    length = WINDOW * 3600
    end = log.joins[-1].time
    moved = (int(now) // length - 1 - int(end) // length) * length
    newest = [join for join in log.joins if join.time > end - DAYS * 86_400]
    taken = newest[:: -(-len(newest) // most)]
    return ReportedLog(replace(log, joins=[join._replace(time=join.time + moved) for join in taken]))


def run(service: RunningService, reported: "ReportedLog") -> "BudgetsAfterJobs":
    """Send the reports of a recent log, run three jobs, and compare every number with the log.

    The result is what the units have lost, as the service says it.

    Raises:
        AssertionError: a check failed.
        DemoError: the service did not answer in time.
    """
    from kanon.demo.budgets import BudgetsAfterJobs
    from kanon.demo.reported_log import VALUE, WINDOW

    declared, discover = both_parameters(EPSILON)
    keys = service.until("waiting for the first public key", SECONDS_TO_STORE, lambda: public_keys(service))
    sealed = encrypted(reported, service.origin, keys)
    send(service, sealed)
    typer.echo(f"{len(sealed):,} reports are sent, {VALUE:,} for each join. Unit: one client in {WINDOW} h.")
    declare(service, reported)
    stored(service, len(sealed), declared)
    newer = reported.newer
    for parameters, counted in ((declared, reported), (discover, newer)):
        metrics = summary(service, create(service, parameters.mode, parameters, counted))
        counted.check(metrics, parameters)
        typer.echo(counted.in_words(metrics, parameters))
    older_left = service.cap[0] - declared.epsilon, service.cap[1]
    left = older_left[0] - discover.epsilon, older_left[1] - discover.delta
    too_much = PrivacyParameters("declared", older_left[0])
    refused = create(service, "refused", too_much, reported)
    check_refused(service, refused, left, len(sealed))
    expected = dict.fromkeys(reported.hours, older_left) | dict.fromkeys(newer.hours, left)
    answers = budgets_of(service, sealed)
    check_spent(service, answers, expected)
    typer.echo(
        f"refused: epsilon {written(too_much.epsilon)} is more than the {written(left[0])} left of each newer unit."
    )
    typer.echo(
        f"Spent is released: in {len(newer.hours):,} of {len(expected):,} hours, epsilon {written(left[0])} and"
        f" delta {written(left[1])} are left; in the others epsilon {written(older_left[0])}, and all of delta."
    )
    return BudgetsAfterJobs(answers, WINDOW, refused["job_request_id"], too_much.epsilon)


def public_keys(service: RunningService) -> list["EncryptionKey"]:
    """The published keys; empty before the first."""
    from kanon.reports import payload

    with closing(Connection(service.url)) as connection:
        answer = connection("GET", PUBLIC_KEYS)
    return payload.public_keys(answer.body.decode()) if answer.status == 200 else []


def send(service: RunningService, sealed: Sequence["Report"]) -> None:
    """Post every report until the collector accepts it."""
    from kanon.reports.clients.encrypt import PATHS, Outgoing, body_of

    def post(some: Sequence["Report"]) -> int:
        with Client(service.url, deadline=SECONDS_TO_STORE, sleep=service.wait) as client:
            for report in some:
                client.send(Outgoing(0, PATHS["kanon"], body_of(report)))
        return len(some)

    parts = [sealed[start : start + A_CONNECTION] for start in range(0, len(sealed), A_CONNECTION)]
    with progress("reports sent", len(sealed)) as advance, ThreadPoolExecutor(SENDERS) as pool:
        for count in pool.map(post, parts):
            advance(count)


def declare(service: RunningService, reported: "ReportedLog") -> None:
    """Write the declared keys to the bucket of summaries."""
    from kanon.reports import avro

    file = BytesIO()
    avro.write_domain(file, reported.declared)
    service.s3.put_object(Bucket=service.summaries_bucket, Key=f"domains/{service.run}/keys.avro", Body=file.getvalue())


def request(
    service: RunningService, name: str, parameters: PrivacyParameters, first: int | None = None
) -> dict[str, Any]:
    """The body of createJob, for reports from the hour ``first`` on. Reports of other runs have other origins."""
    job: dict[str, Any] = {
        "job_request_id": f"{service.run}-{name}",
        "input_data_bucket_name": service.reports_bucket,
        "input_data_blob_prefix": PREFIX,
        "output_data_bucket_name": service.summaries_bucket,
        "output_data_blob_prefix": f"output/{service.run}/{name}.avro",
        "job_parameters": {"attribution_report_to": service.origin},
    }
    if first is not None:
        job["job_parameters"]["scheduled_from"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first * 3600))
    if parameters.mode == "discover":
        dp = {"job_epsilon": written(parameters.epsilon), "job_delta": written(parameters.delta)}
        return job | {"output_domain": {"mode": "discover"}, "privacy_params": {"laplace_dp_params": dp}}
    job["job_parameters"] |= {
        "debug_privacy_epsilon": written(parameters.epsilon),
        "output_domain_bucket_name": service.summaries_bucket,
        "output_domain_blob_prefix": f"domains/{service.run}/",
    }
    return job


def stored(service: RunningService, reports: int, parameters: PrivacyParameters) -> None:
    """Wait until every report is in the bucket: the collector's queue is emptied once a minute."""
    asked = request(service, "preflight", parameters)

    def found() -> bool:
        try:
            answer = service.call("POST", "/v1/jobs:preflight", asked)
        except RefusedError as error:
            if "there is no object" in str(error):
                return False
            raise
        return bool(answer["accepted"] - answer["duplicates"] >= reports)

    service.until("waiting until the reports are stored", SECONDS_TO_STORE, found)


def create(
    service: RunningService, name: str, parameters: PrivacyParameters, reported: "ReportedLog"
) -> dict[str, Any]:
    """Create a job over the reports of a log, and of all windows after it. Wait for its end; its answer."""
    asked = request(service, name, parameters, min(reported.hours))
    service.call("POST", "/v1alpha/createJob", asked)
    path = f"/v1alpha/getJob?{urlencode({'job_request_id': asked['job_request_id']})}"

    def finished() -> dict[str, Any] | None:
        answer = service.call("GET", path)
        return answer if answer["job_status"] == "FINISHED" else None

    found: dict[str, Any] = service.until(f"job {name}", SECONDS_A_JOB, finished)
    return found


def summary(service: RunningService, job: dict[str, Any]) -> dict[bytes, int]:
    """The released numbers of a job by key of 16 bytes."""
    from kanon.reports.avro import read_summary

    code = job["result_info"]["return_code"]
    if not code.startswith("SUCCESS"):
        raise AssertionError(f"a job ended with {code}: {job['result_info']['return_message']}")
    prefix = job["output_data_blob_prefix"].removesuffix(".avro")
    files = objects(service, prefix).values()
    return {fact.bucket.rjust(16, b"\0"): fact.metric for file in files for fact in read_summary(BytesIO(file))}


def check_refused(service: RunningService, job: dict[str, Any], left: tuple[Fraction, Fraction], reports: int) -> None:
    """Check that the job was refused for its budget, and that the file beside the output says what units have left."""
    code = job["result_info"]["return_code"]
    if code != "PRIVACY_BUDGET_EXHAUSTED":
        raise AssertionError(f"the job above the cap ended with {code}")
    prefix = f"output/{service.run}/"
    if objects(service, f"{prefix}refused"):
        raise AssertionError("the refused job released a summary")
    [(name, text)] = objects(service, f"{prefix}privacy_budget_exhausted").items()
    units = json.loads(text)["privacy_budget_exhausted_info"]["aggregatable_input_budget_consumption_info"]
    if not 0 < len(units) <= reports or any(Fraction(unit["epsilon_left"]) != left[0] for unit in units):
        raise AssertionError("the refused job does not name what is left of its units")
    typer.echo(f"refused: {len(units):,} units and what is left of each are named in {name}.")


def budgets_of(service: RunningService, sealed: Sequence["Report"]) -> list[Budget]:
    """The answers of getBudget about the units of these reports, for each day."""
    info = [json.loads(report.shared_info) for report in sealed]
    unit = {"api": "kanon", "version": info[0]["version"], "reporting_origin": service.origin}
    days = sorted({int(one["scheduled_report_time"]) // 86_400 for one in info})
    named = [time.strftime("%Y-%m-%d", time.gmtime(day * 86_400)) for day in days]
    return [service.call("GET", f"/v1/budget?{urlencode({**unit, 'day': day})}") for day in named]


def check_spent(
    service: RunningService, answers: Sequence[Budget], expected: Mapping[int, tuple[Fraction, Fraction]]
) -> None:
    """Check that each unit has lost exactly the budget of its summaries.

    ``expected`` has the epsilon and delta left, by hour since 1970; other hours have the whole cap left.
    """
    for answer in answers:
        day = int(datetime.fromisoformat(f"{answer['day']}T00Z").timestamp()) // 3600
        for hour in answer["hours"]:
            left = Fraction(hour["epsilon_left"]), Fraction(hour["delta_left"])
            if left != expected.get(day + hour["hour"], service.cap):
                raise AssertionError("the spent budget of a unit differs from the released epsilon and delta")


def objects(service: RunningService, prefix: str) -> dict[str, bytes]:
    """The objects of the bucket of summaries under a prefix, by name."""
    from kanon.reports.storage.objects import Objects

    bucket = Objects(service.s3, service.summaries_bucket)
    return {one.key: bucket.read(one.key) for one in bucket.listed(prefix, 1_000)}
