"""``python -m infra.measure.reports_service``: a job of a million reports and a million keys through the local stack.

The stack runs its real handlers over moto, in this process. Reports are put into the bucket as ``store`` writes them,
2,000 in an object. All processor time of the process from createJob to the summary counts, including the emulation of
S3, SQS and DynamoDB. So other programs on the machine do not matter.

Two cores: ``decrypt`` runs once for each shard, so the shards are divided between two workers, and the busier one
counts. Plan, match, reduce, commit and publication count as the work of one worker. The reference is the bare
decryption of the same reports, divided evenly between two cores. It is measured in this process too, half of it before
the job and half after.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from typing import Any

import numpy as np

from infra.measure.measure import Ratio
from infra.measure.reports import NOW, ORIGIN, Made, bucket, decrypt, made
from infra.measure.rows import Form, row
from kanon.dynamo.batches import chunks
from kanon.local import Stack
from kanon.reports.avro import read_summary, write_domain, write_reports
from kanon.reports.keys import public_keys
from kanon.reports.storage.objects import Objects

AN_OBJECT = 2_000
"""Reports per object, as ``store`` writes them from one batch."""
CORES = 2
TARGET = 3.0
ROUTE = "/.well-known/aggregation-service/v1/public-keys"


@dataclass(frozen=True)
class Took:
    """Processor seconds of a job.

    Attributes:
        shards: of each run of ``decrypt``.
        rest: of everything else from createJob to the summary, the local stack included.
        bare: of the bare decryptions.
    """

    shards: Sequence[float]
    rest: float
    bare: float

    @property
    def on_two_cores(self) -> float:
        """Seconds of the busier core."""
        busy = [0.0] * CORES
        for seconds in sorted(self.shards, reverse=True):
            busy[busy.index(min(busy))] += seconds
        return max(busy) + self.rest

    @property
    def ratio(self) -> float:
        """The ratio to the bare decryptions on both cores."""
        return self.on_two_cores / (self.bare / CORES)

    @property
    def of_all(self) -> float:
        """The ratio of all processor time, without parallelism, to that of the bare decryptions."""
        return (sum(self.shards) + self.rest) / self.bare


class MeteredStack(Stack):
    """A local stack that notes the processor time of each run of ``decrypt``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.shards: list[float] = []

    def invoke(self, function: str, event: Any, timeout: float | None = None) -> Any:
        """Invoke, and note the time of ``decrypt``."""
        began = time.process_time()
        try:
            return super().invoke(function, event, timeout)
        finally:
            if function == "decrypt":
                self.shards.append(time.process_time() - began)


def _domain(keys: int) -> bytes:
    raw = b"".join(sorted(bucket(number).to_bytes(16, "big") for number in range(keys)))
    file = BytesIO()
    write_domain(file, np.frombuffer(raw, "S16"))
    return file.getvalue()


def _made(document: str, seed: int, count: int, keys: int) -> list[Made]:
    """The reports of a worker process; it gets the keys as a document."""
    (key,) = public_keys(document)
    return made(seed, count, keys, key)


def job(reports: int, keys: int) -> Took:
    """Run one job on a fresh local stack.

    Raises:
        RuntimeError: the job did not succeed, or the summary does not hold every key.
    """
    stack = MeteredStack({"Reports": "ON"}, start=NOW, seed=1)
    with stack:
        stack.advance(600)
        document = stack.request("GET", ROUTE).body.decode()
        names = {
            name: stack.functions["aggregate"].environment[f"KANON_{name}_BUCKET"] for name in ("REPORTS", "SUMMARIES")
        }
        s3 = stack.session.client("s3")
        sample = _put_reports(s3, names["REPORTS"], document, reports, keys)
        s3.put_object(Bucket=names["SUMMARIES"], Key="domains/all.avro", Body=_domain(keys))
        opening = _private_key(stack, document)
        half = len(sample) // 2
        bare = _bare(sample[:half], opening)
        began = time.process_time()
        _run(stack, names)
        whole = time.process_time() - began
        bare += _bare(sample[half:], opening)
        _check(Objects(s3, names["SUMMARIES"]), keys)
        return Took(tuple(stack.shards), whole - sum(stack.shards), bare * reports / len(sample))


def _put_reports(s3: Any, bucket: str, document: str, reports: int, keys: int) -> list[tuple[bytes, bytes]]:
    """Put the reports. Returns payload and info of every tenth one, for the bare decryptions."""
    sample: list[tuple[bytes, bytes]] = []
    sizes = [len(part) for part in chunks(range(reports), AN_OBJECT)]
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        each = pool.map(partial(_made, document, keys=keys), range(len(sizes)), sizes)
        for number, made_ in enumerate(each):
            file = BytesIO()
            write_reports(file, [each.report for each in made_])
            s3.put_object(Bucket=bucket, Key=f"reports/attribution-reporting/{number:06}.avro", Body=file.getvalue())
            sample += [each.wire for each in made_[::10]]
    return sample


def _private_key(stack: Stack, document: str) -> Any:
    """The private half of the published key, as ``decrypt`` reads it."""
    from kanon.reports.storage.private_keys import PrivateKeys

    (key,) = public_keys(document)
    prefix = stack.functions["decrypt"].environment["KANON_REPORT_KEY_PREFIX"]
    return PrivateKeys(stack.session.client("secretsmanager"), prefix).existing([key.id])[key.id]


def _bare(wires: Sequence[tuple[bytes, bytes]], key: Any) -> float:
    began = time.process_time()
    decrypt(wires, key)
    return time.process_time() - began


def _run(stack: Stack, names: dict[str, str]) -> None:
    """Create the job and let the stack work until it is finished."""
    body = {
        "job_request_id": "bench",
        "input_data_bucket_name": names["REPORTS"],
        "input_data_blob_prefix": "reports/",
        "output_data_bucket_name": names["SUMMARIES"],
        "output_data_blob_prefix": "output/all.avro",
        "job_parameters": {
            "attribution_report_to": ORIGIN,
            "output_domain_bucket_name": names["SUMMARIES"],
            "output_domain_blob_prefix": "domains/",
        },
    }
    answer = stack.request("POST", "/v1alpha/createJob", body)
    if answer.status != 202:
        raise RuntimeError(f"createJob answered {answer.status}: {answer.body!r}")
    for _ in range(100):
        stack.run_queues()
        found = json.loads(stack.request("GET", "/v1alpha/getJob?job_request_id=bench").body)
        if found["job_status"] == "FINISHED":
            break
        stack.advance(60)
    if found["job_status"] != "FINISHED" or found["result_info"]["return_code"] != "SUCCESS":
        raise RuntimeError(f"the job ended as {found.get('result_info', found['job_status'])}")


def _check(summaries: Objects, keys: int) -> None:
    parts = [one.key for one in summaries.listed("output/", 100)]
    count = sum(sum(1 for _ in read_summary(BytesIO(summaries.read(part)))) for part in parts)
    if count != keys:
        raise RuntimeError(f"the summary has {count} keys, not {keys}")


@row("reports: service")
def service_rows(form: Form) -> Iterator[Ratio]:
    """A job through the local stack, smaller than in this module's command."""
    count = form.size(100_000, 4_000)
    yield as_ratio(job(count, count), count)


def as_ratio(took: Took, reports: int) -> Ratio:
    """The row of the table."""
    return Ratio(
        f"a job of {reports:,} reports and as many keys, two cores",
        "createJob to summary on the local stack over moto: the busier of two workers for the shards, and the rest",
        "bare HPKE decryptions of the same reports, half of them on each core",
        "report", (took.ratio,), took.on_two_cores / reports, took.bare / CORES / reports, TARGET,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the job and print what it took; 1 if it missed its target."""
    parser = argparse.ArgumentParser(prog="python -m infra.measure.reports_service", description=__doc__)
    parser.add_argument("--short", action="store_true", help="20,000 reports and keys instead of a million")
    count = 20_000 if parser.parse_args(arguments).short else 1_000_000
    took = job(count, count)
    print(
        f"{count:,} reports, {count:,} keys, {len(took.shards)} shards\n"
        f"bare decryptions          {took.bare:8.1f} s of processor time\n"
        f"decrypt, all shards       {sum(took.shards):8.1f} s\n"
        f"everything else           {took.rest:8.1f} s\n"
        f"two cores                 {took.on_two_cores:8.1f} s, {took.ratio:.2f} times the bare decryptions on both\n"
        f"all processor time        {took.of_all:8.2f} times that of the bare decryptions"
    )
    return int(took.ratio > TARGET)


if __name__ == "__main__":
    sys.exit(main())
