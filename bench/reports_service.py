"""A job of reports through the local stack: its real handlers in one process.

Reports are put into the bucket as ``store`` writes them, 2,000 in an object. All processor time of the process from
createJob to the summary counts; the emulation of S3, SQS and DynamoDB is another process.

Two cores: ``decrypt`` runs once for each shard, so the shards are divided between two workers, and the busier one
counts. Plan, match, reduce, commit and publication count as the work of one worker. The reference is the bare
decryption of a tenth as many reports, divided evenly between two cores.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from typing import Any

import numpy as np

from bench.harness import Comparison, Form, Side, Took, Turn
from bench.reports import KEY_ID, NOW, ORIGIN, PRIVATE, bucket, decrypt, made
from kanon.dynamo.batches import chunks
from kanon.local import Stack
from kanon.reports.avro import Report, read_summary, write_domain, write_reports
from kanon.reports.keys import PublicKey, public_keys
from kanon.reports.storage.objects import Objects

AN_OBJECT = 2_000
"""Reports per object, as ``store`` writes them from one batch."""
CORES = 2
ROUTE = "/.well-known/aggregation-service/v1/public-keys"


def rows(form: Form) -> Iterator[Comparison]:
    """One job."""
    count = form.size(100_000, 2_000)
    yield Comparison(
        f"a job of {count:,} reports and as many keys, two cores",
        "createJob to summary on the local stack: the busier of two workers for the shards, and the rest",
        "bare HPKE decryptions of the same kind of reports, half of them on each core", "report",
        Side(job, (count,)), Side(decryptions, (count // 10,)), 1, 3.0, warm=False,
    )  # fmt: skip


def decryptions(count: int) -> AbstractContextManager[Callable[[], Turn]]:
    """Bare decryptions on both cores."""
    wires = [one.wire for one in made(1, count, count, PublicKey(KEY_ID, PRIVATE.public_key()))]
    return nullcontext(lambda: Turn(CORES * count, partial(decrypt, wires, PRIVATE)))


@contextmanager
def job(count: int) -> Iterator[Callable[[], Turn]]:
    """A job of so many reports and keys on a fresh local stack."""
    stack = MeteredStack({"Reports": "ON"}, start=NOW, seed=1)
    with stack:
        stack.advance(600)
        environment = stack.functions["aggregate"].environment
        names = {name: environment[f"KANON_{name}_BUCKET"] for name in ("REPORTS", "SUMMARIES")}
        s3 = stack.session.client("s3")
        _put_reports(s3, names["REPORTS"], stack.request("GET", ROUTE).body.decode(), count)
        s3.put_object(Bucket=names["SUMMARIES"], Key="domains/all.avro", Body=_domain(count))

        def work() -> Took:
            began = time.process_time()
            _run(stack, names)
            whole = time.process_time() - began
            _check(Objects(s3, names["SUMMARIES"]), count)
            return Took(busier(stack.shards) + whole - sum(stack.shards))

        yield lambda: Turn(count, work)


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


def busier(shards: Sequence[float]) -> float:
    """Seconds of the busier of two workers that share these."""
    busy = [0.0] * CORES
    for seconds in sorted(shards, reverse=True):
        busy[busy.index(min(busy))] += seconds
    return max(busy)


def _domain(keys: int) -> bytes:
    raw = b"".join(sorted(bucket(number).to_bytes(16, "big") for number in range(keys)))
    file = BytesIO()
    write_domain(file, np.frombuffer(raw, "S16"))
    return file.getvalue()


def _put_reports(s3: Any, bucket_name: str, document: str, count: int) -> None:
    sizes = [len(part) for part in chunks(range(count), AN_OBJECT)]
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        each = pool.map(partial(_reports, document, keys=count), range(len(sizes)), sizes)
        for number, reports in enumerate(each):
            file = BytesIO()
            write_reports(file, reports)
            key = f"reports/attribution-reporting/{number:06}.avro"
            s3.put_object(Bucket=bucket_name, Key=key, Body=file.getvalue())


def _reports(document: str, seed: int, count: int, keys: int) -> list[Report]:
    """The reports of a worker process; it gets the keys as a document."""
    (key,) = public_keys(document)
    return [one.report for one in made(seed, count, keys, key)]


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
