"""Lambda function `aggregate`: takes jobs from stage to stage. It has the budgets and the noise key, no private key."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, clock
from kanon.errors import KanonError, kind_and_place, texts_withheld
from kanon.gate.lists import ReadableList
from kanon.gate.storage.aws.lists import ListGoneError, ListObjects
from kanon.keys import fetch_noise_keys
from kanon.queues import read_message, send_all
from kanon.reports.errors import REPLACED, STOPS, JobError
from kanon.reports.job import Amount
from kanon.reports.service.bodies import reader
from kanon.reports.service.rotation import Epoch
from kanon.reports.service.shards import Ring, count_outcome, list_gone
from kanon.reports.service.stages import Stages, WaitError
from kanon.reports.settings import AggregateSettings, RecordedSettings
from kanon.reports.storage.budgets import Budgets, Committing
from kanon.reports.storage.key_ring import KeyRing
from kanon.reports.storage.objects import Objects
from kanon.reports.storage.report_jobs import STUCK, MapMessage, Message, ReleasedKeys, ReportJobs, StageMessage
from kanon.starting import Once

SETTINGS = AggregateSettings.from_environment()
NOISE_KEY = "1"
SECONDS_A_STAGE = 300
"""With less time left, a run begins no further stage: a new message continues the job."""
QUIET = 240
"""Seconds without a step after which a job's messages are sent again: less than the five minutes between sweeps."""

logger = Logger()
metrics = Metrics()
processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)

dynamodb_client = Once(aws.dynamodb)
sqs_client = Once(aws.sqs)


def report_jobs() -> ReportJobs:
    """The jobs."""
    return ReportJobs(dynamodb_client(), SETTINGS.report_jobs_table)


@Once
def stages() -> Stages:
    """The use case with its noise key, built once per execution environment. A changed fingerprint is an error."""
    dynamodb, s3, jobs = dynamodb_client(), aws.s3(), report_jobs()
    RecordedSettings(dynamodb, SETTINGS.control_table).compare("aggregate", SETTINGS)
    noise_key = fetch_noise_keys(aws.secrets_manager(), SETTINGS.report_noise_key_secret, [NOISE_KEY])[NOISE_KEY]
    budgets = Budgets(dynamodb, SETTINGS.budgets_table, Amount.of(SETTINGS.epsilon_cap, SETTINGS.delta_cap))
    epoch = Epoch(dynamodb, KeyRing(dynamodb, SETTINGS.control_table), budgets, SETTINGS.report_jobs_table)
    return Stages(
        jobs=jobs,
        budgets=budgets,
        committing=lambda name: Committing(dynamodb, jobs, budgets, lambda: is_in_force(epoch, name), clock.now),
        work=Objects(s3, SETTINGS.work_bucket),
        bucket=partial(Objects, s3),
        request=reader(SETTINGS),
        ring=lambda: ring(epoch),
        noise_key=noise_key,
        deployment=SETTINGS.deployment,
        collected=SETTINGS.reports_bucket,
        digests=partial(digests, ListObjects(s3, SETTINGS.list_bucket, SETTINGS.period)),
        clock=clock.now,
        ended=partial(count_outcome, metrics),
    )


def ring(epoch: Epoch) -> Ring:
    """The ids of the keys that open reports, read for every plan and commit: a table may be replaced at any time.

    Raises:
        JobError: there are no keys yet, or a table was replaced.
    """
    try:
        keys = epoch.in_force()
    except JobError as error:
        metrics.add_metric("BudgetTableReplaced", MetricUnit.Count, error.code == REPLACED)
        raise
    return Ring(tuple(key.id for key in keys.opening(clock.now())), keys.epoch)


def digests(objects: ListObjects, pinned: ReleasedKeys) -> Iterator[bytes]:
    """SHA-256 of each value of the list that a job's row names.

    Raises:
        JobError: the list is gone, or the stack publishes no lists any more.
    """
    if not objects.bucket:
        raise list_gone()
    try:
        found = ReadableList(pinned.step, pinned.bits, pinned.count, pinned.run)
        yield from (digest for digest, _ in objects.rows(pinned.type_name, found))
    except ListGoneError:
        raise list_gone() from None


def is_in_force(epoch: Epoch, name: str) -> bool:
    """Whether the epoch of a plan is still that of the keys and of the budget table."""
    try:
        return ring(epoch).epoch == name
    except JobError:
        return False


def send(messages: Sequence[Message]) -> None:
    """Send messages to the queues of shards and of stages.

    Raises:
        RuntimeError: a queue did not accept every message. The current message, when redelivered, or the sweep sends
            them again.
    """
    send_all(sqs_client(), SETTINGS.maps_url, [one for one in messages if isinstance(one, MapMessage)])
    send_all(sqs_client(), SETTINGS.stages_url, [one for one in messages if isinstance(one, StageMessage)])


def take_on(record: SQSRecord, lambda_context: LambdaContext) -> None:
    """Take the job of a message as far as it goes, and send the messages that follow."""

    def has_time() -> bool:
        return lambda_context.get_remaining_time_in_millis() > 1000 * SECONDS_A_STAGE

    entered = ["none"]
    try:
        send(stages().run(read_message(StageMessage, record.body), has_time, entered.append))
    except WaitError:
        # Not a failure: it must not count towards the dead-letter queue. The sweep sends the next message.
        logger.info("a job waits for budget that another job holds")
    except STOPS as error:
        logger.error("aggregation stopped", kind=type(error).__name__, reason=str(error))
        raise
    except Exception as error:
        # The text of other errors may name objects, so log only their kind. The queue redelivers the message.
        logger.warning("a stage failed and will be retried", stage=entered[-1], **kind_and_place(error))
        raise


def sweep_jobs() -> None:
    """Continue the jobs whose messages were lost: those that have not moved for some minutes.

    A job that cannot be resumed does not stop the others.

    Raises:
        KanonError: some jobs could not be resumed. The next sweep tries again.
    """
    jobs, now, taking_on = report_jobs(), clock.now(), stages()
    stuck, failed = 0, set[str]()
    for job in list(jobs.unfinished()):
        try:
            row = jobs.read(job)
            if row is None:
                continue
            stuck += now - row.received_at >= STUCK
            if now - jobs.moved_at(row) >= QUIET:
                send(taking_on.resumed(job))
        except Exception as error:  # noqa: BLE001, told below
            failed.add(type(error).__name__)
    metrics.add_metric("StuckJobs", MetricUnit.Count, stuck)
    for kind in sorted(failed):
        logger.error("jobs could not be resumed", kind=kind)
    if failed:
        raise KanonError("jobs could not be resumed: the next sweep tries again")


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Entry point: on a schedule event, sweep; on a queue event, take a job on."""
    if event.get("schedule") is True:
        sweep_jobs()
        return None
    result = process_partial_response(event=event, record_handler=take_on, processor=processor, context=context)
    metrics.add_metric("StagesFailed", MetricUnit.Count, len(result["batchItemFailures"]))
    return result
