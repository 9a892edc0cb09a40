"""Each alarm is raised by a failure on the local stack, and a sound stack raises none.

The functions' own metrics are those that they print, errors and answers those that the stack gives, messages those of
its queues. The stack throttles what a test names, and counts it as AWS does. Metric filters read the gateway's answers.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kanon import clock
from kanon.local import Stack, gateway
from kanon.local.functions import FunctionError
from kanon.local.template import QUEUE, TABLE
from tests.infrastructure import cloudwatch
from tests.infrastructure.rules import ALARM, FILTER, MAIL, losses_of_aws
from tests.infrastructure.template import Documents

# Of a function that fails before it counts anything.
pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")

START, HOUR, SCHEDULE = 1_767_225_600, 3600, 180
REPORT = "/.well-known/attribution-reporting/report-aggregate-attribution"
KEYS = "/.well-known/aggregation-service/v1/public-keys"
DEPLOYED = Documents().deployed(Reports="ON", **MAIL)
ALARMS = DEPLOYED.of_type(ALARM)
READS = {"GetItem", "BatchGetItem", "Query", "Scan"}


class ThrottledError(Exception):
    """Lambda refuses an invocation."""


class Watched:
    """A stack whose failures and answers are counted; ``raised`` says which alarms they raise if they last."""

    def __init__(self, start: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors, self.answers, self.throttles = Counter[str](), Counter[bool](), Counter[tuple[str, str]]()
        self.lines: list[dict[str, str]] = []
        self.busy: set[str] = set()
        """Functions without a free environment, and tables and the gateway beyond their rates."""
        invoke, answer, session = Stack.invoke, Stack.answer, Stack._function_session

        def invoked(stack: Stack, function: str, *given: Any) -> Any:
            if function in self.busy:
                self.throttles["Throttles", function] += 1
                raise FunctionError(ThrottledError("no environment is free"))
            try:
                return invoke(stack, function, *given)
            except FunctionError:
                self.errors[function] += 1
                raise

        def answered(stack: Stack, request: Any) -> Any:
            found = gateway.message(429, "Too Many Requests") if "Api" in self.busy else answer(stack, request)
            self.answers[found.status >= 500] += 1
            route = stack.gateway.find(request)
            self.lines.append({"routeKey": route[0].key if route else "", "status": str(found.status)})
            return found

        def attached(stack: Stack, function: str) -> Any:
            made = session(stack, function)
            made.events.register_first("before-call.dynamodb", self._throttle)
            return made

        monkeypatch.setattr(clock, "sleep", lambda _: None)
        monkeypatch.setattr(Stack, "_function_session", attached)
        monkeypatch.setattr(Stack, "invoke", invoked)
        monkeypatch.setattr(Stack, "answer", answered)
        self.stack = start({"Reports": "ON"}, name="kanon", start=START)
        self.sqs, self.dynamodb = self.stack.session.client("sqs"), self.stack.session.client("dynamodb")
        self.names = {one.logical_id: part.resolve({"Ref": one.logical_id}) for kind in (QUEUE, TABLE)
                      for part, one in self.stack.template.every_resource(kind)}  # fmt: skip
        self.wake(SCHEDULE)
        self.stack.clock.set(self.stack.clock.now() + 2 * SCHEDULE)  # a new key is served by now
        self.since, self.place = self.stack.clock.now(), self.stack.logs.tell()
        self.errors.clear()
        self.answers.clear()

    def _throttle(self, model: Any, params: Any, **_: Any) -> Any:
        """DynamoDB's answer to a call of a table beyond its rate, in the engine's place; None for others."""
        text = params["body"].decode() if isinstance(params["body"], bytes) else params["body"]
        tables = [table for table in self.busy & DEPLOYED.of_type(TABLE).keys() if self.names[table] in text]
        if not tables:
            return None
        for table in tables:
            self.throttles[f"{'Read' if model.name in READS else 'Write'}ThrottleEvents", table] += 1
        error = {"Code": "ProvisionedThroughputExceededException", "Message": "the rate is exceeded"}
        return SimpleNamespace(status_code=400), {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}

    def wake(self, seconds: float) -> None:
        """Let time pass, and fire every schedule."""
        self.stack.clock.set(self.stack.clock.now() + seconds)
        self.stack.tick()

    def send(self, queue: str) -> None:
        self.sqs.send_message(QueueUrl=self.names[queue], MessageBody="{}")

    def drop(self, *names: str) -> None:
        for name in names:
            if name in DEPLOYED.of_type(TABLE):
                self.dynamodb.delete_table(TableName=self.names[name])
            else:
                self.sqs.delete_queue(QueueUrl=self.names[name])

    def join_and_query(self) -> None:
        self.stack.request("POST", "/v1/types/fledge/sets/aGVsbG8:join", {"client": "a"})
        self.stack.request("GET", "/v1/types/fledge/sets/aGVsbG8")

    def post_reports(self, number: int = 20) -> Counter[int]:
        info = {"api": "attribution-reporting", "version": "1.0", "report_id": "11111111-1111-4111-8111-111111111111",
                "reporting_origin": "https://report.test", "attribution_destination": "https://shop.test",
                "scheduled_report_time": str(int(self.stack.clock.now()))}  # fmt: skip
        keys = json.loads(self.stack.request("GET", KEYS).body)["keys"]
        payload = {"payload": "AAAA" * 100, "key_id": keys[0]["id"]}
        body = {"shared_info": json.dumps(info), "aggregation_service_payloads": [payload]}
        return Counter(self.stack.request("POST", REPORT, body).status for _ in range(number))

    def samples(self) -> dict[cloudwatch.Metric, list[float]]:
        """What CloudWatch would have by now."""
        self.stack.logs.seek(self.place)
        found: dict[cloudwatch.Metric, list[float]] = defaultdict(list)
        for metric, values in cloudwatch.emitted(self.stack.logs.read()).items():
            found[metric] = [value for _, value in values]
        for namespace, name, dimensions in losses_of_aws(DEPLOYED):
            ((_, value),) = dimensions
            logical = value.rpartition("-")[2].removesuffix(".QueueName")
            if name == "Errors" and self.errors[logical.lower()]:
                found[namespace, name, dimensions] = [float(self.errors[logical.lower()])]
            if count := self.throttles[name, logical.lower() if name == "Throttles" else logical]:
                found[namespace, name, dimensions] = [float(count)]
            if namespace == "AWS/SQS" and (waiting := self.waiting(logical)):
                age = self.stack.clock.now() - self.since
                found[namespace, name, dimensions] = [age if name.startswith("ApproximateAge") else float(waiting)]
        for name, count in (("Count", self.answers.total()), ("5xx", self.answers[True])):
            found["AWS/ApiGateway", name, frozenset({("ApiId", "kanon-Api")})] = [float(count)]
        for one in DEPLOYED.of_type(FILTER).values():
            (change,) = one["MetricTransformations"]
            matching = sum(cloudwatch.matches(one["FilterPattern"], line) for line in self.lines)
            found[change["MetricNamespace"], change["MetricName"], frozenset()].append(float(matching))
        for function in ("Join", "Query"):
            live = frozenset({("FunctionName", f"kanon-{function}"), ("Resource", f"kanon-{function}:live")})
            found["AWS/Lambda", "Errors", live] = [float(self.errors[function.lower()])]
        return found

    def waiting(self, queue: str) -> int:
        try:
            given = self.sqs.get_queue_attributes(
                QueueUrl=self.names[queue], AttributeNames=["ApproximateNumberOfMessages"]
            )
        except self.sqs.exceptions.QueueDoesNotExist:
            return 0
        return int(given["Attributes"]["ApproximateNumberOfMessages"])

    def raised(self) -> set[str]:
        return raised(self.samples())


def raised(samples: dict[cloudwatch.Metric, list[float]]) -> set[str]:
    """The alarms of a state that lasts."""
    found = set()
    for name, alarm in ALARMS.items():
        times = range(0, cloudwatch.lasts(alarm), cloudwatch.period(alarm))
        lasting = {one: [(time + 0.5, value) for time in times for value in values] for one, values in samples.items()}
        if cloudwatch.state(alarm, lasting) == "ALARM":
            found.add(name)
    return found


@pytest.fixture
def watched(new_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(new_stack, monkeypatch)


def lost_tables(watched: Watched) -> None:
    watched.drop("StepLog", "Statuses")
    watched.join_and_query()
    for _ in range(4):
        watched.wake(HOUR / 4)


def changed_figure(watched: Watched) -> None:
    evaluate = watched.stack.functions["evaluate"]
    evaluate.environment["KANON_OUTAGE_ALLOWANCE"] = "700000"  # type: ignore[index]
    watched.stack.restart("evaluate")
    watched.wake(3 * HOUR)


def nobody_reads(watched: Watched) -> None:
    for queue in ("Queue", "Arrivals", "Maps", "Stages"):
        watched.send(queue)
    watched.stack.clock.set(watched.stack.clock.now() + 7 * HOUR)


def lost_arrivals(watched: Watched) -> None:
    keys = watched.stack.request("GET", KEYS)
    assert keys.status == 200
    watched.drop("Arrivals")
    assert watched.post_reports() == {503: 20}


def lost_queue(watched: Watched) -> None:
    watched.drop("Queue")
    with pytest.raises(watched.sqs.exceptions.QueueDoesNotExist):  # of the poller, after the schedules
        watched.wake(HOUR)


def throttled_requests(watched: Watched) -> None:
    watched.busy.add("Api")
    watched.join_and_query()


def throttled_functions(watched: Watched) -> None:
    watched.busy |= {"query", "collect"}
    watched.stack.request("GET", "/v1/types/fledge/sets/aGVsbG8")
    watched.stack.request("GET", KEYS)


def throttled_tables(watched: Watched) -> None:
    watched.busy |= {"StepLog", "ReportJobs"}
    watched.join_and_query()
    watched.stack.request("GET", "/v1alpha/getJob?job_request_id=job")


def lost_jobs(watched: Watched) -> None:
    watched.drop("ReportJobs")
    watched.stack.request("GET", "/v1alpha/getJob?job_request_id=job")
    watched.stack.tick()


def lost_control(watched: Watched) -> None:
    watched.drop("Control")
    watched.stack.restart("collect")
    watched.stack.request("GET", KEYS)
    watched.stack.tick()


def another_budget_table(watched: Watched) -> None:
    (described,) = [watched.dynamodb.describe_table(TableName=watched.names["Budgets"])["Table"]]
    watched.drop("Budgets")
    words = ("TableName", "AttributeDefinitions", "KeySchema")
    watched.dynamodb.create_table(**{word: described[word] for word in words}, BillingMode="PAY_PER_REQUEST")
    watched.stack.tick()


def bad_messages(watched: Watched) -> None:
    for queue in ("Arrivals", "Maps", "Stages"):
        watched.send(queue)
    for _ in range(6):
        watched.stack.clock.set(watched.stack.clock.now() + 1.6 * HOUR)
        watched.stack.run_queues(flush=True)


def refused_job(watched: Watched) -> None:
    environment = watched.stack.functions["aggregate"].environment
    reports, summaries = (environment[f"KANON_{name}_BUCKET"] for name in ("REPORTS", "SUMMARIES"))
    body = {
        "job_request_id": "job",
        "input_data_bucket_name": reports, "input_data_blob_prefix": "reports/none/",
        "output_data_bucket_name": summaries, "output_data_blob_prefix": "output/job",
        "job_parameters": {
            "attribution_report_to": "https://report.test", "debug_privacy_epsilon": "1",
            "output_domain_bucket_name": summaries, "output_domain_blob_prefix": "domains/",
        },
    }  # fmt: skip
    assert watched.stack.request("POST", "/v1alpha/createJob", body).status == 202
    watched.wake(0)


FAILURES: dict[Callable[[Watched], None], set[str]] = {
    lost_tables: {"JoinsRefused", "QueriesRefused", "RequestsFailed", "FunctionErrors", "DeadLettersWaiting"}
    | {"JoinFailing", "QueryFailing"},
    changed_figure: {"EvaluationStopped", "PublishLate", "EvaluationLate"},
    nobody_reads: {"MessagesWaiting", "ReportsWaiting", "JobMessagesWaiting"},
    lost_arrivals: {"ReportsRefused", "RequestsFailed"},
    lost_queue: {"FunctionErrors", "LostEventsWaiting"},
    throttled_requests: {"RequestsThrottled", "JoinsRefused"},
    throttled_functions: {"FunctionsThrottled", "ReportFunctionsThrottled", "RequestsFailed"},
    throttled_tables: {"TablesThrottled", "ReportTablesThrottled", "JoinsRefused", "ReportRequestsRefused"},
    lost_jobs: {"ReportRequestsRefused", "ReportFunctionErrors", "StuckJobs"},
    lost_control: {"EvaluationLate", "LostEventsWaiting", "FunctionErrors"}
    | {"ReportRequestsRefused", "KeysMissing", "ReportFunctionErrors"},
    another_budget_table: {"BudgetTableReplaced", "KeysMissing"},
    bad_messages: {"ReportDeadLettersWaiting", "ReportFunctionErrors"},
    refused_job: {"JobsRefused"},
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_raises_its_alarms(failure: Callable[[Watched], None], watched: Watched) -> None:
    failure(watched)
    assert FAILURES[failure] - watched.raised() == set()


def test_a_sound_stack_raises_no_alarm(watched: Watched) -> None:
    watched.join_and_query()
    assert watched.post_reports(2) == {200: 2}
    watched.wake(HOUR)
    assert watched.raised() == set()


def test_every_alarm_is_raised_by_a_failure() -> None:
    assert set().union(*FAILURES.values()) == set(ALARMS)
