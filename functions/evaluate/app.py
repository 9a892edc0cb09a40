"""Lambda function `evaluate`: it has no public endpoint. The schedule starts it; a queue message names a slot."""

from typing import Annotated, Any
from uuid import uuid4

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from kanon import aws, clock
from kanon.dynamo.tables import created, described, ids_of, key_of, restored, table_ids
from kanon.errors import (
    ConfigurationError,
    FingerprintMismatchError,
    TooFarBehindError,
    UndecodableJoinsError,
    UndecodableMembersError,
    UnreadableMessageError,
    kind_and_place,
    texts_withheld,
)
from kanon.gate.deciding import NoiseKeys
from kanon.gate.evaluation import DeploymentRecord, Evaluation
from kanon.gate.fingerprints import (
    RETIRED,
    check_evaluate,
    has_removed_layouts,
    missing_layouts,
    missing_noise_keys,
    recorded_names,
    refuse_forgetting,
    unchanged_keys,
)
from kanon.gate.generations import in_force, refuse_log_generations
from kanon.gate.mechanism.steps import step_at
from kanon.gate.schedule import Schedule
from kanon.gate.settings import EvaluateSettings
from kanon.gate.storage.aws.control import Control
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.step_log import StepLog
from kanon.keys import fetch_noise_keys
from kanon.queues import read_message, send_all
from kanon.starting import Once

SETTINGS = EvaluateSettings.from_environment()
TYPES = SETTINGS.read_types()
SCHEDULE = Schedule.of(SETTINGS)
LAYOUTS = SETTINGS.layouts
MOST_HOPS = 100
STOPS = (  # errors after which an operator must act
    ConfigurationError,
    FingerprintMismatchError,
    TooFarBehindError,
    UndecodableJoinsError,
    UndecodableMembersError,
)

logger = Logger()
metrics = Metrics()
processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)

dynamodb_client = Once(aws.dynamodb)
s3_client = Once(aws.s3)
sqs_client = Once(aws.sqs)


class SlotMessage(BaseModel):
    """A queue message: evaluate this slot. ``hop`` counts how often a worker passed on unfinished work."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slot: Annotated[StrictInt, Field(ge=0, lt=256)]
    hop: Annotated[StrictInt, Field(ge=0, le=MOST_HOPS)] = 0


@Once
def evaluation() -> Evaluation:
    """The use case with its keys, built once per execution environment. A changed fingerprint is an error."""
    dynamodb = dynamodb_client()
    secrets, entries = aws.secrets_manager(), SETTINGS.noise_keys
    keys = fetch_noise_keys(secrets, SETTINGS.noise_key_secret, [entry.id for entry in entries])
    control = Control(dynamodb, SETTINGS.control_table)
    step = step_at(clock.now(), SETTINGS.period)
    tables = described(dynamodb, SETTINGS.tables)
    key = key_of(tables["Statuses"])
    check_evaluate(control, SETTINGS, TYPES, keys, step, ids_of(tables), restored(tables))

    def check_control() -> DeploymentRecord:
        ids, recorded = table_ids(dynamodb, SETTINGS.tables), control.recorded("evaluate")
        refuse_log_generations(recorded, SETTINGS.log_generations, ids)
        refuse_forgetting(recorded)
        if newer := missing_noise_keys(recorded, entries):  # also in a worker that started before they were recorded
            found = fetch_noise_keys(secrets, SETTINGS.noise_key_secret, (), [entry.id for entry in newer])
            use.noise_keys = NoiseKeys.of((*entries, *newer), {**keys, **unchanged_keys(recorded, newer, found)})
        retired = frozenset(recorded_names(recorded, RETIRED))
        missing = min(missing_layouts(recorded, LAYOUTS), default=None)
        return DeploymentRecord(
            control.type_numbers({*TYPES, *retired}), retired, missing, has_removed_layouts(recorded, LAYOUTS)
        )

    use = Evaluation(
        types=TYPES,
        numbers={},
        retired=frozenset(),
        noise_keys=NoiseKeys.of(entries, keys),
        deployment=SETTINGS.deployment,
        schedule=SCHEDULE,
        log=StepLog(dynamodb, SETTINGS.step_log_table, LAYOUTS),
        parts_of=lambda place: PartObjects(s3_client(), SETTINGS.states_bucket, place, key),
        statuses=Statuses(dynamodb, SETTINGS.statuses_table),
        control=control,
        check_control=check_control,
        generation=in_force(SETTINGS.log_generations),
        log_created=created(tables["StepLog"]),
    )
    return use


def send_slots(messages: list[SlotMessage]) -> None:
    """Send messages to the function's own queue.

    Raises:
        RuntimeError: the queue did not accept every message; the schedule retries the call.
    """
    send_all(sqs_client(), SETTINGS.queue_url, messages)


def slots_at_work(now: float) -> range:
    """The slots of the current layout, and of older ones whose steps may still be evaluated."""
    return LAYOUTS.evaluated(SCHEDULE.oldest_allowed(now), SCHEDULE.last_closed(now))


def measure_lag() -> None:
    """Emit the lag of every slot, computed from its mark. A stuck worker cannot report its own lag."""
    control, now = Control(dynamodb_client(), SETTINGS.control_table), clock.now()
    for slot in slots_at_work(now):
        mark = control.mark_of(slot, LAYOUTS)
        # A slot without a mark counts as one step behind: an alarm follows if the next schedule finds no mark either.
        behind = 1 if mark is None else LAYOUTS.steps(slot, mark, SCHEDULE.due(now))
        metrics.add_metric("StepsBehind", MetricUnit.Count, behind)
        if behind and mark is not None:
            metrics.add_metric("PublishLag", MetricUnit.Seconds, behind * SETTINGS.period)


def _read(body: str) -> SlotMessage:
    """Read the body of a message. The log of an invalid body names its problems, never its content."""
    try:
        message = read_message(SlotMessage, body)
        if message.slot not in LAYOUTS.slots:
            raise UnreadableMessageError("slot: less_than")
    except UnreadableMessageError as error:
        logger.error("message refused", problems=error.problems)
        raise
    return message


def evaluate_slot(record: SQSRecord, lambda_context: LambdaContext) -> None:
    """Evaluate the slot of a message. When time is short, send the rest back to the queue."""
    message = _read(record.body)
    try:
        outcome = evaluation().run(
            message.slot, str(uuid4()), clock.now, lambda: lambda_context.get_remaining_time_in_millis() / 1000
        )
    except STOPS as error:
        logger.error("evaluation stopped", slot=message.slot, kind=type(error).__name__, reason=str(error))
        metrics.add_metric("EvaluationStopped", MetricUnit.Count, 1)
        raise
    except Exception as error:
        # The text of other errors may contain keys, so log only their kind. The queue redelivers the message.
        logger.warning("evaluation failed and will be retried", slot=message.slot, **kind_and_place(error))
        raise
    if outcome.behind and message.hop < MOST_HOPS:
        send_slots([SlotMessage(slot=message.slot, hop=message.hop + 1)])
    if outcome.following:
        send_slots([SlotMessage(slot=slot) for slot in outcome.following])
    if outcome.steps:
        metrics.add_metric("PublishLag", MetricUnit.Seconds, outcome.late)
    if outcome.skipped:
        logger.warning("rows of types no longer configured were skipped", slot=message.slot)
        metrics.add_metric("SlotsWithRowsSkipped", MetricUnit.Count, 1)  # no count of rows, which would be data


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Entry point: on a schedule event, send one message per slot; on a queue event, evaluate slots."""
    if event.get("schedule") is True:
        send_slots([SlotMessage(slot=slot) for slot in slots_at_work(clock.now())])
        measure_lag()
        return None
    result = process_partial_response(event=event, record_handler=evaluate_slot, processor=processor, context=context)
    metrics.add_metric("SlotsFailed", MetricUnit.Count, len(result["batchItemFailures"]))
    return result
