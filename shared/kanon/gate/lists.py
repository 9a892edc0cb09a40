"""Lists of the values that the crowd shares: what one is, its history in Parquet, and how readers find it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from kanon.dynamo.batches import chunks
from kanon.gate.mechanism.above_threshold import is_above
from kanon.gate.mechanism.bounds import guarantee
from kanon.gate.mechanism.searches import Searches
from kanon.gate.ranges import ListStep
from kanon.gate.types import Type
from kanon.noise.bound import Bound

KEPT = 2
"""The lists of a type that can be read: a reader of a part can read the rest after the next tick."""
MOST_VALUES = 1000
"""Values of one page."""
ROWS_A_GROUP = 20_000


class ReadableList(NamedTuple):
    """A list that can be read: its step, the bits of its range files, and the number of its values.

    On AWS ``run`` names its objects.
    """

    step: int
    bits: int
    values: int
    run: str = ""


class ListEntry(NamedTuple):
    """A value of a list, and the step since which it is true."""

    value: str
    since: int


def join_bounds(types: Mapping[str, Type]) -> dict[str, Bound]:
    """The bound for one join of each listed type; its step may depend on a year of the set's answers."""
    return {name: guarantee(type_.parameters).watched for name, type_ in types.items() if type_.listed}


class Lists(Protocol):
    """The last lists of each type, as readers see them."""

    def newest(self, type_name: str) -> ReadableList | None:
        """The newest list of a type."""

    def of_step(self, type_name: str, step: int | None) -> ReadableList | None:
        """The list of a step; None for the newest one."""

    def page(
        self, type_name: str, found: ReadableList, after: bytes, most: int
    ) -> Sequence[tuple[bytes, ListEntry]] | None:
        """Values behind the hash ``after`` with their hashes, in the order of hashes; None if the list is gone."""

    def range_file(self, of: ListStep, found: ReadableList, name: str) -> bytes | None:
        """A range file; None if the list has none of this name."""


def true_since(searches: Searches, crossings: Sequence[int], step: int) -> int | None:
    """The first step of the run of true answers that includes ``step``; None if the answer there is false.

    Only two crossings are kept: of a longer run it is the first step that they show.
    """
    seen = [at for at in crossings if at <= step]
    if not is_above(searches, seen, step, step):
        return None
    renewed = len(seen) > 1 and searches.last_true(seen[0]) >= seen[-1] - 1
    return seen[0] if renewed else seen[-1]


def place_of_step(step: int, period: int) -> str:
    """Where the list of a step lies in the history of its type, as engines that read partitioned files expect it."""
    return f"date={day(step * period)}/step={step}/values.parquet"


def day(unix: float) -> str:
    """The day of a time, in UTC."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d")


def write_parquet(to: Any, values: Iterable[ListEntry]) -> None:
    """Write values as Parquet (zstd) to a path or an open file. The same values give the same bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([("value", pa.string()), ("since", pa.int64())])
    with parquet.ParquetWriter(to, schema, compression="zstd") as writer:
        for some in chunks(values, ROWS_A_GROUP):
            writer.write_batch(pa.record_batch([[v for v, _ in some], [s for _, s in some]], schema=schema))


def read_parquet(source: Any) -> list[ListEntry]:
    """The values of a file."""
    from pyarrow import parquet

    return [ListEntry(*row.values()) for row in parquet.read_table(source, partitioning=None).to_pylist()]
