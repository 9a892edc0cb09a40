"""The AWS clients of a function: one per service and environment, with timeouts that fit a handler."""

import json
from base64 import b64decode
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_secretsmanager import SecretsManagerClient
    from mypy_boto3_sqs import SQSClient

# Two retries of at most 2 s each stay inside a 10 s handler: no write may outlive its handler (rule 2).
# Parameters come from typed code; to have botocore check them anew takes a sixth of a batch's time
# (docs/performance.md). To compose its description of itself anew takes a fifth of every call.
CONFIG = Config(
    connect_timeout=1,
    read_timeout=2,
    retries={"mode": "standard", "total_max_attempts": 3},
    max_pool_connections=32,
    parameter_validation=False,
    user_agent="kanon",
)


def dynamodb() -> "DynamoDBClient":
    """A client of the tables; what it reads is parsed by :func:`_parse`."""
    client = boto3.client("dynamodb", config=CONFIG)
    for operation in ("BatchGetItem", "Query"):
        client.meta.events.register(f"before-parse.dynamodb.{operation}", _parse)
    return client


def secrets_manager() -> "SecretsManagerClient":
    """A client of the secrets."""
    return boto3.client("secretsmanager", config=CONFIG)


def sqs() -> "SQSClient":
    """A client of the queue."""
    return boto3.client("sqs", config=CONFIG)


def _parse(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Parse an answer before botocore does, which looks for all ten kinds of value in each value.

    JSON already has the form that botocore gives an answer, but for bytes, which it carries as base64.
    An error, or what is not JSON, is left to botocore.
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
    if isinstance(value.get("B"), str):  # an attribute may be named B too, but is no text then
        value["B"] = b64decode(value["B"])
    elif isinstance(value.get("BS"), list):
        value["BS"] = [b64decode(text) for text in value["BS"]]
    return value
