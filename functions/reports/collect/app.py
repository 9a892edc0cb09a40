"""Lambda function `collect`: accepts encrypted reports from anybody, and queues them. It cannot decrypt them."""

from collections.abc import Callable
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, clock, snapshots
from kanon.errors import texts_withheld
from kanon.http.answers import error_answer
from kanon.http.bodies import RequestError
from kanon.http.edge import described, handle, json_answer, resolver
from kanon.http.origin import edge_of
from kanon.reports.collecting import (
    PUBLIC_KEYS,
    REPORT_BODIES,
    REPORTS,
    PublicKeyAnswer,
    PublicKeysAnswer,
    ReportBody,
    ReportMessage,
    TakenAnswer,
    debug_path,
    report_message,
)
from kanon.reports.settings import CollectSettings
from kanon.reports.storage.key_ring import KeyRing, KnownKeys
from kanon.starting import Once

SETTINGS = CollectSettings.from_environment()
DAY = 86_400
NO_KEY = error_answer(503, "there is no public key yet; retry after the time in Retry-After")
DEBUG_PATHS = frozenset(map(debug_path, REPORTS))

ORIGIN = edge_of(SETTINGS.edge_secret)

snapshots.on_snapshot(lambda: aws.load_models("dynamodb", "sqs", "secretsmanager"))

logger = Logger()
metrics = Metrics()
app = resolver(logger)

sqs_client = Once(aws.sqs)
key_ring = Once(lambda: KeyRing(aws.dynamodb(), SETTINGS.control_table))
known_keys = Once(lambda: KnownKeys(key_ring()))

Receive = Callable[[ReportBody], Response[TakenAnswer]]


def receiver(api: str, *, debug: bool = False) -> Receive:
    """The handler of a path for reports of one api. A debug report is checked like a normal one, and discarded."""

    def receive(body: ReportBody) -> Response[TakenAnswer]:
        """Queue one encrypted report. Fields that are not described are discarded, above all clear text."""
        now = clock.now()
        message = report_message(body, api, SETTINGS.allows, lambda key_id: known_keys().has(key_id, now), now)
        if not debug:
            queue(message)
        return json_answer(TakenAnswer())

    return receive


for path, name in REPORTS.items():
    app.post(
        path,
        summary=f"Take a report ({name})",
        operation_id=f"report-{name}",
        responses=described("The report is queued", 400, 413, 415, 503),
    )(receiver(name))
    app.post(
        debug_path(path),
        summary=f"Discard a debug report ({name})",
        operation_id=f"debug-report-{name}",
        responses=described("The report is valid, and discarded", 400, 413, 415),
    )(receiver(name, debug=True))


@app.get(
    PUBLIC_KEYS,
    summary="The keys that reports are encrypted to",
    operation_id="publicKeys",
    responses=described("One key or more; clients pick one at random", 503),
)
def public_keys() -> Response[PublicKeysAnswer]:
    """The public keys. They may be cached for the time in Cache-Control, which ends before any key does."""
    now = clock.now()
    ring = key_ring().read()
    published = ring.served(now) if ring else ()
    if not published:
        raise RequestError(NO_KEY)
    seconds = min(DAY, *(int(key.published_until - now) for key in published))
    keys = [PublicKeyAnswer(id=key.id, key=key.public) for key in published]
    return json_answer(PublicKeysAnswer(keys=keys), {"Cache-Control": f"public, max-age={seconds}"})


def queue(message: ReportMessage) -> None:
    """Send a message. After an error the report is not accepted."""
    sqs_client().send_message(QueueUrl=SETTINGS.arrivals_url, MessageBody=message.text())


def count(event: dict[str, Any], status: int) -> None:
    """Count a request. The service level is the ratio of reports accepted and refused."""
    rejected = 400 <= status < 500
    metrics.add_metric("RequestsRejected", MetricUnit.Count, rejected)
    if event["requestContext"]["http"]["method"] != "POST":
        metrics.add_metric("KeysRefused", MetricUnit.Count, status >= 500)
        return
    if rejected:
        return
    taken = "DebugReports" if event["rawPath"] in DEBUG_PATHS else "ReportsAccepted"
    metrics.add_metric("ReportsRefused" if status >= 500 else taken, MetricUnit.Count, 1)


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Entry point."""
    result = handle(app, event, context, logger, ORIGIN, REPORT_BODIES)
    count(event, result["statusCode"])
    return result
