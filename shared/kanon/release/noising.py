"""The noisy half: the only code that reads a bounded table.

The exact numbers are held by a :class:`PrivateTable`, which has no length, iteration or text form.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kanon.noise.words import TOTAL, length_prefixed
from kanon.release.aggregate_noise import LEVEL, NoisyTotal, half_width
from kanon.release.aggregates import AllUsers, AutomaticSum, Interval, Quantiles, TotalsAggregate, scale_factor
from kanon.release.bounding import LEFT_OUT, Bins, Bounding, Cells, Measure, Sum, bin_edges, decoded
from kanon.release.mechanism import Mechanism, Rule
from kanon.release.output import ReleasedRows
from kanon.release.selection import OptimalSelection, Thresholded
from kanon.release.tape import Tape, encoded_rows

GroupRow = tuple[Any, ...]
"""A group: its name, its number of users, and one number or text for each measure."""
Sorting = Literal["by name", "any"]
_ROWS = 1 << 16
Bin = tuple[int, int, int]

SHARED_LEVEL = 1 - (1 - LEVEL) / 2
"""The level of each of two intervals that hold together with the confidence of one."""


class PrivateTable:
    """The exact numbers of each group, before noise. Only this module can read them."""

    __slots__ = ("_bins", "_bounding", "_pieces")

    def __init__(
        self,
        bounding: Bounding,
        pieces: Callable[[Sorting], Iterable[pa.Table]],
        bins: Mapping[str, Mapping[int, int]],
    ) -> None:
        """Wrap an engine's result.

        Args:
            bounding: the computation.
            pieces: returns the groups in tables: names (text), numbers of users, and each measure as text; sorted by
                the bytes of their names, or in any order.
            bins: for each column with automatic bounds the number of users in each bin; under ``LEFT_OUT`` the number
                of users with too many groups, as bin 0.
        """
        self._bounding, self._pieces, self._bins = bounding, pieces, bins

    @classmethod
    def of_rows(
        cls, bounding: Bounding, rows: Callable[[], Iterable[GroupRow]], bins: Mapping[str, Mapping[int, int]]
    ) -> "PrivateTable":
        """Wrap sorted rows. ``rows`` is called twice."""
        return cls(bounding, lambda _: _in_pieces(rows(), bounding.measures), bins)


def _in_pieces(rows: Iterable[GroupRow], measures: Sequence[Measure]) -> Iterator[pa.Table]:
    waiting = iter(rows)
    while some := list(islice(waiting, _ROWS)):
        groups, users, *cells = zip(*some, strict=True)
        arrays = [pa.array(groups, pa.large_string()), pa.array(map(int, users), pa.int64())]
        arrays += [pa.array(map(str, column), pa.large_string()) for column in cells]
        yield pa.Table.from_arrays(arrays, schema=_schema(measures))


def _schema(measures: Sequence[Measure]) -> pa.Schema:
    columns = [(f"m{i}", pa.large_string()) for i in range(len(measures))]
    return pa.schema([("grp", pa.large_string()), ("users", pa.int64()), *columns])


@dataclass(slots=True)
class Group:
    """The exact numbers of one group. ``measures``: integers; of ``Cells`` and ``Bins`` sorted tuples."""

    name: str
    users: int
    measures: tuple[Any, ...]

    def __repr__(self) -> str:
        return "Group(...)"


def _groups(piece: pa.Table, measures: Sequence[Measure]) -> Iterator[Group]:
    for name, users, *cells in zip(*(column.to_pylist() for column in piece.columns), strict=True):
        yield Group(name, users, tuple(_read(measure, cell) for measure, cell in zip(measures, cells, strict=True)))


def _read(measure: Measure, cell: str) -> Any:
    if isinstance(measure, Cells | Bins):
        return tuple(sorted(tuple(map(int, entry.split(":"))) for entry in cell.split(",") if entry))
    return int(cell)


def keyed_digest(table: PrivateTable, key: bytes) -> str:
    """A digest that differs between two bounded tables and reveals nothing without the key."""
    found = hashlib.sha256(length_prefixed(b"kanon/release/input/1", key))
    for column in sorted(table._bins):
        for bin_, users in sorted(table._bins[column].items()):
            found.update(length_prefixed(column.encode(), b"%d" % bin_, b"%d" % users))
    for piece in table._pieces("by name"):
        found.update(_content(piece, table._bounding.measures))
    return hashlib.sha256(length_prefixed(key, found.digest())).hexdigest()


def _content(piece: pa.Table, measures: Sequence[Measure]) -> memoryview:
    """The names and numbers of the groups: those of each group, each after its length."""
    columns = [column.combine_chunks() for column in piece.columns]
    columns[1] = columns[1].cast(pa.large_string())
    for i, measure in enumerate(measures, 2):
        if isinstance(measure, Cells | Bins):
            columns[i] = pa.array([repr(_read(measure, cell)) for cell in columns[i].to_pylist()], pa.large_string())
    rows = encoded_rows(columns)
    return memoryview(rows.buffers()[2])[: pc.sum(pc.binary_length(rows)).as_py()]


def publish(table: PrivateTable, mechanism: Mechanism, tape: Tape) -> ReleasedRows:
    """Draw all noise and keep the selected groups.

    Raises:
        NoBoundsError: automatic bounds found no bin.
    """
    spec = mechanism.spec
    bounds = {
        i: mechanism.bounds_of(i).draw(table._bins[one.measure.column], tape, spec.roles[i])
        for i, one in enumerate(spec.asked)
        if isinstance(one, AutomaticSum)
    }
    left_out = _left_out(table, mechanism, tape)
    columns = [_Column.of(mechanism, i, bounds, left_out) for i in range(len(spec.asked))]
    width = None if spec.only_groups else _users_width(mechanism, LEVEL)
    rows = []
    for piece in _listed(table, spec.listed):
        for group, noisy in _selected(piece, mechanism, tape):
            users = Fraction(noisy)
            cells: list[Fraction] = [] if width is None else [users, users - width, users + width]
            for column in columns:
                cells += column.cells(group, users, tape)
            rows.append((decoded(group.name, len(spec.groups)), tuple(cells)))
    rows.sort(key=lambda row: tuple(text.encode() for text in row[0]))
    return ReleasedRows(_names(mechanism, columns), tuple(rows), _told_bounds(mechanism, bounds), left_out)


def _left_out(table: PrivateTable, mechanism: Mechanism, tape: Tape) -> int | None:
    """An upper end of the number of users with too many groups: no group has more users that do not count in it."""
    asked = mechanism.spec.asked
    i = next((i for i, one in enumerate(asked) if isinstance(one, AllUsers)), None)
    if i is None:
        return None
    count = mechanism.left_out(i)
    noisy = count.released(table._bins[LEFT_OUT][0], tape.word(mechanism.spec.roles[i], ""))
    return max(0, noisy + half_width(count.law, SHARED_LEVEL))


def _listed(table: PrivateTable, listed: Sequence[str] | None) -> Iterator[pa.Table]:
    """The groups of the table, or all listed groups; those without rows have zeros."""
    if listed is None:
        yield from table._pieces("any")
        return
    measures = table._bounding.measures
    found = pa.concat_tables([_schema(measures).empty_table(), *table._pieces("any")])
    names = pa.array(listed, pa.large_string())
    rows = found.take(pc.index_in(names, found["grp"]))
    zeros = [0, *("" if isinstance(measure, Cells | Bins) else "0" for measure in measures)]
    columns = [names, *(pc.fill_null(rows.column(i), zero) for i, zero in enumerate(zeros, 1))]
    yield pa.Table.from_arrays(columns, schema=_schema(measures))


def _selected(piece: pa.Table, mechanism: Mechanism, tape: Tape) -> Iterator[tuple[Group, int]]:
    """The groups that are released, and what the rule releases of each."""
    rule = mechanism.rule
    words = tape.words("users", piece["grp"].combine_chunks())
    possible = _possible(rule, piece["users"].to_numpy(), words)
    groups = _groups(piece.take(possible), mechanism.spec.measures)
    for group, word in zip(groups, words[possible].tolist(), strict=True):
        noisy = rule.released(group.users, word)
        if noisy is not None:
            yield group, noisy


def _possible(rule: Rule, users: NDArray[np.int64], words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The places of all groups that the rule can release with these words; most small groups are left out at once."""
    if not isinstance(rule, Thresholded):
        return np.arange(len(users))
    least = np.array([min(word, TOTAL - 1) for word in rule.least_words], np.uint64)
    above_floor = np.clip(users - (rule.floor - 1), 0, len(least) - 1)
    return np.flatnonzero(words >= least[above_floor])


def _users_width(mechanism: Mechanism, level: Fraction) -> int:
    """Half the width of the interval of a noisy number of users."""
    assert not isinstance(mechanism.rule, OptimalSelection)
    return half_width(mechanism.rule.law, level)


@dataclass(frozen=True)
class _Column:
    """The output columns of one aggregate."""

    names: tuple[str, ...]
    cells: Callable[[Group, Fraction, Tape], list[Fraction]]

    @classmethod
    def of(cls, mechanism: Mechanism, i: int, bounds: Mapping[int, tuple[int, int]], left_out: int | None) -> "_Column":
        asked = mechanism.spec.asked[i]
        if isinstance(asked, AllUsers):
            name, width = f"all_{mechanism.spec.units}", _users_width(mechanism, SHARED_LEVEL)
            above = width + (left_out or 0)
            return cls((f"{name}_low", f"{name}_high"), lambda _, users, __: [users - width, users + above])
        if isinstance(asked, Quantiles):
            return cls(asked.names, _quantile_cells(mechanism, i, asked))
        names: tuple[str, ...] = (asked.name, f"{asked.name}_low", f"{asked.name}_high")
        if isinstance(asked, AutomaticSum):
            asked = asked.bounded(*bounds[i])
            totals: tuple[NoisyTotal, ...] = (mechanism.automatic_total(i, asked.needs[0].sensitivity),)
        else:
            totals = mechanism.totals(i)
        if asked.name.split("_")[0] in ("var", "stddev"):
            names = names[:1]
        return cls(names, _total_cells(mechanism, i, asked, totals))


def _total_cells(
    mechanism: Mechanism, i: int, asked: TotalsAggregate, totals: Sequence[NoisyTotal]
) -> Callable[..., list[Fraction]]:
    spec = mechanism.spec
    exact = [_exact(spec.measures, need.measure) for need in asked.needs]
    level = 1 - (1 - LEVEL) / (len(totals) + asked.uses_users)
    widths = [total.half_width(level) for total in totals]
    roles = [f"{spec.roles[i]}/{part}" for part in range(len(totals))]
    users_width = _users_width(mechanism, level)

    def cells(group: Group, users: Fraction, tape: Tape) -> list[Fraction]:
        drawn = []
        for total, read, width, role in zip(totals, exact, widths, roles, strict=True):
            noisy = total.noisy(read(group), tape.word(role, group.name))
            drawn.append(Interval(noisy, noisy - width, noisy + width))
        return list(asked.value(drawn, Interval(users, users - users_width, users + users_width)))

    return cells


def _quantile_cells(mechanism: Mechanism, i: int, asked: Quantiles) -> Callable[..., list[Fraction]]:
    spec, quantiles = mechanism.spec, mechanism.quantiles(i)
    place = spec.measures.index(asked.measure)

    def cells(group: Group, _: Fraction, tape: Tape) -> list[Fraction]:
        edges = [one.draw(group.measures[place], tape, f"{spec.roles[i]}/{one.q}", group.name) for one in quantiles]
        return [asked.edge(edge) for edge in sorted(edges)]

    return cells


def _exact(measures: Sequence[Measure], wanted: Measure) -> Callable[[Group], int]:
    """The function that reads a measure of a group. The sum within automatic bounds is read from its bins."""
    if isinstance(wanted, Sum) and wanted not in measures:
        bins = measures.index(Bins(wanted.column))
        return lambda group: clamped_sum(group.measures[bins], wanted.low, wanted.high)
    place = measures.index(wanted)
    return lambda group: int(group.measures[place])


def clamped_sum(bins: Iterable[Bin], low: int, high: int) -> int:
    """The sum of numbers clamped to bin edges, from their number and sum in each bin."""
    total = 0
    for bin_, number, added in bins:
        least, most = bin_edges(bin_)
        total += number * low if most < low else number * high if least > high else added
    return total


def _names(mechanism: Mechanism, columns: Sequence[_Column]) -> tuple[str, ...]:
    """The names after the group's columns, each once: a repeated name gets a number."""
    names = [] if mechanism.spec.only_groups else [f"{mechanism.spec.counted}{end}" for end in ("", "_low", "_high")]
    names += [name for column in columns for name in column.names]
    taken = set(mechanism.spec.groups)
    unique = []
    for name in names:
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        taken.add(free)
        unique.append(free)
    return tuple(unique)


def _told_bounds(mechanism: Mechanism, bounds: Mapping[int, tuple[int, int]]) -> dict[str, tuple[Fraction, Fraction]]:
    unit = scale_factor(mechanism.spec.places)
    return {mechanism.spec.aggregates[i]: (Fraction(a, unit), Fraction(b, unit)) for i, (a, b) in bounds.items()}
