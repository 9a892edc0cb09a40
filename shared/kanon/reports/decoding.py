"""Files of reports, domains and summaries as readable lines."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.reports import avro
from kanon.reports.acceptance import Rules
from kanon.reports.errors import Counter, JobError, RefusedError
from kanon.reports.mapping import open_report
from kanon.reports.payload import PayloadError, decode
from kanon.reports.shared_info import parse


def lines(
    file: Path, keys: Mapping[str, X25519PrivateKey] | None = None, *, cleartext: bool = False
) -> Iterator[dict[str, Any]]:
    """The rows of an Avro file as JSON objects; buckets are hexadecimal.

    Args:
        file: reports, a domain, a summary or a debug summary.
        keys: private keys, to decrypt reports.
        cleartext: payloads are not encrypted.

    Raises:
        JobError: the file cannot be read, or is of another kind.
    """
    match avro.kind_of(file):
        case "AggregatableReport":
            rules = Rules(0, None if cleartext else keys or {})
            for report in avro.read_reports(file):
                yield _report(report, rules, shown=cleartext or keys is not None)
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
    except RefusedError as error:
        line["error"] = str(error.counter)
    except PayloadError:
        line["error"] = str(Counter.REPORT_PARSING_ERROR)
    except JobError as error:
        line["error"] = error.code
    return line
