"""The private functions of reports with their real handlers, over tables, buckets, queues and secrets of an engine."""

import io
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import boto3

from kanon.local.functions import Environment, Function
from kanon.local.source import ROOT
from kanon.reports.settings import AggregateSettings, DecryptSettings, JobsSettings, RotateSettings
from kanon.settings import Settings
from tests.integration.gate.tables import Running
from tests.integration.reports.aggregation import INPUT, OUTPUT, WORK, Aggregation, aggregation
from tests.integration.reports.issuing import Issuing
from tests.integration.reports.tables import create_control
from tests.unit.reports.test_settings import ENVIRONMENTS

QUEUES = "Maps", "Stages"
SETTINGS: dict[str, type[Settings]] = {
    "decrypt": DecryptSettings,
    "aggregate": AggregateSettings,
    "rotate": RotateSettings,
    "jobs": JobsSettings,
}
PRIVATE = "decrypt", "aggregate", "rotate"
SECONDS = 900


@dataclass
class Functions:
    """A deployment whose stages run as handlers. ``service`` puts inputs, creates jobs and reads summaries."""

    running: Running
    service: Aggregation
    logs: io.StringIO = field(default_factory=io.StringIO)

    @property
    def name(self) -> str:
        return self.service.prefix

    @property
    def keys(self) -> Issuing:
        return Issuing(self.running, self.name)

    @cached_property
    def sqs(self) -> Any:
        return self.running.session.client("sqs")

    @cached_property
    def urls(self) -> dict[str, str]:
        return {queue: self.sqs.create_queue(QueueName=f"{self.name}-{queue}")["QueueUrl"] for queue in QUEUES}

    def environment(self, function: str, **changes: str) -> dict[str, str]:
        """The variables of a function here."""
        values = {
            "DEPLOYMENT": "test",
            "CONTROL_TABLE": f"{self.name}-Control",
            "REPORTS_BUCKET": f"{self.name}-{INPUT}",
            "SUMMARIES_BUCKET": f"{self.name}-{OUTPUT}",
            "WORK_BUCKET": f"{self.name}-{WORK}",
            "REPORT_JOBS_TABLE": self.service.tables.names["ReportJobs"],
            "BUDGETS_TABLE": self.service.tables.names["Budgets"],
            "MAPS_URL": self.urls["Maps"],
            "STAGES_URL": self.urls["Stages"],
            "REPORT_NOISE_KEY_SECRET": f"{self.name}-noise-key",
            "REPORT_KEY_PREFIX": self.keys.prefix,
            **changes,
        }
        here = {f"KANON_{name}": value for name, value in values.items()}
        own = {name: here.get(name, value) for name, value in ENVIRONMENTS[SETTINGS[function]].items()}
        return own | {"POWERTOOLS_SERVICE_NAME": "test", "POWERTOOLS_METRICS_NAMESPACE": "kanon"}

    def cold_start(self, function: str, **changes: str) -> Environment:
        def session(_: str) -> boto3.Session:
            return self.running.session

        return Function(
            function,
            ROOT / "functions" / "reports" / function,
            "app.handler",
            self.environment(function, **changes),
            SECONDS,
            1024,
            session,
            self.logs,
        ).cold_start()

    @cached_property
    def warm(self) -> dict[str, Environment]:
        return {name: self.cold_start(name) for name in PRIVATE}

    def schedule(self, function: str) -> Any:
        return self.warm[function].invoke({"schedule": True})

    def received(self, queue: str) -> list[dict[str, str]]:
        """The messages of a queue, which are taken from it."""
        found: list[dict[str, str]] = []
        while messages := self.sqs.receive_message(QueueUrl=self.urls[queue], MaxNumberOfMessages=10).get("Messages"):
            for one in messages:
                self.sqs.delete_message(QueueUrl=self.urls[queue], ReceiptHandle=one["ReceiptHandle"])
                found.append({"messageId": one["MessageId"], "body": one["Body"], "eventSource": "aws:sqs"})
        return found

    def run(self, most: int = 50) -> int:
        """Work until the queues are empty; how many messages failed. They do not come again."""
        failed = 0
        for _ in range(most):
            maps, stages = self.received("Maps"), self.received("Stages")
            if not maps and not stages:
                return failed
            for function, messages in (("decrypt", maps), ("aggregate", stages)):
                for message in messages:
                    answer = self.warm[function].invoke({"Records": [message]})
                    failed += len(answer["batchItemFailures"])
        raise AssertionError("the queues never get empty")

    def create(self, job: str, **changes: Any) -> None:
        """Create a job and send its first message, as ``jobs`` does."""
        self.service.create(job, **{
            "input_data_bucket_name": f"{self.name}-{INPUT}",
            "output_data_bucket_name": f"{self.name}-{OUTPUT}",
            "job_parameters__output_domain_bucket_name": f"{self.name}-{OUTPUT}",
            **changes,
        })  # fmt: skip
        for message in self.service.queue:
            self.sqs.send_message(QueueUrl=self.urls["Stages"], MessageBody=message.model_dump_json())
        self.service.queue.clear()

    def metrics(self) -> dict[str, float]:
        """The sum of every metric so far."""
        found: dict[str, float] = {}
        for line in self.logs.getvalue().splitlines():
            if '"_aws"' not in line:
                continue
            entry = json.loads(line)
            for one in entry["_aws"]["CloudWatchMetrics"][0]["Metrics"]:
                value = entry[one["Name"]]
                found[one["Name"]] = found.get(one["Name"], 0) + sum(value if isinstance(value, list) else [value])
        return found


def functions(running: Running) -> Functions:
    """A new deployment without keys."""
    service = aggregation(running)
    deployed = Functions(running, service)
    create_control(running.client(), f"{deployed.name}-Control")
    Issuing(running, deployed.name).replace_budgets(epoch=None)
    running.session.client("secretsmanager").create_secret(
        Name=f"{deployed.name}-noise-key", SecretString=json.dumps({"1": "a random text of a test"})
    )
    return deployed
