"""Evaluation of a step relative to bare calls and to hashing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import shake_256
from itertools import islice
from random import Random
from typing import Any

import numpy as np
from kanon.dynamo.statements import STATEMENTS_A_CALL, insert
from kanon.gate.reading import SETS_A_CHUNK, touched

from bench import stack
from bench.harness import Comparison, Form, Side, Turn
from bench.stack import KEY, PERIOD, START, TYPES, Service, fledge, joining_of, log_of, service
from kanon.dynamo.batches import KEYS_A_CALL, chunks
from kanon.gate.evaluation import WRITERS
from kanon.gate.mechanism import vectorised
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.slots import Layout
from kanon.gate.storage.aws.step_log import partition
from kanon.gate.types import read_types
from kanon.noise.words import WORD_BYTES, length_prefixed


def rows(form: Form) -> Iterator[Comparison]:
    """The whole function, and its decisions."""
    joins = form.size(2_000, 100)
    yield Comparison(
        "evaluate, a touched set",
        "the whole function for one slot and step: all calls, decoding, deciding, encoding, metrics",
        "the bare calls: the pages of the log, batch_get_item of 100 keys, batch_execute_statement of 25 INSERTs,"
        " threaded alike, with the same client",
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
    """The bare calls for the same steps; the function evaluates each one before, so that Members has its sets."""
    with service({"Types": TYPES}) as running:
        steps, bare = Steps(running, joins), BareStep(running)

        def prepare() -> Turn:
            steps.fill()
            steps.evaluate()
            return bare.turn(steps.step - 1)

        prepare()
        yield prepare


class Steps:
    """Consecutive steps with joins: in recurring sets, and in some new ones."""

    def __init__(self, service: Service, joins: int) -> None:
        self._service, self._joins, self.step = service, joins, START // PERIOD
        self._joining = joining_of(service.stack, service.dynamodb)
        self._stream = stack.workload("fledge", 2 * joins, seed=1)
        stack.mark(service.stack, service.dynamodb, self.step - 1)

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
    """The calls of an evaluation with nothing between them, for the sets of a step that was evaluated before."""

    def __init__(self, service: Service) -> None:
        self.service, self._chance = service, Random(4)
        self._table = service.new_table("bare-members", "set_key")

    def turn(self, step: int) -> Turn:
        """Make the statements; their items have the size of those of the service and are new, so each one writes."""
        log = log_of(self.service.stack, self.service.dynamodb)
        keys = [each.set_key for each in touched(log, step, 0, 1 << 16, window=1)]
        items = (stack.stored(self._chance.randbytes(32), fledge(), [7], [step], step) for _ in keys)
        statements = [insert(self._table, item) for item in items]
        return Turn(len(keys), lambda: self._work(step, keys, statements))

    def _work(self, step: int, keys: list[bytes], statements: list[Any]) -> None:
        """Read the log and Members, write a table of the same form."""
        client, members = self.service.dynamodb, self.service.tables["Members"]
        for _ in client.get_paginator("query").paginate(
            TableName=self.service.tables["StepLog"],
            ConsistentRead=True,
            KeyConditionExpression="step_slot = :here",
            ExpressionAttributeValues={":here": {"B": partition(step, Layout(1, 0, 1), 0)}},
        ):
            pass
        for part in chunks(keys, KEYS_A_CALL):
            wanted: Any = [{"set_key": {"B": key}} for key in part]
            client.batch_get_item(RequestItems={members: {"Keys": wanted, "ConsistentRead": True}})
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(self._write, chunks(statements, STATEMENTS_A_CALL)))

    def _write(self, statements: Sequence[Any]) -> None:
        answer = self.service.dynamodb.batch_execute_statement(Statements=statements)
        if any("Error" in response for response in answer["Responses"]):
            raise RuntimeError("a bare statement was refused")


WEEK = 168
STEP = 480_000
Chunk = tuple[Sequence[bytes], Any, Any]
"""Sets: their keys, sizes and last joins."""


def mix(sets: int, parameters: Parameters) -> list[Chunk]:
    """Sets of mixed sizes, in evaluation's chunks: 80% below 5 members, 15% near k, 5% full; joins at random steps."""
    chance, k, most = np.random.default_rng(5), parameters.k, parameters.members_kept
    found: list[Chunk] = []
    for count in map(len, chunks(range(sets), SETS_A_CHUNK)):
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
