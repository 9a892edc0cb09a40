"""`kanon operate new-generation` on tables and bucket: its first step, the data that it keeps, and interruptions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from kanon.dynamo.tables import table_ids
from kanon.dynamo.transactions import all_or_none
from kanon.errors import ConfigurationError, UndecodableMembersError
from kanon.gate.deciding import NoiseKeys
from kanon.gate.evaluation import DeploymentRecord, Evaluation
from kanon.gate.generations import as_recorded, in_force, recorded_generations
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import States
from kanon.gate.mechanism.members import Member
from kanon.gate.merging import UNKNOWN
from kanon.gate.parts import Part
from kanon.gate.schedule import Schedule
from kanon.gate.settings import LogGenerationEntry, NoiseKeyEntry
from kanon.gate.slots import Layouts
from kanon.gate.storage.aws.control import Place, Progress, SlotRow
from kanon.gate.storage.aws.parts import PartList, PartObjects
from kanon.gate.storage.aws.step_log import Row
from kanon.gate.storage.aws.true_objects import run_of
from kanon.gate.types import Type
from kanon.operate import generation
from kanon.operate.changes import ChangeRefusedError
from kanon.operate.generation import begin, situation
from tests.integration.gate.tables import Running, Tables, cross, fresh, joined_parts, running, states_of
from tests.unit.examples import KEY, SMALL, TWO_SLOTS

PERIOD, START = 3600, 1000
NAMES = [bytes([n]) * 31 + bytes([3]) for n in (6, 42, 132, 204)]
SCHEDULE = Schedule(PERIOD, 120, 150, 1800, 60, 604_800)
SLOTS = (Place(0, 0), Place(0, 1))
NUMBER = 1
"""The number of the type."""


@pytest.fixture(scope="module")
def moto() -> Iterator[Running]:
    with running("moto") as engine:
        yield engine


@dataclass
class Settings:
    """Those of `evaluate` as far as the command reads them."""

    tables: dict[str, str]
    states_bucket: str
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
        self.evaluate = Settings(dict(self.tables.names), self.tables.bucket)
        self.tables.layouts = TWO_SLOTS
        self.ids = {name: f"{name}-1" for name in self.tables.names}
        self.control.type_numbers(["small"])
        for place in SLOTS:
            sets = [
                (name, SetState((Member(n, START),), (), START, START + 3 if n == 0 else None))
                for n, name in enumerate(NAMES)
                if TWO_SLOTS.entries[0].slot_of(name) == place.slot
            ]
            row = self.control.lease(place, "worker", 0, 1)
            assert row is not None
            keys, types = np.array([name for name, _ in sets], "S32"), np.full(len(sets), NUMBER, np.uint8)
            older, part = (Part.empty().at(step).with_sets(keys, types) for step in (START - 1, START))
            part = part.with_states(np.ones(len(sets), bool), States.of(sets), np.full(len(sets), START + 5))
            kept = []
            for each in (older, part):
                piece = self.parts(place).put(each, each.step, row.run, "00" if place.slot == 0 else "80")
                kept.append(self.parts(place).put_list(PartList(each.step, (piece,)), row.run))
            self.control.restate(place, row.run, START, kept)
            self.control.release(place, row.run)
            self.show(place.slot, START)
        self.control.check("evaluate", as_recorded(0, self.ids))

    longest_memory = 41
    control = property(lambda self: self.tables.control)
    statuses = property(lambda self: self.tables.statuses)
    log = property(lambda self: self.tables.log)

    def show(self, slot: int, step: int) -> None:
        assert all_or_none(self.tables.client, self.statuses.horizon_moves(slot, step, 0, None)[1:2]) is None

    def parts(self, place: Place) -> PartObjects:
        return self.tables.parts(place)

    def client(self, name: str) -> Any:
        return {"dynamodb": self.tables.client, "s3": self.tables.s3}[name]

    def replace(self, *names: str) -> None:
        for name in names:
            self.ids[name] += "x"

    def begin(self, now: float = (START + 1) * PERIOD + 200.0) -> tuple[LogGenerationEntry, ...]:
        return begin(self, now)  # type: ignore[arg-type]

    def empty_control(self) -> None:
        client = self.tables.other_client()
        for item in self.tables.items("Control"):
            if item["name"]["S"].startswith("slot#"):
                client.delete_item(TableName=self.tables.names["Control"], Key={"name": item["name"]})

    @property
    def marks(self) -> set[int | None]:
        return {row.evaluated_through for _, row in self.control.rows()}

    @property
    def stored(self) -> Part:
        return joined_parts([self.tables.stored(0), self.tables.stored(1)])

    def state(self, name: bytes) -> SetState:
        return states_of(self.stored)[name]

    def worker(self) -> Evaluation:
        def recorded() -> DeploymentRecord:
            return DeploymentRecord({"small": NUMBER}, frozenset())

        return Evaluation(
            types=self.evaluate.read_types(), numbers={}, retired=frozenset(), noise_keys=NoiseKeys(((0, KEY),)),
            deployment="deployment", schedule=self.schedule, log=self.log, parts_of=self.parts,
            statuses=self.statuses, control=self.control, check_control=recorded,
            generation=in_force(self.evaluate.log_generations),
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


def test_the_first_step_follows_the_marks_and_only_the_new_manifest_is_kept(service: Service) -> None:
    service.replace("StepLog")
    before = states_of(service.stored)
    assert situation(service).replaced == ["StepLog"]  # type: ignore[arg-type]
    assert service.begin() == (LogGenerationEntry(log="StepLog-1x", from_step=START + 1),)
    assert service.marks == {START}
    assert states_of(service.stored) == before
    assert recorded_generations(service.control.recorded("evaluate"))[START + 1] == service.ids
    rows = [row for _, row in service.control.rows()]
    assert [(len(row.kept), row.lease_until) for row in rows] == [(1, None), (1, None)]
    service.evaluate.log_generations = (LogGenerationEntry(log="StepLog-1x", from_step=START + 1),)
    service.run(START + 1)
    assert service.marks == {START + 1}


@pytest.mark.parametrize("trace", ["mark", "begun", "horizon", "crossing"])
def test_the_first_step_is_after_every_trace_of_an_evaluation(service: Service, trace: str) -> None:
    """A worker that died inside the next step has left one of these traces; its writes will become visible."""
    if trace in ("mark", "begun"):
        row = service.control.lease(SLOTS[1], "worker", 0, 1)
        assert row is not None
        if trace == "mark":
            service.control.restate(SLOTS[1], row.run, START + 1, row.kept)
        else:
            service.control.record_decided(SLOTS[1], row.run, START + 1, Progress(row.manifest, "draft", 0))
        service.control.release(SLOTS[1], row.run)
    if trace == "horizon":
        service.show(1, START + 1)
    if trace == "crossing":
        cross(service.statuses, NAMES[0], (START + 1,), 10**10)
    service.replace("StepLog")
    assert [entry.from_step for entry in service.begin()] == [START + 2]
    assert service.marks == {START + 1}
    assert all(row.progress is None for _, row in service.control.rows())
    if trace == "crossing":
        assert service.state(NAMES[0]).crossings == (START + 1,)


def by_marks(rows: Mapping[Place, SlotRow], _: object) -> int:
    """Planted: only the marks count, not what a worker has begun or written."""
    return max(row.evaluated_through or 0 for row in rows.values())


@pytest.mark.parametrize("planted", [False, True])
def test_a_half_written_step_is_never_evaluated_with_the_noise_of_the_next_generation(
    service: Service, planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = START + 1
    assert not service.tables.log.put_all(Row(half, NAMES[0], token, "small", 10**10) for token in range(20, 29))

    def dies_at_the_commit(model: Any, params: Any, **_: Any) -> None:
        if model.name == "TransactWriteItems" and b"evaluated_through = :evaluated_through" in params["body"]:
            raise KeyboardInterrupt

    events = service.tables.client.meta.events
    events.register("before-call.dynamodb", dies_at_the_commit)
    with pytest.raises(KeyboardInterrupt):
        service.run(half)
    events.unregister("before-call.dynamodb", dies_at_the_commit)
    assert service.statuses.crossings([NAMES[0]]) == {NAMES[0]: (half,)}
    for place, row in service.control.rows():  # the leases have expired
        service.control.release(place, row.run)
    if planted:
        monkeypatch.setattr(generation, "_traces", by_marks)
        monkeypatch.setattr(generation, "newest_crossing", lambda _: 0)
    service.replace("StepLog")
    service.evaluate.log_generations = service.begin()
    begun = {*service.tables.objects()}
    service.run(half)
    assert ({*service.tables.objects()} > begun) == planted
    assert service.marks == {half}


@pytest.mark.parametrize("table", ["Control", "Statuses"])
def test_if_marks_or_answers_are_lost_the_clock_gives_the_first_step(service: Service, table: str) -> None:
    service.replace(table)
    now = (START + 9) * PERIOD + 200.0
    assert [entry.from_step for entry in service.begin(now)] == [SCHEDULE.last_closed(now) + 1] == [START + 9]
    assert service.marks == {START + 8}


def test_if_control_is_lost_the_states_are_found_in_the_bucket_and_no_name_is_used_twice(service: Service) -> None:
    service.run(START + 3)  # a wake-up in slot 0
    before, names = states_of(service.stored), service.tables.objects()
    service.empty_control()
    service.replace("Control")
    assert service.begin((START + 9) * PERIOD + 200.0)[0].from_step == START + 9
    assert states_of(service.stored) == before
    new = {*service.tables.objects()} - {*names}
    assert len(new) == 4
    for place in SLOTS:
        runs = [{run_of(name) for name in each if name.startswith(place.folder)} for each in (new, names)]
        assert min(runs[0]) > max(runs[1])


@pytest.mark.parametrize("lost", [True, False])
def test_after_control_was_lost_no_step_is_evaluated_too_far_after_what_readers_see(
    service: Service, lost: bool
) -> None:
    """A third crossing of a set must not come before the first one stops to count."""
    shown = service.statuses.released()[1]
    if lost:
        service.empty_control()
    service.replace("Control")
    entries = service.begin((START + 2) * PERIOD + 200.0)
    assert [row.horizon for _, row in sorted(service.control.rows())] == [shown[place.slot] for place in SLOTS]
    assert service.statuses.released()[1] == shown
    service.evaluate.log_generations = entries
    service.run(START + 10 * SMALL.window)  # in one run
    assert service.marks == {START + SMALL.window}


def test_a_part_that_is_missing_is_not_taken_as_empty(service: Service) -> None:
    (name, *_) = [name for name in service.tables.objects() if name.endswith(".part") and f"/{START}-" in name]
    service.tables.s3.delete_object(Bucket=service.tables.bucket, Key=name)
    with pytest.raises(UndecodableMembersError):
        service.begin()


def test_a_control_without_any_record_counts_as_replaced(service: Service) -> None:
    client = service.tables.other_client()
    client.delete_item(TableName=service.tables.names["Control"], Key={"name": {"S": "function#evaluate"}})
    assert situation(service).replaced == ["Control", "Statuses", "StepLog"]  # type: ignore[arg-type]
    assert service.begin((START + 9) * PERIOD + 200.0)[0].from_step == START + 9


def test_a_crossing_that_only_states_or_statuses_have_is_copied_to_the_other(service: Service) -> None:
    state = service.state(NAMES[0])
    cross(service.statuses, NAMES[0], (START - 8, START), 10**10)
    cross(service.statuses, b"x" * 32, (START,), 10**10)  # its states are lost
    service.begin()
    assert service.state(NAMES[0]) == replace(state, crossings=(START - 8, START), evaluated=None)
    assert service.state(b"x" * 32) == SetState(crossings=(START,))
    assert UNKNOWN in service.stored.types.tolist()
    client = service.tables.other_client()
    client.delete_item(TableName=service.tables.names["Statuses"], Key={"set_key": {"B": NAMES[0]}})  # restored
    service.begin()
    assert service.statuses.crossings([NAMES[0]]) == {NAMES[0]: (START - 8, START)}


def test_a_leased_slot_is_refused_and_nothing_is_changed(service: Service) -> None:
    service.replace("StepLog")
    before = service.tables.objects(), service.control.recorded("evaluate")
    service.control.lease(SLOTS[1], "worker", 0, 10**9)
    with pytest.raises(
        ChangeRefusedError, match=r"holds slot 1: wait until its lease expires, at 2001-09-09 01:46 UTC$"
    ):
        service.begin()
    assert (service.tables.objects(), service.control.recorded("evaluate")) == before
    assert service.control.lease(SLOTS[0], "another", 0, 1) is not None  # given back


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


# Evaluation in a new generation


def test_a_slot_with_steps_before_its_generation_is_not_evaluated(service: Service) -> None:
    service.evaluate.log_generations = (LogGenerationEntry(log="l", from_step=START + 2),)
    with pytest.raises(ConfigurationError, match=f"begins at step {START + 2} was not started in every slot: run"):
        service.run(START + 2)
    assert service.marks == {START}


def test_no_step_is_evaluated_while_tables_are_replaced(service: Service) -> None:
    worker = service.worker()

    def refused() -> DeploymentRecord:
        raise ConfigurationError("another table")

    worker.check_control = refused
    with pytest.raises(ConfigurationError, match="another table"):
        worker.run(0, "worker", lambda: (START + 2) * PERIOD + 200.0, lambda: 1e9)
    assert service.marks == {START}
    assert service.control.lease(SLOTS[0], "another", 0, 1) is not None  # given back
