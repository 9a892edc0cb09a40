"""The files of a finished local job: the summary, and on request the debug summary with exact sums."""

from collections.abc import Callable, Iterator
from pathlib import Path

from kanon.reports.aggregate import Outcome
from kanon.reports.avro import DebugFact, listed, part_names, write_debug_summary
from kanon.reports.created import PRIVATE, SHARED, created, never
from kanon.reports.errors import JobError
from kanon.reports.histogram import Histogram
from kanon.reports.reducing import Noised


def write(
    outcome: Outcome, output: Path, *, debug: bool = False, may_replace: Callable[[Path], bool] = never
) -> list[Path]:
    """Write a summary, one file per partition.

    All files appear, or none. Only the owner can read files with exact sums.

    Args:
        outcome: the finished job.
        output: name of the summary, such as ``summary.avro``; parts are called ``summary-1-of-3.avro``.
        debug: write exact sums and noise too, to ``summary_debug-1-of-3.avro``. They are private. The job must have
            kept the sums of undeclared keys.
        may_replace: whether an existing file may be replaced.

    Raises:
        JobError: a file exists, or cannot be written (RESULT_WRITE_ERROR).
    """
    parts = len(outcome.partitions)
    places = [output.with_name(name) for name in part_names(output.name, parts)]
    debug_name = output.name.removesuffix(".avro") + "_debug" + ".avro" * output.name.endswith(".avro")
    debug_places = [output.with_name(name) for name in part_names(debug_name, parts)] if debug else []
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with created(may_replace) as create:
            for place, part in zip(places, outcome.parts, strict=True):
                with create(place, PRIVATE if outcome.exact else SHARED) as file:
                    file.write(part)
            exact = zip(debug_places, outcome.partitions, outcome.seen, strict=True) if debug else ()
            for place, partition, seen in exact:
                with create(place, PRIVATE) as file:
                    write_debug_summary(file, _debug(partition, seen))
    except FileExistsError as error:
        raise JobError(
            "RESULT_WRITE_ERROR", f"{error.filename or error} exists already: choose another name for the output"
        ) from error
    except OSError as error:
        raise JobError("RESULT_WRITE_ERROR", f"{output} cannot be written: choose another name") from error
    return [*places, *debug_places]


def _debug(partition: Noised, seen: Histogram) -> Iterator[DebugFact]:
    """The keys with noise, and the undeclared keys of reports, which are not released and have no noise."""
    declared = partition.threshold is None
    noise = dict(zip(listed(partition.exact.keys), partition.noise.tolist(), strict=True))
    in_reports = dict(zip(listed(seen.keys), seen.sums.tolist(), strict=True))
    for key in sorted(noise.keys() | in_reports.keys()):
        tags = ("in_domain",) * (declared and key in noise) + ("in_reports",) * (key in in_reports)
        yield DebugFact(key, in_reports.get(key, 0), noise.get(key, 0), tags)
