"""Local files of reports: the written summary of a job, and the lines of any file as JSON."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.created import PRIVATE, SHARED, created, never
from kanon.reports import avro
from kanon.reports.aggregate import JobOutcome
from kanon.reports.avro import DebugFact, listed, part_names, write_debug_summary
from kanon.reports.errors import Counter, JobError, ReportRefusedError
from kanon.reports.histogram import Histogram
from kanon.reports.mapping import open_report
from kanon.reports.noise import Noised
from kanon.reports.payload import PayloadError, decode
from kanon.reports.shared_info import Rules, parse


def write(
    outcome: JobOutcome, output: Path, *, debug: bool = False, may_replace: Callable[[Path], bool] = never
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


def lines(file: Path, keys: Mapping[str, X25519PrivateKey] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of an Avro file as JSON objects; buckets are hexadecimal.

    Args:
        file: reports, a domain, a summary or a debug summary.
        keys: private keys, to decrypt reports.

    Raises:
        JobError: the file cannot be read, or is of another kind.
    """
    match avro.kind_of(file):
        case "AggregatableReport":
            rules = Rules(0, keys or {})
            for report in avro.read_reports(file):
                yield _report(report, rules, shown=keys is not None)
        case "AggregationBucket":
            yield from ({"bucket": key.hex()} for key in avro.listed(avro.read_domain(file)))
        case "AggregatedFact":
            yield from ({"bucket": bucket.hex(), "metric": metric} for bucket, metric in avro.read_summary(file))
        case "DebugAggregatedFact":
            for fact in avro.read_debug_summary(file):
                yield fact._asdict() | {"bucket": fact.bucket.hex()}
        case _:
            raise JobError("INPUT_DATA_READ_FAILED", f"{file} holds neither reports, nor a domain, nor a summary")


def _report(report: avro.Report, rules: Rules, *, shown: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"key_id": report.key_id, "payload_bytes": len(report.payload)}
    try:
        line["shared_info"] = {name: value for name, value in parse(report.shared_info)._asdict().items() if value}
        if shown:
            operation, contributions = decode(open_report(report, rules))
            line["operation"] = operation
            line["contributions"] = [
                {"bucket": f"{pair.bucket:032x}", "value": pair.value, "filtering_id": pair.filtering_id}
                for pair in contributions
                if pair.value
            ]
    except ReportRefusedError as error:
        line["error"] = str(error.counter)
    except PayloadError:
        line["error"] = str(Counter.REPORT_PARSING_ERROR)
    except JobError as error:
        line["error"] = error.code
    return line
