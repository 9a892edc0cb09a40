"""`kanon operate new-generation` on the tables themselves: its first step, the data that it keeps, and
interruptions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kanon.dynamo.tables import table_ids
from kanon.errors import ConfigurationError
from kanon.gate.evaluation import Evaluation, NoiseKeys
from kanon.gate.generations import as_recorded, in_force, recorded_generations
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.members import Member
from kanon.gate.schedule import Schedule
from kanon.gate.settings import LogGenerationEntry, NoiseKeyEntry
from kanon.gate.slots import Layouts
from kanon.gate.storage.aws.step_log import Row, partition
from kanon.gate.types import Type
from kanon.operate import generation
from kanon.operate.changes import ChangeRefusedError
from kanon.operate.generation import begin, situation
from tests.integration.gate.tables import Running, Tables, fresh, running, states_of, write
from tests.unit.examples import KEY, SMALL, TWO_SLOTS

PERIOD, START = 3600, 1000
# The phase of each is (START - 1) % 6: an instance begins at START - 1, the next one at START + 5.
NAMES = [bytes([n]) * 31 + bytes([3]) for n in (6, 42, 132, 204)]
SCHEDULE = Schedule(PERIOD, 120, 150, 1800, 60, 604_800)


@pytest.fixture(scope="module")
def moto() -> Iterator[Running]:
    with running("moto") as engine:
        yield engine


@dataclass
class Settings:
    """Those of `evaluate` as far as the command reads them."""

    tables: dict[str, str]
    log_generations: tuple[LogGenerationEntry, ...] = ()
    layouts: Layouts = TWO_SLOTS
    noise_keys: tuple[NoiseKeyEntry, ...] = (NoiseKeyEntry(id="1", from_step=0),)

    def read_types(self) -> dict[str, Type]:
        return {"small": Type("small", SMALL, None)}


@dataclass
class Service:
    """Tables in use: two slots, four sets, marks at ``START``."""

    tables: Tables
    ids: dict[str, str] = field(default_factory=dict)
    schedule: Schedule = SCHEDULE

    def __post_init__(self) -> None:
        self.evaluate = Settings(dict(self.tables.names))
        self.tables.layouts = TWO_SLOTS
        self.ids = {name: f"{name}-1" for name in self.tables.names}
        for slot in (0, 1):
            self.tables.mark(slot, START)
            self.statuses.move_horizon(slot, START, 0)
        for n, name in enumerate(NAMES):
            state = SetState((Member(n, START),), (), START, START + 3 if n == 0 else None)
            self.members.put(name, "small", state, 8, 10**10)
        self.control.check("evaluate", as_recorded(0, self.ids))

    longest_memory = 41
    control = property(lambda self: self.tables.control)
    members = property(lambda self: self.tables.members)
    statuses = property(lambda self: self.tables.statuses)
    log = property(lambda self: self.tables.log)

    def client(self, _: str) -> Any:
        return self.tables.client

    def replace(self, *names: str) -> None:
        for name in names:
            self.ids[name] += "x"

    def begin(self, now: float = (START + 1) * PERIOD + 200.0) -> tuple[LogGenerationEntry, ...]:
        return begin(self, now)  # type: ignore[arg-type]

    @property
    def marks(self) -> set[int | None]:
        return {progress.evaluated_through for progress in self.control.progress()}

    def state(self, name: bytes) -> SetState:
        found: SetState = states_of(self.members, [name])[name]
        return found

    def woken(self, step: int) -> set[bytes]:
        return {each.set_key for slot in (0, 1) for each in self.tables.touched(step, slot)}

    def worker(self) -> Evaluation:
        types = self.evaluate.read_types()
        return Evaluation(
            types, NoiseKeys(((0, KEY),)), "deployment", self.schedule, self.log, self.members, self.statuses,
            self.control, lambda: None, in_force(self.evaluate.log_generations),
        )  # fmt: skip

    def run(self, step: int) -> None:
        now = (step + 1) * PERIOD + 200.0
        for slot in (0, 1):
            self.worker().run(slot, f"worker {step} {slot}", lambda: now, lambda: 1e9)


@pytest.fixture
def service(moto: Running, monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service(fresh(moto))
    monkeypatch.setattr(generation, "table_ids", lambda *_: dict(made.ids))
    return made


def test_an_engine_without_ids_distinguishes_tables_by_name(moto: Running) -> None:
    tables = fresh(moto)
    assert table_ids(tables.client, tables.names) == tables.names


def test_the_first_step_follows_the_marks_and_every_set_is_woken_in_it(service: Service) -> None:
    service.replace("StepLog")
    assert situation(service).replaced == ["StepLog"]  # type: ignore[arg-type]
    assert service.begin() == (LogGenerationEntry(log="StepLog-1x", from_step=START + 1),)
    assert service.marks == {START}
    assert service.woken(START + 1) == set(NAMES)
    assert recorded_generations(service.control.recorded("evaluate"))[START + 1] == service.ids
    assert [progress.lease_until for progress in service.control.progress()] == [None, None]


@pytest.mark.parametrize("trace", ["mark", "resume", "horizon", "set", "crossing"])
def test_the_first_step_is_after_every_trace_of_an_evaluation(service: Service, trace: str) -> None:
    """A worker that died inside the next step has left one of these traces; its writes will become visible."""
    if trace == "mark":
        service.control.advance(1, START, START + 1)
    if trace == "resume":
        service.control.lease(1, "worker", 0, 1)
        service.control.release(1, "worker", (START + 1, NAMES[2]))
    if trace == "horizon":
        service.statuses.move_horizon(1, START + 1, 0)
    if trace == "set":
        write(service.members, NAMES[0], "small", SetState((), (), START + 1), 8, 10**10)
    if trace == "crossing":
        service.statuses.write(NAMES[0], (START + 1,), 10**10)
    service.replace("StepLog")
    assert [entry.from_step for entry in service.begin()] == [START + 2]
    assert service.marks == {START + 1}


@pytest.mark.parametrize("table", ["Control", "Statuses"])
def test_if_marks_or_answers_are_lost_the_clock_gives_the_first_step(service: Service, table: str) -> None:
    service.replace(table)
    now = (START + 9) * PERIOD + 200.0
    assert [entry.from_step for entry in service.begin(now)] == [SCHEDULE.last_closed(now) + 1] == [START + 9]
    assert service.marks == {START + 8}


def test_a_control_without_any_record_counts_as_replaced(service: Service) -> None:
    client = service.tables.other_client()
    client.delete_item(TableName=service.tables.names["Control"], Key={"name": {"S": "function#evaluate"}})
    assert situation(service).replaced == ["Control", "Members", "Statuses", "StepLog"]  # type: ignore[arg-type]
    assert service.begin((START + 9) * PERIOD + 200.0)[0].from_step == START + 9


def test_a_crossing_that_only_one_table_has_is_copied_to_the_other(service: Service) -> None:
    state = service.state(NAMES[0])
    service.statuses.write(NAMES[0], (START - 8, START), 10**10)  # Members were restored
    service.members.put(NAMES[1], "small", SetState(state.members, (START - 1,), START), 8, 10**10)  # Statuses were
    service.statuses.write(b"x" * 32, (START,), 10**10)  # its Members item is gone
    service.replace("Members")
    service.begin()
    assert service.state(NAMES[0]).crossings == (START - 8, START)
    assert service.state(NAMES[0]).members == state.members
    assert service.statuses.crossings([NAMES[1]]) == {NAMES[1]: (START - 1,)}
    assert service.state(b"x" * 32) == SetState(crossings=(START,), evaluated=START)
    assert service.woken(START + 1) == set(NAMES)


def test_a_leased_slot_is_refused_and_nothing_is_changed(service: Service) -> None:
    service.replace("StepLog")
    before = service.tables.items("Members"), service.control.recorded("evaluate")
    service.control.lease(1, "worker", 0, 10**9)
    with pytest.raises(ChangeRefusedError, match=r"^a worker holds slot 1: wait until its lease expires$"):
        service.begin()
    assert (service.tables.items("Members"), service.control.recorded("evaluate")) == before
    assert service.control.lease(0, "another", 0, 1) is not None  # given back


def test_a_further_generation_begins_after_the_previous_one(service: Service) -> None:
    service.replace("StepLog")
    service.evaluate.log_generations = service.begin()
    service.replace("StepLog")
    listed = service.begin()
    assert [entry.from_step for entry in listed] == [START + 1, START + 2]
    assert listed[0] == service.evaluate.log_generations[0]
    service.evaluate.log_generations = listed
    service.replace("StepLog")
    assert [entry.from_step for entry in service.begin()] == [START + 2, START + 3]  # the oldest is left out


def test_generations_missing_from_a_restored_control_are_kept(service: Service) -> None:
    service.evaluate.log_generations = (LogGenerationEntry(log="older", from_step=START + 5),)
    service.replace("Control")
    now = (START + 3) * PERIOD + 200.0
    assert service.begin(now) == (
        LogGenerationEntry(log="older", from_step=START + 5), LogGenerationEntry(log="StepLog-1", from_step=START + 6),
    )  # fmt: skip


def test_after_an_interruption_before_any_write_a_second_run_has_the_same_result(
    moto: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ending(cut: int) -> tuple[Any, int]:
        service = Service(fresh(moto))
        monkeypatch.setattr(generation, "table_ids", lambda *_: dict(service.ids))
        service.statuses.write(NAMES[0], (START,), 10**10)
        service.members.put(NAMES[1], "small", SetState((Member(1, START),), (START,), START), 8, 10**10)
        service.statuses.write(b"x" * 32, (START,), 10**10)
        service.control.advance(1, START, START + 1)
        service.replace("StepLog", "Members")
        writes = 0

        def before(model: Any, **_: Any) -> None:
            nonlocal writes
            is_write = model.name in ("PutItem", "UpdateItem", "BatchWriteItem")
            writes += is_write
            if is_write and writes == cut:
                raise KeyboardInterrupt

        service.tables.client.meta.events.register("before-call.dynamodb", before)
        if cut:
            with pytest.raises(KeyboardInterrupt):
                service.begin()
        listed, all_writes = service.begin((START + 3) * PERIOD), writes
        rows = [service.tables.items(table) for table in ("StepLog", "Members", "Statuses", "Control")]
        return (listed, rows), all_writes

    whole, writes = ending(0)
    assert writes == 14
    for cut in range(1, writes + 1):
        assert ending(cut)[0] == whole, cut


# Evaluation in a new generation


def test_a_slot_with_steps_before_its_generation_is_not_evaluated(service: Service) -> None:
    service.evaluate.log_generations = (LogGenerationEntry(log="l", from_step=START + 2),)
    with pytest.raises(ConfigurationError, match=f"begins at step {START + 2} was not started in every slot: run"):
        service.run(START + 2)
    assert service.marks == {START}


def test_no_step_is_evaluated_while_tables_are_replaced(service: Service) -> None:
    worker = service.worker()

    def refused() -> None:
        raise ConfigurationError("another table")

    worker.check_control = refused
    with pytest.raises(ConfigurationError, match="another table"):
        worker.run(0, "worker", lambda: (START + 2) * PERIOD + 200.0, lambda: 1e9)
    assert service.marks == {START}
    assert service.control.lease(0, "another", 0, 1) is not None  # given back


def test_a_lost_wake_up_is_written_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored Members name the same step, but the row was in the replaced log."""
    crowd = tuple(Member(token, START) for token in range(SMALL.members_kept))
    service.replace("StepLog")
    service.members.put(NAMES[0], "small", SetState(crowd, (START,), START), 8, 10**10)
    service.evaluate.log_generations = service.begin()
    service.run(START + 1)
    planned = service.state(NAMES[0]).wake_up
    assert planned is not None  # surely above in the next instance
    for item in service.tables.items("StepLog"):
        service.tables.other_client().delete_item(
            TableName=service.tables.names["StepLog"], Key={name: item[name] for name in ("step_slot", "set_token")}
        )
    again = SetState(crowd, (START,), START, planned)
    service.members.put(NAMES[0], "small", again, 8, 10**10)
    service.log.put(Row(START + 2, NAMES[0], None, "small", 10**10))
    service.evaluate.log_generations = (LogGenerationEntry(log="l", from_step=START + 2),)
    service.run(START + 2)
    assert service.state(NAMES[0]).wake_up == planned
    rows = {(item["step_slot"]["B"], item["set_token"]["B"]) for item in service.tables.items("StepLog")}
    assert (partition(planned, TWO_SLOTS.entries[0], 0), NAMES[0]) in rows
