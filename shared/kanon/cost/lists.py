"""The quantities that AWS charges for the lists of a listed type in a month, besides those of its joins and queries.

Readers are not counted: each request is one of API Gateway, of `released` and a GET, and a cache may answer it.
"""

import math

from kanon.cost.billing import Usage
from kanon.cost.workload import GB, MONTH_HOURS, Workload

LIST_MB, LIST_TEMPORARY_MB, RUNS_AN_HOUR = 1769, 2048, 12
HASHES_A_FILE, LIST_DAYS = 4094, 90
METRICS, ALARM_METRICS, SECRETS = 5, 7, 1
SECONDS_A_RUN = 0.3
"""Of a run that finds nothing new: the calls for horizons and pointers."""
SECONDS_A_VALUE, SECONDS_TO_OPEN = 50e-6, 57e-6
"""Of a value that is true, and of one that turned true: measured with 10^6 values of 512 bytes.
``python -m bench.lists 1000000 512`` measures both."""
KEPT_BYTES, HISTORY_BYTES = 200, 40
"""Bytes of a true value in the two lists that can be read and among the opened ones, and in a list of the history."""


def usage(w: Workload) -> Usage:
    """The quantities of a month, by the names in ``prices.json``."""
    runs, slots, true = RUNS_AN_HOUR * MONTH_HOURS, w.slots, w.popular
    seconds = runs * SECONDS_A_RUN + w.steps * (true * SECONDS_A_VALUE + w.crossed_a_step * SECONDS_TO_OPEN)
    files = 2 ** max(0, math.ceil(math.log2(max(true, 1) / HASHES_A_FILE)))
    history = LIST_DAYS * 86_400 / w.parameters.period * true * HISTORY_BYTES
    return {
        "lambda.requests": runs,
        "lambda.arm64": LIST_MB / 1024 * seconds,
        "lambda.temporary": (LIST_TEMPORARY_MB - 512) / 1024 * seconds,
        "dynamodb.read": runs * (slots + 4),
        "dynamodb.write": 4 * w.steps,
        "s3.puts": w.steps * (files + slots + 4),
        "s3.gets": w.steps * (files + 2 * slots) + 2 * runs,
        "s3.storage": (history + true * KEPT_BYTES) / GB,
        "scheduler.events": runs,
        "cloudwatch.metrics": METRICS,
        "cloudwatch.alarms": ALARM_METRICS,
        "secrets.stored": SECRETS,
    }
