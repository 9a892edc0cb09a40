"""Creates a template's tables, queues and secrets on an engine, and its functions in this process."""

from __future__ import annotations

import json
import random
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import boto3

from kanon.local.clock import Cron, Trigger
from kanon.local.functions import Function, function_arn
from kanon.local.template import ACCOUNT, REGION, Resource, Template, TemplateError

_FUNCTION = "AWS::Serverless::Function"


@dataclass
class Storage:
    """Where the built resources are. Queues by ARN; tables and secrets by logical id."""

    tables: dict[str, str] = field(default_factory=dict)
    expiring: dict[str, str] = field(default_factory=dict)  # table name: its ttl attribute
    queue_urls: dict[str, str] = field(default_factory=dict)
    visibility: dict[str, float] = field(default_factory=dict)  # queue ARN: s
    secrets: dict[str, str] = field(default_factory=dict)  # the secret strings


def build_storage(template: Template, session: boto3.Session, prefix: str, seed: int | None) -> Storage:
    """Create everything that holds data. The engine's own clock never expires any of it."""
    storage = Storage()
    _build_tables(template, session.client("dynamodb"), prefix, storage)
    _build_queues(template, session.client("sqs"), prefix, storage)
    choose = random.Random(seed).choice if seed is not None else secrets.choice
    manager = session.client("secretsmanager")
    for resource in template.resources("AWS::SecretsManager::Secret"):
        value = _secret(resource.properties, choose)
        arn = manager.create_secret(Name=f"{prefix}-{resource.logical_id}", SecretString=value)
        template.identify(resource.logical_id, Ref=arn["ARN"], Id=arn["ARN"])
        storage.secrets[resource.logical_id] = value
    return storage


def _build_tables(template: Template, client: Any, prefix: str, storage: Storage) -> None:
    for resource in template.resources("AWS::DynamoDB::Table"):
        properties, name = resource.properties, f"{prefix}-{resource.logical_id}"
        table = client.create_table(
            TableName=name,
            KeySchema=properties["KeySchema"],
            AttributeDefinitions=properties["AttributeDefinitions"],
            BillingMode="PAY_PER_REQUEST",
        )["TableDescription"]
        template.identify(resource.logical_id, Ref=name, Arn=table["TableArn"])
        storage.tables[resource.logical_id] = name
        expiry = properties.get("TimeToLiveSpecification", {})
        if expiry.get("Enabled"):
            storage.expiring[name] = expiry["AttributeName"]


def _build_queues(template: Template, client: Any, prefix: str, storage: Storage) -> None:
    urls = {}
    for resource in template.resources("AWS::SQS::Queue"):
        name = f"{prefix}-{resource.logical_id}"
        urls[resource.logical_id] = url = client.create_queue(QueueName=name)["QueueUrl"]
        arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
        template.identify(resource.logical_id, Ref=url, Arn=arn, QueueName=name)
        storage.queue_urls[arn] = url
        storage.visibility[arn] = float(resource.properties.get("VisibilityTimeout", 30))
    for resource in template.resources("AWS::SQS::Queue"):  # now every dead-letter queue exists
        redrive = resource.properties.get("RedrivePolicy")
        if redrive:
            attributes = {"RedrivePolicy": json.dumps(redrive)}
            client.set_queue_attributes(QueueUrl=urls[resource.logical_id], Attributes=attributes)


def _secret(properties: Mapping[str, Any], choose: Callable[[str], str]) -> str:
    rule = properties["GenerateSecretString"]
    alphabet = string.ascii_letters + string.digits
    text = "".join(choose(alphabet) for _ in range(int(rule["PasswordLength"])))
    if "GenerateStringKey" not in rule:
        return text
    return json.dumps({**json.loads(rule["SecretStringTemplate"]), rule["GenerateStringKey"]: text})


def build_functions(
    template: Template,
    prefix: str,
    root: Path,
    session: Callable[[str], boto3.Session],
    environment: Mapping[str, str],
    logs: TextIO,
) -> dict[str, Function]:
    """The template's functions by the name of their folder (``join``, ``evaluate``, ...)."""
    resources = template.resources(_FUNCTION)
    for resource in resources:  # first the names, which each other's variables may contain
        name = f"{prefix}-{resource.logical_id}"
        template.identify(resource.logical_id, Ref=name, Arn=function_arn(name))
    functions = {}
    for resource in template.resources(_FUNCTION):
        properties = resource.properties
        directory = root / str(properties["CodeUri"])
        variables = properties.get("Environment", {}).get("Variables", {})
        functions[directory.name] = Function(
            name=f"{prefix}-{resource.logical_id}",
            directory=directory,
            handler=properties["Handler"],
            environment={**environment, **{k: str(v) for k, v in variables.items()}},
            timeout=float(properties.get("Timeout", 3)),
            memory=int(properties.get("MemorySize", 128)),
            session=session,
            logs=logs,
            alias=_alias(template, resource),
            on_failure=_on_failure(template, resource.logical_id),
        )
    return functions


def _alias(template: Template, resource: Resource) -> str:
    """ARN of a function's alias; the function's own if it has none."""
    published = "AutoPublishAlias" in resource.properties
    return str(template.resolve({"Ref": f"{resource.logical_id}.{'Alias' if published else 'Arn'}"}))


def _on_failure(template: Template, logical_id: str) -> str | None:
    """ARN of the destination of failed asynchronous invocations."""
    name = template.resolve({"Ref": logical_id})
    for resource in template.resources("AWS::Lambda::EventInvokeConfig"):
        if resource.properties["FunctionName"] == name:
            return str(resource.properties["DestinationConfig"]["OnFailure"]["Destination"])
    return None


@dataclass(frozen=True)
class Mapped:
    """A queue whose messages Lambda passes to a function."""

    function: str
    queue_arn: str
    batch_size: int

    def event(self, messages: Sequence[Any]) -> dict[str, Any]:
        """The function's event for messages as boto3 returned them."""
        return {
            "Records": [
                {
                    "messageId": message["MessageId"],
                    "receiptHandle": message["ReceiptHandle"],
                    "body": message["Body"],
                    "attributes": message.get("Attributes", {}),
                    "messageAttributes": {},
                    "md5OfBody": message["MD5OfBody"],
                    "eventSource": "aws:sqs",
                    "eventSourceARN": self.queue_arn,
                    "awsRegion": REGION,
                }
                for message in messages
            ]
        }

    def failed(self, result: Any, messages: Sequence[Any]) -> set[str]:
        """Ids of the messages that stay in the queue after this answer."""
        names = {failure["itemIdentifier"] for failure in (result or {}).get("batchItemFailures") or []}
        everything = {message["MessageId"] for message in messages}
        if not names <= everything:
            return everything  # an unknown id fails the whole batch
        return names


def queue_mappings(template: Template, functions: Mapping[str, str]) -> list[Mapped]:
    """The event source mappings; ``functions``: name by ARN."""
    names = {**functions, **{arn.rpartition(":")[2]: name for arn, name in functions.items()}}
    mapped = []
    for resource in template.resources("AWS::Lambda::EventSourceMapping"):
        properties = resource.properties
        if "ReportBatchItemFailures" not in properties.get("FunctionResponseTypes", []):
            raise TemplateError(f"{resource.logical_id} needs FunctionResponseTypes: [ReportBatchItemFailures]")
        function, queue = names[properties["FunctionName"]], properties["EventSourceArn"]
        mapped.append(Mapped(function, queue, int(properties["BatchSize"])))
    return mapped


@dataclass(frozen=True)
class Wake:
    """A schedule, the function that it invokes, and the payload."""

    schedule: Trigger
    function: str
    payload: Any


def wakes(template: Template, functions: Mapping[str, str], replacement: Trigger | None) -> list[Wake]:
    """The template's schedules; ``functions``: name by ARN."""
    if replacement is not None:
        template.replace("AWS::Scheduler::Schedule", "ScheduleExpression", "replaced")
    return [
        Wake(
            replacement or Cron(resource.properties["ScheduleExpression"]),
            functions[resource.properties["Target"]["Arn"]],
            json.loads(resource.properties["Target"]["Input"]),
        )
        for resource in template.resources("AWS::Scheduler::Schedule")
    ]
