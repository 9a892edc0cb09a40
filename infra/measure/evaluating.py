"""Evaluation of a step relative to bare calls, to a plain loop and to hashing; the exact law relative to rationals."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import shake_256
from itertools import islice
from random import Random
from typing import Any

import numpy as np

from infra.measure import plain
from infra.measure.measure import Ratio, Turn, compare
from infra.measure.one_step import KEY, SCHEDULE, evaluate_step, evaluation_of, stored
from infra.measure.rows import Form, row
from infra.measure.service import PERIOD, START, TYPES, Service, fledge, service
from infra.measure.workload import joining_of, mark
from infra.measure.workload import joins as workload
from kanon.dynamo.batches import KEYS_A_CALL, Item, chunks
from kanon.dynamo.statements import STATEMENTS_A_CALL, insert
from kanon.gate.evaluation import WRITERS
from kanon.gate.mechanism import vectorised
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.exact_law import first_crossing, first_crossing_exact
from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import SET_KEY_BYTES, Tapes
from kanon.gate.reading import SETS_A_CHUNK, touched
from kanon.gate.slots import Layout
from kanon.gate.storage.step_log import partition
from kanon.gate.types import Type
from kanon.local.partiql import read
from kanon.noise.words import WORD_BYTES, length_prefixed


@dataclass
class Steps:
    """Consecutive steps with joins: in recurring sets, and in some new ones."""

    service: Service
    sets: int
    joins: int

    def __post_init__(self) -> None:
        self._joining = joining_of(self.service.stack, self.service.dynamodb)
        self._stream = workload("fledge", self.sets, seed=1)
        self.step = START // PERIOD
        mark(self.service.stack, self.service.dynamodb, self.step - 1)

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


@row("evaluate")
def evaluate(form: Form) -> Iterator[Ratio]:
    """A step with a long tail of sets, most of them known, relative to the necessary bare calls."""
    with service({"Types": TYPES}) as running:
        joins = form.size(2_000, 100)
        steps, bare = Steps(running, 2 * joins, joins), BareStep(running)
        filled = steps.fill()

        def ours() -> Turn:
            nonlocal filled
            filled = steps.fill()
            return Turn(filled, steps.evaluate)

        def theirs() -> Turn:
            bare.prepare(steps.step - 1)
            return Turn(len(bare.keys), bare.work)

        steps.evaluate()
        yield compare(
            "evaluate, a touched set",
            "the bare calls: the pages of the log, batch_get_item of 100 keys, batch_execute_statement of 25 INSERTs,"
            " threaded alike, with the same client",
            "set",
            ours,
            theirs,
            inside="the whole function for one slot and step: all calls, decoding, deciding, encoding, metrics",
            turns=form.size(9, 1),
            target=None,
        )


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
        items = (stored(self._chance.randbytes(32), fledge(), [7], [step], step) for _ in self.keys)
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

    def states(self) -> Iterator[tuple[bytes, SetState]]:
        """The same sets as inputs of the plain mechanism."""
        ends = np.concatenate(([0], np.cumsum(self.sizes))).tolist()
        lasts = self.lasts.tolist()
        for number, key in enumerate(self.keys):
            own = lasts[ends[number] : ends[number + 1]]
            yield key, SetState(tuple(Member(token, last) for token, last in enumerate(own)), (), self.step - 1)


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


@row("decide")
def decide(form: Form) -> Iterator[Ratio]:
    """Decisions with look-ahead on arrays that are ready, in evaluation's chunks; relative to hashing alone."""
    parameters, sets = fledge().parameters, form.size(200_000, 2_000)
    mix = Mix.draw(parameters, sets, seed=5)

    def decide_chunks(tapes: Tapes) -> None:
        never = np.iinfo(np.int64).min
        for keys, sizes, lasts in mix.chunks():
            chunk = vectorised.Sets(parameters, lambda _: tapes, keys, sizes, lasts)
            vectorised.decide(chunk, mix.step, np.full(len(keys), never))

    needed = Needed(KEY, "bench", "fledge", parameters)
    decide_chunks(needed)
    yield compare(
        f"decide, one of {sets:,} sets",
        "hashing the same tapes, and nothing else",
        "set",
        partial(Turn, sets, partial(decide_chunks, Tapes(KEY, "bench", "fledge", parameters))),
        partial(Turn, sets, needed.hash_alone()),
        inside="decisions alone, from arrays to arrays: no unpacking, folding or packing",
        turns=form.size(5, 1),
        target=2.0,
    )


@row("evaluate without calls")
def evaluate_without_calls(form: Form) -> Iterator[Ratio]:
    """A step whose tables answer from memory, which leaves the project's own code."""
    type_, sets = fledge(), form.size(10_000, 1_000)
    step = StoredStep.draw(type_, sets, seed=6)
    ours, plain = Memory(step), Memory(step)
    needed = Needed(KEY, "bench", "fledge", type_.parameters)
    step.evaluate(Memory(step), type_, needed)
    step.evaluate(ours, type_)
    step.evaluate_plainly(plain, type_)
    if ours.written() != plain.written():
        raise RuntimeError("the service and the plain loop write different items")
    for against, theirs, target, at_least in (
        (
            "a plain loop that does the same from the same rows and reads each tape once (infra/measure/plain.py)",
            lambda: step.evaluate_plainly(Memory(step), type_),
            1.0,
            True,
        ),
        ("hashing the same tapes, and nothing else", needed.hash_alone(), None, False),
    ):
        yield compare(
            f"evaluate without calls, one of {sets:,} sets",
            against,
            "set",
            partial(Turn, sets, lambda: step.evaluate(Memory(step), type_)),
            partial(Turn, sets, theirs),
            inside="reading rows, unpacking, folding, deciding, packing, handing over to writers; no SDK, no network",
            turns=form.size(9, 1),
            target=target,
            at_least=at_least,
        )


@dataclass(frozen=True)
class StoredStep:
    """The rows of a step in the log and the Members items of its sets, as the tables store them."""

    step: int
    rows: list[Item]
    items: dict[bytes, Item]

    @classmethod
    def draw(cls, type_: Type, sets: int, seed: int) -> StoredStep:
        """A mix of sets (:class:`Mix`) with one to three joins each. Full sets have crossed before."""
        chance = Random(seed)
        parameters = type_.parameters
        mix = Mix.draw(parameters, sets, seed)
        rows: list[Item] = []
        items = {}
        for key, state in mix.states():
            tokens = chance.sample(range(1 << 16), len(state.members))
            # All joined before the step.
            lasts = [max(member.last - 1, mix.step - parameters.window + 1) for member in state.members]
            items[key] = stored(key, type_, tokens, lasts, mix.step - 1)
            rows += [
                {"set_token": {"B": key + chance.randrange(1 << 16).to_bytes(4, "big")}, "type": {"S": type_.name}}
                for _ in range(chance.randint(1, 3))
            ]
        rows.sort(key=lambda item: item["set_token"]["B"])
        return cls(mix.step, rows, items)

    def evaluate(self, memory: Memory, type_: Type, tapes: Tapes | None = None) -> None:
        """Evaluate the step with the service's code on ``memory``."""
        client: Any = memory
        kept = {} if tapes is None else {(KEY.id, type_.name): tapes}
        evaluate_step(evaluation_of(client, type_, _tapes=kept), self.step, len(self.items))

    def evaluate_plainly(self, memory: Memory, type_: Type) -> None:
        """Evaluate it with the plain loop."""
        tapes = Tapes(KEY, "bench", type_.name, type_.parameters)
        joined: dict[bytes, list[int]] = {}
        for item in self.rows:
            key = item["set_token"]["B"]
            joined.setdefault(key[:SET_KEY_BYTES], []).append(int.from_bytes(key[SET_KEY_BYTES:], "big"))
        for key, tokens in joined.items():
            old = self.items.get(key, {})
            item = plain.evaluate_set(type_.parameters, tapes, self.step, key, old, tokens, SCHEDULE.outage_allowance)
            memory.put_item(Item=item)


class Memory:
    """A client of DynamoDB that answers from memory and keeps what is written to Members."""

    def __init__(self, step: StoredStep) -> None:
        self._step = step
        self._put: list[Item] = []
        self._executed: list[Any] = []

    def written(self) -> list[Item]:
        """The Members items of sets that were written, by set key; without the stamp of the slot."""
        items = [*self._put, *(read(statement).item for statement in self._executed)]
        items = [item for item in items if "members" in item]
        return sorted(items, key=lambda item: item["set_key"]["B"])

    def query(self, **query: Any) -> dict[str, Any]:
        """Pages of 10,000 rows, as 1 MB holds."""
        bound = query["ExpressionAttributeValues"][":first"]["B"]
        first = bisect_left(self._step.rows, bound, key=lambda row: row["set_token"]["B"])
        page = self._step.rows[first : first + 10_000]
        more = first + len(page) < len(self._step.rows)
        return {"Items": page, **({"LastEvaluatedKey": {"set_token": page[-1]["set_token"]}} if more else {})}

    def batch_get_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803, a parameter of boto3
        """The items of Members."""
        ((table, asked),) = RequestItems.items()
        keys = (key["set_key"]["B"] for key in asked["Keys"])
        return {"Responses": {table: [self._step.items[key] for key in keys if key in self._step.items]}}

    def put_item(self, **call: Any) -> dict[str, Any]:
        """Keep the item."""
        self._put.append(call["Item"])
        return {}

    def batch_execute_statement(self, Statements: list[Any]) -> dict[str, Any]:  # noqa: N803, a parameter of boto3
        """Keep the statements; all of them succeed."""
        self._executed += Statements
        return {"Responses": [{} for _ in Statements]}

    def batch_write_item(self, **_: Any) -> dict[str, Any]:
        """Wake-ups."""
        return {}

    def update_item(self, **_: Any) -> dict[str, Any]:
        """Statuses, the horizon, and the lease with the mark of a slot."""
        return {"Attributes": {"evaluated_through": {"N": str(self._step.step - 1)}}}


@row("exact law")
def exact_law(form: Form) -> Iterator[Ratio]:
    """The exact law of the first crossing, which the planner and the audit compute thousands of times."""
    parameters = fledge().parameters
    chance = Random(7)
    counts = [parameters.k + chance.randint(-15, 5) for _ in range(parameters.window)]

    def floats() -> None:
        for _ in range(100):
            first_crossing(parameters, counts)

    yield compare(
        f"the exact law of an instance of {parameters.window} steps",
        "the same in exact rationals",
        "law",
        partial(Turn, 100, floats),
        partial(Turn, 1, partial(first_crossing_exact, parameters, counts)),
        inside="the probability of the first crossing at each step, in floats",
        turns=form.size(3, 1),
        target=100.0,
        at_least=True,
    )
