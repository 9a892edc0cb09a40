"""The decisions of ``above_threshold`` for many sets of one type at once, with identical results.

``above_threshold`` is the definition and the test oracle; the service runs this module. It uses integers only:
instead of drawing every query noise, it compares the words of a tape with the smallest word that crosses.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import NEVER, Bools, Ints, States, Tokens, most_recent_of_all, ranks
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes
from kanon.noise.laws import Law
from kanon.noise.words import WORD_BYTES

TapesOf = Callable[[int], Tapes]
"""Gives the tapes of the instances that begin at a step (noise keys rotate)."""

MEMBERS_A_BLOCK = 1 << 18
"""Members of a block of rows, each of which may begin a stretch; bounds the memory for large k."""
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
    """The states of n sets after ``step``: :func:`above_threshold.evaluate` for all of them.

    ``step`` is later than each set's last evaluated step. ``joined`` has the client tokens that joined each set, in any
    order, repetitions allowed.
    """
    members, lasts = most_recent_of_all(before, joined, step, parameters.window, parameters.members_kept)
    newest = before.crossings[:, 1]
    crossed, wake_ups = decide(Sets(parameters, tapes_of, before.keys, members.sizes, lasts), step, newest)
    crossings = np.where(crossed[:, None], np.column_stack((newest, np.full_like(newest, step))), before.crossings)
    return States(before.keys, members, lasts, crossings, np.full(len(before), step), wake_ups)


@dataclass(frozen=True)
class Sets:
    """n sets of one type, at a step.

    Attributes:
        parameters: the constants of the type.
        tapes_of: the tapes by first step of an instance.
        keys: n set keys.
        sizes: members per set, (n,); all joined in the window that ends with the step.
        lasts: the last steps of all members, set after set, latest first, (sum of sizes,).
    """

    parameters: Parameters
    tapes_of: TapesOf
    keys: Sequence[bytes]
    sizes: Ints
    lasts: Ints

    def count_at(self, steps: Ints) -> Ints:
        """The count of set n at ``steps[n]`` if nobody joins."""
        window, owners = self.parameters.window, np.repeat(np.arange(len(self.keys)), self.sizes)
        return np.bincount(owners[self.lasts > steps[owners] - window], minlength=len(self.keys))

    def first_crossings(self, asked: Ints, instances: Ints, firsts: Ints, counts: Ints, step: int) -> Ints:
        """The first crossing at or after ``step`` of each set in ``asked``, within one instance per set.

        ``counts`` holds the counts at the first step in question. They only fall while nobody joins. So they show,
        without any query noise, which sets cannot cross and which cross at once.
        """
        parameters = self.parameters
        result = np.full(len(self.keys), NEVER)
        sure = asked[counts[asked] >= parameters.surely_true_from]
        result[sure] = np.maximum(firsts[sure], step)
        open_ = asked[(counts[asked] >= parameters.never_true_below) & (counts[asked] < parameters.surely_true_from)]
        if open_.size:
            keys = [self.keys[row] for row in open_.tolist()]
            mus = threshold_noise(parameters.threshold_law, self.tapes_of, keys, instances[open_], firsts[open_])
            thresholds = parameters.k + mus
            reachable = counts[open_] + parameters.query_law.max >= thresholds
            rows, thresholds = open_[reachable], thresholds[reachable]
            for block in _blocks(self.sizes[rows]):
                result[rows[block]] = self.block_crossings(rows[block], instances, firsts, thresholds[block], step)
        return result[asked]

    def block_crossings(self, rows: Ints, instances: Ints, firsts: Ints, thresholds: Ints, step: int) -> Ints:
        """The first crossings at or after ``step`` of a block of rows. Tapes are read up to the last possible one only.

        Until the next member leaves, the count is constant, and so is the smallest word that crosses. So each row is
        cut into stretches of steps: the oldest member leaves at the end of the first one, and so on. The stretches of
        all rows are concatenated. Every row has a member; without members it cannot cross (``k + min - max >= 1``).
        """
        window, law, first, sizes = self.parameters.window, self.parameters.query_law, firsts[rows], self.sizes[rows]
        begins = np.maximum(step, first) - first
        owners = np.repeat(np.arange(len(rows)), sizes)
        left = ranks(sizes)  # members that left before the stretch
        members = np.cumsum(self.sizes)[rows][owners] - 1 - left
        # A member leaves one window after its last join, and its stretch ends there, clipped to the steps in question.
        leaves = np.clip(self.lasts[members] + window - first[owners], begins[owners], window)
        lengths = leaves - np.where(left == 0, begins[owners], np.roll(leaves, 1))
        needed = (thresholds - sizes)[owners] + left - law.min
        lengths[needed >= len(law.weights)] = 0  # no word crosses here or in later stretches
        keys = [self.keys[row] for row in rows.tolist()]
        return stretches_cross(law, self.tapes_of, keys, instances[rows], first, begins, sizes, lengths, needed)


def decide(sets: Sets, step: int, newest: Ints) -> tuple[Bools, Ints]:
    """Decide which sets cross at ``step``, and the first later step at which each crosses if nobody joins.

    ``newest`` has the last crossing per set, (n,); int64's minimum if there is none.

    Returns:
        Crossed now (n,), and the wake-up steps (n,), int64's minimum where there is none.
    """
    window, sizes = sets.parameters.window, sets.sizes
    phases = phases_of(sets.keys, sets.parameters)
    instances = (step - phases) // window
    firsts = instances * window + phases
    above = newest >= firsts

    # This instance: the test of the step itself, and the look-ahead.
    crossing = np.full(len(sets.keys), NEVER)
    asked = np.flatnonzero(~above)
    crossing[asked] = sets.first_crossings(asked, instances, firsts, sizes, step)
    crossed = crossing == step
    wake_ups = np.where(crossed, NEVER, crossing)

    # The next instance. If nobody joins, the set is empty from the instance after that.
    asked = np.flatnonzero((above | crossed | (crossing == NEVER)) & (sizes > 0))
    nexts = firsts + window
    wake_ups[asked] = sets.first_crossings(asked, instances + 1, nexts, sets.count_at(nexts), NEVER)
    return crossed, wake_ups


def phases_of(keys: Sequence[bytes], parameters: Parameters) -> Ints:
    """:func:`steps.phase_of` for n set keys, (n,)."""
    if parameters.phase != "hash":
        return np.zeros(len(keys), np.int64)
    tails = np.frombuffer(b"".join([key[-8:] for key in keys]), ">u8")
    return (tails % np.uint64(parameters.window)).astype(np.int64)


def _blocks(sizes: Ints) -> Iterator[slice]:
    """Split rows into blocks of at most ROWS_A_BLOCK rows and, unless it is a single row, MEMBERS_A_BLOCK members."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        members = MEMBERS_A_BLOCK + (int(ends[start - 1]) if start else 0)
        stop = int(np.searchsorted(ends, members, side="right"))
        stop = min(start + ROWS_A_BLOCK, max(stop, start + 1))
        yield slice(start, stop)
        start = stop


def threshold_noise(law: Law, tapes_of: TapesOf, keys: Iterable[bytes], instances: Ints, firsts: Ints) -> Ints:
    """The threshold noise of instances, (n,): word 0 of each one's tape."""
    places = zip(keys, instances.tolist(), firsts.tolist(), strict=True)
    words = b"".join([tapes_of(first).words(key, instance, 1) for key, instance, first in places])
    bounds = np.array(law.cumulative[:-1], np.uint64)
    outcomes: Ints = np.searchsorted(bounds, np.frombuffer(words, ">u8"), side="right")
    return law.min + outcomes


def stretches_cross(
    law: Law,
    tapes_of: TapesOf,
    keys: Sequence[bytes],
    instances: Ints,
    firsts: Ints,
    begins: Ints,
    sizes: Ints,
    lengths: Ints,
    needed: Ints,
) -> Ints:
    """The first crossing of each of n rows. A row is a run of steps in one instance of a set, cut into stretches.

    Args:
        law: the query law.
        tapes_of: the tapes by first step of an instance.
        keys: the set key of each row.
        instances: the instance of each row, (n,).
        firsts: its first step, (n,).
        begins: the number of steps between it and the row's first step, (n,).
        sizes: the number of stretches of each row, at least one, (n,).
        lengths: the steps of all stretches, row after row, (sum of sizes,). In a stretch the count is constant.
        needed: in each stretch, the smallest query noise that crosses, less the smallest of the law. Where it is
            greater than any of the law, the stretch must be of length 0. (sum of sizes,)

    Returns:
        The steps, (n,); int64's minimum for a row without a crossing.
    """
    # nu >= needed if and only if the word is at least the cumulative weight of all smaller outcomes.
    smallest = np.array((0, *law.cumulative[:-1]), np.uint64)
    bounds = np.repeat(smallest[np.clip(needed, 0, len(smallest) - 1)], lengths)
    stops = np.cumsum(lengths)[np.cumsum(sizes) - 1]
    starts = np.concatenate(([0], stops[:-1]))
    ends = begins + stops - starts
    places = zip(keys, *(x.tolist() for x in (instances, firsts, 1 + begins, 1 + ends)), strict=True)
    tapes = b"".join([tapes_of(f).words(key, instance, to)[WORD_BYTES * at :] for key, instance, f, at, to in places])
    words = np.frombuffer(tapes, ">u8").astype(np.uint64)
    crosses = np.concatenate((np.flatnonzero(words >= bounds), [len(words)]))
    found = crosses[np.searchsorted(crosses, starts)]
    return np.where(found < stops, firsts + begins + found - starts, NEVER)
