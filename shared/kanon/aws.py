"""AWS clients: one per service and execution environment, with timeouts that fit into a handler's time limit."""

import json
import os
from base64 import b64decode
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import botocore.session
from botocore import UNSIGNED
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_secretsmanager import SecretsManagerClient
    from mypy_boto3_sqs import SQSClient

# Two retries of at most 2 s each fit into a 10 s handler: no write may outlive its handler (rule 2).
# Typed code builds the parameters; validating them again takes a sixth of a batch's time. A fixed user agent saves a
# fifth of every call, because botocore would build its own each time (docs/evidence/performance.md).
CONFIG = Config(
    connect_timeout=1,
    read_timeout=2,
    retries={"mode": "standard", "total_max_attempts": 3},
    max_pool_connections=32,
    parameter_validation=False,
    user_agent="kanon",
)

# An object of several MB takes longer to arrive than a row. With one endpoint for all services (AWS_ENDPOINT_URL) the
# bucket is in the path, because a name like bucket.host would lead nowhere.
OBJECTS = CONFIG.merge(Config(connect_timeout=2, read_timeout=20))
# A function that is invoked may take its whole time limit. It is invoked once: the caller's client tries again.
ONCE = Config(retries={"mode": "standard", "total_max_attempts": 1})
CALLS = CONFIG.merge(Config(read_timeout=11)).merge(ONCE)
IN_PATH = Config(s3={"addressing_style": "path"})

# boto3 is not imported: it brings S3's transfer manager, which costs time at each start (docs/evidence/performance.md).
session: Callable[[], Any] = cache(botocore.session.get_session)
"""The session that makes the clients of this execution environment."""


def load_models(*services: str) -> None:
    """Read botocore's descriptions of services, which take most of the time of a first client.

    The session keeps them. The clients made here have no credentials, never connect and are dropped.
    """
    for service in services:
        session().create_client(
            service, region_name="us-east-1", config=CONFIG.merge(Config(signature_version=UNSIGNED))
        )


def dynamodb() -> "DynamoDBClient":
    """A DynamoDB client; :func:`_parse` parses what it reads."""
    client: DynamoDBClient = session().create_client("dynamodb", config=CONFIG)
    for operation in ("BatchGetItem", "Query"):
        client.meta.events.register(f"before-parse.dynamodb.{operation}", _parse)
    return client


def secrets_manager() -> "SecretsManagerClient":
    """A Secrets Manager client."""
    client: SecretsManagerClient = session().create_client("secretsmanager", config=CONFIG)
    return client


def sqs() -> "SQSClient":
    """An SQS client."""
    client: SQSClient = session().create_client("sqs", config=CONFIG)
    return client


def functions() -> "LambdaClient":
    """A Lambda client, for functions that answer within 10 s."""
    client: LambdaClient = session().create_client("lambda", config=CALLS)
    return client


def s3() -> "S3Client":
    """An S3 client for objects of several MB."""
    return _s3(OBJECTS)


def s3_for_requests() -> "S3Client":
    """An S3 client for objects without which a request can be answered: it tries once, and not for long."""
    return _s3(CONFIG.merge(ONCE))


def _s3(config: Config) -> "S3Client":
    one_endpoint = "AWS_ENDPOINT_URL" in os.environ
    client: S3Client = session().create_client("s3", config=config.merge(IN_PATH) if one_endpoint else config)
    return client


def _parse(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Parse a response before botocore does, which tests each value for all ten DynamoDB types.

    The JSON body already has the form of botocore's result, except that bytes are in base64.
    Errors and bodies that are not JSON are left to botocore.
    """
    if response_dict["status_code"] != HTTPStatus.OK:
        return
    try:
        parsed = json.loads(response_dict["body"], object_hook=_with_bytes)
    except ValueError:
        return
    customized_response_dict.update(parsed)
    response_dict["body"] = b"{}"


def _with_bytes(value: dict[str, Any]) -> dict[str, Any]:
    if isinstance(value.get("B"), str):  # an attribute named B has a dictionary as its value
        value["B"] = b64decode(value["B"])
    elif isinstance(value.get("BS"), list):
        value["BS"] = [b64decode(text) for text in value["BS"]]
    return value
