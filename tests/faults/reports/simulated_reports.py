"""The functions of reports on moto, with time and randomness as values, faults on the wire, and queues that redeliver.

The handlers, the template's environment, the roles and the engine are the real ones. This module adds: every AWS call
of a worker passes a ``FaultInjector``, time moves only on command or by the cost of calls, job secrets are the same in
every run, and the whole stack can be restored to an earlier moment. The product has no setting for this: the test
patches its own process.
"""

import base64
import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import botocore.endpoint
import pytest
from botocore.awsrequest import AWSResponse
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from moto.backends import get_backend
from moto.dynamodb.models.dynamo_type import DynamoType

from kanon import clock
from kanon.local import Stack
from kanon.local.functions import FunctionError
from kanon.local.template import ACCOUNT, REGION
from kanon.reports.avro import Report, read_reports, write_domain
from kanon.reports.payload import Contribution, PayloadLayout, encode, seal
from kanon.reports.service import job_routes as creating
from kanon.reports.service import stages
from kanon.reports.shared_info import Unit, source_of, units
from kanon.reports.storage.key_ring import KeyRing, PrivateKeys, StoredRing
from kanon.reports.storage.report_jobs import OPEN
from tests.faults.failures import dies_before
from tests.faults.fault_injector import Behaviour, Call, FaultInjector, ProcessDied, Worker, undisturbed
from tests.faults.simulated_time import SimulatedTime
from tests.integration.reports.aggregation import body as job_body
from tests.snapshot import Snapshot
from tests.table_ids import give_ids
from tests.unit.reports import made

START = float(made.NOW)
FUNCTIONS = ("collect", "store", "jobs", "decrypt", "aggregate", "rotate")
QUEUES = {"Arrivals": "store", "Maps": "decrypt", "Stages": "aggregate"}
SWEEP = 300
"""Seconds from one sweep to the next: cron(0/5 * * * ? *)."""
MOST_RECEIVES = 5
HOUR, DAY = 3600, 86_400
ATTRIBUTION = "/.well-known/attribution-reporting/report-aggregate-attribution"
CAP = {"e": 64_000, "d": 10**8}
"""The parameters EpsilonCap and DeltaCap in the units of table Budgets."""


@dataclass
class Waiting:
    """A message of a queue, as SQS keeps it."""

    queue: str
    body: str
    visible_at: float
    receives: int = 0


@dataclass
class Run:
    """One invocation of a function, and the states in which its job was at each of its calls."""

    function: str
    worker: Worker
    states: list[str] = field(default_factory=list)


class SimulatedReports(SimulatedTime):
    """A running service; a context manager.

    Attributes:
        bodies: the reports that clients send.
        waiting: the messages of all queues.
        runs: the invocations since the stack was put back.
        disturb: the behaviour of calls for some invocations; the others are undisturbed.
        disorder: makes messages come twice, late and in any order, and workers' clocks differ; None for good order.
        parameters: of the stack.
        touched: which functions called which bucket, by the bucket's logical id.
        said: what the service answered to requests that failed.
    """

    parameters: ClassVar[dict[str, str]] = {"Reports": "ON"}

    def __enter__(self) -> Self:
        self.patch = pytest.MonkeyPatch()
        give_ids(self.patch)
        self.stack = Stack(self.parameters, start=START, seed=5)
        self.stack.__enter__()
        self.faults = FaultInjector(self.pass_time, self.true_time)
        self.patch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=self.pass_time))
        self.patch.setattr(clock, "now", self.now)
        self.patch.setattr(clock, "sleep", self.pass_time)
        self.patch.setattr(creating, "secrets", SimpleNamespace(token_bytes=lambda size: bytes(range(size))))
        # Small shards, parts and chunks: each object is a shard, four keys a part, one row a transaction.
        self.patch.setattr("kanon.reports.service.shards.SHARD_BYTES", 1)
        self.patch.setattr("kanon.reports.histogram.KEYS_A_PARTITION", 4)
        self.patch.setattr("kanon.reports.storage.budgets.ROWS_A_CHUNK", 1)
        self.touched: dict[str, set[str]] = defaultdict(set)
        for name in FUNCTIONS:
            session = self._watched(name)
            self.stack.functions[name] = replace(self.stack.functions[name], session=lambda _, session=session: session)
        session = self.stack.session
        self.dynamodb, self.sqs, self.s3 = session.client("dynamodb"), session.client("sqs"), session.client("s3")
        self.secrets = session.client("secretsmanager")
        names = {arn.rpartition("-")[2]: arn for arn in self.stack.storage.queue_urls}
        self.urls = {queue: self.stack.storage.queue_urls[names[queue]] for queue in QUEUES}
        self.visibility = {queue: self.stack.storage.visibility[names[queue]] for queue in QUEUES}
        self.bodies: list[dict[str, Any]] = []
        self.begin([])
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.patch.undo()
        clock.now = self.stack.clock.now  # the stack sets these and removes them again
        self.stack.__exit__(kind, error, trace)

    def begin(self, waiting: list[Waiting]) -> None:
        """Be undisturbed from now on, with these messages."""
        self.waiting = waiting
        self.runs: list[Run] = []
        self.disturb: dict[int, Behaviour] = defaultdict(lambda: undisturbed)
        self.disorder: random.Random | None = None
        self.notes_states = False
        self.said: list[str] = []

    def _watched(self, function: str) -> Any:
        """The session of a function: faults on the wire, and a note of the buckets that it calls."""
        session = self.faults.attach(self.stack._function_session(function))
        buckets = {name: logical for logical, name in self.stack.storage.buckets.items()}

        def called(params: Any, **_: Any) -> None:
            self.touched[buckets[params["Bucket"]]].add(function)

        session.events.register("before-parameter-build.s3", called)
        return session

    # Workers

    def _run(self, function: str, do: Callable[[], Any]) -> Any:
        """The result of one invocation; None if its process died or its handler raised."""
        behaviour = self.disturb[len(self.runs)]
        worker = Worker(behaviour, deadline=self.true_time() + self.stack.functions[function].timeout)
        if self.disorder is not None:
            worker.skew = self.disorder.uniform(-120, 120)
        run = Run(function, worker)
        self.runs.append(run)
        if self.notes_states:
            worker.behaviour = lambda call: run.states.append(self.states()) or behaviour(call)  # type: ignore[func-returns-value]
        outer, self.faults.worker = self.faults.worker, worker
        try:
            return do()
        except (ProcessDied, FunctionError):
            self.stack.restart(function)
            return None
        finally:
            self.faults.worker = outer
            self._collect_messages()
            if self.faults.mistake is not None:
                raise self.faults.mistake

    def note_states(self) -> None:
        """Note the states of the jobs at every call of the runs that follow."""
        self.notes_states = True

    def states(self) -> str:
        """The states of all jobs that are not finished."""
        found = {row["state"]["S"] for row in self.jobs().values()}
        return " ".join(sorted(found - {"FINISHED"}))

    def ask(self, method: str, target: str, body: Any = None) -> tuple[int, str] | None:
        """A request: the status and the body of its answer; None without an answer."""
        function = "collect" if target.startswith("/.well-known") else "jobs"
        answer = self._run(function, lambda: self.stack.request(method, target, body))
        if answer is None:
            return None
        if answer.status >= 400:
            self.said.append(answer.body.decode())
        return answer.status, answer.body.decode()

    def wake(self, function: str) -> None:
        """Invoke a function as its schedule does."""
        self._run(function, lambda: self.stack.invoke(function, {"schedule": True}))

    def deliver(self) -> None:
        """Hand visible messages to their function: one, or all that arrived at the collector."""
        now = self.true_time()
        visible = [message for message in self.waiting if message.visible_at <= now]
        chosen = self.disorder.choice(visible) if self.disorder else min(visible, key=lambda one: one.visible_at)
        batch = [one for one in visible if one.queue == chosen.queue == "Arrivals"] or [chosen]
        for message in batch:
            message.receives += 1
            message.visible_at = now + self.visibility[message.queue]
        records = [
            {"messageId": str(number), "body": message.body, "eventSource": "aws:sqs", "receiptHandle": "r"}
            for number, message in enumerate(batch)
        ]
        function = QUEUES[chosen.queue]
        result = self._run(function, lambda: self.stack.invoke(function, {"Records": records}))
        failed = None if result is None else {int(one["itemIdentifier"]) for one in result["batchItemFailures"]}
        for number, message in enumerate(batch):
            acknowledged = failed is not None and number not in failed
            if acknowledged and self.disorder is not None and self.disorder.random() < 0.2:
                message.visible_at = self.true_time() + self.disorder.uniform(0, 2 * HOUR)  # it comes once more
                message.receives -= 1
            elif (acknowledged or message.receives >= MOST_RECEIVES) and message in self.waiting:
                self.waiting.remove(message)

    def _collect_messages(self) -> None:
        """Take what functions have sent out of the engine's queues, into those of the simulated clock."""
        for queue, url in self.urls.items():
            sent = get_backend("sqs")[ACCOUNT][REGION].queues[url.rpartition("/")[2]]
            for message in sent.messages:
                late = self.disorder.choice((0, 0, 30, 3000)) if self.disorder else 0
                self.waiting.append(Waiting(queue, message.body, self.true_time() + late))
            sent._messages = []

    def work(self) -> None:
        """Work until no message waits and no job is open. While a job is open, the sweep runs every five minutes."""
        sweep = _next_sweep(self.true_time())
        for _ in range(400):
            due = min((one.visible_at for one in self.waiting), default=math.inf)
            swept = sweep if self.open_jobs() else math.inf
            if math.isinf(due) and math.isinf(swept):
                return
            self.set_time(max(self.true_time(), min(due, swept)))
            if due <= swept:
                self.deliver()
            else:
                self.wake("aggregate")
                sweep = _next_sweep(self.true_time())
        raise AssertionError("the work never ends")

    def alone(self, do: Callable[[], None]) -> None:
        """Run something while the worker of this thread waits."""
        outer, self.faults.worker = self.faults.worker, None
        try:
            do()
        finally:
            self.faults.worker = outer

    def work_again(self) -> None:
        """Other workers do all the work, with copies of their functions; the messages of the current worker come
        again."""
        for message in self.waiting:
            message.visible_at = self.true_time()
        for function in FUNCTIONS:
            self.stack.restart(function)
        self.work()

    # What is stored

    # Read from moto's memory, without calls, because tests read all of it hundreds of times.

    def _items(self, table: str) -> Any:
        return get_backend("dynamodb")[ACCOUNT][REGION].tables[self.stack.storage.tables[table]].items

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Every item of a table, as boto3 returns it."""
        rows = (row for part in self._items(table).values() for row in part.values())
        return [{name: value.to_regular_json() for name, value in row.attrs.items()} for row in rows]

    def open_jobs(self) -> bool:
        """Whether a job is not finished."""
        return bool(self._items("ReportJobs").get(DynamoType({"S": OPEN})))

    def objects(self, bucket: str) -> dict[str, bytes]:
        """The objects of a bucket by name."""
        kept = get_backend("s3")[ACCOUNT]["aws"].buckets[self.stack.storage.buckets[bucket]].keys
        return {name: kept[name].value for name in sorted(kept)}

    def jobs(self) -> dict[str, dict[str, Any]]:
        """The rows of the jobs by id."""
        return {row["job"]["S"]: row for row in self.rows("ReportJobs") if row["part"]["S"] == "job"}

    def codes(self) -> dict[str, str]:
        """The return code of each job, or its state."""
        return {
            job: json.loads(row["v_code"]["S"]) if row["state"]["S"] == "FINISHED" else row["state"]["S"]
            for job, row in self.jobs().items()
        }

    def spent(self) -> dict[str, dict[str, int]]:
        """What each job took, in all hours of all rows; every row's ``left`` is its cap without what the jobs took."""
        left: dict[tuple[bytes, str], int] = {}
        took: dict[tuple[bytes, str], int] = defaultdict(int)
        by_job: dict[str, dict[str, int]] = defaultdict(lambda: {"e": 0, "d": 0})
        for item in self.rows("Budgets"):
            row, part = bytes(item["row"]["B"]), item["part"]["S"]
            if part.startswith("job#"):
                for hour in item["hours"]["NS"]:
                    for kind, name in (("e", "epsilon"), ("d", "delta")):
                        took[row, f"{kind}{int(hour):02}"] += int(item[name]["N"])
                        by_job[part.removeprefix("job#").partition("|")[0]][kind] += int(item[name]["N"])
            elif "epoch" not in item:
                left |= {(row, name): int(v["N"]) for name, v in item.items() if re.fullmatch(r"[ed]\d\d", name)}
        for place, much in took.items():
            assert left.get(place, CAP[place[1][0]]) == CAP[place[1][0]] - much
        for place, rest in left.items():
            assert CAP[place[1][0]] - rest == took.get(place, 0)
        return dict(by_job)

    def ring(self) -> StoredRing:
        """The key ring."""
        keys = KeyRing(self.dynamodb, self.stack.storage.tables["Control"]).read()
        assert keys is not None
        return keys

    def private_keys(self, ids: Sequence[str]) -> dict[str, Any]:
        """The private keys that have a secret."""
        prefix = self.stack.functions["rotate"].environment["KANON_REPORT_KEY_PREFIX"]
        return PrivateKeys(self.secrets, prefix).existing(ids)

    def stored(self) -> list[Report]:
        """The reports that are stored."""
        return [one for body in self.objects("ReportsBucket").values() for one in read_reports(BytesIO(body))]

    def put_domain(self, keys: Sequence[int]) -> None:
        """Write the declared keys, as an operator does."""
        file = BytesIO()
        write_domain(file, made.keys16(*keys))
        name = self.stack.storage.buckets["SummariesBucket"]
        self.s3.put_object(Bucket=name, Key="domains/keys.avro", Body=file.getvalue())

    def job(self, job: str, **changes: Any) -> dict[str, Any]:
        """A request of createJob over all stored reports with the declared keys."""
        buckets = self.stack.storage.buckets
        return job_body(job, **{
            "input_data_bucket_name": buckets["ReportsBucket"],
            "input_data_blob_prefix": "reports/",
            "output_data_bucket_name": buckets["SummariesBucket"],
            "output_data_blob_prefix": f"output/{job}.avro",
            "job_parameters__output_domain_bucket_name": buckets["SummariesBucket"],
            "job_parameters__output_domain_blob_prefix": "domains/",
            **changes,
        })  # fmt: skip

    @contextmanager
    def noise_without_plan(self) -> Iterator[None]:
        """Noise that does not depend on the objects of the reports or on the time of the job."""
        named = stages.Randomness

        def same(key: Any, deployment: str, job: str, secret: bytes, _: bytes, mode: Any) -> Any:
            return named(key, deployment, job, secret, bytes(32), mode)

        stages.Randomness = same  # type: ignore[assignment, misc]
        try:
            yield
        finally:
            stages.Randomness = named  # type: ignore[misc]


def _next_sweep(now: float) -> float:
    return (now // SWEEP + 1) * SWEEP


# The disturbed history


class Origin:
    """The private contents of the reports in the history."""

    KEYS = tuple(int.from_bytes(random.Random(number).randbytes(16), "big") for number in range(7))
    DESTINATIONS = ("https://shop-of-the-history.test", "https://other-of-the-history.test")


def unit_of(destination: str) -> Unit:
    """The unit of account of the reports of a destination."""
    (unit,) = units([source_of(made.info(attribution_destination=destination))], (0,))
    return unit


VALUE, SMALL = 61_357, 4_099
SUMS = {VALUE * n for n in (1, 2, 3)} | {SMALL * n for n in range(3, 9)}

LOW, HIGH = sorted(Origin.DESTINATIONS, key=lambda destination: unit_of(destination).row)
"""The destinations by their rows in table Budgets: a job that needs both takes the row of LOW first."""


State = Snapshot[list[Waiting]]


class History:
    """A service with stored reports, at several moments to start from.

    A job has spent 50 of the 64 of HIGH before. Whatever happens in between, ``kept`` gets the 10 of both destinations
    that it asks for, and ``over-budget`` not the 20: it holds the row of LOW, finds HIGH short, and gives LOW back.

    Attributes:
        edge: there is a key, no report and no job.
        stored: there are reports, and the job before has ended.
        kept: that job was just created.
        both: both jobs were just created.
        holding: ``over-budget`` alone, when it has begun to commit.
    """

    def __init__(self, service: SimulatedReports) -> None:
        self.service = service
        service.wake("rotate")
        (key,) = service.ring().keys
        service.bodies = [_body(number, key.id, key.public) for number in range(5)]
        service.put_domain(Origin.KEYS)
        self.edge = self._moment()
        self.collect()
        self.create("before", "50", job_parameters__attribution_destinations=HIGH)
        service.work()
        self.stored = self._moment()
        self.create("kept", "10")
        self.kept = self._moment()
        self.create("over-budget", "20")
        self.both = self._moment()
        self.restore(self.stored)
        self.create("over-budget", "20")
        self.holding = self._committing()

    def _moment(self) -> State:
        return Snapshot(self.service.stack, list(map(replace, self.service.waiting)))

    def _committing(self) -> State:
        """The moment at which the job's worker dies just before the commit."""
        service = self.service

        def dies(call: Call) -> AWSResponse:
            if "COMMITTING" in service.states():
                return dies_before(call, service.pass_time)
            return call.send()

        service.disturb = defaultdict(lambda: dies)
        while "COMMITTING" not in service.states():
            service.deliver()
        service.waiting = [one for one in service.waiting if one.queue == "Stages"][:1]
        return self._moment()

    def restore(self, moment: State) -> SimulatedReports:
        """Put the service back to a moment."""
        self.service.begin(moment.restore())
        return self.service

    def collect(self) -> None:
        """Send the reports in two batches, which have a report in common, and let them be stored."""
        for batch in (self.service.bodies[:3], self.service.bodies[2:]):
            for body in batch:
                self.acknowledged(ATTRIBUTION, body, 200)
            self.service.work()
            self.service.pass_time(60)

    def create(self, job: str, epsilon: str, **changes: Any) -> None:
        """Create a job."""
        request = self.service.job(job, job_parameters__debug_privacy_epsilon=epsilon, **changes)
        self.acknowledged("/v1alpha/createJob", request, 202, 409)

    def acknowledged(self, target: str, body: Any, *good: int) -> None:
        """Repeat the request until it is acknowledged, as a client does."""
        for _ in range(4):
            answer = self.service.ask("POST", target, body)
            if answer is not None and answer[0] in good:
                return
            self.service.pass_time(30)
        raise AssertionError(f"a request is never taken: {answer}")


def _body(number: int, key_id: str, public: str) -> dict[str, Any]:
    """A report as a browser sends it."""
    text = made.info(number, attribution_destination=Origin.DESTINATIONS[number % 2]).text()
    pairs = [Contribution(Origin.KEYS[number % 3], VALUE), Contribution(Origin.KEYS[5], SMALL)]
    sealed = seal(encode(pairs, PayloadLayout(20)), X25519PublicKey.from_public_bytes(base64.b64decode(public)), text)
    payload = {"payload": base64.b64encode(sealed).decode(), "key_id": key_id}
    return {"shared_info": text, "aggregation_service_payloads": [payload]}
