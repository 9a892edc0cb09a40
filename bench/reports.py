"""Aggregating reports against necessary work: decrypting each payload, writing Avro.

The job runs through the local stack: its real handlers in one process. Reports are put into the bucket as ``store``
writes them, 2,000 in an object. All processor time of the process from createJob to the summary counts; the emulation
of S3, SQS and DynamoDB is another process. ``decrypt`` runs once for each shard, so the shards are divided between two
workers, and the busier one counts. Plan, match, reduce, commit and publication count as the work of one worker. The
reference is the bare decryption of a tenth as many reports, divided evenly between two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import fastavro
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from bench.harness import Comparison, Form, Side, Took, Turn
from kanon.dynamo.batches import chunks
from kanon.hpke import SUITE
from kanon.local import Stack
from kanon.noise.words import NoiseKey
from kanon.reports import avro
from kanon.reports.histogram import Histogram
from kanon.reports.job import PrivacyParameters
from kanon.reports.mapping import Selection, map_reports
from kanon.reports.noise import Randomness, reduce_partition
from kanon.reports.payload import (
    PREFIX,
    Contribution,
    EncryptionKey,
    PayloadLayout,
    encode,
    private_document,
    public_keys,
    seal,
)
from kanon.reports.shared_info import Rules, SharedInfo
from kanon.reports.storage.objects import Objects

NOW = 1_767_225_600
KEY_ID = "00000000-0000-4000-8000-000000000000"
ORIGIN, DESTINATION = "https://report.test", "https://shop.test"
REAL, SLOTS = 10, 20
"""Contributions of a report, and its slots."""
AN_OBJECT = 2_000
"""Reports per object, as ``store`` writes them from one batch."""
CORES = 2
ROUTE = "/.well-known/aggregation-service/v1/public-keys"
PRIVATE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
PARAMETERS = PrivacyParameters("declared", Fraction(10))
RANDOMNESS = Randomness(NoiseKey("bench", bytes(32)), "bench", "bench", bytes(32), bytes(32), "declared")


def rows(form: Form) -> Iterator[Comparison]:
    """Map, reduce, and one job."""
    turns, count = form.size(9, 1), form.size(4_000, 200)
    yield Comparison(
        "map of Avro reports (20 slots, 10 contributions)",
        "Avro file, clear fields, decryption, parsing, duplicates, sums by key", "bare HPKE decryptions", "report",
        Side(whole_map, (count,)), Side(decryptions, (count,)), turns, 1.33,
    )  # fmt: skip
    keys, turns = form.size(1_000_000, 10_000), form.size(5, 1)
    yield Comparison(
        f"reduce of {keys:,} declared keys, 4 shards", "merging the shards, noise, threshold, the Avro file",
        "bare Avro writer", "key", Side(whole_reduce, (keys,)), Side(bare_writer, (keys,)), turns, 1.4,
    )  # fmt: skip
    count = form.size(100_000, 2_000)
    yield Comparison(
        f"a job of {count:,} reports and as many keys, two cores",
        "createJob to summary on the local stack: the busier of two workers for the shards, and the rest",
        "bare HPKE decryptions of the same kind of reports, half of them on each core", "report",
        Side(job, (count,)), Side(decryptions, (count // 10, CORES)), 1, 3.0, warm=False,
    )  # fmt: skip
    count, turns = form.size(40_000, 400), form.size(5, 1)
    yield Comparison(
        f"`kanon reports aggregate` of {count:,} reports and as many keys, two processes",
        "the whole command: start of all its processes, decryption, sums, noise, summary",
        "bare HPKE decryptions of the same kind of reports", "report",
        Side(command, (count,)), Side(decryptions, (count // 10,)), turns, 2.2,
    )  # fmt: skip


class Made(NamedTuple):
    """A report, and what HPKE decrypts of it: the payload and its info."""

    report: avro.Report
    wire: tuple[bytes, bytes]


def made(seed: int, count: int, keys: int, key: EncryptionKey) -> list[Made]:
    """Reports of ten contributions to any of the keys, in twenty slots."""
    random, layout = Random(seed), PayloadLayout(SLOTS)
    reports = []
    for _ in range(count):
        info = SharedInfo(
            "attribution-reporting", "1.0", str(uuid.UUID(int=random.getrandbits(128), version=4)), ORIGIN,
            NOW - random.randrange(86_400), DESTINATION, NOW - 2 * 86_400,
        ).text()  # fmt: skip
        pairs = [Contribution(bucket(random.randrange(keys)), random.randrange(1, 6_000)) for _ in range(REAL)]
        payload = seal(encode(pairs, layout), key.key, info)
        reports.append(Made(avro.Report(payload, key.id, info), (payload, PREFIX + info.encode())))
    return reports


def bucket(number: int) -> int:
    """A key of 128 bits: any two differ in their first half."""
    return (number * 0x9E3779B97F4A7C15 % (1 << 64)) << 64 | number


def of_one_key(count: int) -> list[Made]:
    """The same reports on both sides."""
    return made(1, count, 100_000, EncryptionKey(KEY_ID, PRIVATE.public_key()))


def decryptions(count: int, cores: int = 1) -> AbstractContextManager[Callable[[], Turn]]:
    """The bare decryptions of as many payloads from memory on each of some cores."""
    wires = [each.wire for each in of_one_key(count)]

    def work() -> None:
        for wire, info in wires:
            SUITE.decrypt(wire, PRIVATE, info=info)

    return nullcontext(lambda: Turn(cores * count, work))


@contextmanager
def whole_map(count: int) -> Iterator[Callable[[], Turn]]:
    """The whole map, from the Avro file to sums by key."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "reports.avro"
        avro.write_reports(path, [one.report for one in of_one_key(count)])

        def work() -> None:
            mapped = map_reports(avro.read_reports(path), Rules(NOW, {KEY_ID: PRIVATE}), Selection())
            if len(mapped.report_ids) != count:
                raise RuntimeError("a report was not accepted")

        yield lambda: Turn(count, work)


def _domain_and_shards(keys: int) -> tuple[Any, list[Histogram]]:
    random = np.random.default_rng(1)
    raw = np.zeros((keys, 16), np.uint8)
    raw[:, :8] = random.integers(0, 256, (keys, 8), dtype=np.uint8)
    domain = np.unique(raw.view("S16")[:, 0])
    return domain, [
        Histogram.of(random.choice(domain, keys // 4), random.integers(1, 6000, keys // 4)) for _ in range(4)
    ]


@contextmanager
def whole_reduce(keys: int) -> Iterator[Callable[[], Turn]]:
    """Merging the shards, noise and the Avro file."""
    with TemporaryDirectory() as folder:
        output, (domain, shards) = Path(folder) / "summary.avro", _domain_and_shards(keys)

        def work() -> None:
            found = reduce_partition(shards, domain, PARAMETERS, RANDOMNESS).release()
            avro.write_summary(output, found.keys, found.metrics)

        yield lambda: Turn(len(domain), work)


@contextmanager
def bare_writer(keys: int) -> Iterator[Callable[[], Turn]]:
    """Writing the same records with fastavro."""
    with TemporaryDirectory() as folder:
        output, (domain, shards) = Path(folder) / "summary.avro", _domain_and_shards(keys)
        metrics = reduce_partition(shards, domain, PARAMETERS, RANDOMNESS).release().metrics.tolist()
        records = [{"bucket": key, "metric": metric} for key, metric in zip(avro.listed(domain), metrics, strict=True)]

        def work() -> None:
            with output.open("wb") as file:
                fastavro.writer(file, avro.SUMMARY, records)

        yield lambda: Turn(len(domain), work)


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


@contextmanager
def command(count: int) -> Iterator[Callable[[], Turn]]:
    """The command on so many reports in four files, and as many declared keys."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "reports").mkdir()
        key = EncryptionKey(KEY_ID, PRIVATE.public_key())
        for number, part in enumerate(chunks(range(count), count // 4)):
            avro.write_reports(
                place / "reports" / f"{number}.avro", [one.report for one in made(number, len(part), count, key)]
            )
        (place / "domain.avro").write_bytes(_domain(count))
        (place / "keys.json").write_text(private_document({KEY_ID: PRIVATE}))
        names = ("--keys", "keys.json", "--domain", "domain.avro", "--out", "summary.avro")
        options = ("--processes", "2", "--any-age", "--force")
        program = [sys.executable, "-c", "from kanon.cli.start import main; main()", "reports", "aggregate", "reports"]

        def work() -> None:
            subprocess.run([*program, *names, *options], cwd=place, check=True, capture_output=True)

        def check(_: None) -> None:
            parts = place.glob("summary*.avro")
            if sum(1 for part in parts for _ in avro.read_summary(part)) != count:
                raise RuntimeError("the summary lacks a key")

        yield lambda: Turn(count, work, check)


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
    avro.write_domain(file, np.frombuffer(raw, "S16"))
    return file.getvalue()


def _put_reports(s3: Any, bucket_name: str, document: str, count: int) -> None:
    (key,) = public_keys(document)
    for number, part in enumerate(chunks(range(count), AN_OBJECT)):
        file = BytesIO()
        avro.write_reports(file, [one.report for one in made(number, len(part), count, key)])
        s3.put_object(Bucket=bucket_name, Key=f"reports/attribution-reporting/{number:06}.avro", Body=file.getvalue())


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
    count = sum(sum(1 for _ in avro.read_summary(BytesIO(summaries.read(part)))) for part in parts)
    if count != keys:
        raise RuntimeError(f"the summary has {count} keys, not {keys}")
