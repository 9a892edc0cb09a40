"""The functions collect, store and jobs over moto, called as API Gateway and the queue call them.

No HTTP and no template here: the event goes in, the result comes out. The output of a function and its AWS calls are
recorded.
"""

import contextlib
import importlib.util
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from types import ModuleType
from typing import Any
from unittest import mock

from kanon import aws, clock
from kanon.local.functions import HandlerContext
from kanon.reports.avro import Report, read_reports
from kanon.reports.job import JobRequest
from kanon.reports.service.bodies import named_buckets, read_request
from kanon.reports.shared_info import DAY
from kanon.reports.storage.key_ring import Key, KeyRing, StoredRing
from kanon.reports.storage.objects import Objects
from kanon.reports.storage.report_jobs import JobRow, StageMessage
from tests.integration.gate.edge import Result, event
from tests.integration.gate.tables import Running
from tests.integration.reports.aggregation import INPUT, OUTPUT, Aggregation, aggregation
from tests.integration.reports.tables import CAP, create_control
from tests.paths import ROOT
from tests.unit.reports import made
from tests.unit.reports import test_settings as environments

ENVIRONMENTS = {"collect": environments.COLLECT, "store": environments.STORE, "jobs": environments.JOBS}
KNOWN = Key.made(made.KEY_ID, "", made.NOW - DAY)
_numbers = itertools.count()


class Deployed(Aggregation):
    """A deployment of reports whose jobs name its buckets by their own names."""

    def bucket(self, name: str) -> Objects:
        return Objects(self.s3, name) if name.startswith(self.prefix) else super().bucket(name)

    def request(self, row: JobRow) -> JobRequest:
        return read_request(row.request, CAP.exact[1], named_buckets(row.request), CAP.exact[0], stored=True)


@dataclass
class Front:
    """The public functions of reports, over empty tables, buckets and queues."""

    service: Deployed
    sqs: Any
    urls: dict[str, str]
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    output: io.StringIO = field(default_factory=io.StringIO)
    fail: Callable[[str], str | None] = lambda operation: None
    environment: dict[str, str] = field(default_factory=dict)
    modules: dict[str, ModuleType] = field(default_factory=dict)

    @property
    def reports_bucket(self) -> str:
        return f"{self.service.prefix}-{INPUT}"

    @property
    def summaries_bucket(self) -> str:
        return f"{self.service.prefix}-{OUTPUT}"

    @property
    def control(self) -> str:
        return f"{self.service.prefix}-control"

    # The functions

    def variables(self, function: str) -> dict[str, str]:
        """The environment of a function here."""
        tables = self.service.tables.names
        here = {
            "KANON_CONTROL_TABLE": self.control,
            "KANON_ARRIVALS_URL": self.urls["arrivals"],
            "KANON_STAGES_URL": self.urls["stages"],
            "KANON_REPORTS_BUCKET": self.reports_bucket,
            "KANON_SUMMARIES_BUCKET": self.summaries_bucket,
            "KANON_REPORT_JOBS_TABLE": tables["ReportJobs"],
            "KANON_BUDGETS_TABLE": tables["Budgets"],
        }
        given = ENVIRONMENTS[function]
        # Powertools' loggers live as long as the process, by name, and keep the stream they began with.
        service = {"POWERTOOLS_SERVICE_NAME": f"{function}-{next(_numbers)}", "POWERTOOLS_METRICS_NAMESPACE": "kanon"}
        return {**given, **{name: here[name] for name in given if name in here}, **service, **self.environment}

    def module(self, function: str) -> ModuleType:
        """The module of a function, imported with its own variables."""
        if function not in self.modules:
            path = ROOT / "functions" / "reports" / function / "app.py"
            spec = importlib.util.spec_from_file_location(f"front_{function}_{next(_numbers)}", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            inherited = {k: v for k, v in os.environ.items() if not k.startswith(("KANON_", "POWERTOOLS_"))}
            with mock.patch.dict(os.environ, {**inherited, **self.variables(function)}, clear=True), self._captured():
                spec.loader.exec_module(module)
            self.modules[function] = module
        return self.modules[function]

    def reconfigure(self, **environment: str) -> None:
        """Change the environment, and let the next requests meet it."""
        self.environment |= environment
        self.modules.clear()

    @contextlib.contextmanager
    def _captured(self) -> Iterator[None]:
        with contextlib.redirect_stdout(self.output), contextlib.redirect_stderr(self.output):
            yield

    def invoke(self, function: str, given: dict[str, Any], seconds: float = 30) -> Any:
        """The function's result for an event, JSON in and JSON out as on Lambda."""
        module = self.module(function)
        sessions = mock.patch.object(aws, "session", return_value=self)
        now = mock.patch.object(clock, "now", return_value=self.service.tables.now)
        with sessions, now, mock.patch.object(clock, "sleep"), self._captured():
            result = module.handler(json.loads(json.dumps(given)), HandlerContext(function, "512", lambda: seconds))
        return json.loads(json.dumps(result))

    def create_client(self, service: str, **options: Any) -> Any:
        """A client of the function, watched and disturbed."""
        client = self.service.running.session.client(service, **options)
        client.meta.events.register("before-parameter-build", self._called)
        client.meta.events.register("before-call", self._failing)
        return client

    def _called(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.calls.append((model.name, params))

    def _failing(self, model: Any, **_: Any) -> tuple[Any, dict[str, Any]] | None:
        code = self.fail(model.name)
        if code is None:
            return None
        error = {"Code": code, "Message": "the key c2VjcmV0 of https://report.test was not accepted"}
        return mock.Mock(status_code=400), {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}

    def send(self, function: str, method: str, target: str, body: Any = None, **more: Any) -> Result:
        """Send a request; ``body`` is text or JSON."""
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        result = self.invoke(function, event(method, target, text, **more))
        return Result(result["statusCode"], result["body"], result["headers"])

    def metrics(self) -> dict[str, float]:
        """The sums of the metrics that were emitted."""
        found: dict[str, float] = {}
        for line in self.output.getvalue().splitlines():
            entry = json.loads(line)
            if "_aws" in entry:
                for metric in entry["_aws"]["CloudWatchMetrics"][0]["Metrics"]:
                    found[metric["Name"]] = found.get(metric["Name"], 0) + sum(_list(entry[metric["Name"]]))
        return {name: value for name, value in found.items() if value}

    def reset(self) -> None:
        """Forget what was sent and stored, but for jobs and budgets."""
        for queue in self.urls:
            self.queued(queue)
        Objects(self.service.s3, self.reports_bucket).delete_under("")
        self.publish_keys(KNOWN)
        self.calls.clear()
        self.output.truncate(0)
        self.output.seek(0)
        self.fail = lambda operation: None
        if self.environment:
            self.environment = {}
            self.modules.clear()

    # Contents of queues and buckets

    def queued(self, queue: str = "arrivals") -> list[dict[str, str]]:
        """Take every message of a queue, in the form of the function's event."""
        found: list[dict[str, str]] = []
        while messages := self.sqs.receive_message(QueueUrl=self.urls[queue], MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                found.append({"messageId": message["MessageId"], "body": message["Body"]})
                self.sqs.delete_message(QueueUrl=self.urls[queue], ReceiptHandle=message["ReceiptHandle"])
        return found

    def store(self, records: list[dict[str, str]]) -> list[str]:
        """Have store take a batch; the ids of the messages that come again."""
        result = self.invoke("store", {"Records": records})
        return [failure["itemIdentifier"] for failure in result["batchItemFailures"]]

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """The objects in the bucket of reports."""
        place = Objects(self.service.s3, self.reports_bucket)
        return {one.key: place.read(one.key) for one in place.listed(prefix, 10**6)}

    def stored(self, prefix: str = "reports/") -> list[Report]:
        """All reports that are stored."""
        return [report for body in self.objects(prefix).values() for report in read_reports(BytesIO(body))]

    def publish_keys(self, *keys: Key) -> None:
        """Put keys into the ring."""
        ring = KeyRing(self.service.running.client(), self.control)
        before = ring.read()
        self.service.running.client().transact_write_items(
            TransactItems=[ring.changing(before, StoredRing("the first", "table", tuple(keys)))]
        )

    def run_jobs(self) -> None:
        """Process the queue of stages until it is empty."""
        self.service.queue += [StageMessage.model_validate_json(message["body"]) for message in self.queued("stages")]
        self.service.run()


def _list(value: Any) -> list[float]:
    return value if isinstance(value, list) else [value]


def front(running: Running) -> Front:
    """A new deployment, empty."""
    made = aggregation(running)
    service = Deployed(running, made.tables, made.s3, made.prefix)
    create_control(running.client(), f"{service.prefix}-control")
    sqs = running.session.client("sqs")
    names = ("arrivals", "stages")
    urls = {name: sqs.create_queue(QueueName=f"{service.prefix}-{name}")["QueueUrl"] for name in names}
    found = Front(service, sqs, urls)
    found.publish_keys(KNOWN)
    return found
