"""The crossings of sets: the test of ``above_threshold`` at every step, with the service's own code and noise.

The service evaluates a set after a join and after a wake-up, and so finds the first step of each search at which the
noisy count reaches the noisy threshold. Here the counts of the whole log are known, so this step is computed directly:
on a grid for all instances at once, with restart after the crossing for the next search of each set, again and again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kanon.gate.mechanism.columns import NEVER, ranks
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.mechanism.vectorised import (
    ROWS_A_BLOCK,
    SearchColumns,
    phases_of,
    searches_at,
    stretches_cross,
    threshold_noise,
)
from kanon.noise.laws import Law
from kanon.simulate.presence import Bools, Ints, MemberJoins, Runs, Stretches, by_set, runs_of, stretches_of

_FAR = np.iinfo(np.int64).max // 2
"""Later than every step, and above every count."""


class Crossings(NamedTuple):
    """Crossings, sorted by set and time. A set reads true in the steps ``begins`` to ``ends - 1``. Each array is (n,).

    ``ends`` is the end of the instance or of the hold; it may be after the end of the log.
    """

    sets: Ints
    begins: Ints
    ends: Ints

    def where(self, chosen: Bools) -> "Crossings":
        """Some of the crossings."""
        return Crossings(self.sets[chosen], self.begins[chosen], self.ends[chosen])

    def and_of_others(self, others: "Crossings") -> "Crossings":
        """These crossings, and those of other sets."""
        return Crossings(*by_set(self, others))


@dataclass(frozen=True)
class _Pieces:
    """Stretches cut at the ends of searches, sorted by set and time. ``groups`` numbers the searches with a piece."""

    sets: Ints
    searches: SearchColumns
    begins: Ints
    ends: Ints
    counts: Ints
    groups: Ints
    starts: Ints


def crossings_of(
    parameters: Parameters, tapes: Tapes, keys: Sequence[bytes], joins: MemberJoins, runs: Runs, until: int
) -> Crossings:
    """All crossings of sets before step ``until``, from the joins of their tokens and the runs of these.

    ``keys`` are the set keys by the number of the set.
    """
    candidates = _candidates(parameters, runs, until)
    if not candidates.sets.size:
        return Crossings(candidates.sets, candidates.begins, candidates.ends)
    phases = phases_of(keys, parameters)
    if parameters.restart is not None:
        ends = joins.steps + parameters.cycle - (joins.steps - phases[joins.set_of[joins.members]]) % parameters.cycle
        anew = _candidates(parameters, runs_of(joins, parameters.window, ends), until)
        sets, steps = _crossings_in_turn(parameters, tapes, keys, candidates, anew, phases)
        return Crossings(sets, steps, steps + parameters.restart.hold)
    pieces = _cut(candidates, phases, parameters.window)
    steps = _first_crossings(parameters, tapes, keys, pieces)
    crossed = steps < _FAR
    heads = pieces.starts[crossed]
    return Crossings(pieces.sets[heads], steps[crossed], pieces.searches.lasts[heads] + 1)


def _candidates(parameters: Parameters, runs: Runs, until: int) -> Stretches:
    """The stretches with a count that crosses with some noise."""
    stretches = stretches_of(runs, until)
    return stretches.where(stretches.counts >= parameters.never_true_below)


def _crossings_in_turn(
    parameters: Parameters,
    tapes: Tapes,
    keys: Sequence[bytes],
    stretches: Stretches,
    anew: Stretches,
    phases: Ints,
) -> tuple[Ints, Ints]:
    """Sets and steps of the crossings with restart after them: each round decides the next search of every set.

    In ``anew`` every epoch counts from 0, as a search does that begins with it. One that begins after a crossing counts
    whole windows.
    """
    newest, decided = np.full(len(keys), NEVER), np.full(len(keys), NEVER)  # of each set; decided through a step
    found_sets, found_steps = [], []
    while stretches.sets.size:
        sets = stretches.sets
        begins = np.maximum(stretches.begins, decided[sets] + 1)
        first_of_set = np.concatenate(([True], sets[1:] != sets[:-1]))
        owners, row = sets[first_of_set], np.cumsum(first_of_set) - 1
        searches = searches_at(parameters, phases[owners], begins[first_of_set], newest[owners])
        from_zero = searches.firsts == searches.sinces
        counts_anew = np.zeros(len(keys), bool)
        counts_anew[owners] = from_zero
        counted = stretches.where(~from_zero[row]).and_of_others(anew.where(counts_anew[anew.sets]))
        pieces = _within(counted, searches.part(np.searchsorted(owners, counted.sets)))
        steps = _first_crossings(parameters, tapes, keys, pieces) if pieces.sets.size else pieces.starts
        crossed = steps < _FAR
        crossing = pieces.sets[pieces.starts[crossed]]
        decided[owners] = searches.lasts
        decided[crossing] = newest[crossing] = steps[crossed]
        found_sets.append(crossing)
        found_steps.append(steps[crossed])
        stretches = stretches.where(stretches.ends > decided[sets] + 1)
        anew = anew.where(anew.ends > decided[anew.sets] + 1)
    sets, steps = np.concatenate(found_sets), np.concatenate(found_steps)
    order = np.lexsort((steps, sets))
    return sets[order], steps[order]


def _within(stretches: Stretches, searches: SearchColumns) -> _Pieces:
    """The parts of stretches that lie in one search of their set each."""
    begins = np.maximum(stretches.begins, searches.firsts)
    ends = np.minimum(stretches.ends, searches.lasts + 1)
    kept = np.flatnonzero(begins < ends)
    return _pieces(stretches.sets[kept], searches.part(kept), begins[kept], ends[kept], stretches.counts[kept])


def _cut(stretches: Stretches, phases: Ints, window: int) -> _Pieces:
    phase = phases[stretches.sets]
    first = (stretches.begins - phase) // window
    number = (stretches.ends - 1 - phase) // window - first + 1
    rows = np.repeat(np.arange(len(number)), number)
    instances = first[rows] + ranks(number)
    firsts = instances * window + phase[rows]
    begins = np.maximum(stretches.begins[rows], firsts)
    ends = np.minimum(stretches.ends[rows], firsts + window)
    searches = SearchColumns(instances, firsts, firsts + window - 1, firsts - 2 * window)
    return _pieces(stretches.sets[rows], searches, begins, ends, stretches.counts[rows])


def _pieces(sets: Ints, searches: SearchColumns, begins: Ints, ends: Ints, counts: Ints) -> _Pieces:
    places = searches.places
    heads = np.concatenate(([True], (sets[1:] != sets[:-1]) | (places[1:] != places[:-1])))[: len(sets)]
    return _Pieces(sets, searches, begins, ends, counts, np.cumsum(heads) - 1, np.flatnonzero(heads))


def _first_crossings(parameters: Parameters, tapes: Tapes, keys: Sequence[bytes], pieces: _Pieces) -> Ints:
    """The crossing of each search, ``_FAR`` if there is none."""
    heads, law = pieces.starts, parameters.query_law
    open_ = pieces.counts[heads] < parameters.surely_true_from
    # The others certainly cross at their first possible step: no noise is drawn for them.
    steps, thresholds = np.where(open_, _FAR, pieces.begins[heads]), np.full(len(heads), _FAR)
    at = heads[open_]
    thresholds[open_] = parameters.k + threshold_noise(
        parameters.threshold_law,
        lambda _: tapes,
        [keys[number] for number in pieces.sets[at].tolist()],
        pieces.searches.part(at),
    )
    needed = thresholds[pieces.groups] - pieces.counts - law.min
    possible = np.flatnonzero(needed < len(law.weights))
    if possible.size:
        groups, begins, ends = pieces.groups[possible], pieces.begins[possible], pieces.ends[possible]
        fresh = np.concatenate(([True], (groups[1:] != groups[:-1]) | (begins[1:] != ends[:-1])))
        starts = np.flatnonzero(fresh)
        found = _rows_cross(law, tapes, keys, pieces, possible, starts, needed[possible])
        crossing, rows = np.unique(groups[starts], return_index=True)
        steps[crossing] = np.minimum.reduceat(found, rows)
    return steps


def _rows_cross(
    law: Law, tapes: Tapes, keys: Sequence[bytes], pieces: _Pieces, possible: Ints, starts: Ints, needed: Ints
) -> Ints:
    """The first crossing of each row, block by block; ``_FAR`` if there is none.

    A *row* is a run of adjacent pieces of a search in which some noise crosses. ``possible`` has the positions of
    these pieces, and ``starts`` where each row begins in it. ``needed`` is the smallest noise that crosses in each of
    them, less the smallest of the law.
    """
    heads, lengths = possible[starts], (pieces.ends - pieces.begins)[possible]
    sizes = np.diff(np.append(starts, len(possible)))
    sets, searches = pieces.sets[heads], pieces.searches.part(heads)
    offsets = pieces.begins[heads] - searches.firsts
    found = np.empty(len(starts), np.int64)
    for start in range(0, len(starts), ROWS_A_BLOCK):
        rows = slice(start, start + ROWS_A_BLOCK)
        inner = slice(starts[start], starts[start] + sizes[rows].sum())
        found[rows] = stretches_cross(
            law,
            lambda _: tapes,
            [keys[number] for number in sets[rows].tolist()],
            searches.part(rows),
            offsets[rows],
            sizes[rows],
            lengths[inner],
            needed[inner],
        )
    return np.where(found == NEVER, _FAR, found)
