"""A step gives the states of a plain loop over the same joins.

The loop is written as one would write it first: set by set, without numpy, each tape read once. It shares only the
tapes and noise distributions with the service.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

import numpy as np

from bench.stack import KEY, fledge
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import SET_KEY_BYTES, Tapes
from kanon.gate.merging import JOIN, Deciding, Joins, merged
from kanon.gate.parts import Part, keys_of

STEP = 480_000


class State(NamedTuple):
    """The members of a set as last step and token, latest first; its crossings; its wake-up; the last step needed."""

    members: list[tuple[int, int]]
    crossings: list[int]
    wake_up: int | None
    end: int


def evaluate_set(
    parameters: Parameters, tapes: Tapes, step: int, set_key: bytes, old: State, joined: Iterable[int]
) -> State:
    """The state of a set after ``step``."""
    window, lowest = parameters.window, parameters.query_law.min
    last = {token: at for at, token in old.members if at > step - window}
    last.update(dict.fromkeys(joined, step))
    members = sorted([(-at, token) for token, at in last.items()])[: parameters.members_kept]
    crossings = old.crossings

    phase = int.from_bytes(set_key[-8:], "big") % window
    first = (step - phase) // window * window + phase
    wake_up = None
    for begin in (first, first + window):
        at, count = max(step, begin), len(members)
        if begin == first and crossings and crossings[-1] >= first:
            continue  # true until the end of this instance
        while count and window - members[count - 1][0] <= at:
            count -= 1
        if count < parameters.never_true_below:
            continue
        words = struct.unpack(f">{1 + window}Q", tapes.words(set_key, (begin - phase) // window, 1 + window))
        threshold = parameters.k + parameters.threshold_law.draw(words[0]) - lowest
        cumulative = parameters.query_law.cumulative
        while at < begin + window and count + len(cumulative) - 1 >= threshold:
            if count + bisect_right(cumulative, words[1 + at - begin]) >= threshold:
                break
            at += 1
            while count and window - members[count - 1][0] <= at:
                count -= 1
        else:
            continue
        if at > step:
            wake_up = at
            break
        crossings = [*crossings[-1:], step]

    needed = [window - 1 - members[0][0]]
    if crossings:
        needed.append((crossings[-1] - phase) // window * window + phase + window - 1)
    if wake_up is not None:
        needed.append(wake_up)
    return State([(-negative, token) for negative, token in members], crossings, wake_up, max(needed))


def drawn(parameters: Parameters, sets: int) -> tuple[dict[bytes, State], dict[bytes, list[int]]]:
    """States by set key: small sets, sets near k, full sets; and one to three tokens that join each."""
    chance = Random(3)
    states, joined = {}, {}
    for _ in range(sets):
        key, kind = chance.randbytes(SET_KEY_BYTES), chance.random()
        near = min(max(1, round(chance.gauss(parameters.k, parameters.k / 5))), parameters.members_kept)
        size = chance.randint(1, 4) if kind < 0.8 else near if kind < 0.95 else parameters.members_kept
        ages = ((1 + chance.randrange(parameters.window - 1), token) for token in chance.sample(range(1 << 16), size))
        members = [(STEP - age, token) for age, token in sorted(ages)]
        crossings = [members[0][0]] if size == parameters.members_kept else []
        states[key] = State(members, crossings, None, STEP + parameters.window)
        joined[key] = [chance.randrange(1 << 16) for _ in range(chance.randint(1, 3))]
    return dict(sorted(states.items())), joined


def part_of(states: dict[bytes, State]) -> Part:
    members = [member for state in states.values() for member in state.members]
    crossings = [[NEVER] * (2 - len(state.crossings)) + state.crossings for state in states.values()]
    return Part.of(
        STEP - 1,
        np.array(list(states), f"S{SET_KEY_BYTES}"),
        np.ones(len(states), np.uint8),
        np.array([len(state.members) for state in states.values()]),
        np.array([token for _, token in members]),
        np.array([at for at, _ in members]),
        np.array(crossings),
        np.array([NEVER if state.wake_up is None else state.wake_up for state in states.values()]),
        np.array([state.end for state in states.values()]),
    )


def states_in(part: Part) -> dict[bytes, State]:
    found, start = {}, 0
    rows = zip(
        keys_of(part.keys),
        part.sizes.tolist(),
        part.crossings.tolist(),
        part.wake_ups.tolist(),
        part.ends.tolist(),
        strict=True,
    )
    for key, size, crossings, wake_up, end in rows:
        own = slice(start, start + size)
        members = list(zip(part.lasts[own].tolist(), part.tokens[own].tolist(), strict=True))
        known = [at for at in crossings if at != NEVER]
        found[key], start = State(members, known, None if wake_up == NEVER else wake_up, end), start + size
    return found


def joins_of(joined: dict[bytes, list[int]]) -> Joins:
    rows = sorted({(key, token, 1) for key, tokens in joined.items() for token in tokens})
    return np.array(rows, JOIN)


def test_a_step_gives_the_states_of_the_plain_loop() -> None:
    parameters = fledge().parameters
    tapes = Tapes(KEY, "bench", "fledge", parameters)
    before, joined = drawn(parameters, 400)
    deciding = Deciding(STEP, {1: parameters}, lambda *_: tapes)
    after = states_in(merged(part_of(before), joins_of(joined), deciding).part)
    assert after == {
        key: evaluate_set(parameters, tapes, STEP, key, state, joined[key]) for key, state in before.items()
    }
    assert len(after) == 400
    # The draw covers what a state can hold.
    assert any(state.wake_up for state in after.values())
    crossed = {key for key, state in after.items() if state.crossings}
    assert crossed > {key for key, state in before.items() if state.crossings}
