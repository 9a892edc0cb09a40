"""Use case: count the new rows of a log in a directory, evaluate the step of now, and say which sets are true.

A run closes the step in which it happens: its rows count in this step, which is evaluated at once, so that an hourly
run answers for the rows that it has just read. Every step is evaluated at most once. So the rows of a second run in one
step count in the next step, and its statuses are those of the first run.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kanon.gate.mechanism.above_threshold import is_above
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.steps import end_of, step_at
from kanon.gate.storage.protocols import Manifest
from kanon.serving.arrivals import Arrivals, Reader, RowCounts
from kanon.serving.directory import Directory

if TYPE_CHECKING:
    from kanon.joinlog.numbered import JoinBatch


class NamedSet(NamedTuple):
    """A set as its owner knows it."""

    type_name: str
    text: str


@dataclass(frozen=True)
class ReleasedStatuses:
    """The released answers of a step: the sets that are ``true``."""

    deployment: str
    step: int
    digest: str  # identifies these answers, and all that were released before them
    true: frozenset[NamedSet]


@dataclass(frozen=True)
class Ran:
    """The result of a run.

    Attributes:
        counted: what became of the rows.
        statuses: the answers; None if the output already has those of a later step.
        waits_for: the step in which new rows count, if it is later than that of now, and there are any or it is far.
    """

    counted: RowCounts
    statuses: ReleasedStatuses | None
    waits_for: int | None


def run(directory: Directory, batches: "Iterable[JoinBatch]", now: float, through: int = -1) -> Ran:
    """Count new rows, and evaluate the step of ``now`` unless it is evaluated already.

    Args:
        directory: the deployment.
        batches: the rows of a log.
        now: the time (Unix s).
        through: the last step of the output. It was evaluated, here or by a copy of this directory.

    Raises:
        ConfigurationError: a type is no longer configured.
        LogError: a row cannot be read. None is counted.
        UndecodableMembersError: a part is missing or damaged.
        sqlite3.Error: the disk is full, for example. The next run continues.
    """
    period = directory.settings.period
    step = step_at(now, period)
    arrival = max(step, directory.evaluated_through + 1, through + 1)
    with closing(Arrivals(directory.path)) as arrivals:
        reader = Reader(directory.names, step, period, directory.evaluated_through)
        arrivals.record(batches, reader, arrival, lambda _, entries: arrivals.wait(arrival, entries))
        arrivals.finish(directory.log)
        if arrival == step:
            directory.evaluate(end_of(step, period) + directory.settings.grace)
        statuses = released(directory, arrivals) if directory.evaluated_through >= through else None
    waits = arrival > step + 1 or (arrival != step and reader.counted.new)  # the first: the clock was ahead
    return Ran(reader.counted, statuses, arrival if waits else None)


def released(directory: Directory, arrivals: Arrivals) -> ReleasedStatuses:
    """The answers of the last evaluated step, which are released by this."""
    step = directory.evaluated_through
    arrivals.release(directory.control.manifest() or Manifest(step), directory.joining.client_key)
    true = dict(_true_sets(directory, arrivals, step))
    arrivals.expire(step, true)
    digest = arrivals.released(step) or ""
    return ReleasedStatuses(directory.settings.deployment, step, digest, frozenset(true.values()))


def _true_sets(directory: Directory, arrivals: Arrivals, step: int) -> Iterator[tuple[bytes, NamedSet]]:
    """Key and name of each set that is true at a step; only logs that runs have read name sets."""
    for key, crossings, suppressed in directory.control.all_crossings():
        named = None if suppressed else arrivals.text(key)
        if named is not None and named[0] in directory.types:
            searches = Searches.of(directory.types[named[0]].parameters, key)
            if is_above(searches, crossings, step, step):
                yield key, NamedSet(*named)
