"""Lambda function `decrypt`: maps shards of reports. It has the private keys, no budgets and no noise key."""

from functools import partial
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, clock
from kanon.errors import kind_and_place, texts_withheld
from kanon.queues import read_message, send_all
from kanon.reports.errors import STOPS
from kanon.reports.service.bodies import reader
from kanon.reports.service.shards import Shards, count_outcome
from kanon.reports.settings import DecryptSettings, RecordedSettings
from kanon.reports.storage.key_ring import PrivateKeys
from kanon.reports.storage.objects import Objects
from kanon.reports.storage.report_jobs import MapMessage, ReportJobs
from kanon.starting import Once

SETTINGS = DecryptSettings.from_environment()

SECONDS_A_PIECE = 120
"""A worker with less time left maps no further piece: the next one continues after what is recorded."""

logger = Logger()
metrics = Metrics()
processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)

sqs_client = Once(aws.sqs)


@Once
def shards() -> Shards:
    """The use case, built once per execution environment. A changed fingerprint is an error."""
    dynamodb, s3 = aws.dynamodb(), aws.s3()
    RecordedSettings(dynamodb, SETTINGS.control_table).compare("decrypt", SETTINGS)
    return Shards(
        jobs=ReportJobs(dynamodb, SETTINGS.report_jobs_table),
        work=Objects(s3, SETTINGS.work_bucket),
        bucket=partial(Objects, s3),
        request=reader(SETTINGS),
        keys=PrivateKeys(aws.secrets_manager(), SETTINGS.report_key_prefix).existing,
        clock=clock.now,
        ended=partial(count_outcome, metrics),
    )


def map_shard(record: SQSRecord, lambda_context: LambdaContext) -> None:
    """Map the shard of a message. If it was the last one, send the message for the next stage."""
    stage = "none"

    def has_time() -> bool:
        return lambda_context.get_remaining_time_in_millis() > 1000 * SECONDS_A_PIECE

    try:
        message = read_message(MapMessage, record.body)
        stage = message.stage
        send_all(sqs_client(), SETTINGS.stages_url, shards().run(message, has_time))
    except STOPS as error:
        logger.error("decryption stopped", stage=stage, kind=type(error).__name__, reason=str(error))
        raise
    except Exception as error:
        # The text of other errors may name objects, so log only their kind. The queue redelivers the message.
        logger.warning("a shard failed and will be retried", stage=stage, **kind_and_place(error))
        raise


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Entry point: a queue message names a shard."""
    result = process_partial_response(event=event, record_handler=map_shard, processor=processor, context=context)
    metrics.add_metric("ShardsFailed", MetricUnit.Count, len(result["batchItemFailures"]))
    return result
