"""Evaluating a step relative to bare writes, deciding to bare hashing, the exact law to exact rationals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import shake_256
from itertools import chain, islice
from random import Random
from typing import Any

import numpy as np

from infra.measure.measure import Ratio, Turn, compare
from infra.measure.service import PERIOD, START, Service
from infra.measure.workload import joins as workload
from kanon.gate.evaluation import WRITERS
from kanon.gate.joining import Join, Joining
from kanon.gate.mechanism import above_threshold, vectorised
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.exact_law import first_crossing, first_crossing_exact
from kanon.gate.mechanism.members import Member, count_at
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.steps import first_step, instance_of, phase_of
from kanon.gate.mechanism.tape import Noise, Tapes
from kanon.gate.reading import SETS_A_CHUNK
from kanon.gate.settings import JoinSettings
from kanon.gate.storage.step_log import StepLog
from kanon.gate.types import read_types
from kanon.keys import Secret
from kanon.noise.words import WORD_BYTES, NoiseKey, length_prefixed


@dataclass
class Steps:
    """Consecutive steps with joins: in recurring sets, and in some new ones."""

    service: Service
    sets: int
    joins: int

    def __post_init__(self) -> None:
        environment = self.service.environments["join"]
        secrets = self.service.stack.storage.secrets
        self._joining = Joining(
            read_types(environment["KANON_TYPES"], PERIOD),
            Secret.derived("set-pepper", secrets["SetPepper"]),
            Secret.derived("client-key", secrets["ClientKey"]),
            StepLog(
                self.service.dynamodb,
                self.service.tables["StepLog"],
                JoinSettings.from_environment(environment).layouts,
            ),
            PERIOD,
            604_800,
        )
        self._stream = workload("fledge", self.sets, seed=1)
        self.step = START // PERIOD
        control, mark = self.service.tables["Control"], str(self.step - 1)
        self.service.dynamodb.put_item(
            TableName=control, Item={"name": {"S": "slot#0"}, "evaluated_through": {"N": mark}}
        )

    def fill(self) -> int:
        """Log the joins of the next step; returns how many sets they touch."""
        joined = list(islice(self._stream, self.joins))
        rows = [Join(j.type_name, j.set_id, "client", j.client.encode()) for j in joined]
        assert all(self._joining.join_all(rows, self.step * PERIOD + 5.0))
        return len({j.set_id for j in joined})

    def evaluate(self) -> None:
        """Let the function evaluate the step, which has closed, as the queue would."""
        self.service.stack.clock.set((self.step + 1) * PERIOD + 180)
        record = {"messageId": "m", "body": '{"slot": 0, "hop": 0}', "eventSource": "aws:sqs", "receiptHandle": "r"}
        assert self.service.call("evaluate", {"Records": [record]}) == {"batchItemFailures": []}
        self.step += 1


def evaluate(service: Service, turns: int, joins: int) -> Ratio:
    """A step with a long tail of sets, most of them known; relative to a conditional put of a small item per set."""
    steps = Steps(service, 2 * joins, joins)
    table = service.new_table("bare-members", "set_key")
    chance = Random(4)
    sets = 0

    def put(item: Any) -> None:
        service.dynamodb.put_item(
            TableName=table,
            Item=item,
            ConditionExpression="attribute_not_exists(evaluated) OR evaluated < :step",
            ExpressionAttributeValues={":step": item["evaluated"]},
        )

    def ours(_: int) -> Turn:
        nonlocal sets
        sets = steps.fill()
        return Turn(sets, steps.evaluate)

    def bare(_: int) -> Turn:
        items = [
            {
                "set_key": {"B": chance.randbytes(32)},
                "type": {"S": "fledge"},
                "members": {"B": chance.randbytes(30)},
                "evaluated": {"N": "472222"},
                "ttl": {"N": "1700000000"},
            }
            for _ in range(sets or joins // 4)
        ]

        def work() -> None:
            with ThreadPoolExecutor(WRITERS) as writers:
                list(writers.map(put, items))

        return Turn(len(items), work)

    return compare(
        "evaluate, a touched set",
        "one bare conditional put_item, threaded alike",
        "set",
        ours,
        bare,
        turns=turns,
        target=1.3,
    )


@dataclass(frozen=True)
class Mix:
    """Sets of mixed sizes at one step: 80% below 5 members, 15% near k, 5% full; last joins at random steps."""

    parameters: Parameters
    step: int
    keys: list[bytes]
    sizes: np.ndarray[Any, np.dtype[np.int64]]
    lasts: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def drawn(cls, parameters: Parameters, sets: int, seed: int) -> Mix:
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


def decide(parameters: Parameters, turns: int, sets: int) -> list[Ratio]:
    """Decisions with look-ahead, in evaluation's chunks; relative to hashing alone, and to the plain loop."""
    key = NoiseKey("1", bytes(32))
    tapes = Tapes(key, "bench", "fledge", parameters)
    needed = Needed(key, "bench", "fledge", parameters)
    mix = Mix.drawn(parameters, sets, seed=5)
    few = Mix.drawn(parameters, max(100, sets // 500), seed=6)

    def decided(mix: Mix, tapes: Tapes) -> list[tuple[Any, Any]]:
        never = np.iinfo(np.int64).min
        return [
            vectorised.decide(parameters, lambda _: tapes, mix.step, keys, sizes, lasts, np.full(len(keys), never))
            for keys, sizes, lasts in mix.chunks()
        ]

    decided(mix, needed)
    prefix = shake_256(b"kanon/tape/1" + bytes(150))
    messages = [
        (length_prefixed(set_key, instance.to_bytes(8, "big", signed=True)), WORD_BYTES * count)
        for (set_key, instance), count in needed.read.items()
    ]

    def hash_alone() -> None:
        for message, size in messages:
            shake = prefix.copy()
            shake.update(message)
            shake.digest(size)

    states = list(few.states())

    def plain() -> list[SetState]:
        return [
            above_threshold.evaluate(parameters, set_key, state, (), few.step, partial(Noise, tapes, set_key))
            for set_key, state in states
        ]

    def straight() -> list[bool]:
        return [straightforward(parameters, set_key, state, few.step, tapes) for set_key, state in states]

    crossed = list(chain.from_iterable(now.tolist() for now, _ in decided(few, tapes)))
    assert crossed == [bool(state.crossings) for state in plain()] == straight()
    against = [
        (f"a straightforward loop over sets and steps ({len(states):,} sets)", straight, 20.0),
        (f"the plain mechanism, which reads a tape only where it must ({len(states):,} sets)", plain, 1.0),
    ]
    return [
        compare(
            f"decide, a set of {sets:,}",
            "hashing the same tapes, and nothing else",
            "set",
            partial(_turn, sets, partial(decided, mix, tapes)),
            partial(_turn, sets, hash_alone),
            turns=turns,
            target=2.0,
        ),
        *(
            compare(
                f"decide, a set of {sets:,}",
                what,
                "set",
                partial(_turn, sets, partial(decided, mix, tapes)),
                partial(_turn, len(states), work),
                turns=turns,
                target=target,
                at_least=True,
            )
            for what, work, target in against
        ),
    ]


def exact_law(parameters: Parameters, turns: int) -> Ratio:
    """The exact law of the first crossing, which the planner and the audit compute thousands of times."""
    chance = Random(7)
    counts = [parameters.k + chance.randint(-15, 5) for _ in range(parameters.window)]

    def floats() -> None:
        for _ in range(100):
            first_crossing(parameters, counts)

    return compare(
        f"the exact law of an instance of {parameters.window} steps",
        "the same in exact rationals",
        "law",
        partial(_turn, 100, floats),
        partial(_turn, 1, partial(first_crossing_exact, parameters, counts)),
        turns=turns,
        target=100.0,
        at_least=True,
    )


def _turn(units: int, work: Callable[[], object], _: int) -> Turn:
    return Turn(units, work)


def straightforward(parameters: Parameters, set_key: bytes, state: SetState, step: int, tapes: Tapes) -> bool:
    """Whether a set crosses at ``step``. A naive loop: it tests every step to the end of the next instance."""
    window, k = parameters.window, parameters.k
    phase = phase_of(set_key, window, parameters.phase)
    first = first_step(instance_of(step, phase, window), phase, window)
    crossing = {}
    for start in (first, first + window):
        noise = Noise(tapes, set_key, instance_of(start, phase, window))
        for at in range(max(step, start), start + window):
            count = count_at(state.members, at, window)
            crossing[at] = above_threshold.crosses(count, noise.nu(at - start), k, noise.mu)
    return crossing[step]
