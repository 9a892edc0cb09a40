"""An aggregation service in this process: the stages of jobs over tables and buckets of an engine, and queues as lists.

Its clock and its randomness are given, so that two runs of one history write the same bytes.
"""

import json
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from io import BytesIO
from typing import Any

from kanon.noise.words import NoiseKey
from kanon.reports.avro import read_summary, write_domain, write_reports
from kanon.reports.job import JobRequest
from kanon.reports.service.bodies import read_request
from kanon.reports.service.shards import Ring, Shards
from kanon.reports.service.stages import Stages, WaitError
from kanon.reports.storage.objects import Objects
from kanon.reports.storage.report_jobs import JobRow, MapMessage, Message, StageMessage, State
from tests.integration.gate.tables import Running
from tests.integration.reports.tables import EPOCH, ReportTables, fresh_tables
from tests.unit.reports import made

NOISE_KEY = NoiseKey("test", bytes(32))
INPUT, OUTPUT, WORK = "reports", "summaries", "work"
DELTA_CAP = Fraction(1, 10**7)


@dataclass
class Aggregation:
    """A deployment of reports."""

    running: Running
    tables: ReportTables
    s3: Any
    prefix: str
    queue: deque[Message] = field(default_factory=deque)
    secrets: random.Random = field(default_factory=lambda: random.Random(1))
    waiting: int = 0
    collected: str = ""
    ring: Callable[[], Ring] = lambda: Ring((made.KEY_ID,), EPOCH)

    def bucket(self, name: str) -> Objects:
        return Objects(self.s3, f"{self.prefix}-{name}")

    def request(self, row: JobRow) -> JobRequest:
        return read_request(row.request, DELTA_CAP, frozenset({INPUT, OUTPUT}), Fraction(64))

    @property
    def stages(self) -> Stages:
        return Stages(
            jobs=self.tables.jobs,
            budgets=self.tables.budgets,
            committing=self.tables.committing,
            work=self.bucket(WORK),
            bucket=self.bucket,
            request=self.request,
            ring=self.ring,
            noise_key=NOISE_KEY,
            deployment="test",
            collected=self.collected,
            clock=lambda: self.tables.now,
        )

    @property
    def shards(self) -> Shards:
        return Shards(
            jobs=self.tables.jobs,
            work=self.bucket(WORK),
            bucket=self.bucket,
            request=self.request,
            keys=lambda ids: {made.KEY_ID: made.KEY} if made.KEY_ID in ids else {},
            clock=lambda: self.tables.now,
        )

    def put_reports(self, name: str, reports: list[Any]) -> None:
        file = BytesIO()
        write_reports(file, reports)
        self.s3.put_object(Bucket=f"{self.prefix}-{INPUT}", Key=name, Body=file.getvalue())

    def put_domain(self, name: str, *keys: int) -> None:
        file = BytesIO()
        write_domain(file, made.keys16(*keys))
        self.s3.put_object(Bucket=f"{self.prefix}-{OUTPUT}", Key=name, Body=file.getvalue())

    def create(self, job: str, **changes: Any) -> None:
        """Create a job over everything in ``in/`` with the keys in ``domain/``; its first message is queued."""
        created = self.tables.jobs.create(
            job, body(job, **changes), int(self.tables.now), self.secrets.randbytes(32)
        )  # fmt: skip
        assert created
        self.queue.append(StageMessage(job=job))

    def begin(self, files: Sequence[list[Any]], keys: Iterable[int], **changes: Any) -> None:
        """Create one job, called ``job``, over these files of reports and declared keys."""
        for name, reports in zip("abc"[: len(files)], files, strict=True):
            self.put_reports(f"in/{name}.avro", reports)
        self.put_domain("domain/keys.avro", *keys)
        self.create("job", **changes)

    def finish(self, files: Sequence[list[Any]], keys: Iterable[int], **changes: Any) -> None:
        """Create such a job and run it."""
        self.begin(files, keys, **changes)
        self.run()

    def run_one(self, message: Message) -> None:
        """One worker's run."""
        if isinstance(message, MapMessage):
            self.queue += self.shards.run(message)
            return
        try:
            self.queue += self.stages.run(message)
        except WaitError:
            self.waiting += 1
            self.queue.append(message)

    def run(self, most: int = 500) -> None:
        """Work until the queue is empty."""
        for _ in range(most):
            if not self.queue:
                return
            self.run_one(self.queue.popleft())
        raise AssertionError("the queue never gets empty")

    def sweep(self) -> None:
        """What the schedule does every five minutes: jobs whose messages were lost go on."""
        for job in list(self.tables.jobs.unfinished()):
            self.queue += self.stages.resumed(job)

    def row(self, job: str) -> JobRow:
        row = self.tables.jobs.read(job)
        assert row is not None
        return row

    def code(self, job: str) -> str:
        row = self.row(job)
        assert row.state is State.FINISHED
        return str(row.values["code"])

    def summary(self, name: str = "out/summary-1-of-1.avro") -> dict[int, int]:
        found = self.bucket(OUTPUT).read(name)
        return {int.from_bytes(fact.bucket, "big"): fact.metric for fact in read_summary(BytesIO(found))}

    def names(self, bucket: str) -> list[str]:
        return [one.key for one in self.bucket(bucket).listed("", 10**6)]

    def budget_file(self, what: str, job: str) -> Any:
        """The file beside the output that names the units short of budget."""
        name = f"out/privacy_budget_{what}_2026-01-01T00:00:00Z_{sha256(job.encode()).hexdigest()[:8]}.json"
        return json.loads(self.bucket(OUTPUT).read(name))


def body(job: str, **changes: Any) -> dict[str, Any]:
    """A request of createJob. A parameter is named with two underscores, as ``job_parameters__filtering_ids``."""
    value: dict[str, Any] = {
        "job_request_id": job,
        "input_data_bucket_name": INPUT,
        "input_data_blob_prefix": "in/",
        "output_data_bucket_name": OUTPUT,
        "output_data_blob_prefix": "out/summary.avro",
        "job_parameters": {
            "attribution_report_to": made.ORIGIN,
            "output_domain_bucket_name": OUTPUT,
            "output_domain_blob_prefix": "domain/",
        },
    }
    for name, change in changes.items():
        place, _, inner = name.rpartition("__")
        target = value[place] if place else value
        if change is None:
            target.pop(inner, None)
        else:
            target[inner] = change
    return value


def discover(epsilon: str = "10", delta: str = "1e-8") -> dict[str, Any]:
    """The changes that make a job discover its keys."""
    return {
        "job_parameters": {"attribution_report_to": made.ORIGIN},
        "output_domain": {"mode": "discover"},
        "privacy_params": {"laplace_dp_params": {"job_epsilon": epsilon, "job_delta": delta}},
    }


def aggregation(running: Running) -> Aggregation:
    """A new deployment, empty."""
    tables = fresh_tables(running)
    tables.now = made.NOW
    s3 = running.session.client("s3")
    prefix = tables.names["Budgets"].rpartition("-")[0]
    for name in (INPUT, OUTPUT, WORK):
        s3.create_bucket(Bucket=f"{prefix}-{name}")
    return Aggregation(running, tables, s3, prefix)
