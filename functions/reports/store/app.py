"""Lambda function `store`: it has no public endpoint. It writes queued reports to objects, and reads none."""

from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import ValidationError

from kanon import aws
from kanon.reports.service.storing import Batch
from kanon.reports.settings import StoreSettings
from kanon.reports.storage.objects import Objects
from kanon.starting import Once

SETTINGS = StoreSettings.from_environment()

logger = Logger()
metrics = Metrics()

bucket = Once(lambda: Objects(aws.s3(), SETTINGS.reports_bucket))


def store(records: list[dict[str, Any]]) -> list[str]:
    """Write the objects of a batch.

    Returns:
        The ids of the messages that are not stored. The queue delivers them again, and moves those that can never be
        stored to its dead-letter queue.
    """
    batch, failed, stored = Batch(), [], 0
    for record in records:
        try:
            batch.add(record["messageId"], record["body"])
        except ValidationError as error:
            logger.error("message refused", problems=[problem["type"] for problem in error.errors(include_input=False)])
            failed.append(record["messageId"])
    for file in batch.files():
        try:
            bucket().put_once(file.key, file.body)
            stored += 1
        except (ClientError, BotoCoreError) as error:
            # The text of the error may name the object; its kind does not.
            logger.warning("an object was not written; its messages come again", kind=type(error).__name__)
            failed += file.messages
    metrics.add_metric("ObjectsStored", MetricUnit.Count, stored)  # no count of reports, which would be data
    return failed


@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], _: LambdaContext) -> dict[str, Any]:
    """Entry point: a batch of the queue Arrivals."""
    failed = store(event["Records"])
    return {"batchItemFailures": [{"itemIdentifier": message} for message in failed]}
