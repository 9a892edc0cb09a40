"""Lambda function `rotate`: makes, publishes and destroys the keys that reports are encrypted to."""

from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from kanon import aws, clock
from kanon.errors import texts_withheld
from kanon.reports.job import Amount
from kanon.reports.service.rotation import Epoch, Rotation
from kanon.reports.settings import RotateSettings
from kanon.reports.storage.budgets import Budgets
from kanon.reports.storage.key_ring import KeyRing, PrivateKeys
from kanon.starting import Once

SETTINGS = RotateSettings.from_environment()

logger = Logger()
metrics = Metrics()


@Once
def rotation() -> Rotation[Epoch]:
    """The use case, built once per execution environment."""
    dynamodb = aws.dynamodb()
    budgets = Budgets(dynamodb, SETTINGS.budgets_table, Amount(0, 0))  # it takes no budget
    epoch = Epoch(dynamodb, KeyRing(dynamodb, SETTINGS.control_table), budgets, SETTINGS.report_jobs_table)
    return Rotation(epoch, PrivateKeys(aws.secrets_manager(), SETTINGS.report_key_prefix, SETTINGS.kms_key))


@texts_withheld()
@logger.inject_lambda_context(log_event=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> None:  # noqa: ARG001, Lambda passes both
    """Entry point: the schedule calls it every five minutes to do all due steps."""
    now = clock.now()
    keys = rotation().run(now)
    replaced = keys.withdrawn or not rotation().epoch.has_jobs_of(keys)
    metrics.add_metric("BudgetTableReplaced", MetricUnit.Count, replaced)
    metrics.add_metric("KeysMissing", MetricUnit.Count, not keys.published(now))
