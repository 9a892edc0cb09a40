"""Evaluation of a step relative to bare calls and to hashing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import shake_256
from itertools import islice
from typing import Any

import numpy as np

from bench import stack
from bench.harness import Comparison, Form, Side, Turn
from bench.stack import KEY, PERIOD, START, TYPES, Service, fledge, joining_of, service
from kanon.dynamo.batches import chunks
from kanon.gate.mechanism import vectorised
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.slots import Layout
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.step_log import partition
from kanon.gate.types import read_types
from kanon.noise.words import WORD_BYTES, length_prefixed


def rows(form: Form) -> Iterator[Comparison]:
    """The whole function, and its decisions."""
    joins = form.size(2_000, 100)
    yield Comparison(
        "evaluate, a touched set",
        "the whole function for one slot and step: all calls, decoding, deciding, encoding, metrics",
        "the bare calls: the pages of the log, get_object and put_object of its parts and their list, three"
        " update_item, with the same clients",
        "set", Side(function, (joins,)), Side(bare_calls, (joins,)), form.size(9, 1),
    )  # fmt: skip
    sets = form.size(200_000, 2_000)
    yield Comparison(
        f"decide, one of {sets:,} sets", "decisions alone, from arrays to arrays: no unpacking, folding or packing",
        "hashing the same tapes, and nothing else", "set",
        Side(decisions, (sets,)), Side(hashing, (sets,)), form.size(5, 1), 2.0,
    )  # fmt: skip
    yield Comparison(
        f"decide with restart after the crossing, one of {sets:,} sets", "profile `crossing`, k = 50, a week's window",
        "profile `sharp-2`, on the grid", "set",
        Side(decisions, (sets, "crossing", WEEK)), Side(decisions, (sets, "sharp-2", WEEK)), form.size(5, 1), 1.2,
    )  # fmt: skip


@contextmanager
def function(joins: int) -> Iterator[Callable[[], Turn]]:
    """The function on a step with a long tail of sets, most of them known."""
    with service({"Types": TYPES}) as running:
        steps = Steps(running, joins)
        steps.fill()
        steps.evaluate()
        yield lambda: Turn(steps.fill(), steps.evaluate)


@contextmanager
def bare_calls(joins: int) -> Iterator[Callable[[], Turn]]:
    """The bare calls for the same steps; the function evaluates each one before."""
    with service({"Types": TYPES}) as running:
        steps, bare = Steps(running, joins), BareStep(running)

        def prepare() -> Turn:
            sets = steps.fill()
            steps.evaluate()
            return bare.turn(steps.step - 1, sets)

        prepare()
        yield prepare


class Steps:
    """Consecutive steps with joins: in recurring sets, and in some new ones."""

    def __init__(self, service: Service, joins: int) -> None:
        self._service, self._joins, self.step = service, joins, START // PERIOD
        self._joining = joining_of(service.stack, service.dynamodb)
        self._stream = stack.workload("fledge", 2 * joins, seed=1)

    def fill(self) -> int:
        """Log the joins of the next step; returns how many sets they touch."""
        joined = list(islice(self._stream, self._joins))
        assert all(self._joining.join_all(joined, self.step * PERIOD + 5.0))
        return len({join.set_id for join in joined})

    def evaluate(self) -> None:
        """Let the function evaluate the step, which has closed, as the queue would."""
        self._service.stack.clock.set((self.step + 1) * PERIOD + 180)
        record = {"messageId": "m", "body": '{"slot": 0, "hop": 0}', "eventSource": "aws:sqs", "receiptHandle": "r"}
        assert self._service.call("evaluate", {"Records": [record]}) == {"batchItemFailures": []}
        self.step += 1


class BareStep:
    """The calls of an evaluation with nothing between them, for a step that was evaluated before."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._parts = self._newest()

    def turn(self, step: int, sets: int) -> Turn:
        """Read the log and what the step before has written; write what this step has written, under other names."""
        read, self._parts = self._parts, self._newest()
        written = self._parts
        return Turn(sets, lambda: self._work(step, read, written))

    def _newest(self) -> dict[str, bytes]:
        """The objects of the newest manifest by name, itself included."""
        row = Control(self._service.dynamodb, self._service.tables["Control"]).row(SLOT)
        if row.manifest is None:
            return {}
        parts = PartObjects(self._service.s3, self._service.bucket, SLOT)
        names = [row.manifest, *(piece.name for piece in parts.list_of(row.manifest).pieces)]
        return {name: self._get(name) for name in names}

    def _get(self, name: str) -> bytes:
        return self._service.s3.get_object(Bucket=self._service.bucket, Key=name)["Body"].read()

    def _work(self, step: int, read: dict[str, bytes], written: dict[str, bytes]) -> None:
        """The pages of the log, objects, and three updates of a row: lease, progress, commit."""
        client = self._service.dynamodb
        for _ in client.get_paginator("query").paginate(
            TableName=self._service.tables["StepLog"],
            ConsistentRead=True,
            KeyConditionExpression="step_slot = :here",
            ExpressionAttributeValues={":here": {"B": partition(step, Layout(1, 0, 1), 0)}},
        ):
            pass
        for name in read:
            self._get(name)
        for name, content in written.items():
            self._service.s3.put_object(Bucket=self._service.bucket, Key=f"bare/{name}", Body=content)
        for _ in range(3):
            client.update_item(
                TableName=self._service.tables["Control"],
                Key={"name": {"S": "bare"}},
                UpdateExpression="SET step = :step",
                ExpressionAttributeValues={":step": {"N": str(step)}},
            )


WEEK = 168
SETS_AT_ONCE = 500
SLOT = Place(0, 0)
STEP = 480_000
Chunk = tuple[Sequence[bytes], Any, Any]
"""Sets: their keys, sizes and last joins."""


def mix(sets: int, parameters: Parameters) -> list[Chunk]:
    """Sets of mixed sizes, in chunks: 80% below 5 members, 15% near k, 5% full; joins at random steps."""
    chance, k, most = np.random.default_rng(5), parameters.k, parameters.members_kept
    found: list[Chunk] = []
    for count in map(len, chunks(range(sets), SETS_AT_ONCE)):
        kind = chance.random(count)
        around = np.clip(chance.normal(k, k / 5, count).astype(np.int64), 1, most)
        sizes = np.where(kind < 0.8, chance.integers(1, 5, count), np.where(kind < 0.95, around, most))
        lasts = STEP - chance.integers(0, parameters.window, sizes.sum())
        latest_first = np.lexsort((-lasts, np.repeat(np.arange(count), sizes)))  # within each set
        found.append(([chance.bytes(32) for _ in range(count)], sizes, lasts[latest_first]))
    return found


def of_profile(profile: str, window: int) -> Parameters:
    """The parameters of a type with k = 50."""
    document = {"fledge": {"k": 50, "window": window, "profile": profile}}
    return read_types(json.dumps(document), PERIOD)["fledge"].parameters


def decide_all(found: list[Chunk], tapes: Tapes) -> None:
    """Decisions with look-ahead on arrays that are ready."""
    never = np.iinfo(np.int64).min
    for keys, sizes, lasts in found:
        vectorised.decide(
            vectorised.Sets(tapes.parameters, lambda _: tapes, keys, sizes, lasts), STEP, np.full(len(keys), never)
        )


def decisions(sets: int, profile: str = "published", window: int = 720) -> AbstractContextManager[Callable[[], Turn]]:
    """The decisions on a mix of sets."""
    parameters = of_profile(profile, window)
    work = partial(decide_all, mix(sets, parameters), Tapes(KEY, "bench", "fledge", parameters))
    return nullcontext(lambda: Turn(sets, work))


@dataclass(frozen=True)
class Needed(Tapes):
    """Tapes that record the largest number of words read from each."""

    read: dict[tuple[bytes, int, int], int] = field(default_factory=dict)

    def words(self, set_key: bytes, place: int, count: int, page: int = 0) -> bytes:
        """Read the words and record how many."""
        name = set_key, place, page
        self.read[name] = max(self.read.get(name, 0), count)
        return super().words(set_key, place, count, page)


def hashing(sets: int) -> AbstractContextManager[Callable[[], Turn]]:
    """Hashing the words that the decisions read."""
    needed = Needed(KEY, "bench", "fledge", fledge().parameters)
    decide_all(mix(sets, needed.parameters), needed)
    prefix = shake_256(b"kanon/tape/1" + bytes(150))
    messages = [
        (length_prefixed(set_key, place.to_bytes(8, "big", signed=True)), WORD_BYTES * count)
        for (set_key, place, _), count in needed.read.items()
    ]

    def work() -> None:
        for message, size in messages:
            shake = prefix.copy()
            shake.update(message)
            shake.digest(size)

    return nullcontext(lambda: Turn(sets, work))
