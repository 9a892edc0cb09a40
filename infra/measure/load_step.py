"""The evaluation of one large step: memory, speed, and how a worker near its time limit passes on its work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from infra.measure import worker
from infra.measure.workload import joining_of, joins, mark
from kanon.dynamo.batches import chunks
from kanon.gate.storage.control import Control
from kanon.local import Stack
from kanon.local.source import ROOT

START = 1_700_000_000.0 // 3600 * 3600
SETS_A_JOIN = 0.4
"""The number of sets per join: 100,000 joins are in 40,000 sets."""


@dataclass(frozen=True)
class Figures:
    """The measurements of one evaluation. Memory in MiB, times in s."""

    joins: int
    sets: int
    complete: bool
    resident_at_start: float
    resident_at_most: float
    pages: int
    largest_page: int
    hops: int
    invocations: Sequence[float]
    failed: bool

    def line(self) -> str:
        """The figures as a row of a table."""
        seconds = sum(self.invocations)
        return (
            f"| {self.joins} | {self.sets} | {self.resident_at_start:.0f} | {self.resident_at_most:.0f} |"
            f" {self.pages} | {self.largest_page} | {len(self.invocations)} | {max(self.invocations):.0f} |"
            f" {self.sets / seconds:.0f} | {'yes' if self.complete else 'NO'} |"
        )


HEADER = (
    "| joins | sets | MiB at start | MiB at most | pages read | rows in the largest | invocations |"
    " longest s | sets/s | all done |\n|---|---|---|---|---|---|---|---|---|---|"
)


def evaluate_step(
    count: int, timeout: float = 120.0, seconds_per_call: float | None = None, engine: str = "ministack"
) -> Figures:
    """Fill a step with ``count`` joins and evaluate it in another process, the engine in a third.

    A worker has ``timeout`` seconds for a message: real ones, or ``seconds_per_call`` for each DynamoDB call.
    """
    with Stack({}, engine=engine, start=START, seed=3) as stack:
        sets = _fill(stack, count)
        client, step = stack.session.client("dynamodb"), int(START) // 3600
        mark(stack, client, step - 1)
        function = stack.functions["evaluate"]
        url = function.environment["KANON_QUEUE_URL"]
        stack.session.client("sqs").send_message(QueueUrl=url, MessageBody='{"slot": 0, "hop": 0}')
        asked = {
            "environment": {**function.environment, "AWS_DEFAULT_REGION": "us-east-1"},
            "handler": str(function.directory / "app.py"),
            "now": START + 3600 + 180,
            "timeout": timeout,
            "seconds_per_call": seconds_per_call,
        }
        report = _worker(asked)
        pages = client.get_paginator("scan").paginate(
            TableName=stack.storage.tables["Members"],
            Select="COUNT",
            FilterExpression="attribute_exists(members)",
        )
        evaluated = sum(page["Count"] for page in pages)
        marked = Control(client, stack.storage.tables["Control"]).evaluated_through(0)
    complete = marked == step and evaluated == sets and not report["failed"]
    return Figures(count, sets, complete, **report)


def _worker(asked: dict[str, object]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(Path(worker.__file__))],
        input=json.dumps(asked),
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'shared'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the worker ended with {done.returncode}: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _fill(stack: Stack, count: int) -> int:
    """Write joins of the first step to the log; returns the number of their sets."""
    joining = joining_of(stack, stack.session.client("dynamodb"))
    workload = list(islice(joins("fledge", int(count * SETS_A_JOIN), seed=1), count))
    with ThreadPoolExecutor(4) as writers:
        for logged in writers.map(lambda portion: joining.join_all(portion, START + 5), chunks(workload, 500)):
            if not all(logged):
                raise RuntimeError("the engine did not store every join; run again")
    return len({join.set_id for join in workload})
