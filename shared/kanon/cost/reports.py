"""The quantities that AWS charges for reports and jobs in a month, and the duration of a job.

Reports arrive steadily, one in each request. Jobs declare their keys. A month has the hours of
:mod:`kanon.cost.workload`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from kanon.cost import deployed
from kanon.cost.billing import Bill, Prices, Usage, bill, check_between
from kanon.cost.deployed import KEYS_A_PART, MOST_SHARDS, REQUEST_MB, SHARD_BYTES, WORKER_MB, WORKER_SECONDS
from kanon.cost.workload import FULL_PROCESSOR_MB, GB, HOUR, INDEX_BYTES, MONTH_HOURS
from kanon.dynamo.units import READ_UNIT, item_size, read_units, write_units
from kanon.reports.job import Amount
from kanon.reports.shared_info import DAY
from kanon.reports.storage import budgets, key_ring, report_jobs
from kanon.reports.storage.budgets import Budgets, Charge

DAYS = MONTH_HOURS / 24
KEYS_KEPT = key_ring.OPENS / key_ring.NEW_EVERY
"""HPKE keys that open reports."""
IN_BASE64 = 1.25
"""Three quarters of a stored report are its payload. Base64 makes four bytes of three."""
SQS_BYTES = 64 * 1024
"""Bytes of one billed SQS request; a larger one counts as several."""
MESSAGES_A_CALL = 10
"""Messages that Lambda receives, or deletes, with one request."""
SWEEPS = deployed.SWEEPS_AN_HOUR * MONTH_HOURS
LOOKS = 20
"""Reads of a job's row, the key ring and the epoch from RECEIVED to FINISHED, without those of shards and parts."""
STATES = 4
"""Updates of a job's row from RECEIVED to COMMITTING."""
TRANSACTED = 2
"""A write in a transaction takes twice its units."""
LEFT_BYTES, RECORD_BYTES = 600, 300
"""Bytes of a budget row's item ``left`` with 24 hours (below one unit), and of a worker's record."""


@dataclass(frozen=True)
class ReportLoad:
    """A steady load of reports.

    Args:
        reports: posted per day, and read by each job.
        size: bytes of a stored report: payload, clear fields, key id.
        jobs: per day.
        keys: declared keys of a job.
        rows: rows of budget that a job charges.
        concurrency: parameter ``MapConcurrency``.

    Raises:
        CostError: a value is outside the limits of the service.
    """

    reports: float
    size: int = 1_300
    jobs: float = 1.0
    keys: int = 10_000
    rows: int = 24
    concurrency: int = 50

    def __post_init__(self) -> None:
        check_between(
            (self.reports, "reports a day", 0, 1e12), (self.size, "bytes of a report", 100, 192 << 10),
            (self.jobs, "jobs a day", 0, 1e6), (self.keys, "keys of a job", 1, deployed.MOST_KEYS),
            (self.rows, "rows of budget of a job", 0, budgets.MOST_ROWS),
            (self.concurrency, "the map concurrency", 2, 1_000),
        )  # fmt: skip

    @property
    def shards(self) -> int:
        """Shards of a job."""
        return max(1, math.ceil(self.reports * self.size / SHARD_BYTES))

    @property
    def parts(self) -> int:
        """Parts of a summary."""
        return math.ceil(self.keys / KEYS_A_PART)

    @property
    def chunks(self) -> int:
        """Transactions of a commit."""
        return max(1, math.ceil(self.rows / budgets.ROWS_A_CHUNK))


@dataclass(frozen=True)
class JobTimes:
    """Seconds of each stage of a job, if nothing else runs, and the worker-seconds of all its workers."""

    mapping: float
    reducing: float
    committing: float
    workers: float

    @property
    def stages(self) -> dict[str, float]:
        """Seconds by stage."""
        return {"map": self.mapping, "reduce": self.reducing, "commit": self.committing}

    @property
    def total(self) -> float:
        """Seconds from createJob to the summary."""
        return self.mapping + self.reducing + self.committing


def times(load: ReportLoad, m: Mapping[str, float]) -> JobTimes:
    """The times of a job."""
    of_shard = (load.reports / load.shards * m["map_report_ms"] + 8 * m["object_ms"]) / 1000
    objects = min(load.reports, objects_of(load, m))
    reading = objects / load.shards * m["object_ms"] / 1000
    of_part = min(load.keys, KEYS_A_PART) * m["reduce_key_ms"] / 1000
    of_part += 2 * load.shards * m["object_ms"] / 1000
    matching = (load.reports * m["match_report_ms"] + 3 * load.shards * m["object_ms"]) / 1000
    committing = load.chunks * m["transaction_ms"] / 1000
    return JobTimes(
        math.ceil(load.shards / load.concurrency) * (of_shard + reading),
        matching + math.ceil(load.parts / load.concurrency) * of_part,
        committing,
        load.shards * (of_shard + reading) + matching + load.parts * of_part + committing + m["job_ms"] / 1000,
    )


def messages_of(load: ReportLoad, m: Mapping[str, float]) -> tuple[float, float]:
    """Bytes of a queue message, and batches of ``store`` per month.

    A batch ends when it has enough messages or bytes, or when its window ends.
    """
    message = load.size * IN_BASE64 + m["message_bytes"]
    reports = load.reports * DAYS
    of_full = min(deployed.MOST_MESSAGES, deployed.MOST_BATCH_BYTES / message)
    return message, max(reports / of_full, min(reports, m["windows"] * 60 * MONTH_HOURS))


def objects_of(load: ReportLoad, m: Mapping[str, float]) -> float:
    """The number of objects that hold the reports of a job."""
    if not load.reports:
        return float(load.shards)
    _, batches = messages_of(load, m)
    return load.reports * min(1.0, batches * m["objects_a_batch"] / (load.reports * DAYS))


def job_bytes(load: ReportLoad) -> int:
    """Bytes of a job's row at its commit: the request, and the names that its stages recorded."""
    return 1_700 + 150 * load.parts


def commit_units(load: ReportLoad) -> float:
    """Write units of a commit: two items for each row, the job's row for each chunk, and the witness and its check."""
    client: Any = None  # the client builds the writes and sends none
    table_of_budgets = Budgets(client, "", Amount(64_000, 10**8))
    charge = Charge(bytes(32), 20_454, tuple(range(24)))
    *_, put = table_of_budgets.take(charge, "x" * 32, Amount(10_000, 10**7), "0" * 32)
    taken = write_units(item_size(put["Put"]["Item"]))
    left = write_units(LEFT_BYTES)
    return TRANSACTED * (load.rows * (left + taken) + load.chunks * write_units(job_bytes(load)) + 1) + 1


def written_units(load: ReportLoad) -> float:
    """Write units of a job, from createJob to its end."""
    row = write_units(job_bytes(load))
    ends = TRANSACTED * ((1 + 1) + (row + 1))  # created and finished, each with the item that marks an open job
    recorded = 2 * (load.shards + load.parts)  # written, and deleted at the end
    return ends + STATES * row + recorded + commit_units(load)


def read_units_of_job(load: ReportLoad, m: Mapping[str, float]) -> float:
    """Read units of a job: its row for every worker and poll, and the workers' records."""
    row = read_units(job_bytes(load), consistent=True)
    looks = load.shards * (load.shards + 1) / 2 + load.parts * (load.parts + 1)
    return (LOOKS + load.shards + load.parts + m["polls"]) * row + 4 * load.shards + looks * RECORD_BYTES / READ_UNIT


def requests_of_job(load: ReportLoad, objects: float) -> tuple[float, float]:
    """S3 requests of a job over ``objects`` objects: those billed as PUT (with listings), and those billed as GET."""
    listings = math.ceil(objects / 1000) + 1 + 8
    puts = 5 + load.shards * (load.parts + 2) + 3 * load.parts
    return listings + puts, 4 + objects + 4 * load.shards + load.parts * (6 + 2 * load.shards)


def usage(load: ReportLoad, m: Mapping[str, float]) -> Usage:
    """The quantities of a month that reports add to those of the gate."""
    reports, jobs = load.reports * DAYS, load.jobs * DAYS
    message, batches = messages_of(load, m)
    puts, gets = requests_of_job(load, objects_of(load, m))
    calls = jobs * (1 + m["polls"])
    runs = load.shards + load.parts + 4
    sent = math.ceil(message / SQS_BYTES)
    received = 2 * math.ceil(message * MESSAGES_A_CALL / SQS_BYTES) / MESSAGES_A_CALL
    stored = min(reports, batches * m["objects_a_batch"])
    invocations = reports + batches + calls + jobs * runs + SWEEPS
    opened = jobs * min(load.shards, load.concurrency) * KEYS_KEPT
    logged = (reports + calls) * (m["report_log_bytes"] + m["access_log_bytes"])
    logged += (batches + jobs * runs + SWEEPS) * m["report_log_bytes"]
    return {
        "apigateway.http": reports + calls,
        "lambda.requests": invocations,
        "lambda.arm64": gb_seconds(load, m),
        "dynamodb.write": jobs * written_units(load),
        "dynamodb.read": jobs * read_units_of_job(load, m) + SWEEPS * 2,
        "dynamodb.storage": _stored_bytes(load) / GB,
        "sqs.requests": reports * (sent + received) + jobs * runs * 3 + 3 * m["pollers"] * 60 * MONTH_HOURS,
        "scheduler.events": SWEEPS,
        "logs.ingested": logged / GB,
        "logs.stored": logged / GB,
        "cloudwatch.metrics": deployed.REPORT_METRICS,
        "cloudwatch.alarms": deployed.REPORT_ALARM_METRICS,
        "kms.keys": 1,
        "kms.requests": m["bucket_key_share"] * (stored + jobs * (puts + gets)) + opened,
        "secrets.stored": 1 + KEYS_KEPT,
        "secrets.requests": opened + jobs,
        "transfer.out": reports * m["header_bytes"] / GB,
        "s3.puts": stored + jobs * puts,
        "s3.gets": jobs * gets,
        "s3.storage": load.reports * deployed.KEPT_DAYS * load.size / GB,
    }


def gb_seconds(load: ReportLoad, m: Mapping[str, float]) -> float:
    """GB-seconds of all functions of reports in a month."""
    reports, jobs = load.reports * DAYS, load.jobs * DAYS
    _, batches = messages_of(load, m)
    collect = reports * (m["collect_ms"] * FULL_PROCESSOR_MB / REQUEST_MB + m["call_ms"]) * REQUEST_MB
    store = (reports * m["store_report_ms"] + batches * m["objects_a_batch"] * m["object_ms"]) * deployed.STORE_MB
    asked = jobs * (1 + m["polls"]) * (m["query_ms"] + m["call_ms"]) * deployed.JOBS_MB
    worked = jobs * times(load, m).workers * 1000 * WORKER_MB
    kept = SWEEPS * m["sweep_ms"] * (WORKER_MB + REQUEST_MB) / 2
    return (collect + store + asked + worked + kept) / 1024 / 1000


def _stored_bytes(load: ReportLoad) -> float:
    """Bytes in the two tables: the rows of jobs, and of budgets for their day and the time that they are kept."""
    jobs = load.jobs * report_jobs.KEPT / DAY * (job_bytes(load) + INDEX_BYTES)
    days = 1 + (budgets.REPORT_AGE + budgets.ONE_JOB + budgets.SLACK) // DAY
    return jobs + load.jobs * days * load.rows * (LEFT_BYTES + 150 + 2 * INDEX_BYTES)


@dataclass(frozen=True)
class JobCost:
    """A line of the table: a job, and its cost with its reports."""

    load: ReportLoad
    times: JobTimes
    limits: tuple[str, ...]
    job: Bill
    collected: Bill


REPORTS = (10**6, 10**7, 5 * 10**7)
KEYS = (10**4, 10**7)
CONCURRENCY = (10, 50, 1_000)
ROWS = 1_000


def table(measured: Mapping[str, float], prices: Prices) -> Iterator[JobCost]:
    """Times and costs of jobs over a day's reports, by reports, keys and concurrency."""
    for reports, keys, concurrency in product(REPORTS, KEYS, CONCURRENCY):
        load = ReportLoad(reports, keys=keys, rows=ROWS, concurrency=concurrency)
        yield JobCost(
            load, times(load, measured), limits(load, measured), bill(_of_jobs(load, measured), prices),
            bill(_of_reports(load, measured), prices),
        )  # fmt: skip


def _of_jobs(load: ReportLoad, m: Mapping[str, float]) -> Usage:
    """The cost of one job."""
    with_job, without = usage(replace(load, jobs=1.0 / DAYS), m), usage(replace(load, jobs=0.0), m)
    return {name: quantity - without[name] for name, quantity in with_job.items()}


def _of_reports(load: ReportLoad, m: Mapping[str, float]) -> Usage:
    """The cost of collecting the reports of one job and of keeping them."""
    month, none = usage(replace(load, jobs=0.0), m), usage(ReportLoad(0.0, jobs=0.0), m)
    return {name: max(0.0, quantity - none[name]) / DAYS for name, quantity in month.items()}


def limits(load: ReportLoad, m: Mapping[str, float]) -> tuple[str, ...]:
    """The limits that a job exceeds, in words."""
    met = []
    if load.shards > MOST_SHARDS:
        met.append(f"{load.shards:,} shards, a job reads at most {MOST_SHARDS:,}: ask for fewer reports at once")
    seconds = load.reports / load.shards * m["map_report_ms"] / 1000
    if seconds > WORKER_SECONDS:
        met.append(f"a shard takes {seconds:,.0f} s, a worker has {WORKER_SECONDS}")
    if times(load, m).total > 24 * HOUR:
        met.append("the job does not end within 24 hours")
    return tuple(met)
