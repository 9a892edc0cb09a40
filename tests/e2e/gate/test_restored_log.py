"""A table is restored or created again. With the same noise its answers leak, so a new log generation must begin."""

import io
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kanon.gate.generations import as_recorded, recorded_generations
from kanon.gate.mechanism.bounds import over_generations
from kanon.gate.mechanism.steps import instance_of, phase_of
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.step_log import StepLog
from kanon.local import Stack
from tests.conftest import START
from tests.e2e.gate.backups import Rows, rows, states
from tests.e2e.gate.operating import begin_generation, deploy, mark, new_table, stops
from tests.e2e.gate.oracle import Oracle, laws
from tests.integration.gate.doctor_view import findings, operate, seen, wrong
from tests.table_ids import give_ids

LAWS = laws("two-sided", "0.4", 5, 5)
WINDOW = 6
SETS = [b"set %d" % n for n in range(24)]
TABLES = ("Control", "Statuses", "StepLog")


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine gives every table an id of its own, as DynamoDB does and this engine does not."""
    give_ids(monkeypatch)


@dataclass
class Service:
    """A stack in use, and the naive algorithm with the same joins."""

    stack: Stack
    oracle: Oracle = field(init=False)
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.stack)

    def join_some(self, sets: list[bytes] = SETS, each: int = 2) -> None:
        self.oracle.join_all([("a", name, f"c{self.chance.randrange(18)}") for name in sets for _ in range(each)])

    def steps(self, count: int) -> None:
        """Some steps with joins; every answer is that of the plain algorithm."""
        for _ in range(count):
            self.join_some()
            assert self.oracle.finish_step() == 0

    def rows(self) -> Rows:
        """A backup of the tables."""
        return {table: rows(self.stack, table) for table in TABLES}

    def until_the_step_is_closed(self) -> None:
        """To the minute at which the schedule fires, before the tick."""
        self.stack.advance_to((self.oracle.now_step + 1) * 3600 + 180)

    def restore(self, backup: Rows, *tables: str) -> None:
        """Replace some tables by new ones with the rows of a backup."""
        for table in tables:
            new_table(self.stack, table, backup[table])

    @property
    def marks(self) -> set[int | None]:
        return {*seen(self.stack).marks.values()}

    def begin(self) -> int:
        """Begin a generation by the command and deploy what it prints; its first step."""
        first = begin_generation(self.stack)
        listed = self.stack.functions["evaluate"].environment["KANON_LOG_GENERATIONS"]
        self.oracle.begin_generation(json.loads(listed)[-1]["log"], first)
        return first

    def key(self, name: bytes) -> bytes:
        return self.oracle._keys["a", name]

    def instance(self, name: bytes, step: int) -> int:
        return instance_of(step, phase_of(self.key(name), WINDOW, "hash"), WINDOW)


@pytest.fixture
def service() -> Iterator[Service]:
    types = {"a": {"k": 12, "window": WINDOW, "laws": LAWS}}
    parameters = {"Types": json.dumps(types), "OutageAllowance": "172800", "Slots": "1"}  # a row for each join
    with Stack(parameters, start=START, seed=8) as stack:
        yield Service(stack)


def without(rows: list[dict[str, Any]], keys: set[bytes]) -> list[dict[str, Any]]:
    """The rows without those of some sets."""
    return [row for row in rows if row["set_token"]["B"][:32] not in keys]


def flips(service: Service, lost: list[bytes]) -> set[bytes]:
    """Restore everything, with a log that lacks the last joins of the sets ``lost``. Returns the sets that turn false
    inside an instance."""
    service.steps(1)
    service.join_some(each=20)
    backup = service.rows()
    step = service.oracle.now_step
    partition = step.to_bytes(8, "big", signed=True)
    rows = [row for row in backup["StepLog"] if row["step_slot"]["B"][:8] == partition]
    rest = [row for row in backup["StepLog"] if row["step_slot"]["B"][:8] != partition]
    assert service.oracle.finish_step() == 0
    released = service.oracle.answered

    shorter = {**backup, "StepLog": rest + without(rows, {service.key(name) for name in lost})}
    service.restore(shorter, *TABLES)
    service.stack.advance_to((step + 2) * 3600 + 1800)
    later = service.oracle.answers(step + 1)
    assert sum(released.values()) > len(SETS) // 4
    return {
        name
        for name in SETS
        if released["a", name]
        and not later["a", name]
        and service.instance(name, step) == service.instance(name, step + 1)
    }


def test_under_the_same_noise_a_shorter_log_shows_exactly_which_sets_held_the_missing_joins(service: Service) -> None:
    """The leak: without the ids of its tables the service cannot detect the restore."""
    lost = SETS[::2]
    shown = flips(service, lost)
    assert shown
    assert shown <= set(lost)


def test_under_the_same_noise_the_same_log_shows_nothing(service: Service) -> None:
    assert flips(service, []) == set()


def test_evaluation_stops_at_a_replaced_table_and_names_it_and_the_remedy(service: Service, ids: None) -> None:
    service.steps(3)
    service.join_some()
    backup, before = service.rows(), mark(service.stack)
    service.restore(backup, "StepLog")
    service.until_the_step_is_closed()
    reason = stops(service.stack)
    assert reason.startswith("another table is in the place of StepLog (restored or created again)")
    assert reason.endswith("begin a new log generation with `kanon operate new-generation`")
    (finding,) = findings(service.stack)["log"]
    assert (finding.verdict, finding.seen, finding.section) == ("FAIL", reason, "a-table-was-replaced")
    service.restore(backup, *TABLES)
    service.stack.restart("evaluate")
    assert stops(service.stack).startswith("another table is in the place of Control and Statuses and StepLog ")
    assert mark(service.stack) == before


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps whose rows evaluation reads from now on."""
    steps: list[int] = []
    partitions = StepLog.partitions

    def listening(log: StepLog, step: int, *args: Any) -> Any:
        steps.append(step)
        return partitions(log, step, *args)

    monkeypatch.setattr(StepLog, "partitions", listening)
    return steps


@pytest.mark.parametrize("tables", [("StepLog",), ("Statuses",), ("Control",), TABLES])
def test_a_new_generation_has_new_noise_repeats_no_step_and_evaluates_every_set(
    service: Service, ids: None, monkeypatch: pytest.MonkeyPatch, tables: tuple[str, ...]
) -> None:
    service.steps(4)
    backup = service.rows()
    service.steps(2)
    before, released = mark(service.stack), service.oracle.answered
    service.restore(backup, *tables)
    service.until_the_step_is_closed()
    assert "another table" in stops(service.stack)
    closed = seen(service.stack).schedule.last_closed(service.stack.clock.now())

    steps = looked_at(monkeypatch)
    first = service.begin()
    assert first == (closed if {"Statuses", "Control"} & set(tables) else before) + 1
    assert service.marks == {first - 1}
    service.oracle.lose(range(before + 1, first))
    service.oracle.now_step = first  # nothing crosses at the skipped steps
    crossings = seen(service.stack).statuses.released()[0]
    kept = {key: state.crossings for key, (_, state) in states(service.stack).items() if state.crossings}
    assert {key: steps for key, steps in crossings.items() if steps} == kept
    if "Statuses" not in tables:
        assert service.oracle.answers() == released  # no released answer is taken back

    assert service.oracle.finish_step() == 0
    assert min(steps) >= first
    assert len(states(service.stack)) == len(SETS)
    service.steps(WINDOW)
    assert wrong(service.stack) == {}
    told = [finding.seen for finding in findings(service.stack)["log"]]
    parameters = service.oracle.types["a"].parameters
    cost = over_generations(parameters, 1, 1)
    assert told == [
        f"generations that begin at steps {first}",
        f"type a: one join can meet 1 of them, and then costs {cost}",
    ]


def test_with_restart_after_the_crossing_a_generation_ends_searches_and_keeps_statuses(ids: None) -> None:
    types = {"a": {"k": 12, "window": WINDOW, "laws": LAWS, "restart": "crossing", "hold": 7, "epoch": 20}}
    with Stack({"Types": json.dumps(types), "OutageAllowance": "172800", "Slots": "1"}, start=START, seed=8) as stack:
        service = Service(stack)
        service.steps(22)
        service.join_some()
        service.restore(service.rows(), "StepLog")
        service.until_the_step_is_closed()
        first, released = service.begin(), service.oracle.answered
        assert service.oracle.finish_step() == 0
        naive = service.oracle._naive["a"]
        searching = [key for key, searches in naive.searches.items() if searches.true_through < first - 1]
        assert 0 < len(searching) < len(SETS)  # some statuses last, and some searches have ended
        assert all(naive.searches[key].counted_from >= first for key in searching)
        lasting = {place for place, above in released.items() if above} & {
            place for place, above in service.oracle.answered.items() if above
        }
        assert lasting
        service.steps(24)
        later = [x for key in searching for x in naive.searches[key].crossings if x >= first]
        assert later
        assert wrong(stack) == {}


def test_an_entry_that_is_removed_changed_or_written_by_hand_stops_evaluation(service: Service, ids: None) -> None:
    service.steps(1)
    service.join_some()
    service.restore(service.rows(), "StepLog")
    service.until_the_step_is_closed()
    code, output = operate(service.stack, "new-generation", answer="n\n")
    assert (code, "in force: StepLog." in output, "Begin a new log generation?" in output) == (1, True, True)
    first = service.begin()
    text = service.stack.functions["evaluate"].environment["KANON_LOG_GENERATIONS"]
    for listed, reason in (
        ("[]", f"the log generation that begins at step {first} is missing from LogGenerations: put it there"),
        (text.replace(str(first), str(first + 1)), f"the log generation that begins at step {first + 1} was not"),
        (text.replace('"log":"', '"log":"0'), f"the log generation that begins at step {first} was started on another"),
    ):
        deploy(service.stack, "evaluate", KANON_LOG_GENERATIONS=listed)
        assert stops(service.stack).startswith(reason)
        assert findings(service.stack)["log"][0].seen.startswith(reason)
    deploy(service.stack, "evaluate", KANON_LOG_GENERATIONS=text)
    assert service.oracle.finish_step() == 0


def test_a_warm_worker_stops_after_a_generation_was_begun_on_the_same_tables() -> None:
    logs = io.StringIO()
    with Stack(start=START, seed=5, logs=logs) as stack:
        stack.advance(3 * 3600)
        control = Control(stack.session.client("dynamodb"), stack.storage.tables["Control"])
        before = control.row(Place(0, 0)).evaluated_through
        (ids,) = recorded_generations(control.recorded("evaluate")).values()
        control.check("evaluate", as_recorded((before or 0) + 1, ids))
        stack.advance(2 * 3600)
        assert control.row(Place(0, 0)).evaluated_through == before
        assert "is missing from LogGenerations" in logs.getvalue()
