"""Lambda function `list`: publishes the values of listed types that the crowd shares. It has no public endpoint.

The schedule starts it every few minutes; it does nothing unless a step has become visible. It alone can open values.
"""

from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, clock
from kanon.errors import ConfigurationError, kind_and_place, texts_withheld
from kanon.gate.listing import Listing, ListOutcome
from kanon.gate.sealing import LISTER_KEY, private_key, public_text
from kanon.gate.settings import ListSettings
from kanon.gate.storage.aws.control import Control
from kanon.gate.storage.aws.lists import ListObjects, ListTable
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.true_objects import read_listed
from kanon.keys import fetch_secret
from kanon.starting import Once

SETTINGS = ListSettings.from_environment()
LISTED = SETTINGS.listed

logger = Logger()
metrics = Metrics()


@Once
def listing() -> Listing:
    """The use case with its key, built once per execution environment."""
    dynamodb, s3 = aws.dynamodb(), aws.s3()
    key = private_key(fetch_secret(aws.secrets_manager(), LISTER_KEY, SETTINGS.lister_key_secret))
    if public_text(key) != SETTINGS.lister_key:
        raise ConfigurationError("ListerKey is not the public key of ListerKeySecret: deploy with both as printed")
    return Listing(
        types=LISTED,
        layouts=SETTINGS.layouts,
        period=SETTINGS.period,
        publish_delay=SETTINGS.publish_delay,
        review=SETTINGS.review_steps,
        control=Control(dynamodb, SETTINGS.control_table),
        statuses=Statuses(dynamodb, SETTINGS.statuses_table),
        listed_sets=lambda shows: read_listed(s3, SETTINGS.states_bucket, shows),
        table=ListTable(dynamodb, SETTINGS.control_table),
        objects=ListObjects(s3, SETTINGS.list_bucket, SETTINGS.period),
        key=key,
    )


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> None:  # noqa: ARG001, Lambda passes both
    """Entry point: the schedule calls it. What fails is done by the next call."""
    try:
        outcome = listing().run(clock.now()) if LISTED else ListOutcome()  # a key may come before the first listed type
    except Exception as error:
        logger.error("lists are not published", **kind_and_place(error))
        raise
    metrics.add_metric("ListsBehind", MetricUnit.Count, outcome.behind)
    if outcome.unopened:  # no number of values, which would be data
        logger.error("sealed values do not open")
        metrics.add_metric("ListsWithUnopenedValues", MetricUnit.Count, 1)
    if outcome.waiting:
        logger.warning("lists are not published: a slot does not show all listed sets of the step")
