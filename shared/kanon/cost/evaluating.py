"""A step of a slot, whose states are sorted parts in S3: what it reads and writes, and how long it takes.

A worker reads all joins of the step, pages in parallel, and keeps them in memory and in temporary files. Then it
decides range by range: it reads the part, merges, puts the new part and a list of the parts so far, and writes the
crossings. A worker that runs out of time leaves the other ranges to the next one, which reads the joins again. If
reading takes longer, workers put what they have read into the bucket, and the next ones get it from there
(docs/proofs/segments.md).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kanon.cost.deployed import (
    EVALUATE_SECONDS,
    LISTED_SET_BYTES,
    MOST_READ_UNITS,
    OUTAGE_DAYS,
    SWEEPS_A_DAY,
    TEMPORARY_MB,
)
from kanon.cost.workload import HOUR, Workload
from kanon.dynamo.units import READ_UNIT, write_units
from kanon.gate.deciding import MOST_JOINS_A_RANGE, MOST_PART_BYTES
from kanon.gate.evaluation import RANGES_TO_STOP, SECONDS_TO_STOP
from kanon.gate.merging import JOIN
from kanon.gate.parts import BYTES_A_MEMBER, BYTES_A_SET, PADDING
from kanon.gate.schedule import MANIFESTS_KEPT
from kanon.gate.storage.aws.statuses import MOST_STATUSES as CROSSINGS_A_CALL
from kanon.gate.storage.aws.step_joins import MOST_BYTES as BUFFER_BYTES
from kanon.gate.storage.aws.step_joins import READERS as PAGES_AT_ONCE
from kanon.gate.storage.aws.step_joins import READING_SECONDS, SECONDS_TO_HAND_OVER
from kanon.gate.true_sets import ENTRY_BYTES as TRUE_BYTES
from kanon.gate.true_sets import MOST_TRUE

PAGE_BYTES = 1 << 20
"""The most that DynamoDB answers at once."""
LISTED_BYTES = 200
"""Bytes of a part in a list of parts."""
TRANSACTED = 2
"""A write in a transaction takes twice its units."""
ROW_BYTES, NAME_BYTES, PROGRESS_BYTES = 460, 88, 190
"""Bytes of a slot's row, of each manifest that it names to keep it, and of what is recorded of the open step."""
FIXED_READS = 4
"""Read units per slot and step, besides one for each partition of the log: what is recorded, types, the mark."""
OTHER_CALLS = 10
"""Calls per slot and step: the lease, what is recorded, the commit, messages."""
MOST_JOINS_HELD = (BUFFER_BYTES + TEMPORARY_MB * 10**6) // JOIN.itemsize
"""Joins of a slot and step that fit into the memory and the temporary files of a worker."""


@dataclass(frozen=True)
class StepTime:
    """The time of a slot's step.

    Attributes:
        reading: seconds in which workers read the joins before others decide; 0 if each can read them for itself.
        again: seconds until a worker that decides has the joins.
        ranges: ranges that are decided.
        range: seconds for each of them.
    """

    reading: float
    again: float
    ranges: int
    range: float

    @property
    def deciding(self) -> int | None:
        """Workers in a row that decide all ranges; None if none of them decides any.

        A worker begins a range as long as its reserve is left. Reading counts as its slowest range, up to a bound.
        """
        slowest = max(min(self.again, READING_SECONDS), self.range)
        left = EVALUATE_SECONDS - self.again - max(SECONDS_TO_STOP, RANGES_TO_STOP * slowest)
        return None if left < 0 else math.ceil(self.ranges / (math.floor(left / max(self.range, 1e-6)) + 1))

    @property
    def workers(self) -> int | None:
        """Workers in a row that finish the step; None if no number of them does."""
        readers = math.ceil(self.reading / (EVALUATE_SECONDS - SECONDS_TO_HAND_OVER))
        return None if self.deciding is None else readers + self.deciding

    @property
    def seconds(self) -> float:
        """From the first worker's start to the commit; infinite if no number of workers gets there."""
        return (
            math.inf if self.deciding is None else self.reading + self.deciding * self.again + self.ranges * self.range
        )


@dataclass(frozen=True)
class SlotStep:
    """A step of a slot: the mean of all slots, and the time of the busiest one, which has the most popular set.

    Args:
        workload: the load.
        measured: measured values and assumptions.
        age: the steps of the slot so far, over which its row grows; infinite in a deployment that is months old.
    """

    workload: Workload
    measured: Mapping[str, float]
    age: float = math.inf

    @property
    def joins(self) -> float:
        """Joins of a slot."""
        return self.workload.joins_a_step / self.workload.slots

    @property
    def busiest(self) -> float:
        """Joins of the busiest slot."""
        popular = self.workload.popularity.groups[0].share
        return popular * self.workload.joins_a_step + (1 - popular) * self.joins

    @cached_property
    def part_bytes(self) -> float:
        """Bytes of the states of a slot."""
        return self.workload.state_bytes / self.workload.slots

    @cached_property
    def parts(self) -> int:
        """Parts of a slot: a power of two."""
        w = self.workload
        size = (w.alive * (BYTES_A_SET + w.sealed) + w.members_alive * BYTES_A_MEMBER) / w.slots
        return 1 << max(0, math.ceil(size / MOST_PART_BYTES) - 1).bit_length()

    def changed(self, steps: float = 1.0) -> float:
        """The share of the parts that change within some steps: a set in them is touched."""
        touched = self.workload.touched_a_step / self.workload.slots / self.parts * steps
        return -math.expm1(-touched)

    @cached_property
    def ranges(self) -> float:
        """Ranges that a step decides: the changed parts, in pieces with as many joins as a worker merges at once."""
        pieces = max(1, math.ceil(self.joins / (MOST_JOINS_A_RANGE * self.parts)))
        return self.parts * self.changed() * pieces

    @cached_property
    def put(self) -> float:
        """Objects that a step puts: parts, after each range a list of them, the true sets, and what was read."""
        shown = self.shown * self._shows
        return max(self.parts * self.changed(), self.ranges) + self.ranges + shown + 2 * self._kept

    @cached_property
    def got(self) -> float:
        """Objects that a step gets or asks for: parts, manifest, the true sets before it, and what was read."""
        return self.parts * self.changed() + 2 + self.shown * self._shows + 2 * self._kept

    @property
    def _shows(self) -> int:
        """Objects of true sets at a step: with values the object for the lister lies beside."""
        return 2 if self.workload.sealed else 1

    @cached_property
    def shown(self) -> float:
        """Objects of true sets that a step puts: one if a set crosses, none if too many sets are true."""
        crossings = self.workload.crossed_a_step / self.workload.slots
        return -math.expm1(-crossings) if self.workload.popular / self.workload.slots <= MOST_TRUE else 0.0

    @cached_property
    def written(self) -> float:
        """Write units of a step besides the joins: the fixed ones, what is recorded of ranges, and crossings."""
        crossings = self.workload.crossed_a_step / self.workload.slots
        recorded = max(0.0, self.ranges - 1) + min(1.0, crossings)  # the last range only if there is a crossing in it
        row, longer = self._row_units(0), self._row_units(PROGRESS_BYTES)
        fixed = row + TRANSACTED * (row + 1)  # the lease; mark, manifest and horizon in one transaction
        fixed += TRANSACTED * (longer - row) * min(1.0, recorded)  # which takes away what is recorded
        records = longer * recorded + row * self._kept
        return fixed + records + TRANSACTED * (crossings + longer * self._transactions)

    def _row_units(self, more: int) -> float:
        """Write units of the slot's row, the mean of all steps: it names the last manifests, and one for each day."""

        def units(day: int) -> int:
            return write_units(ROW_BYTES + more + NAME_BYTES * (MANIFESTS_KEPT + min(day + 1, OUTAGE_DAYS)))

        days = self.age * self.workload.parameters.period / (24 * HOUR)
        young = [units(day) * min(1.0, days - day) for day in range(math.ceil(min(days, OUTAGE_DAYS)))]
        old = units(OUTAGE_DAYS)
        return old + (math.fsum(young) - old * min(days, OUTAGE_DAYS)) / days

    @property
    def _transactions(self) -> float:
        """Transactions with crossings: at least one for each range with any."""
        crossings = self.workload.crossed_a_step / self.workload.slots
        return max(crossings / CROSSINGS_A_CALL, min(crossings, self.ranges))

    @cached_property
    def time(self) -> StepTime:
        """How long the busiest slot takes."""
        return self._time(self.busiest)

    @property
    def seconds(self) -> float:
        """Seconds of all workers of a slot; infinite if they do not finish."""
        return self._time(self.joins).seconds

    def _time(self, joins: float) -> StepTime:
        ranges, reading = max(1, math.ceil(self.ranges)), self._reading(joins)
        if reading <= READING_SECONDS:
            return StepTime(0.0, reading, ranges, self._deciding / ranges)
        getting = joins * JOIN.itemsize * self.measured["object_byte_ns"] / 1e9
        return StepTime(reading + getting, getting, ranges, self._deciding / ranges)

    def _reading(self, joins: float) -> float:
        """Seconds in which the joins of a step are read: pages in parallel, and no faster than the table may serve."""
        m, w = self.measured, self.workload
        pages = joins * w.logged.size / PAGE_BYTES
        asked = math.ceil(max(pages, w.partitions) / PAGES_AT_ONCE) * m["page_ms"] / 1000
        served = joins * w.logged.size / READ_UNIT / MOST_READ_UNITS
        return max(asked, served) + joins * (w.logged.items * m["row_ms"] + m["packed_join_ms"]) / 1000

    @property
    def _kept(self) -> int:
        """How often what was read in a step is put and recorded."""
        reading = self._reading(self.joins)
        return math.ceil(reading / READING_SECONDS) if reading > READING_SECONDS else 0

    @cached_property
    def _deciding(self) -> float:
        """Seconds for everything else."""
        m, w = self.measured, self.workload
        sets = (w.touched_a_step * m["touched_set_ms"] + w.members_touched * m["member_ms"]) / w.slots
        copied = self.part_bytes * self.changed() * m["part_byte_ns"] / 1e6
        calls = (self.put + self.got) * m["object_ms"] + (self.ranges + OTHER_CALLS) * m["call_ms"]
        return (sets + copied + calls + self._transactions * m["transaction_ms"]) / 1000

    @property
    def fits(self) -> bool:
        """Whether a worker can hold the joins."""
        return self.busiest <= MOST_JOINS_HELD

    @cached_property
    def stored(self) -> float:
        """Bytes in the bucket, all slots together, with the manifests that are kept and what waits for the sweep."""
        daily = 24 * HOUR / self.workload.parameters.period
        waiting = daily / SWEEPS_A_DAY / 2 * self.changed()
        kept = 1 + (MANIFESTS_KEPT - 1) * self.changed() + OUTAGE_DAYS * self.changed(daily) + waiting
        padded = max(1.0, math.ceil(self.part_bytes / self.parts / PADDING)) * PADDING * self.parts
        lists = math.ceil(self.parts * LISTED_BYTES / PADDING) * PADDING
        popular = self.workload.popular / self.workload.slots
        true = math.ceil((popular * TRUE_BYTES + 1) / PADDING) * PADDING
        if self.workload.sealed:
            true += math.ceil((popular * (LISTED_SET_BYTES + self.workload.sealed) + 1) / PADDING) * PADDING
        shown = daily / SWEEPS_A_DAY / 2 * self.shown * true
        return self.workload.slots * (kept * padded + (kept + waiting * self.ranges) * lists + shown)


def written_units(workload: Workload, measured: Mapping[str, float], age: float = math.inf) -> float:
    """Write units of a step: the log, and what each slot writes. With an ``age`` the mean of the first so many."""
    slots = workload.slots * SlotStep(workload, measured, age).written
    return workload.joins_a_step * workload.logged.units + slots


def evaluation_read_units(workload: Workload) -> float:
    """Read units of a step: the log in pages, once, and the fixed reads of each slot."""
    log = workload.joins_a_step * workload.logged.size / READ_UNIT
    return log + (FIXED_READS + workload.partitions) * workload.slots


def evaluate_seconds(workload: Workload, measured: Mapping[str, float]) -> float:
    """Worker-seconds per step, all slots together."""
    return workload.slots * SlotStep(workload, measured).seconds
