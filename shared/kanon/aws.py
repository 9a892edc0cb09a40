"""The AWS clients of a function: one per service and environment, with timeouts that fit a handler."""

from typing import TYPE_CHECKING

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
    """A client of the tables."""
    return boto3.client("dynamodb", config=CONFIG)


def secrets_manager() -> "SecretsManagerClient":
    """A client of the secrets."""
    return boto3.client("secretsmanager", config=CONFIG)


def sqs() -> "SQSClient":
    """A client of the queue."""
    return boto3.client("sqs", config=CONFIG)
