"""A steady load, and what follows from it for the sets: how many are touched, alive, or k-anonymous."""

import math
from dataclasses import dataclass
from functools import cache, cached_property

from kanon.cost.billing import CostError, check_between
from kanon.cost.deployed import (
    DEFAULT_PARTITIONS,
    DEFAULT_SLOTS,
    LENGTH_BYTES,
    SEALED_OVERHEAD,
    SEALED_STEP,
)
from kanon.cost.popularity import EqualSets, Popularity
from kanon.dynamo.units import item_size, write_units
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.models import MOST_HASHES, MOST_JOINS, MOST_VALUE_BYTES
from kanon.gate.parts import BYTES_A_SET
from kanon.gate.slots import Layout
from kanon.gate.storage.aws.step_log import Row, pack, pack_all

HOUR = 3600
MONTH_HOURS = 730
SECONDS = MONTH_HOURS * HOUR
"""Seconds of a month."""
GB = 1e9
INDEX_BYTES = 100
"""Bytes that DynamoDB adds to each stored item."""
FULL_PROCESSOR_MB = 1769
"""Memory at which Lambda gives a function one whole processor; less memory gives a proportional share."""
AGE_BYTES = 2
"""Bytes of a member in a part, besides its token."""
SLOTS = tuple(1 << bits for bits in range(9))
PARTITIONED = Layout(1, 0, 1)


@dataclass(frozen=True)
class Logged:
    """Write units, bytes and items of a join in the log, as a mean over the joins of a batch."""

    units: float
    size: float
    items: float


@cache
def logged(batch: int, slots: int, sealed: int = 0) -> Logged:
    """The cost of a join in the log. A batch's only join in a slot is a row; several are one packed item.

    The slots of a batch's joins are independent, so their number in a slot has a binomial distribution. All joins of a
    batch are of different clients: a packed item holds one join per client. With values sealed in ``sealed`` bytes they
    are also of different sets: an item has the value of a set once.
    """
    units = size = items = 0.0
    for count in range(1, batch + 1):
        each = math.comb(batch, count) * (slots - 1) ** (batch - count) / slots**batch * slots
        stored = packed_bytes(count, sealed)
        units += each * write_units(stored)
        size += each * stored
        items += each
    return Logged(units / batch, size / batch, items / batch)


def packed_bytes(count: int, sealed: int = 0) -> int:
    """Bytes of ``count`` joins of one batch in one slot."""
    if count == 1:
        return item_size(pack(_row(1, sealed), PARTITIONED))
    two, three = (item_size(pack_all([_row(n, sealed) for n in range(number)], PARTITIONED)) for number in (2, 3))
    return two + (count - 2) * (three - two)


def sealed_bytes(value: int) -> int:
    """Bytes of a sealed value of ``value`` bytes."""
    return SEALED_OVERHEAD + math.ceil((LENGTH_BYTES + value) / SEALED_STEP) * SEALED_STEP


def _row(number: int, sealed: int) -> Row:
    """A row with a token of 16 bits."""
    return Row(480_000, number.to_bytes(32, "big"), 65_535, "fledge", 10**9, bytes(sealed))


@dataclass(frozen=True)
class Workload:
    """A steady load.

    Args:
        parameters: the type of the sets.
        joins: joins per second, each of a client that the set does not count yet.
        batch: joins per request.
        queries: queries per second.
        hashes: hashes per query.
        sets: sets that joins go to.
        exponent: popularity of the sets by Zipf's law; 0 gives all sets the same share.
        touched: touched sets per step, if counted; otherwise computed from the popularity.
        crossed: sets that cross per step, if counted; otherwise computed from the popularity.
        slots: slots of the deployment.
        partitions: partitions of each slot in the log.
        value: bytes of a value if the type is listed; 0 if not.

    Raises:
        CostError: a value is outside the limits of the service or the model.
    """

    parameters: Parameters
    joins: float
    batch: int = 1
    queries: float = 0.0
    hashes: int = 100
    sets: int = 1_000_000
    exponent: float = 1.1
    touched: float | None = None
    crossed: float | None = None
    slots: int = DEFAULT_SLOTS
    partitions: int = DEFAULT_PARTITIONS
    value: int = 0

    def __post_init__(self) -> None:
        check_between(
            (self.joins, "joins", 0, 1e9), (self.batch, "batch", 1, MOST_JOINS), (self.queries, "queries", 0, 1e9),
            (self.hashes, "hashes", 1, MOST_HASHES), (self.sets, "sets", 1, 10**12),
            (self.exponent, "exponent", 0, 4), (self.value, "bytes of a value", 0, MOST_VALUE_BYTES),
        )  # fmt: skip
        if self.touched is not None and not 0 <= self.touched <= min(self.sets, self.joins_a_step):
            raise CostError(
                f"touched must lie between 0 and the smaller of sets ({self.sets:,}) and joins a step"
                f" ({self.joins_a_step:,.0f}), not {self.touched:,.0f}"
            )
        if self.slots not in SLOTS:
            raise CostError(f"slots must be a power of two up to {SLOTS[-1]}, not {self.slots}")

    @property
    def steps(self) -> float:
        """Steps per month."""
        return SECONDS / self.parameters.period

    @property
    def millions_a_month(self) -> float:
        """Millions of joins per month."""
        return self.joins * SECONDS / 1e6

    @property
    def joins_a_step(self) -> float:
        """Joins per step."""
        return self.joins * self.parameters.period

    @cached_property
    def popularity(self) -> Popularity:
        """The distribution of the joins over the sets."""
        return Popularity(self.sets, self.exponent)

    @cached_property
    def touched_a_step(self) -> float:
        """Sets with joins in a step."""
        return self.popularity.touched(self.joins_a_step) if self.touched is None else self.touched

    @property
    def logged(self) -> Logged:
        """The cost of a join in the log."""
        return logged(self.batch, self.slots, self.sealed)

    @property
    def sealed(self) -> int:
        """Bytes of a sealed value; 0 if the type is not listed."""
        return sealed_bytes(self.value) if self.value else 0

    @property
    def join_requests(self) -> float:
        """Requests with joins, per second."""
        return self.joins / self.batch

    @cached_property
    def alive(self) -> float:
        """Sets with members: those that were joined within a window."""
        return self.popularity.touched(self.joins_a_step * self.parameters.window)

    @cached_property
    def members_alive(self) -> float:
        """The members of all sets."""
        joins = self.joins_a_step * self.parameters.window
        return math.fsum(group.touched(joins) * self._members(group) for group in self.popularity.groups)

    @cached_property
    def members_touched(self) -> float:
        """The members of all sets with joins in a step."""
        groups = [(group.touched(self.joins_a_step), self._members(group)) for group in self.popularity.groups]
        touched = math.fsum(count for count, _ in groups) or 1.0
        return math.fsum(count * members for count, members in groups) * self.touched_a_step / touched

    @property
    def state_bytes(self) -> float:
        """Bytes of the states of all sets."""
        token = 2 if self.parameters.client_bits <= 16 else 4
        return self.alive * (BYTES_A_SET + self.sealed) + self.members_alive * (AGE_BYTES + token)

    @cached_property
    def popular(self) -> float:
        """Sets with at least k members: they cross once in a window, or in a hold."""
        return math.fsum(group.sets for group in self.popularity.groups if self._joined(group) >= self.parameters.k)

    @property
    def crossed_a_step(self) -> float:
        """Sets that cross in a step."""
        if self.crossed is not None:
            return self.crossed
        restart = self.parameters.restart
        return self.popular / (self.parameters.window if restart is None else restart.hold)

    def _joined(self, group: EqualSets) -> float:
        """Joins of a set within a window."""
        return self.joins_a_step * group.share * self.parameters.window

    def _members(self, group: EqualSets) -> float:
        """Members of a set that has any."""
        return min(float(self.parameters.members_kept), max(1.0, self._joined(group)))
