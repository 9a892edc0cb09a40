"""Lambda function `store`: it has no public endpoint. It writes queued reports to objects, and reads none."""

import time
from concurrent.futures import CancelledError
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import ValidationError

from kanon import aws, clock
from kanon.errors import KanonError, texts_withheld
from kanon.reports.service.storing import ReportBatch, write
from kanon.reports.settings import StoreSettings
from kanon.reports.storage.objects import Objects
from kanon.starting import Once

SETTINGS = StoreSettings.from_environment()

MARGIN = 5
"""Seconds before the time limit at which the objects that are not written are given up."""

logger = Logger()
metrics = Metrics()

bucket = Once(lambda: Objects(aws.s3(), SETTINGS.reports_bucket))


def store(records: list[dict[str, Any]], seconds: float) -> list[str]:
    """Write the objects of a batch within some seconds.

    Returns:
        The ids of the messages that are not stored. The queue delivers them again, and moves those that can never be
        stored to its dead-letter queue.
    """
    batch, failed, stored = ReportBatch(), [], 0
    begun = time.monotonic()
    for record in records:
        try:
            batch.add(record["messageId"], record["body"])
        except ValidationError as error:
            logger.error("message refused", problems=[problem["type"] for problem in error.errors(include_input=False)])
            failed.append(record["messageId"])
        except KanonError:
            logger.error("message refused", problems=["shared_info"])
            failed.append(record["messageId"])
    files = [*batch.files(clock.now())]
    outcomes = write(files, bucket().put_once, seconds - (time.monotonic() - begun))
    for file in files:
        outcome = outcomes[file.key]
        try:
            outcome.result(timeout=0)
            stored += 1
        except (ClientError, BotoCoreError, TimeoutError, CancelledError) as error:
            # The text of the error may name the object; its kind does not.
            logger.warning("an object was not written; its messages come again", kind=type(error).__name__)
            failed += file.messages
    metrics.add_metric("ObjectsStored", MetricUnit.Count, stored)  # no count of reports, which would be data
    return failed


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Entry point: a batch of the queue Arrivals."""
    failed = store(event["Records"], context.get_remaining_time_in_millis() / 1000 - MARGIN)
    return {"batchItemFailures": [{"itemIdentifier": message} for message in failed]}
