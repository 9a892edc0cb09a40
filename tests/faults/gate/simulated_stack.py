"""The whole service on moto with time as a value, faults on the wire, and a queue that redelivers.

The handlers, the template's environment and the engine are the real ones. This module adds: every AWS call of a worker
passes a ``FaultInjector``, time moves only on command or by the cost of calls, the tables can be restored to an earlier
moment, and SQS's redelivery follows the simulated clock.
"""

import base64
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import botocore.endpoint
import pytest
from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID

from kanon import clock
from kanon.client import Client, RefusedError, encoded
from kanon.client import Join as Sent
from kanon.gate import deciding, evaluation
from kanon.gate.joining import Join, Joining
from kanon.gate.listed_sets import name_beside
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.names import set_key
from kanon.gate.parts import Part
from kanon.gate.querying import Querying
from kanon.gate.sealing import sealer
from kanon.gate.settings import JoinSettings
from kanon.gate.slots import Layout
from kanon.gate.storage.aws import step_joins
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.step_log import StepLog, partition
from kanon.gate.sweeping import _named
from kanon.gate.true_sets import PREFIX
from kanon.gate.types import read_types
from kanon.keys import fetch_noise_keys, fetch_secret
from kanon.local import Stack
from kanon.local.functions import Environment, HandlerContext
from kanon.local.template import REGION
from tests.e2e.gate.oracle import laws
from tests.faults.fault_injector import Behaviour, FaultInjector, ProcessDied, Worker, undisturbed
from tests.faults.simulated_time import SimulatedTime
from tests.integration.gate.tables import joined_parts, joins_of
from tests.naive import Naive

PERIOD = 3600
COLUMNS = ("keys", "types", "sizes", "tokens", "lasts", "crossings", "wake_ups", "ends")
"""What the states of two simulations have in common: parts may be of different steps, and ages count from theirs."""
SCHEDULE_OFFSET = 180.0  # cron(3 * * * ? *)
FIRST_STEP = 472_000
START = float(FIRST_STEP * PERIOD)
EVALUATE_TIMEOUT = 120.0
JOIN_TIMEOUT = 10.0
SWEEP_TIMEOUT = 900.0
VISIBILITY = 720.0
MOST_RECEIVES = 3
REPETITIONS = (60.0, 120.0)
"""Seconds after which Lambda repeats an asynchronous invocation that failed, and repeats it again."""
TABLES = ("StepLog", "Statuses", "Control")

TYPES = {
    "two": {"k": 8, "window": 6, "laws": laws("two-sided", "1", 3, 2)},
    "one": {"k": 6, "window": 5, "laws": laws("one-sided", "1", 3, 3), "phase": "zero"},
    "next": {"k": 6, "window": 5, "laws": laws("one-sided", "1", 3, 3), "restart": "crossing", "hold": 7, "epoch": 12},
}
MAX_STALE = 5


class OneReader:
    """Replaces the pool that reads the log: each page is read in the thread of the worker, when it is asked for."""

    def __init__(self, workers: int) -> None:
        pass

    def submit(self, read: Callable[..., Any], *asked: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(read(*asked))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: Any) -> None:
        pass


@dataclass
class Message:
    """A message of the evaluator's queue, as SQS keeps it."""

    body: str
    visible_at: float
    receives: int = 0


@dataclass
class SimulatedStack(SimulatedTime):
    """A running service; a context manager.

    Attributes:
        sets: (type name, set id).
        joins_a_range: so many joins are decided at once: a step has several ranges, and a slot several parts.
        values: those of sets of listed types; each join of the set carries it sealed.
    """

    sets: tuple[tuple[str, bytes], ...] = tuple(
        (name, bytes([i])) for i in range(7) for name in ("two", "one" if i > 2 else "next")
    )
    types: dict[str, Any] = field(default_factory=lambda: TYPES)
    slots: int = 1
    joins_a_range: int = 6
    parameters: dict[str, str] = field(default_factory=dict)
    values: Mapping[tuple[str, bytes], bytes] = field(default_factory=dict)

    def __enter__(self) -> Self:
        slots = [{"slots": self.slots, "partitions": 1, "from_step": 0}]
        parameters = {
            "Types": json.dumps(self.types),
            "MaxStale": str(MAX_STALE),
            "Slots": json.dumps(slots, separators=(",", ":")),
            **self.parameters,
        }
        self.stack = Stack(parameters, start=START, seed=5)
        self.stack.__enter__()
        self.queue: list[Message] = []
        self.faults = FaultInjector(self.pass_time, self.true_time)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=self.pass_time))
        self.patch.setattr(clock, "now", self.now)
        self.patch.setattr(clock, "sleep", self.pass_time)
        self.patch.setattr(step_joins, "ThreadPoolExecutor", OneReader)
        self.patch.setattr(deciding, "MOST_JOINS_A_RANGE", self.joins_a_range)
        self.patch.setattr(evaluation, "MOST_STATUSES", 1)
        for name, function in self.stack.functions.items():
            session = self.faults.attach(self.stack.engine.session())
            self.stack.functions[name] = replace(function, session=lambda _, session=session: session)
        self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.patch.undo()
        clock.now = self.stack.clock.now  # the stack sets these and removes them again
        self.stack.__exit__(kind, error, trace)

    def _connect(self) -> None:
        """The clients of the tests, whose calls never fail."""
        session, storage = self.stack.session, self.stack.storage
        self.dynamodb, self.sqs, self.s3 = session.client("dynamodb"), session.client("sqs"), session.client("s3")
        self.control = Control(self.dynamodb, storage.tables["Control"])
        secrets = session.client("secretsmanager")
        environment = self.stack.functions["join"].environment | self.stack.functions["evaluate"].environment
        pepper = fetch_secret(secrets, "set-pepper", environment["KANON_SET_PEPPER_SECRET"])
        client_key = fetch_secret(secrets, "client-key", environment["KANON_CLIENT_KEY_SECRET"])
        noise_key = fetch_noise_keys(secrets, environment["KANON_NOISE_KEY_SECRET"], ["1"])["1"]
        self.queue_url, self.bucket = environment["KANON_QUEUE_URL"], environment["KANON_STATES_BUCKET"]
        self.publish_delay = int(environment["KANON_PUBLISH_DELAY"])
        self.outage_allowance = int(environment["KANON_OUTAGE_ALLOWANCE"])
        self.configured = read_types(json.dumps(self.types), PERIOD)
        self.keys = {place: set_key(pepper, *place) for place in self.sets}
        self.layouts = JoinSettings.from_environment(environment).layouts
        log = StepLog(self.dynamodb, storage.tables["StepLog"], self.layouts)
        seal = sealer(environment["KANON_LISTER_KEY"]) if self.values else None
        self.joining = Joining(self.configured, pepper, client_key, log, PERIOD, self.outage_allowance, seal)
        self.statuses = lambda: Statuses(self.dynamodb, storage.tables["Statuses"])
        self.new_querying = lambda: Querying(
            self.configured,
            pepper,
            self.statuses(),
            PERIOD,
            self.layouts,
            self.publish_delay,
            MAX_STALE,
        )
        self.new_naive = lambda name: Naive(
            self.configured[name].parameters,
            Tapes(noise_key, environment["KANON_DEPLOYMENT"], name, self.configured[name].parameters),
        )
        for slot in range(self.slots):  # otherwise the first run would read a week of empty steps
            mark = {"name": {"S": f"slot#0#{slot}"}, "evaluated_through": {"N": str(FIRST_STEP - 1)}}
            self.dynamodb.put_item(TableName=storage.tables["Control"], Item=mark)

    # Workers

    def cold_start(self, function: str = "evaluate") -> Environment:
        """A new process of a function."""
        return self.stack.cold_start(function)

    @contextmanager
    def running(self, worker: Worker, timeout: float) -> Iterator[None]:
        """This thread is the worker; Lambda ends it ``timeout`` seconds from now."""
        worker.deadline = self.true_time() + timeout
        self.faults.worker = worker
        try:
            yield
        finally:
            self.faults.worker = None
            if self.faults.mistake is not None:
                raise self.faults.mistake

    def evaluate(self, environment: Environment, body: str, worker: Worker) -> bool:
        """Hand a message to a worker; whether it was acknowledged. ``ProcessDied`` passes through."""
        record = {"messageId": "m", "body": body, "eventSource": "aws:sqs", "receiptHandle": "r"}
        with self.running(worker, EVALUATE_TIMEOUT), environment._process:
            result = environment._handler({"Records": [record]}, self._context(worker))
        return not result["batchItemFailures"]

    def _context(self, worker: Worker) -> HandlerContext:
        return HandlerContext("evaluate", "512", lambda: worker.deadline - self.true_time())

    def run_schedule(self, *tries: Behaviour) -> list[Worker]:
        """The schedule's event once, repeated as Lambda does while it fails; the n-th try meets ``tries[n]``.

        Returns the workers of all tries; at most the last one has ``succeeded``.
        """
        workers: list[Worker] = []
        environment: Environment | None = None
        for wait, behaviour in zip((0.0, *REPETITIONS), (*tries, *[undisturbed] * len(REPETITIONS)), strict=False):
            self.set_time(self.true_time() + wait)
            worker = Worker(behaviour)
            workers.append(worker)
            try:
                environment = environment or self.cold_start()
                with self.running(worker, EVALUATE_TIMEOUT), environment._process:
                    environment._handler({"schedule": True}, self._context(worker))
                worker.succeeded = True
                break
            except ProcessDied:
                environment = None
            except Exception:
                if self.faults.mistake is not None:
                    raise
        return workers

    def run_queue(
        self,
        slots: Sequence[int] = (0,),
        first: Behaviour = undisturbed,
        *,
        until: float = float("inf"),
    ) -> list[Worker]:
        """Process one message per slot as SQS and Lambda would; the first worker meets ``first``.

        A message that is not acknowledged returns after the visibility timeout; after three receives it
        is given up. Ends when the queue is empty or the next message is due after ``until``.
        """
        queue = self.queue = [Message(json.dumps({"slot": slot, "hop": 0}), self.true_time()) for slot in slots]
        workers: list[Worker] = []
        environment: Environment | None = None
        while queue:
            message = min(queue, key=lambda m: m.visible_at)
            if message.visible_at > until:
                break
            self.set_time(max(self.true_time(), message.visible_at))
            message.receives += 1
            message.visible_at = self.true_time() + VISIBILITY
            worker = Worker(first if not workers else undisturbed)
            workers.append(worker)
            acknowledged = False
            try:
                environment = environment or self.cold_start()
                acknowledged = self.evaluate(environment, message.body, worker)
            except ProcessDied:
                environment = None
            if acknowledged or message.receives == MOST_RECEIVES:
                queue.remove(message)
            queue += [Message(body, self.true_time()) for body in self.sent()]
        return workers

    def sweep(self, worker: Worker) -> bool:
        """Run the sweeper once; whether it ended well."""
        environment = self.cold_start("sweep")
        with self.running(worker, SWEEP_TIMEOUT), environment._process:
            try:
                environment._handler({}, self._context(worker))
            except ProcessDied:
                return False
            except Exception:
                if self.faults.mistake is not None:
                    raise
                return False
        return True

    def sent(self) -> list[str]:
        """The bodies of the messages the functions have put into the queue; takes them out."""
        bodies = []
        while messages := self.sqs.receive_message(QueueUrl=self.queue_url, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                self.sqs.delete_message(QueueUrl=self.queue_url, ReceiptHandle=message["ReceiptHandle"])
                bodies.append(message["Body"])
        return bodies

    def join(self, place: tuple[str, bytes], clients: Sequence[int], stamped: float) -> None:
        """Put joins into the log directly, stamped at a time."""
        value = self.values.get(place)
        self.joining.join_all([Join(*place, "client", b"%d" % c, value) for c in clients], stamped)

    def row(self, place: tuple[str, bytes], client: int) -> tuple[bytes, int | None]:
        """What :meth:`logged` has of a join: its set key and token."""
        row = self.joining.row(Join(*place, "client", str(client).encode()), START)
        return row.set_key, row.token

    def logged(self, step: int = FIRST_STEP) -> set[tuple[bytes, int]]:
        """The set key and token of every join where a step of the log has it, packed or not."""
        layout, found = self.layouts.at(step), set()
        numbers = range(layout.partitions or 1)
        slots = {partition(step, layout, slot, number): slot for slot in self.layouts.slots for number in numbers}
        for item in self.stored("StepLog").values():
            slot = slots.get(item["step_slot"]["B"])
            found |= {(key, token) for _, key, token in joins_of(item) if layout.slot_of(key) == slot}
        return found

    def request_joins(self, joins: Sequence[tuple[tuple[str, bytes], int]], worker: Worker) -> list[bool] | None:
        """Ask the join function for a batch; for each join whether it was acknowledged, None without an answer."""
        self.stack.restart("join")
        with self.running(worker, JOIN_TIMEOUT):
            try:
                results = Client(self.stack.request).batch_join(
                    Sent(type_name, encoded(set_id), str(client)) for (type_name, set_id), client in joins
                )
            except ProcessDied:
                return None
            except RefusedError as error:
                results = [error] * len(joins)
        for refused in filter(None, results):
            assert refused.code == 503, refused
            assert refused.retry_after is not None
        return [refused is None for refused in results]

    # What is stored and what is answered

    def answers(
        self, at: float | None = None, sets: Sequence[tuple[str, bytes]] | None = None
    ) -> tuple[int | None, dict[tuple[str, bytes], bool]]:
        """The answer of a fresh query process for every set, or for some: the step and the statuses."""
        asked = self.sets if sets is None else sets
        answer = self.new_querying().query(asked, self.true_time() if at is None else at)
        return answer.step, dict(zip(asked, answer.above, strict=True))

    def slot(self, place: tuple[str, bytes]) -> int:
        """The slot of a set."""
        return Layout(self.slots, 0).slot_of(self.keys[place])

    def _rows(self, name: str) -> Any:
        tables = get_backend("dynamodb")[DEFAULT_ACCOUNT_ID][REGION].tables
        return tables[self.stack.storage.tables[name]]

    def _bucket(self) -> Any:
        return get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].buckets[self.bucket]

    def save(self) -> bytes:
        """The rows of all tables, the objects, and the time."""
        rows = {name: self._rows(name).items for name in TABLES}
        return pickle.dumps((self.true_time(), rows, self._bucket().keys))

    def restore(self, saved: bytes) -> None:
        """Put tables, objects and time back."""
        moment, tables, objects = pickle.loads(saved)
        self.set_time(moment)
        for name, items in tables.items():
            self._rows(name).items = items
        self._bucket().keys = objects
        self.sent()

    def parts(self, place: Place) -> PartObjects:
        """The objects of a slot."""
        return PartObjects(self.s3, self.bucket, place)

    def states(self) -> dict[Place, Part]:
        """The states of each slot, as its manifest names them."""
        found = {}
        for place, row in self.control.rows():
            parts = self.parts(place)
            pieces = () if row.manifest is None else parts.list_of(row.manifest).pieces
            found[place] = joined_parts([parts.read(piece) for piece in pieces])
        return found

    def columns(self) -> dict[Place, tuple[bytes, ...]]:
        """The states of each slot, to be compared."""
        return {
            place: tuple(getattr(part, name).tobytes() for name in COLUMNS) for place, part in self.states().items()
        }

    def unreferenced(self) -> set[str]:
        """The objects to which no row leads, after a sweep. What a row leads to is there."""
        statuses = self.statuses()
        statuses.read((), (), consistent=True)
        named = {f"suppressed/{key.hex()}" for key in statuses.suppressed}
        for place, row in self.control.rows():
            self.control.lease(place, "test", self.true_time(), self.true_time())  # the last run is over
            named |= _named(row, self.parts(place))
        assert self.sweep(Worker())
        stored = set(self._bucket().keys)
        assert named <= stored
        return stored - named - {name_beside(name) for name in named if name.startswith(PREFIX)}

    def stored(self, name: str) -> dict[tuple[str, ...], dict[str, Any]]:
        """The items of a table by key, attributes in DynamoDB's JSON."""
        table = self._rows(name)
        items = (item.to_json()["Attributes"] for item in table.all_items())
        names = [table.hash_key_attr, *filter(None, [table.range_key_attr])]
        return {tuple(_text(item[n]) for n in names): item for item in items}


def _text(value: dict[str, Any]) -> str:
    ((_, content),) = value.items()
    return base64.b64encode(content).decode() if isinstance(content, bytes) else str(content)
