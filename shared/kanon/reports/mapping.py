"""First stage of a job: from a shard of reports to sums by key, report ids, sources and error counts.

A report is decrypted if its clear fields were accepted. Its key and its size are clear, too.
"""

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from kanon.dynamo.batches import chunks
from kanon.reports.avro import Report
from kanon.reports.errors import Counter, ReportRefusedError
from kanon.reports.histogram import EMPTY, KEY, Histogram
from kanon.reports.payload import HISTOGRAM, PayloadError, Slots, layout_of, open_sealed, read_one
from kanon.reports.shared_info import ReportSource, Rules, accept_clear

BATCH = 512
"""Reports read at once: few enough for the processor's cache."""
_PAIRS = 1 << 20
"""Pairs collected before they are added up."""
_LAYOUTS = 4
"""Layouts tried for reports of one length. The remaining reports are read one by one."""


@dataclass(frozen=True)
class Mapped:
    """The result of one shard.

    Args:
        partitions: the sums of each partition.
        report_ids: ids of the accepted reports, 16 bytes each, every id once, in the order of the reports.
        sources: clear fields of the selected reports whose key is known; they decide the units of account. Neither
            the encrypted part of a report nor any other report has an influence.
        errors: reports that are not accepted, by counter.
        reports: reports read.
        duplicates: accepted reports with the id of an earlier one; they are dropped, and are not errors.
        left_out: reports of other origins and reports outside the selection; they are dropped, and are not errors.
    """

    partitions: tuple[Histogram, ...]
    report_ids: NDArray[np.bytes_]
    sources: frozenset[ReportSource]
    errors: Tally[Counter]
    reports: int
    duplicates: int
    left_out: int = 0

    @classmethod
    def merged(cls, pieces: Sequence["Mapped"]) -> "Mapped":
        """The result of a shard from those of its pieces, in order; no id is in two of them."""
        return cls(
            tuple(Histogram.merged(parts) for parts in zip(*(piece.partitions for piece in pieces), strict=True)),
            np.concatenate([piece.report_ids for piece in pieces]),
            frozenset().union(*(piece.sources for piece in pieces)),
            sum((piece.errors for piece in pieces), Tally()),
            sum(piece.reports for piece in pieces),
            sum(piece.duplicates for piece in pieces),
            sum(piece.left_out for piece in pieces),
        )


@dataclass(frozen=True)
class Selection:
    """Which contributions a job adds up, and how keys are assigned to partitions.

    Args:
        filtering_ids: the requested ids; pairs with another id are left out.
        partitions: their number.
        salt: 32 bytes, the key of ``partition_of``.
        keys: the only keys that are kept (ascending, distinct, at least one), ``None`` for any. It saves memory.
    """

    filtering_ids: tuple[int, ...] = (0,)
    partitions: int = 1
    salt: bytes = bytes(32)
    keys: NDArray[np.bytes_] | None = None


def map_reports(
    reports: Iterable[Report], rules: Rules, selection: Selection, skip: Collection[bytes] = frozenset()
) -> Mapped:
    """Accept the reports of one shard, in order, and add up their contributions.

    Only *accepted*, decrypted reports make later ones duplicates: a forged copy cannot displace the real report.
    ``skip`` has the ids of reports that an earlier shard has accepted.

    Raises:
        JobError: a report ends the job, or the sums are too large.
    """
    shard = _Shard(rules, selection, skip)
    for batch in chunks(reports, BATCH):
        shard.add(batch)
    return shard.mapped()


@dataclass
class _Shard:
    """The state of a shard while it is read."""

    rules: Rules
    selection: Selection
    skip: Collection[bytes]
    sums: Histogram = EMPTY
    keys: list[NDArray[np.bytes_]] = field(default_factory=list)
    values: list[NDArray[np.int64]] = field(default_factory=list)
    pairs: int = 0
    seen: dict[bytes, None] = field(default_factory=dict)
    sources: set[ReportSource] = field(default_factory=set)
    errors: Tally[Counter] = field(default_factory=Tally)
    reports: int = 0
    duplicates: int = 0
    left_out: int = 0

    def add(self, batch: Sequence[Report]) -> None:
        self.reports += len(batch)
        # A decryption drives the rest out of the processor's cache, so all clear fields are read before.
        opened = []
        for report_id, key, report in list(self._selected(batch)):
            try:
                opened.append((report_id, open_sealed(report.payload, key, report.shared_info)))
            except ReportRefusedError as error:
                self.errors[error.counter] += 1
        read = [*read_cleartexts([cleartext for _, cleartext in opened])]
        accepted = np.zeros(len(opened), bool)
        for rows, outcome in read:
            accepted[rows] = self._accepted(outcome, len(rows))
        pairs = zip(opened, accepted.tolist(), strict=True)
        counted = np.array([taken and self._is_first(report_id) for (report_id, _), taken in pairs], bool)
        for rows, outcome in read:
            if isinstance(outcome, Slots):
                self._take(outcome, counted[rows])

    def mapped(self) -> Mapped:
        self._add_up()
        partitions = tuple(self.sums.split(self.selection.salt, self.selection.partitions))
        ids, sources = np.frombuffer(b"".join(self.seen), KEY), frozenset(self.sources)
        return Mapped(partitions, ids, sources, self.errors, self.reports, self.duplicates, self.left_out)

    def _accepted(self, outcome: Slots | Counter, count: int) -> NDArray[np.bool_]:
        """The accepted ones of the reports read at once. The others are counted by error."""
        if isinstance(outcome, Counter):
            self.errors[outcome] += count
            return np.zeros(count, bool)
        bound = self.rules.contribution_bound
        within: NDArray[np.bool_] = np.ones(count, bool) if bound is None else outcome.values.sum(axis=1) <= bound
        if not within.all():
            self.errors[Counter.CONTRIBUTION_BUDGET_EXCEEDED] += int((~within).sum())
        return within

    def _selected(self, batch: Sequence[Report]) -> Iterator[tuple[bytes, X25519PrivateKey, Report]]:
        """The reports that the job charges, with ids and private keys. The others are left out or counted by error."""
        for report in batch:
            try:
                clear = accept_clear(report.shared_info, self.rules)
                if clear is None:
                    self.left_out += 1
                    continue
                key = self.rules.key(report.key_id)
            except ReportRefusedError as error:
                self.errors[error.counter] += 1
                continue
            report_id, source = clear
            self.sources.add(source)
            yield report_id, key, report

    def _is_first(self, report_id: bytes) -> bool:
        """Whether an accepted report is the first with its id. Only such a report counts."""
        if report_id in self.seen or report_id in self.skip:
            self.duplicates += 1
            return False
        self.seen[report_id] = None
        return True

    def _take(self, slots: Slots, counted: NDArray[np.bool_]) -> None:
        """Keep the pairs of the reports that count. A pair with value 0 is padding, with any bucket."""
        requested = np.array(self.selection.filtering_ids, np.uint64)
        wanted = (slots.values > 0) & counted[:, None] & np.isin(slots.filtering_ids, requested, kind="sort")
        self.keys.append(slots.buckets[wanted])
        self.values.append(slots.values[wanted])
        self.pairs += len(self.keys[-1])
        if self.pairs > _PAIRS:
            self._add_up()

    def _add_up(self) -> None:
        if self.pairs:
            batch = Histogram.of(np.concatenate(self.keys), np.concatenate(self.values))
            if self.selection.keys is not None:
                batch = batch.only(self.selection.keys)
            self.sums = Histogram.merged([self.sums, batch])
        self.keys, self.values, self.pairs = [], [], 0


def read_cleartexts(cleartexts: Sequence[bytes]) -> Iterator[tuple[NDArray[np.intp], Slots | Counter]]:
    """Read cleartexts: groups of one layout at once, the others one by one. Yield the group's rows and their pairs."""
    lengths: dict[int, list[int]] = {}
    for row, cleartext in enumerate(cleartexts):
        lengths.setdefault(len(cleartext), []).append(row)
    for length, rows in lengths.items():
        left = np.array(rows)
        for _ in range(_LAYOUTS):
            if not len(left):
                break
            layout = layout_of(cleartexts[left[0]])
            if layout is not None:
                joined = b"".join([cleartexts[row] for row in left.tolist()])
                matrix = np.frombuffer(joined, np.uint8).reshape(-1, length)
                matches = layout.matches(matrix)
                yield left[matches], layout.read(matrix if matches.all() else matrix[matches])
                left, first_matches = left[~matches], bool(matches[0])
            if layout is None or not first_matches:  # an unusual report must not decide the layout of the others
                yield left[:1], _one(cleartexts[left[0]])
                left = left[1:]
        for row in left:
            yield np.array([row]), _one(cleartexts[row])


def _one(cleartext: bytes) -> Slots | Counter:
    """Read one cleartext of any layout."""
    try:
        operation, slots = read_one(cleartext)
    except PayloadError:
        return Counter.REPORT_PARSING_ERROR
    return slots if operation == HISTOGRAM else Counter.UNSUPPORTED_OPERATION
