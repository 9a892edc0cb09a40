"""The decisions of ``above_threshold`` for many sets of one type at once, with identical results.

``above_threshold`` is the definition and the test oracle; the service runs this module. It uses integers only:
instead of drawing every query noise, it compares the words of a tape with the smallest word that crosses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import NEVER, Bools, Ints, States, Tokens, most_recent_of_all
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes
from kanon.noise.laws import Law
from kanon.noise.words import WORD_BYTES

TapesOf = Callable[[int], Tapes]
"""Gives the tapes of the instances that begin at a step (noise keys rotate)."""

ROWS_A_BLOCK = 256
"""Tapes decided together. With 720 steps each, they still fit into a processor's cache."""


def evaluate_all(
    parameters: Parameters,
    tapes_of: TapesOf,
    step: int,
    sets: Sequence[tuple[bytes, SetState, Sequence[int]]],
) -> list[SetState]:
    """:func:`above_threshold.evaluate` for many ``(set key, state, joined)``, all at ``step``."""
    before = States.of([(set_key, state) for set_key, state, _ in sets])
    return evaluate_columns(parameters, tapes_of, step, before, Tokens.of([joined for _, _, joined in sets])).states()


def evaluate_columns(parameters: Parameters, tapes_of: TapesOf, step: int, before: States, joined: Tokens) -> States:
    """:func:`above_threshold.evaluate` for many sets, all at ``step``.

    Args:
        parameters: the constants of the type.
        tapes_of: the tapes by first step of an instance.
        step: later than each set's last evaluated step.
        before: the states of n sets.
        joined: the client tokens that joined each of them, in any order, repetitions allowed.

    Returns:
        Their states after ``step``.
    """
    members, lasts = most_recent_of_all(before, joined, step, parameters.window, parameters.members_kept)
    newest = before.crossings[:, 1]
    crossed, wake_ups = decide(parameters, tapes_of, step, before.keys, members.sizes, lasts, newest)
    crossings = np.where(crossed[:, None], np.column_stack((newest, np.full_like(newest, step))), before.crossings)
    return States(before.keys, members, lasts, crossings, np.full(len(before), step), wake_ups)


def decide(
    parameters: Parameters,
    tapes_of: TapesOf,
    step: int,
    keys: Sequence[bytes],
    sizes: Ints,
    lasts: Ints,
    newest: Ints,
) -> tuple[Bools, Ints]:
    """Which sets cross at ``step``, and the first later step at which each crosses if nobody joins.

    Args:
        parameters: the constants of the type.
        tapes_of: the tapes by first step of an instance.
        step: the step.
        keys: n set keys.
        sizes: members per set, (n,); all joined in ``(step - window, step]``.
        lasts: the last steps of all members, set after set, latest first, (sum of sizes,).
        newest: the last crossing per set, (n,); int64's minimum if there is none.

    Returns:
        Crossed now (n,), and the wake-up steps (n,), int64's minimum where there is none.
    """
    window = parameters.window
    phases = phases_of(parameters, keys)
    instances = (step - phases) // window
    firsts = instances * window + phases
    sets = _Sets(keys, lasts, np.concatenate(([0], np.cumsum(sizes))))
    above = newest >= firsts

    # This instance: the test of the step itself, and the look-ahead.
    crossing = np.full(len(keys), NEVER)
    asked = np.flatnonzero(~above)
    crossing[asked] = _first_crossings(parameters, tapes_of, sets, asked, instances, firsts, sizes, step)
    crossed = crossing == step
    wake_ups = np.where(crossed, NEVER, crossing)

    # The next instance. If nobody joins, the set is empty from the instance after that.
    asked = np.flatnonzero((above | crossed | (crossing == NEVER)) & (sizes > 0))
    nexts = firsts + window
    left = sets.count_at(nexts, window)
    wake_ups[asked] = _first_crossings(parameters, tapes_of, sets, asked, instances + 1, nexts, left, NEVER)
    return crossed, wake_ups


def phases_of(parameters: Parameters, keys: Sequence[bytes]) -> Ints:
    """:func:`steps.phase_of` for n sets, (n,)."""
    if parameters.phase != "hash":
        return np.zeros(len(keys), np.int64)
    tails = np.frombuffer(b"".join([key[-8:] for key in keys]), ">u8")
    return (tails % np.uint64(parameters.window)).astype(np.int64)


@dataclass(frozen=True)
class _Sets:
    """Set keys, and the last steps of the members of set n in ``lasts[starts[n]:starts[n+1]]``."""

    keys: Sequence[bytes]
    lasts: Ints
    starts: Ints

    def count_at(self, steps: Ints, window: int) -> Ints:
        """The count of set n at ``steps[n]`` if nobody joins."""
        owners = np.repeat(np.arange(len(self.keys)), np.diff(self.starts))
        return np.bincount(owners[self.lasts > steps[owners] - window], minlength=len(self.keys))


def _first_crossings(
    parameters: Parameters,
    tapes_of: TapesOf,
    sets: _Sets,
    asked: Ints,
    instances: Ints,
    firsts: Ints,
    counts: Ints,
    step: int,
) -> Ints:
    """The first crossing at or after ``step`` of each set in ``asked``, within one instance per set.

    ``counts`` holds the counts at the first step in question. They only fall while nobody joins. So they show,
    without any query noise, which sets cannot cross and which cross at once.
    """
    result = np.full(len(sets.keys), NEVER)
    sure = asked[counts[asked] >= parameters.surely_true_from]
    result[sure] = np.maximum(firsts[sure], step)
    open_ = asked[(counts[asked] >= parameters.never_true_below) & (counts[asked] < parameters.surely_true_from)]
    if open_.size:
        mus = _mus(parameters.threshold_law, tapes_of, sets.keys, open_, instances, firsts)
        thresholds = parameters.k + mus
        reachable = counts[open_] + parameters.query_law.max >= thresholds
        rows, thresholds = open_[reachable], thresholds[reachable]
        for start in range(0, len(rows), ROWS_A_BLOCK):
            block = slice(start, start + ROWS_A_BLOCK)
            result[rows[block]] = _block_crossings(
                parameters, tapes_of, sets, rows[block], instances, firsts, thresholds[block], step
            )
    return result[asked]


def _mus(law: Law, tapes_of: TapesOf, keys: Sequence[bytes], rows: Ints, instances: Ints, firsts: Ints) -> Ints:
    """The threshold noise of each row's instance: word 0 of its tape."""
    places = zip(rows.tolist(), instances[rows].tolist(), firsts[rows].tolist(), strict=True)
    words = b"".join([tapes_of(first).words(keys[row], instance, 1) for row, instance, first in places])
    bounds = np.array(law.cumulative[:-1], np.uint64)
    outcomes: Ints = np.searchsorted(bounds, np.frombuffer(words, ">u8"), side="right")
    return law.min + outcomes


def _block_crossings(
    parameters: Parameters,
    tapes_of: TapesOf,
    sets: _Sets,
    rows: Ints,
    instances: Ints,
    firsts: Ints,
    thresholds: Ints,
    step: int,
) -> Ints:
    """The first crossings at or after ``step`` of a block of rows. Tapes are read only up to the last possible one.

    Until the next member leaves, the count is constant, and so is the smallest word that crosses. So each row is
    cut into stretches of steps: the oldest member leaves at the end of the first one, and so on. The stretches of
    all rows are concatenated. Every row has a member; without members it cannot cross (``k + min - max >= 1``).
    """
    window, law, first = parameters.window, parameters.query_law, firsts[rows]
    begins = np.maximum(step, first) - first
    sizes = np.diff(sets.starts)[rows]
    owners = np.repeat(np.arange(len(rows)), sizes)
    left = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # members that left before the stretch
    members = sets.starts[rows + 1][owners] - 1 - left
    # A member leaves one window after its last join, and its stretch ends there, clipped to the steps in question.
    leaves = np.clip(sets.lasts[members] + window - first[owners], begins[owners], window)
    lengths = leaves - np.where(left == 0, begins[owners], np.roll(leaves, 1))
    # nu >= needed if and only if the word is at least the cumulative weight of all smaller outcomes.
    needed = (thresholds - sizes)[owners] + left - law.min
    smallest = np.array((0, *law.cumulative[:-1]), np.uint64)
    lengths[needed >= len(smallest)] = 0  # no word crosses here or in later stretches
    bounds = np.repeat(smallest[np.clip(needed, 0, len(smallest) - 1)], lengths)

    stops = np.cumsum(lengths)[np.cumsum(sizes) - 1]
    starts = np.concatenate(([0], stops[:-1]))
    ends = begins + stops - starts
    places = zip(*(x.tolist() for x in (rows, instances[rows], first, 1 + begins, 1 + ends)), strict=True)
    tapes = b"".join(
        [tapes_of(f).words(sets.keys[row], instance, to)[WORD_BYTES * at :] for row, instance, f, at, to in places]
    )
    words = np.frombuffer(tapes, ">u8").astype(np.uint64)
    crosses = np.concatenate((np.flatnonzero(words >= bounds), [len(words)]))
    found = crosses[np.searchsorted(crosses, starts)]
    return np.where(found < stops, first + begins + found - starts, NEVER)
