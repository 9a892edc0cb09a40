"""The states of a part after a step: its joins are merged into it, and the sets that may change are decided.

A set is decided at a step if a client joined it, or if it crosses there though nobody joins (its wake-up). Deciding
other sets, or a set once more, would change nothing: noise is a function of set and step.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kanon.gate.mechanism.columns import NEVER, Bools, Ints, Tokens
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import SET_KEY_BYTES, Tapes
from kanon.gate.mechanism.vectorised import crossing_needed, evaluate_columns
from kanon.gate.parts import Part, keys_of

JOIN = np.dtype([("key", f"S{SET_KEY_BYTES}"), ("token", ">u4"), ("type", "u1")])
"""A join of a step: the key of the set, the token of the client, the number of the type."""
UNKNOWN = 0
"""The number of the type of a set of which only the crossings are known. Its next join brings the type."""
Joins = NDArray[np.void]
"""Distinct joins of a step, sorted, (n,) of :data:`JOIN`."""


class Deciding(NamedTuple):
    """What decisions at a step need.

    Attributes:
        step: the step.
        parameters: the parameters of each type by its number. Sets of other types are dropped: their type was retired.
        tapes_of: the tapes of a type by its number and the first step of a search.
        begun: the first step of the log generation; None for the first one.
    """

    step: int
    parameters: Mapping[int, Parameters]
    tapes_of: Callable[[int, int], Tapes]
    begun: int | None = None


class Merged(NamedTuple):
    """A part after a step, the number of sets decided, and the number of joins of retired types."""

    part: Part
    decided: int
    skipped: int


def merged(
    part: Part, joins: Joins, deciding: Deciding, sealed: Mapping[bytes, bytes] | None = None, *, all_due: bool = False
) -> Merged:
    """The part after the step.

    Args:
        part: the part before.
        joins: the joins of the step in its range.
        deciding: what decisions need.
        sealed: the sealed values of the step in its range, by set key.
        all_due: whether to decide every set: its noise has changed since its last decision.
    """
    known = np.isin(joins["type"], list(deciding.parameters))
    skipped = len(joins) - int(np.count_nonzero(known))
    joins = joins[known] if skipped else joins
    firsts = np.flatnonzero(np.concatenate(([True], joins["key"][1:] != joins["key"][:-1]))) if len(joins) else _NONE
    joined = joins["key"][firsts]
    part = _without_others(part.at(deciding.step), deciding)
    place = np.searchsorted(part.keys, joined)
    there = np.zeros(len(joined), bool)
    inside = place < len(part)
    there[inside] = part.keys[place[inside]] == joined[inside]
    part = _with_types(part, place[there], joins["type"][firsts][there])
    part = part.with_sets(joined[~there], joins["type"][firsts][~there]).with_sealed(sealed or {})
    sizes = np.zeros(len(part), np.int64)
    sizes[np.searchsorted(part.keys, joined)] = np.diff(np.append(firsts, len(joins)))
    chosen = np.ones(len(part), bool) if all_due else part.due(deciding.step) | (sizes > 0)
    for number, parameters in deciding.parameters.items():
        rows = chosen & (part.types == number)
        if rows.any():
            own = joins["token"][np.repeat(rows, sizes)] if len(joins) else _NONE
            tokens = Tokens(sizes[rows], own.astype(np.int64))
            part = _decided(part, rows, tokens, number, parameters, deciding)
    needed = (part.ends > deciding.step) | (part.crossings[:, 1] == deciding.step)
    return Merged(part.rows(needed), int(np.count_nonzero(chosen)), skipped)


def crossed_at(
    part: Part, step: int, parameters: Mapping[int, Parameters]
) -> Iterator[tuple[bytes, tuple[int, ...], int]]:
    """The sets of a part that crossed at its ``step``, in the order of their keys.

    Yields:
        Set key, crossings, and the last step that may need them.
    """
    part = part.rows((part.crossings[:, 1] == step) & (part.types != UNKNOWN))
    keys, needed = keys_of(part.keys), np.full(len(part), step)
    for number in set(part.types.tolist()):
        rows = part.types == number
        own = [key for key, chosen in zip(keys, rows.tolist(), strict=True) if chosen]
        needed[rows] = crossing_needed(own, part.crossings[rows, 1], parameters[number])
    for key, crossings, last in zip(keys, part.crossings.tolist(), needed.tolist(), strict=True):
        yield key, tuple(at for at in crossings if at != NEVER), last


_NONE = np.zeros(0, np.int64)


def _without_others(part: Part, deciding: Deciding) -> Part:
    """The part without the sets of retired types, and without those that no step from this one on needs."""
    known = np.isin(part.types, [UNKNOWN, *deciding.parameters])
    return part.rows(known & (part.ends >= deciding.step))


def _with_types(part: Part, rows: Ints, types: NDArray[np.uint8]) -> Part:
    """The part with the types of rows that had none."""
    unknown = part.types[rows] == UNKNOWN
    if not unknown.any():
        return part
    all_types = part.types.copy()
    all_types[rows[unknown]] = types[unknown]
    return replace(part, types=all_types)


def _decided(part: Part, rows: Bools, joined: Tokens, number: int, parameters: Parameters, deciding: Deciding) -> Part:
    """The part with the new states of some rows, all of one type."""
    before = part.rows(rows).states()
    tapes_of = partial(deciding.tapes_of, number)
    after = evaluate_columns(parameters, tapes_of, deciding.step, before, joined, deciding.begun)
    needed = crossing_needed(after.keys, after.crossings[:, 1], parameters)
    ends = np.maximum(after.wake_ups, needed)
    occupied = after.members.sizes > 0
    newest = after.lasts[after.members.starts[:-1][occupied]]
    ends[occupied] = np.maximum(ends[occupied], newest + parameters.window - 1)
    return part.with_states(rows, after, ends)
