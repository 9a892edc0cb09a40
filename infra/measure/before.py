"""The evaluation of before columns, kept as a yardstick: one conditional put and one fold in Python for each set.

The product imports nothing of this. It is the code of ``kanon.gate.evaluation``, ``gate.storage.members`` and
``gate.mechanism.vectorised`` as of July 2026, without comments. The parts that are not per set are the product's:
reading the log, :func:`vectorised.decide`, wake-ups, statuses, the lease, the horizon and the mark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from kanon.dynamo.batches import Item
from kanon.dynamo.conditions import unless_refused
from kanon.dynamo.limits import check_item
from kanon.dynamo.units import WRITE_UNIT, item_size
from kanon.gate.evaluation import Evaluation, Outcome
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.mechanism.members import Member, most_recent
from kanon.gate.mechanism.steps import first_step, instance_of, phase_of
from kanon.gate.mechanism.tape import check_set_key
from kanon.gate.mechanism.vectorised import Sets, decide
from kanon.gate.reading import Touched
from kanon.gate.storage.step_log import Row


class Evaluated(NamedTuple):
    """A touched set with its state before and after the step."""

    touched: Touched
    before: SetState
    after: SetState


@dataclass
class SetBySet(Evaluation):
    """An evaluation that folds, packs and writes each set alone. ``get`` and ``put`` use the items of Members."""

    get: Callable[[Iterable[bytes]], dict[bytes, Item]] = field(kw_only=True)
    put: Callable[..., Any] = field(kw_only=True)

    def _evaluate_chunk(
        self, step: int, chunk: Sequence[Touched], writers: ThreadPoolExecutor, outcome: Outcome
    ) -> Outcome:
        items = self.get(touched.set_key for touched in chunk)
        states = {set_key: state_in(item) for set_key, item in items.items()}
        self._commit_each(self._decide_each(step, chunk, states), writers)
        return replace(outcome, sets=outcome.sets + len(chunk))

    def _decide_each(self, step: int, chunk: Sequence[Touched], states: dict[bytes, SetState]) -> list[Evaluated]:
        pending: dict[str, list[tuple[Touched, SetState]]] = {}
        for touched in chunk:
            before = states.get(touched.set_key, SetState())
            if before.evaluated is None or before.evaluated < step:
                pending.setdefault(touched.type_name, []).append((touched, before))
        decided = []
        for name, entries in pending.items():
            parameters = self.types[name].parameters
            window, keep = parameters.window, parameters.members_kept
            members = [most_recent(before.members, t.joined, step, window, keep) for t, before in entries]
            lasts = np.fromiter((m.last for m in chain.from_iterable(members)), np.int64)
            sizes = np.fromiter(map(len, members), np.int64, len(entries))
            newest = [before.crossings[-1] if before.crossings else NEVER for _, before in entries]
            keys = [touched.set_key for touched, _ in entries]
            sets = Sets(parameters, partial(self._tapes_of, name), keys, sizes, lasts)
            columns = decide(sets, step, np.array(newest))
            crossed, wake_ups = (column.tolist() for column in columns)
            for (touched, before), kept, now, wake_up in zip(entries, members, crossed, wake_ups, strict=True):
                crossings = (*before.crossings[-1:], step) if now else before.crossings
                after = SetState(kept, crossings, step, None if wake_up == NEVER else wake_up)
                decided.append(Evaluated(touched, before, after))
        return decided

    def _commit_each(self, decided: Sequence[Evaluated], writers: ThreadPoolExecutor) -> None:
        self.log.put_wake_ups(
            Row(wake_up, e.touched.set_key, None, e.touched.type_name, self.schedule.expiry(wake_up))
            for e in decided
            if (wake_up := e.after.wake_up) is not None and (wake_up != e.before.wake_up or e.before.evaluated is None)
        )
        crossed = [e for e in decided if e.after.crossings != e.before.crossings]
        list(writers.map(self._write_crossing, crossed))
        list(writers.map(self._write_members, decided))

    def _write_crossing(self, e: Evaluated) -> None:
        self.statuses.write(e.touched.set_key, e.after.crossings, self.schedule.expiry(self._last_step_true(e)))

    def _write_members(self, e: Evaluated) -> None:
        parameters = self.types[e.touched.type_name].parameters
        needed = [e.after.evaluated or 0]
        if e.after.members:
            needed.append(e.after.members[0].last + parameters.window)
        if e.after.crossings:
            needed.append(self._last_step_true(e))
        if e.after.wake_up is not None:
            needed.append(e.after.wake_up)
        token_bytes = -(-parameters.client_bits // 8)
        expires = self.schedule.expiry(max(needed))
        item = item_of(e.touched.set_key, e.touched.type_name, e.after, token_bytes, expires)
        unless_refused(
            self.put,
            Item=item,
            ConditionExpression="attribute_not_exists(evaluated) OR evaluated < :step",
            ExpressionAttributeValues={":step": item["evaluated"]},
        )

    def _last_step_true(self, e: Evaluated) -> int:
        parameters = self.types[e.touched.type_name].parameters
        phase = phase_of(e.touched.set_key, parameters.window, parameters.phase)
        instance = instance_of(e.after.crossings[-1], phase, parameters.window)
        return first_step(instance + 1, phase, parameters.window) - 1


def state_in(item: Item) -> SetState:
    """The state in an item."""
    packed: bytes = item["members"]["B"]
    _, token_bytes, evaluated = struct.unpack_from(">BBq", packed)
    body, width = packed[10:], token_bytes + 2
    entries = (body[start : start + width] for start in range(0, len(body), width))
    members = tuple(
        Member(int.from_bytes(entry[:token_bytes], "big"), evaluated - int.from_bytes(entry[token_bytes:], "big"))
        for entry in entries
    )
    crossings = tuple(int(step["N"]) for step in item.get("crossings", {"L": []})["L"])
    return SetState(members, crossings, evaluated, int(item["wake_up"]["N"]) if "wake_up" in item else None)


def item_of(set_key: bytes, type_name: str, state: SetState, token_bytes: int, expires: int) -> Item:
    """The state of a set as an item."""
    check_set_key(set_key)
    evaluated: Any = state.evaluated
    head = struct.pack(">BBq", 1, token_bytes, evaluated)
    body = (
        member.token.to_bytes(token_bytes, "big") + (evaluated - member.last).to_bytes(2, "big")
        for member in state.members
    )
    item: Item = {
        "set_key": {"B": set_key},
        "type": {"S": type_name},
        "members": {"B": head + b"".join(body)},
        "evaluated": {"N": str(evaluated)},
        "ttl": {"N": str(expires)},
    }
    if state.crossings:
        item["crossings"] = {"L": [{"N": str(step)} for step in state.crossings]}
    if state.wake_up is not None:
        item["wake_up"] = {"N": str(state.wake_up)}
    check_item(item, ("set_key",))
    if gap := -item_size(item) % WRITE_UNIT:
        item["p"] = {"B": bytes(gap - 1)}
    return item
