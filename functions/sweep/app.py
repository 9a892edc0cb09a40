"""Lambda function `sweep`: it has no public endpoint. The schedule starts it once a day.

It alone may delete objects of the bucket of states.
"""

from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, clock
from kanon.errors import texts_withheld
from kanon.gate.settings import StatesSettings
from kanon.gate.storage.aws.control import Control
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.sweeping import Sweeping
from kanon.starting import Once

SETTINGS = StatesSettings.from_environment()

logger = Logger()


@Once
def sweeping() -> Sweeping:
    """The use case, built once per execution environment."""
    control, s3 = Control(aws.dynamodb(), SETTINGS.control_table), aws.s3()
    return Sweeping(
        control,
        lambda place: PartObjects(s3, SETTINGS.states_bucket, place),
        SETTINGS.layouts,
        SETTINGS.publish_margin,
    )


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
def handler(event: dict[str, Any], context: LambdaContext) -> None:  # noqa: ARG001, Lambda passes both
    """Entry point: the schedule calls it once a day to sweep the objects of all slots."""
    sweeping().sweep(clock.now())
