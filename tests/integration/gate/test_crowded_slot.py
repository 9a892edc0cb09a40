"""A crowded slot with slow pages and slow writes: workers make progress, also if one dies, and nothing is lost."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from kanon.dynamo.batches import KEYS_A_CALL, WRITES_A_CALL
from kanon.dynamo.statements import STATEMENTS_A_CALL
from kanon.errors import ConfigurationError
from kanon.gate.evaluation import WRITERS, Evaluation, NoiseKeys
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import States
from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.parameters import Parameters, profile
from kanon.gate.mechanism.steps import end_of
from kanon.gate.schedule import DAY, Schedule
from kanon.gate.storage.control import Mark
from kanon.gate.storage.members import Update
from kanon.gate.storage.step_log import StepLog
from kanon.gate.types import Type
from tests.unit.examples import KEY, ONE_SLOT, set_key

PERIOD, STEP, LAMBDA_SECONDS, MOST_HOPS = 3600, 472_000, 120.0, 100
VISIBILITY_SECONDS, RECEIVES = 720.0, 3
SCHEDULE = Schedule(PERIOD, grace=120, lease=150, publish_delay=1800, publish_margin=60, outage_allowance=7 * DAY)
ROWS_A_PAGE = 10_000
FLEDGE = {"S": "fledge"}
TYPE = Type("fledge", Parameters(50, 168, PERIOD, *profile("published", 168), client_bits=32), "published")


class DeadError(BaseException):
    """The worker's time has run out: it can do nothing any more."""


@dataclass
class SlowLog:
    """A DynamoDB client whose Query reads one crowded partition; every page takes ``page_seconds``.

    Other calls take ``call_seconds``. A worker that outlasts ``deadline`` dies inside the call.
    """

    clients: dict[bytes, int]
    page_seconds: float
    call_seconds: float = 0.0
    now: float = end_of(STEP, PERIOD) + 180.0
    deadline: float = float("inf")
    pages: int = 0
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.keys = sorted(self.clients)
        self.starts = [0, *accumulate(self.clients[key] for key in self.keys)]

    def spend(self, seconds: float) -> None:
        with self.lock:
            if self.now <= self.deadline:
                self.now += seconds
            if self.now > self.deadline:
                raise DeadError

    def call(self, calls: int = 1, parallel: int = 1) -> None:
        """Calls of which so many are made at once."""
        self.spend(calls * self.call_seconds / parallel)

    def query(self, **query: Any) -> dict[str, Any]:
        self.spend(self.page_seconds)
        self.pages += 1
        first = self._row_from(query["ExpressionAttributeValues"][":first"]["B"])
        last = min(first + ROWS_A_PAGE, self.starts[-1])
        items = []
        at = bisect_right(self.starts, first) - 1
        while first < last:
            end = min(last, self.starts[at + 1])
            key, start = self.keys[at], self.starts[at]
            items += [
                {"set_token": {"B": key + n.to_bytes(4, "big")}, "type": FLEDGE}
                for n in range(first - start, end - start)
            ]
            first, at = end, at + 1
        more = {"LastEvaluatedKey": {"set_token": items[-1]["set_token"]}} if last < self.starts[-1] else {}
        return {"Items": items, **more}

    def _row_from(self, bound: bytes) -> int:
        at = bisect_right(self.keys, bound[:32]) - 1
        if at < 0:
            return 0
        beyond = len(bound) > 36
        return min(self.starts[at] + int.from_bytes(bound[32:36], "big") + beyond, self.starts[at + 1])


@dataclass
class Tables:
    """Members, Statuses and Control in memory; ``fail_after`` writes of Members, the next one fails once.

    Calls take the time that they take on ``log``.
    """

    log: SlowLog
    states: dict[bytes, SetState] = field(default_factory=dict)
    writes: int = 0
    statuses: int = 0
    mark: Mark = Mark(STEP - 1, None)
    progress: list[Mark] = field(default_factory=list)
    fail_after: int = -1
    deaths: int = 0

    def read(self, set_keys: Sequence[bytes]) -> States:
        self.log.call(-(-len(set_keys) // KEYS_A_CALL))
        return States.of([(key, self.states.get(key, SetState())) for key in set_keys])

    def write(self, step: int, updates: Iterable[Update], writers: Any) -> None:
        for update in updates:
            for row, (key, state) in enumerate(zip(update.states.keys, update.states.states(), strict=True)):
                if row % STATEMENTS_A_CALL == 0:
                    self.log.call(parallel=WRITERS)
                self.writes += 1
                if self.writes == self.fail_after:
                    raise ConnectionError
                self.states[key] = state

    def write_status(self, *_: Any) -> None:
        self.log.call(parallel=WRITERS)
        self.statuses += 1

    def move_horizon(self, *_: Any) -> None: ...

    def stamp(self, *_: Any) -> None: ...

    def stamps(self, slots: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(slots, self.mark.evaluated_through or 0)

    def is_stamped(self, *_: Any) -> bool:
        return True

    def lease(self, *_: Any) -> Mark:
        return self.mark

    def release(self, slot: int, holder: str, resume: tuple[int, bytes] | None) -> None:
        self.log.call()
        self.mark = Mark(self.mark.evaluated_through, None if resume is None else resume[1])
        self.progress.append(self.mark)

    def keep_place(self, slot: int, holder: str, place: tuple[int, bytes]) -> None:
        self.log.call()
        self.mark = Mark(self.mark.evaluated_through, place[1])

    def advance(self, slot: int, before: int | None, step: int, leaving: str | None) -> None:
        self.mark = Mark(step, None)


class WithoutWakeUps(StepLog):
    """The log without its writes."""

    def put_wake_ups(self, rows: Any) -> None:
        log: Any = self._client
        log.call(-(-len(list(rows)) // WRITES_A_CALL))


def evaluation(log: SlowLog, tables: Tables) -> Evaluation:
    client: Any = log
    table: Any = tables
    statuses: Any = SimpleNamespace(
        move_horizon=tables.move_horizon, is_stamped=tables.is_stamped, write=tables.write_status
    )
    return Evaluation(
        {"fledge": TYPE},
        NoiseKeys(((0, KEY),)),
        "stack",
        SCHEDULE,
        WithoutWakeUps(client, "log", ONE_SLOT),
        table,
        statuses,
        table,
        lambda: None,
    )


def hops_until_done(log: SlowLog, tables: Tables) -> int:
    """Let messages follow each other, each to a worker with the whole time of a Lambda function."""
    for hop in range(MOST_HOPS):
        log.deadline = log.now + LAMBDA_SECONDS
        try:
            evaluation(log, tables).run(0, f"worker {hop}", lambda: log.now, lambda: log.deadline - log.now)
        except DeadError:
            tables.deaths += 1
            assert tables.deaths < RECEIVES, "the message is given up"
            log.now = log.deadline - LAMBDA_SECONDS + VISIBILITY_SECONDS
            continue
        tables.deaths = 0
        if tables.mark.evaluated_through == STEP:
            return hop + 1
        assert len(set(tables.progress)) == len(tables.progress), "a run made no progress"
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
def test_a_million_rows_are_evaluated_within_the_messages_of_an_hour(
    clients: dict[bytes, int], page_seconds: float, call_seconds: float
) -> None:
    log = SlowLog(clients, page_seconds, call_seconds)
    tables = Tables(log)
    assert hops_until_done(log, tables) <= 3
    assert tables.states.keys() == clients.keys()
    assert {len(state.members) for state in tables.states.values()} == {TYPE.parameters.members_kept}


def nearly_true() -> SetState:
    """A set that one more client makes true, surely."""
    return SetState(tuple(Member(token, STEP - 1) for token in range(1, 140)), (), STEP - 1, None)


@pytest.mark.parametrize(
    ("quiet", "call_seconds", "page_seconds"),
    [(0, 1.0, 0.05), (7_000, 1.0, 0.05), (7_000, 1.0, 1.0), (8_000, 0.25, 1.0)],
)
def test_after_a_worker_dies_in_a_chunk_with_many_writes_the_next_one_completes_it(
    quiet: int, call_seconds: float, page_seconds: float
) -> None:
    """After quiet sets follow 500 that all cross: with slow calls their chunk takes ten times as long as any before."""
    keys = sorted(map(set_key, range(quiet + 500)))
    log = SlowLog(dict.fromkeys(keys, 1), page_seconds, call_seconds)
    tables = Tables(log, {key: nearly_true() for key in keys[quiet:]})
    hops_until_done(log, tables)
    assert {state.evaluated for state in tables.states.values()} == {STEP}
    assert len(tables.states) == len(keys)
    assert tables.statuses >= 500


def test_a_set_with_enough_tokens_costs_one_page() -> None:
    clients = SLOTS["one set of a million clients"]
    log = SlowLog(clients, 0.45)
    tables = Tables(log)
    assert hops_until_done(log, tables) == 1
    assert log.pages == 2


def test_crowded_sets_behind_very_slow_pages_are_done_over_several_workers() -> None:
    log = SlowLog({set_key(n): 150 for n in range(1_440)}, 30.0)
    tables = Tables(log)
    assert 5 < hops_until_done(log, tables) <= 12
    assert len(tables.states) == 1_440


def test_after_an_error_the_next_run_continues_after_the_last_chunk() -> None:
    log = SlowLog({set_key(n): 1 for n in range(3_000)}, 0.05)
    tables = Tables(log, fail_after=2_600)
    with pytest.raises(ConnectionError):
        evaluation(log, tables).run(0, "first", lambda: log.now, lambda: 100.0)
    assert tables.mark.resume_after == sorted(log.clients)[2_499]
    written = tables.writes
    evaluation(log, tables).run(0, "second", lambda: log.now, lambda: 100.0)
    assert tables.mark.evaluated_through == STEP
    assert tables.writes - written <= 500


def test_a_run_that_is_refused_before_it_begins_leaves_the_stored_place_alone() -> None:
    log = SlowLog({set_key(1): 1}, 0.05)
    tables = Tables(log, mark=Mark(STEP - 1, set_key(1)))
    released = []
    worker = evaluation(log, tables)
    worker.control.release = lambda *given: released.append(given)  # type: ignore[method-assign]

    def refuse() -> None:
        raise ConfigurationError("a table was replaced")

    worker.check_control = refuse
    with pytest.raises(ConfigurationError, match="a table was replaced"):
        worker.run(0, "worker", lambda: log.now, lambda: 100.0)
    assert released == [(0, "worker", None)]
