"""Evaluation of a step relative to bare calls and to hashing."""

from __future__ import annotations

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

from bench import stack
from bench.harness import Comparison, Form, Side, Turn
from bench.stack import KEY, PERIOD, START, TYPES, Service, fledge, joining_of, service
from kanon.dynamo.batches import KEYS_A_CALL, chunks
from kanon.dynamo.statements import STATEMENTS_A_CALL, insert
from kanon.gate.evaluation import WRITERS
from kanon.gate.mechanism import vectorised
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.reading import SETS_A_CHUNK, touched
from kanon.gate.slots import Layout
from kanon.gate.storage.step_log import partition
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


@contextmanager
def function(joins: int) -> Iterator[Callable[[], Turn]]:
    """The function on a step with a long tail of sets, most of them known."""
    with service({"Types": TYPES}) as running:
        steps = Steps(running, 2 * joins, joins)
        steps.fill()
        steps.evaluate()
        yield lambda: Turn(steps.fill(), steps.evaluate)


@contextmanager
def bare_calls(joins: int) -> Iterator[Callable[[], Turn]]:
    """The bare calls for the same steps; the function evaluates each one before, so that Members has its sets."""
    with service({"Types": TYPES}) as running:
        steps, bare = Steps(running, 2 * joins, joins), BareStep(running)

        def prepare() -> Turn:
            steps.fill()
            steps.evaluate()
            bare.prepare(steps.step - 1)
            return Turn(len(bare.keys), bare.work)

        prepare()
        yield prepare


@dataclass
class Steps:
    """Consecutive steps with joins: in recurring sets, and in some new ones."""

    service: Service
    sets: int
    joins: int

    def __post_init__(self) -> None:
        self._joining = joining_of(self.service.stack, self.service.dynamodb)
        self._stream = stack.workload("fledge", self.sets, seed=1)
        self.step = START // PERIOD
        stack.mark(self.service.stack, self.service.dynamodb, self.step - 1)

    def fill(self) -> int:
        """Log the joins of the next step; returns how many sets they touch."""
        joined = list(islice(self._stream, self.joins))
        assert all(self._joining.join_all(joined, self.step * PERIOD + 5.0))
        return len({join.set_id for join in joined})

    def evaluate(self) -> None:
        """Let the function evaluate the step, which has closed, as the queue would."""
        self.service.stack.clock.set((self.step + 1) * PERIOD + 180)
        record = {"messageId": "m", "body": '{"slot": 0, "hop": 0}', "eventSource": "aws:sqs", "receiptHandle": "r"}
        assert self.service.call("evaluate", {"Records": [record]}) == {"batchItemFailures": []}
        self.step += 1


@dataclass
class BareStep:
    """The calls of an evaluation with nothing between them, for the sets of a step that was evaluated before."""

    service: Service
    keys: list[bytes] = field(default_factory=list)
    statements: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._table = self.service.new_table("bare-members", "set_key")
        self._log = joining_of(self.service.stack, self.service.dynamodb).log
        self._chance = Random(4)

    def prepare(self, step: int) -> None:
        """Make the statements; their items have the size of those of the service and are new, so each one writes."""
        self.step = step
        self.keys = [each.set_key for each in touched(self._log, step, 0, 1 << 16, window=1)]
        items = (stack.stored(self._chance.randbytes(32), fledge(), [7], [step], step) for _ in self.keys)
        self.statements = [insert(self._table, item) for item in items]

    def work(self) -> None:
        """Read the log and Members, write a table of the same form."""
        client, members = self.service.dynamodb, self.service.tables["Members"]
        for _ in client.get_paginator("query").paginate(
            TableName=self.service.tables["StepLog"],
            ConsistentRead=True,
            KeyConditionExpression="step_slot = :here",
            ExpressionAttributeValues={":here": {"B": partition(self.step, Layout(1, 0, 1), 0)}},
        ):
            pass
        for part in chunks(self.keys, KEYS_A_CALL):
            keys: Any = [{"set_key": {"B": key}} for key in part]
            client.batch_get_item(RequestItems={members: {"Keys": keys, "ConsistentRead": True}})
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(self._write, chunks(self.statements, STATEMENTS_A_CALL)))

    def _write(self, statements: Sequence[Any]) -> None:
        answer = self.service.dynamodb.batch_execute_statement(Statements=statements)
        if any("Error" in response for response in answer["Responses"]):
            raise RuntimeError("a bare statement was refused")


@dataclass(frozen=True)
class Mix:
    """Sets of mixed sizes at one step: 80% below 5 members, 15% near k, 5% full; last joins at random steps."""

    parameters: Parameters
    step: int
    keys: list[bytes]
    sizes: np.ndarray[Any, np.dtype[np.int64]]
    lasts: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def draw(cls, parameters: Parameters, sets: int, seed: int) -> Mix:
        """A mix of ``sets`` sets."""
        chance = np.random.default_rng(seed)
        k, most = parameters.k, parameters.members_kept
        kind = chance.random(sets)
        around = np.clip(chance.normal(k, k / 5, sets).astype(np.int64), 1, most)
        sizes = np.where(kind < 0.8, chance.integers(1, 5, sets), np.where(kind < 0.95, around, most))
        step = 480_000
        lasts = step - chance.integers(0, parameters.window, sizes.sum())
        # Latest first within each set.
        owners = np.repeat(np.arange(sets), sizes)
        order = np.lexsort((-lasts, owners))
        data = chance.bytes(32 * sets)
        keys = [data[start : start + 32] for start in range(0, len(data), 32)]
        return cls(parameters, step, keys, sizes, lasts[order])

    def chunks(self) -> Iterator[tuple[Sequence[bytes], Any, Any]]:
        """The sets chunk by chunk, as evaluation reads them."""
        ends = np.concatenate(([0], np.cumsum(self.sizes)))
        for start in range(0, len(self.keys), SETS_A_CHUNK):
            stop = min(start + SETS_A_CHUNK, len(self.keys))
            yield self.keys[start:stop], self.sizes[start:stop], self.lasts[ends[start] : ends[stop]]


@dataclass(frozen=True)
class Needed(Tapes):
    """Tapes that record the largest number of words read from each."""

    read: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def words(self, set_key: bytes, instance: int, count: int) -> bytes:
        """Read the words and record how many."""
        place = set_key, instance
        self.read[place] = max(self.read.get(place, 0), count)
        return super().words(set_key, instance, count)

    def hash_alone(self) -> Callable[[], None]:
        """Work that hashes the recorded words, and does nothing else."""
        prefix = shake_256(b"kanon/tape/1" + bytes(150))
        messages = [
            (length_prefixed(set_key, instance.to_bytes(8, "big", signed=True)), WORD_BYTES * count)
            for (set_key, instance), count in self.read.items()
        ]

        def work() -> None:
            for message, size in messages:
                shake = prefix.copy()
                shake.update(message)
                shake.digest(size)

        return work


def decide_all(mix: Mix, tapes: Tapes) -> None:
    """Decisions with look-ahead on arrays that are ready, in evaluation's chunks."""
    never = np.iinfo(np.int64).min
    for keys, sizes, lasts in mix.chunks():
        chunk = vectorised.Sets(mix.parameters, lambda _: tapes, keys, sizes, lasts)
        vectorised.decide(chunk, mix.step, np.full(len(keys), never))


def decisions(sets: int) -> AbstractContextManager[Callable[[], Turn]]:
    """The decisions on a mix of sets."""
    mix = Mix.draw(fledge().parameters, sets, seed=5)
    tapes = Tapes(KEY, "bench", "fledge", mix.parameters)
    return nullcontext(lambda: Turn(sets, partial(decide_all, mix, tapes)))


def hashing(sets: int) -> AbstractContextManager[Callable[[], Turn]]:
    """Hashing the words that the decisions read."""
    mix = Mix.draw(fledge().parameters, sets, seed=5)
    needed = Needed(KEY, "bench", "fledge", mix.parameters)
    decide_all(mix, needed)
    work = needed.hash_alone()
    return nullcontext(lambda: Turn(sets, work))
