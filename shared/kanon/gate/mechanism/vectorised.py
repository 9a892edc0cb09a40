"""The decisions of ``above_threshold`` for many sets of one type at once, with identical results.

``above_threshold`` is the definition and the test oracle; the service runs this module. It uses integers only:
instead of drawing every query noise, it compares the words of a tape with the smallest word that crosses.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import NEVER, Bools, Ints, States, Tokens, most_recent_of_all, ranks
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes
from kanon.noise.laws import Law

TapesOf = Callable[[int], Tapes]
"""Gives the tapes of the searches that begin at a step (noise keys rotate)."""

MEMBERS_A_BLOCK = 1 << 18
"""Members of a block of rows, each of which may begin a stretch; bounds the memory for large k."""
ROWS_A_BLOCK = 256
"""Tapes decided together. With 720 steps each, they still fit into a processor's cache."""


def evaluate_all(
    parameters: Parameters,
    tapes_of: TapesOf,
    step: int,
    sets: Sequence[tuple[bytes, SetState, Sequence[int]]],
    begun: int | None = None,
) -> list[SetState]:
    """:func:`above_threshold.evaluate` for many ``(set key, state, joined)``, all at ``step``."""
    before = States.of([(set_key, state) for set_key, state, _ in sets])
    joined = Tokens.of([joined for _, _, joined in sets])
    return evaluate_columns(parameters, tapes_of, step, before, joined, begun).states()


def evaluate_columns(
    parameters: Parameters, tapes_of: TapesOf, step: int, before: States, joined: Tokens, begun: int | None = None
) -> States:
    """The states of n sets after ``step``: :func:`above_threshold.evaluate` for all of them.

    ``step`` is later than each set's last evaluated step. ``joined`` has the client tokens that joined each set, in any
    order, repetitions allowed. ``begun`` is the first step of the log generation.
    """
    newest = before.crossings[:, 1]
    phases = phases_of(before.keys, parameters)
    sinces = np.maximum(searches_at(parameters, phases, step, newest, begun).sinces, step - parameters.window + 1)
    members, lasts = most_recent_of_all(before, joined, step, sinces, parameters.members_kept)
    crossed, wake_ups = decide(Sets(parameters, tapes_of, before.keys, members.sizes, lasts, begun), step, newest)
    crossings = np.where(crossed[:, None], np.column_stack((newest, np.full_like(newest, step))), before.crossings)
    return States(before.keys, members, lasts, crossings, np.full(len(before), step), wake_ups)


class SearchColumns(NamedTuple):
    """One search of each of n sets: :class:`searches.Search`, column by column, each (n,)."""

    places: Ints
    firsts: Ints
    lasts: Ints
    sinces: Ints

    def part(self, rows: "Ints | slice") -> "SearchColumns":
        """The searches of some rows."""
        return SearchColumns(self.places[rows], self.firsts[rows], self.lasts[rows], self.sinces[rows])


def searches_at(
    parameters: Parameters, phases: Ints, steps: "Ints | int", newest: Ints, begun: int | None = None
) -> SearchColumns:
    """:meth:`searches.Searches.at` for n sets with these phases and last crossings (NEVER if there is none)."""
    cycle, window = parameters.cycle, parameters.window

    def first_of_cycle(at: Ints) -> Ints:
        return at - (at - phases) % cycle

    begins = first_of_cycle(np.full(len(phases), steps))
    if parameters.restart is None:
        firsts = np.where(newest >= begins, begins + window, begins)
        return SearchColumns((firsts - phases) // window, firsts, firsts + window - 1, firsts - 2 * window)
    begins = begins if begun is None else np.maximum(begins, begun)
    after = newest + parameters.restart.hold
    firsts, sinces = np.where(after >= begins, (after, newest + 1), (begins, begins))
    return SearchColumns(firsts, firsts, first_of_cycle(firsts) + cycle - 1, sinces)


@dataclass(frozen=True)
class Sets:
    """n sets of one type, at a step.

    Attributes:
        parameters: the constants of the type.
        tapes_of: the tapes by first step of a search.
        keys: n set keys.
        sizes: members per set, (n,): its count at the step.
        lasts: the last steps of all members, set after set, latest first, (sum of sizes,).
        begun: the first step of the log generation, None for the first one.
    """

    parameters: Parameters
    tapes_of: TapesOf
    keys: Sequence[bytes]
    sizes: Ints
    lasts: Ints
    begun: int | None = None

    def first_counts(self, searches: SearchColumns) -> Ints:
        """The count of each set at the first step of a search of it, if nobody joins."""
        owners = np.repeat(np.arange(len(self.keys)), self.sizes)
        sinces = np.maximum(searches.sinces, searches.firsts - self.parameters.window + 1)
        return np.bincount(owners[self.lasts >= sinces[owners]], minlength=len(self.keys))

    def first_crossings(self, asked: Ints, searches: SearchColumns, counts: Ints, step: int) -> Ints:
        """The first crossing at or after ``step`` of each set in ``asked``, within one search per set.

        ``counts`` holds the counts at the first step in question. They only fall while nobody joins. So they show,
        without any query noise, which sets cannot cross and which cross at once.
        """
        parameters, firsts = self.parameters, searches.firsts
        result = np.full(len(self.keys), NEVER)
        sure = asked[counts[asked] >= parameters.surely_true_from]
        result[sure] = np.maximum(firsts[sure], step)
        open_ = asked[(counts[asked] >= parameters.never_true_below) & (counts[asked] < parameters.surely_true_from)]
        if open_.size:
            keys = [self.keys[row] for row in open_.tolist()]
            mus = threshold_noise(parameters.threshold_law, self.tapes_of, keys, searches.part(open_))
            thresholds = parameters.k + mus
            reachable = counts[open_] + parameters.query_law.max >= thresholds
            rows, thresholds = open_[reachable], thresholds[reachable]
            for block in _blocks(self.sizes[rows]):
                inside = rows[block]
                result[inside] = self.block_crossings(inside, searches.part(inside), thresholds[block], step)
        return result[asked]

    def block_crossings(self, rows: Ints, searches: SearchColumns, thresholds: Ints, step: int) -> Ints:
        """The first crossings at or after ``step`` of a block of rows. Tapes are read up to the last possible one only.

        ``searches`` and ``thresholds`` are those of the rows.

        Until the next member leaves, the count is constant, and so is the smallest word that crosses. So each row is
        cut into stretches of steps: the oldest member leaves at the end of the first one, and so on. The stretches of
        all rows are concatenated. Every row has a member; without members it cannot cross (``k + min - max >= 1``).
        """
        window, law, first, sizes = self.parameters.window, self.parameters.query_law, searches.firsts, self.sizes[rows]
        begins = np.maximum(step, first) - first
        owners = np.repeat(np.arange(len(rows)), sizes)
        left = ranks(sizes)  # members that left before the stretch
        members = np.cumsum(self.sizes)[rows][owners] - 1 - left
        # A member leaves one window after its last join, and its stretch ends there, clipped to the steps in question.
        ends = searches.lasts + 1 - first
        leaves = np.clip(self.lasts[members] + window - first[owners], begins[owners], ends[owners])
        lengths = leaves - np.where(left == 0, begins[owners], np.roll(leaves, 1))
        needed = (thresholds - sizes)[owners] + left - law.min
        lengths[needed >= len(law.weights)] = 0  # no word crosses here or in later stretches
        keys = [self.keys[row] for row in rows.tolist()]
        return stretches_cross(law, self.tapes_of, keys, searches, begins, sizes, lengths, needed)


def decide(sets: Sets, step: int, newest: Ints) -> tuple[Bools, Ints]:
    """Decide which sets cross at ``step``, and the first later step at which each crosses if nobody joins.

    ``newest`` has the last crossing per set, (n,); int64's minimum if there is none.

    Returns:
        Crossed now (n,), and the wake-up steps (n,), int64's minimum where there is none.
    """
    parameters, sizes = sets.parameters, sets.sizes
    phases = phases_of(sets.keys, parameters)
    searches = searches_at(parameters, phases, step, newest, sets.begun)
    active = searches.firsts <= step

    # The active search: the test of the step itself, and the look-ahead.
    crossing = np.full(len(sets.keys), NEVER)
    asked = np.flatnonzero(active)
    crossing[asked] = sets.first_crossings(asked, searches, sizes, step)
    crossed = crossing == step
    wake_ups = np.where(crossed, NEVER, crossing)

    # The search after it. If nobody joins, the set is empty from the next one on, and with restart after the crossing
    # already in it if a search ended before: then the members do not count.
    after = np.where(active & ~crossed, searches.lasts, step) + 1
    searches = searches_at(parameters, phases, after, np.where(crossed, step, newest), sets.begun)
    asked = np.flatnonzero((~active | crossed | (crossing == NEVER)) & (sizes > 0))
    wake_ups[asked] = sets.first_crossings(asked, searches, sets.first_counts(searches), NEVER)
    return crossed, wake_ups


def crossing_needed(keys: Sequence[bytes], newest: Ints, parameters: Parameters) -> Ints:
    """The last step that may need each set's ``newest`` crossing; NEVER without one, (n,)."""
    left = np.full_like(newest, parameters.memory)
    if parameters.restart is None:  # to the end of the instance
        left = parameters.window - 1 - (newest - phases_of(keys, parameters)) % parameters.window
    return np.where(newest == NEVER, NEVER, newest + left)


def phases_of(keys: Sequence[bytes], parameters: Parameters) -> Ints:
    """:func:`steps.phase_of` for n set keys, (n,)."""
    if parameters.phase != "hash":
        return np.zeros(len(keys), np.int64)
    tails = np.frombuffer(b"".join([key[-8:] for key in keys]), ">u8")
    return (tails % np.uint64(parameters.cycle)).astype(np.int64)


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


def threshold_noise(law: Law, tapes_of: TapesOf, keys: Iterable[bytes], searches: SearchColumns) -> Ints:
    """The threshold noise of searches, (n,): word 0 of each one's tape."""
    places = zip(keys, searches.places.tolist(), searches.firsts.tolist(), strict=True)
    words = b"".join([tapes_of(first).words(key, place, 1) for key, place, first in places])
    bounds = np.array(law.cumulative[:-1], np.uint64)
    outcomes: Ints = np.searchsorted(bounds, np.frombuffer(words, ">u8"), side="right")
    return law.min + outcomes


def stretches_cross(
    law: Law,
    tapes_of: TapesOf,
    keys: Sequence[bytes],
    searches: SearchColumns,
    begins: Ints,
    sizes: Ints,
    lengths: Ints,
    needed: Ints,
) -> Ints:
    """The first crossing of each of n rows. A row is a run of steps in one search of a set, cut into stretches.

    Args:
        law: the query law.
        tapes_of: the tapes by first step of a search.
        keys: the set key of each row.
        searches: the search of each row.
        begins: the number of steps between its first step and the row's first step, (n,).
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
    columns = (searches.places, searches.firsts, begins, ends)
    rows = zip(keys, *(column.tolist() for column in columns), strict=True)
    tapes = b"".join([tapes_of(f).query_words(key, place, begin, end) for key, place, f, begin, end in rows])
    words = np.frombuffer(tapes, ">u8").astype(np.uint64)
    crosses = np.concatenate((np.flatnonzero(words >= bounds), [len(words)]))
    found = crosses[np.searchsorted(crosses, starts)]
    return np.where(found < stops, searches.firsts + begins + found - starts, NEVER)
