"""Creates a template's tables, queues, buckets and secrets on an engine, and its functions in this process.

Each function here takes a template and goes through its nested stacks too.
"""

from __future__ import annotations

import json
import random
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO
from urllib.parse import urlsplit

import boto3

from kanon.local.clock import Cron, ScheduleExpression
from kanon.local.functions import Function, function_arn
from kanon.local.template import (
    ACCOUNT,
    BUCKET,
    FUNCTION,
    QUEUE,
    REGION,
    SECRET,
    TABLE,
    Resource,
    Template,
)

_LONGEST_BUCKET_NAME = 63


@dataclass(frozen=True)
class Lifetime:
    """The lifetime of the objects under a prefix of a bucket, in seconds."""

    bucket: str
    prefix: str
    seconds: float


@dataclass
class Storage:
    """The built resources. Queues by ARN; tables, buckets and secrets by logical id."""

    tables: dict[str, str] = field(default_factory=dict)
    expiring: dict[str, str] = field(default_factory=dict)  # table name: its ttl attribute
    queue_urls: dict[str, str] = field(default_factory=dict)
    visibility: dict[str, float] = field(default_factory=dict)  # queue ARN: s
    buckets: dict[str, str] = field(default_factory=dict)
    lifetimes: list[Lifetime] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)  # the secret strings


def build_storage(template: Template, session: boto3.Session, prefix: str, seed: int | None) -> Storage:
    """Create everything that holds data. The engine's own clock never expires data."""
    storage = Storage()
    choose = _chooser(seed)
    for name, part in template.every(prefix):
        _build_tables(part, session.client("dynamodb"), name, storage)
        _build_queues(part, session.client("sqs"), name, storage)
        _build_buckets(part, session, name, storage)
        _build_secrets(part, session.client("secretsmanager"), name, choose, storage)
    return storage


def _build_tables(template: Template, client: Any, prefix: str, storage: Storage) -> None:
    for resource in template.resources(TABLE):
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
    for resource in template.resources(QUEUE):
        name = f"{prefix}-{resource.logical_id}"
        urls[resource.logical_id] = url = client.create_queue(QueueName=name)["QueueUrl"]
        arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
        template.identify(resource.logical_id, Ref=url, Arn=arn, QueueName=name)
        storage.queue_urls[arn] = url
        storage.visibility[arn] = float(resource.properties.get("VisibilityTimeout", 30))
    for resource in template.resources(QUEUE):  # now every dead-letter queue exists
        redrive = resource.properties.get("RedrivePolicy")
        if redrive:
            attributes = {"RedrivePolicy": json.dumps(redrive)}
            client.set_queue_attributes(QueueUrl=urls[resource.logical_id], Attributes=attributes)


def _build_buckets(template: Template, session: boto3.Session, prefix: str, storage: Storage) -> None:
    for resource in template.resources(BUCKET):
        name = f"{prefix}-{resource.logical_id}".lower().replace("_", "-")[-_LONGEST_BUCKET_NAME:].lstrip("-")
        client = session.client("s3")
        client.create_bucket(Bucket=name)
        if blocked := resource.properties.get("PublicAccessBlockConfiguration"):
            client.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=blocked)
        template.identify(resource.logical_id, Ref=name, Arn=f"arn:aws:s3:::{name}")
        storage.buckets[resource.logical_id] = name
        for rule in resource.properties.get("LifecycleConfiguration", {}).get("Rules", []):
            if rule["Status"] == "Enabled" and "ExpirationInDays" in rule:
                seconds = 86400.0 * int(rule["ExpirationInDays"])
                storage.lifetimes.append(Lifetime(name, rule.get("Prefix", ""), seconds))


def _build_secrets(
    template: Template, client: Any, prefix: str, choose: Callable[[str], str], storage: Storage
) -> None:
    for resource in template.resources(SECRET):
        value = _secret(resource.properties, choose)
        arn = client.create_secret(Name=f"{prefix}-{resource.logical_id}", SecretString=value)["ARN"]
        template.identify(resource.logical_id, Ref=arn, Id=arn)
        storage.secrets[resource.logical_id] = value


def _secret(properties: Mapping[str, Any], choose: Callable[[str], str]) -> str:
    rule = properties["GenerateSecretString"]
    text = _text(choose, int(rule["PasswordLength"]))
    if "GenerateStringKey" not in rule:
        return text
    return json.dumps({**json.loads(rule["SecretStringTemplate"]), rule["GenerateStringKey"]: text})


def random_text(name: str, seed: int | None) -> str:
    """A secret text beside those of the template, of a name; the same for the same seed."""
    return _text(_chooser(None if seed is None else f"{name} {seed}"), 64)


def _chooser(seed: int | str | None) -> Callable[[str], str]:
    return random.Random(seed).choice if seed is not None else secrets.choice


def _text(choose: Callable[[str], str], length: int) -> str:
    alphabet = string.ascii_letters + string.digits
    return "".join(choose(alphabet) for _ in range(length))


def build_functions(
    template: Template,
    prefix: str,
    session: Callable[[str], boto3.Session],
    environment: Mapping[str, str],
    logs: TextIO,
) -> dict[str, Function]:
    """The template's functions by the name of their folder (``join``, ``evaluate``, ...)."""
    parts = list(template.every(prefix))
    for name, part in parts:  # names first: variables of one function may contain the name of another
        for resource in part.resources(FUNCTION):
            full = f"{name}-{resource.logical_id}"
            part.identify(resource.logical_id, Ref=full, Arn=function_arn(full))
    functions = {}
    for name, part in parts:
        for resource in part.resources(FUNCTION):
            properties = resource.properties
            directory = (part.directory / str(properties["CodeUri"])).resolve()
            variables = properties.get("Environment", {}).get("Variables", {})
            functions[directory.name] = Function(
                name=f"{name}-{resource.logical_id}",
                directory=directory,
                handler=properties["Handler"],
                environment={**environment, **{k: str(v) for k, v in variables.items()}},
                timeout=float(properties.get("Timeout", 3)),
                memory=int(properties.get("MemorySize", 128)),
                session=session,
                logs=logs,
                alias=_alias(part, resource),
                on_failure=_on_failure(part, resource.logical_id),
            )
    return functions


def _alias(template: Template, resource: Resource) -> str:
    """ARN of a function's alias; the function's own if it has none."""
    published = "AutoPublishAlias" in resource.properties
    return str(template.resolve({"Ref": f"{resource.logical_id}.{'Alias' if published else 'Arn'}"}))


def function_urls(template: Template, functions: Mapping[str, Function]) -> dict[str, str]:
    """The name of the function that answers at each host of a function URL."""
    names = {function.name: name for name, function in functions.items()}
    found = {}
    for part, resource in template.every_resource("AWS::Lambda::Url"):
        url = part.resolve({"Fn::GetAtt": [resource.logical_id, "FunctionUrl"]})
        found[urlsplit(url).netloc] = names[resource.properties["TargetFunctionArn"]]
    return found


def _on_failure(template: Template, logical_id: str) -> str | None:
    """ARN of the destination of failed asynchronous invocations."""
    name = template.resolve({"Ref": logical_id})
    for resource in template.resources("AWS::Lambda::EventInvokeConfig"):
        if resource.properties["FunctionName"] == name:
            return str(resource.properties["DestinationConfig"]["OnFailure"]["Destination"])
    return None


@dataclass(frozen=True)
class Wake:
    """A schedule, the function that it invokes, and the payload."""

    schedule: ScheduleExpression
    function: str
    payload: Any


def wakes(template: Template, functions: Mapping[str, str], replacement: ScheduleExpression | None) -> list[Wake]:
    """The template's schedules; ``functions``: name by ARN."""
    schedule, found = "AWS::Scheduler::Schedule", []
    if replacement is not None:
        for _, part in template.every():
            part.replace(schedule, "ScheduleExpression", "replaced")
    for _, resource in template.every_resource(schedule):
        target = resource.properties["Target"]
        expression = replacement or Cron(resource.properties["ScheduleExpression"])
        found.append(Wake(expression, functions[target["Arn"]], json.loads(target["Input"])))
    return found
