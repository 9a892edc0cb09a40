"""A crowded slot with slow pages and slow calls: workers make progress, also if they die, and nothing is lost."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from threading import Lock
from typing import Any

import pytest

from kanon.errors import ConfigurationError
from kanon.gate import deciding
from kanon.gate.deciding import NoiseKeys
from kanon.gate.evaluation import DeploymentRecord, Evaluation
from kanon.gate.mechanism.parameters import Parameters, profile
from kanon.gate.mechanism.steps import end_of
from kanon.gate.schedule import DAY, Schedule
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.step_joins import READERS
from kanon.gate.storage.aws.step_log import PartitionPage, StepLog
from kanon.gate.types import Type
from tests.integration.gate.tables import Running, Tables, fresh, states_of
from tests.unit.examples import KEY, ONE_SLOT, set_key

PERIOD, STEP, LAMBDA_SECONDS, MOST_HOPS = 3600, 472_000, 120.0, 100
VISIBILITY_SECONDS, RECEIVES = 720.0, 3
SCHEDULE = Schedule(PERIOD, grace=120, lease=150, publish_delay=1800, publish_margin=60, outage_allowance=7 * DAY)
ROWS_A_PAGE = 10_000
TYPE = Type("fledge", Parameters(50, 168, PERIOD, *profile("published", 168), client_bits=32), "published")


class DeadError(BaseException):
    """The worker's time has run out: it can do nothing any more."""


@dataclass
class Time:
    """The clock. A worker that outlasts ``deadline`` dies inside the call."""

    now: float = end_of(STEP, PERIOD) + 180.0
    deadline: float = float("inf")
    lock: Lock = field(default_factory=Lock)

    def spend(self, seconds: float) -> None:
        with self.lock:
            if self.now <= self.deadline:
                self.now += seconds
            if self.now > self.deadline:
                raise DeadError


class Crowded(StepLog):
    """A log with one crowded partition; every page takes ``page_seconds``, and READERS are read at once."""

    def __init__(self, time: Time, clients: dict[bytes, int], page_seconds: float) -> None:
        super().__init__(None, "log", ONE_SLOT)  # type: ignore[arg-type]
        self.time, self.page_seconds, self.pages = time, page_seconds, 0
        self.clients, self.keys = clients, sorted(clients)
        self.starts = [0, *accumulate(clients[key] for key in self.keys)]

    def page(self, partition: bytes, first: bytes, last: bytes) -> PartitionPage:
        self.time.spend(self.page_seconds / READERS)
        self.pages += 1
        if int.from_bytes(partition[:8], "big") != STEP:
            return PartitionPage([], [], None, [])
        begin, end = self._row_from(first), self._row_from(last + b"\0")
        rows = list(self._rows(begin, min(end, begin + ROWS_A_PAGE)))
        return PartitionPage(rows, [], rows[-1][0] if end > begin + ROWS_A_PAGE else None, [])

    def _rows(self, first: int, end: int) -> Iterator[tuple[bytes, str]]:
        at = bisect_right(self.starts, first) - 1
        while first < end:
            stop = min(end, self.starts[at + 1])
            key, start = self.keys[at], self.starts[at]
            yield from ((key + n.to_bytes(4, "big"), "fledge") for n in range(first - start, stop - start))
            first, at = stop, at + 1

    def _row_from(self, bound: bytes) -> int:
        at = bisect_right(self.keys, bound[:32]) - 1
        if at < 0:
            return 0
        if self.keys[at] < bound[:32]:
            return self.starts[at + 1]
        token = int.from_bytes(bound[32:36].ljust(4, b"\0"), "big")
        return min(self.starts[at] + token + (len(bound) > 36), self.starts[at + 1])


@dataclass
class Service:
    """A slot, of which every other call takes ``call_seconds``."""

    tables: Tables
    log: Crowded
    call_seconds: float
    deaths: int = 0

    @classmethod
    def of(cls, moto: Running, clients: dict[bytes, int], page_seconds: float, call_seconds: float = 0.0) -> "Service":
        tables, time = fresh(moto), Time()
        tables.mark(0, STEP - 1)
        service = cls(replace(tables, client=moto.client(), s3=moto.objects()), Crowded(time, clients, page_seconds), 0)
        service.call_seconds = call_seconds
        for client in (service.tables.client, service.tables.s3):
            client.meta.events.register("before-call", service.spend)
        return service

    def spend(self, **_: Any) -> None:
        self.log.time.spend(self.call_seconds)

    def worker(self) -> Evaluation:
        return Evaluation(
            {"fledge": TYPE}, {}, frozenset(), NoiseKeys(((0, KEY),)), "stack", SCHEDULE,
            self.log, self.tables.parts, self.tables.statuses, self.tables.control,
            lambda: DeploymentRecord({"fledge": 4}, frozenset()),
        )  # fmt: skip

    def hops_until_done(self) -> int:
        """Let messages follow each other, each to a worker with the whole time of a Lambda function."""
        time, undisturbed = self.log.time, replace(self.tables, client=self.tables.other_client())
        for hop in range(MOST_HOPS):
            time.deadline = time.now + LAMBDA_SECONDS
            before = undisturbed.control.row(Place(0, 0))
            try:
                self.worker().run(0, f"worker {hop}", lambda: time.now, lambda: time.deadline - time.now)
            except DeadError:
                self.deaths += 1
                assert self.deaths < RECEIVES, "the message is given up"
                time.now = time.deadline - LAMBDA_SECONDS + VISIBILITY_SECONDS
                continue
            self.deaths = 0
            row = undisturbed.control.row(Place(0, 0))
            if row.evaluated_through == STEP:
                time.deadline = float("inf")
                return hop + 1
            assert (row.progress, row.gathered) != (before.progress, before.gathered), "a run made no progress"
        raise AssertionError("the step was not done within the messages of an hour")


SLOTS = {
    "fifty sets of 20,000 clients": {set_key(n): 20_000 for n in range(50)},
    "a thousand sets of 1,000 clients": {set_key(n): 1_000 for n in range(1_000)},
    "one set of a million clients": {set_key(1): 1_000_000},
}


@pytest.mark.parametrize(
    ("clients", "page_seconds", "call_seconds"),
    list(zip(SLOTS.values(), [0.45, 1.0, 0.05], [0.25, 1.0, 1.0], strict=True)),
    ids=SLOTS,
)
def test_a_million_rows_are_evaluated_by_one_worker_that_reads_each_page_once(
    moto: Running, clients: dict[bytes, int], page_seconds: float, call_seconds: float
) -> None:
    service = Service.of(moto, clients, page_seconds, call_seconds)
    assert service.hops_until_done() == 1
    assert service.log.pages <= sum(clients.values()) / ROWS_A_PAGE + 3 * READERS
    states = states_of(service.tables.stored())
    assert states.keys() == clients.keys()
    assert {len(state.members) for state in states.values()} == {TYPE.parameters.members_kept}


@pytest.mark.parametrize(("page_seconds", "workers"), [(8.0, 2), (20.0, 8)])
def test_a_step_whose_reading_outlasts_a_worker_is_finished_and_each_page_is_read_at_most_twice(
    moto: Running, page_seconds: float, workers: int
) -> None:
    clients = {set_key(n): 1_000 for n in range(1_000)}
    service = Service.of(moto, clients, page_seconds, 0.25)
    assert service.hops_until_done() <= workers
    assert service.deaths == 0
    assert service.log.pages <= 2 * (sum(clients.values()) / ROWS_A_PAGE + 3 * READERS)
    states = states_of(service.tables.stored())
    assert states.keys() == clients.keys()
    assert {len(state.members) for state in states.values()} == {TYPE.parameters.members_kept}


@pytest.mark.parametrize("call_seconds", [0.25, 6.0])
def test_many_crossings_outlast_a_worker_and_none_is_lost(
    moto: Running, monkeypatch: pytest.MonkeyPatch, call_seconds: float
) -> None:
    monkeypatch.setattr(deciding, "MOST_JOINS_A_RANGE", 60_000)
    clients = {set_key(n): 150 for n in range(800)}
    service = Service.of(moto, clients, 0.05, call_seconds)
    assert service.hops_until_done() == {0.25: 1, 6.0: 2}[call_seconds]
    service.call_seconds = 0.0
    found = service.tables.statuses.crossings(clients)
    assert len(found) == 800
    assert set(found.values()) == {(STEP,)}


def test_after_an_error_the_next_run_continues_with_the_range_that_is_not_recorded(
    moto: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deciding, "MOST_JOINS_A_RANGE", 500)
    service = Service.of(moto, {set_key(n): 1 for n in range(3_000)}, 0.05)
    calls = count()

    def fail(**_: Any) -> None:
        if next(calls) == 9:
            raise ConnectionError

    service.tables.s3.meta.events.register("before-call.s3.PutObject", fail)
    with pytest.raises(ConnectionError):
        service.worker().run(0, "first", lambda: service.log.time.now, lambda: 100.0)
    progress = service.tables.control.row(Place(0, 0)).progress
    assert progress is not None
    assert len(service.tables.parts(Place(0, 0)).list_of(progress.draft).pieces) == 4
    outcome = service.worker().run(0, "second", lambda: service.log.time.now + 200, lambda: 100.0)
    assert (outcome.steps, outcome.sets) == (1, outcome.sets)
    assert 900 < outcome.sets < 1_100  # the last two of six ranges


def test_a_run_that_is_refused_before_it_begins_leaves_what_is_recorded_alone(moto: Running) -> None:
    service = Service.of(moto, {set_key(1): 1}, 0.05)
    run = service.tables.control.lease(Place(0, 0), "first", 0.0, 1.0)
    assert run is not None
    service.tables.client.update_item(
        TableName=service.tables.names["Control"],
        Key={"name": {"S": "slot#0#0"}},
        UpdateExpression="SET draft = :t, basis = :t, written = :n",
        ExpressionAttributeValues={":t": {"S": "a"}, ":n": {"N": "1"}},
    )
    before = service.tables.control.row(Place(0, 0))

    def refuse() -> DeploymentRecord:
        raise ConfigurationError("a table was replaced")

    worker = service.worker()
    worker.check_control = refuse
    with pytest.raises(ConfigurationError, match="a table was replaced"):
        worker.run(0, "worker", lambda: service.log.time.now, lambda: 100.0)
    assert service.tables.control.row(Place(0, 0)) == replace(before, run=before.run + 1, lease_until=None)
