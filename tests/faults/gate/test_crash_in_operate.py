"""An operator's command dies before or after each of its AWS calls. Run again, it completes, and nothing wrong is left.

States, tables and answers are compared with those after a command that was not interrupted. Meanwhile leases expire,
and in every second run the schedule starts an evaluation: it stops, or it changes no later answer. At the end a sweep
deletes what the command left.
"""

import io
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import typer

from kanon.cli import operate
from kanon.client import encoded
from kanon.errors import UndecodableMembersError
from kanon.gate import forgetting
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.true_objects import step_of
from kanon.operate.changes import ChangeRefusedError
from kanon.operate.stacks import RunningStack, described_stack
from tests.faults.failures import dies_after, dies_before
from tests.faults.fault_injector import Behaviour, Call, ProcessDied, Worker, undisturbed
from tests.faults.gate.simulated_stack import FIRST_STEP, PERIOD, SCHEDULE_OFFSET, TABLES, TYPES, SimulatedStack
from tests.faults.gate.test_crash_at_every_call import by_digest

ONE_IN = {"every": 1, "all": 7}.get(os.environ.get("FAULTS", ""))
"""Of the ends, every so-many-th; None: two."""
SLOTS, HISTORY = 2, 4
SETS = tuple((name, bytes([n])) for n in range(3) for name in TYPES)
NOTHING_LEFT = (typer.BadParameter, ChangeRefusedError)
"""What a command that is run again says if the first run had done everything."""
OF_RUNS = {"lease_until", "lease_holder", "run", "manifest", "kept", "basis", "draft", "written", "stamp"}
"""What depends on the number of runs: also the names of objects; and what is random."""


@dataclass
class Used:
    """A stack in two slots after some steps."""

    simulation: SimulatedStack
    file: Path

    def __post_init__(self) -> None:
        chance = random.Random(9)
        for step in range(FIRST_STEP, FIRST_STEP + HISTORY):
            self.join(step, chance)
            self.evaluate(step)
        self.join(FIRST_STEP + HISTORY, chance)
        self.beginning = self.simulation.save()

    def join(self, step: int, chance: random.Random) -> None:
        for place in self.simulation.sets:
            if chance.random() < 0.7:
                clients = [chance.randrange(16) for _ in range(chance.randrange(1, 9))]
                self.simulation.join(place, clients, step * PERIOD + 5)

    def evaluate(self, step: int) -> None:
        self.simulation.set_time((step + 1) * PERIOD + SCHEDULE_OFFSET)
        self.simulation.run_queue(range(SLOTS))

    @cached_property
    def running(self) -> RunningStack:
        """As the commands find it; every call of its clients passes the fault injector."""
        stack = self.simulation.stack
        return described_stack(stack.describe(), self.simulation.faults.attach(stack.engine.session()), None)

    def tables(self) -> dict[str, Any]:
        return {
            table: {
                key: {name: by_digest(value) for name, value in item.items() if name not in OF_RUNS}
                for key, item in self.simulation.stored(table).items()
            }
            for table in TABLES
        } | {"States": self.states()}

    def states(self) -> Any:
        """The columns of all parts, and how many manifests are kept; None if a part is missing."""
        try:
            columns = self.simulation.columns()
        except UndecodableMembersError:
            return None
        return columns, {place: len(row.kept) for place, row in self.running.control.rows()}

    def expire_leases(self) -> None:
        client, control = self.simulation.dynamodb, self.simulation.stack.storage.tables["Control"]
        for slot in range(SLOTS):
            key = {"name": {"S": f"slot#0#{slot}"}}
            client.update_item(TableName=control, Key=key, UpdateExpression="REMOVE lease_until, lease_holder")


class Ending(NamedTuple):
    """The tables after the command; those and the answers an hour later; and the calls of its first run."""

    done: dict[str, Any]
    later: dict[str, Any]
    answers: Any
    calls: list[str]


@dataclass(frozen=True)
class Command:
    """A command: what comes before it, and its arguments.

    Attributes:
        between: whether an evaluation may come between its runs.
        hours: until evaluation has caught up.
    """

    name: str
    prepare: Callable[[Used], dict[str, Any]]
    between: bool = True
    hours: int = 1

    def run(self, used: Used, arguments: dict[str, Any], behaviour: Behaviour = undisturbed) -> tuple[Worker, str]:
        """Run the command once. Returns its worker and its output."""
        worker, command, output = Worker(behaviour), getattr(operate, self.name).__wrapped__, io.StringIO()
        random.seed(1)
        with used.simulation.running(worker, float("inf")), suppress(ProcessDied), redirect_stdout(output):
            command(used.running, **arguments, yes=True)
        return worker, output.getvalue()

    def ending(self, used: Used, behaviour: Behaviour | None = None, *, evaluated: bool = False) -> Ending:
        """Run the command, with a behaviour twice, and what follows."""
        simulation = used.simulation
        random.seed(1)
        simulation.restore(used.beginning)
        used.__dict__.pop("running", None)
        functions = dict(simulation.stack.functions)
        try:
            arguments = self.prepare(used)
            before = used.tables()
            first, output = self.run(used, arguments, behaviour or undisturbed)
            if behaviour is not None:
                used.expire_leases()
                if evaluated:
                    simulation.run_queue(range(SLOTS))
                with suppress(*NOTHING_LEFT):
                    output = self.run(used, arguments)[1]
            done = used.tables()
            assert done != before
            if self.name == "new_generation":
                deploy(used, LOG_GENERATIONS=output.splitlines()[-1])
            for _ in range(self.hours):
                now = simulation.true_time()
                simulation.set_time(now + PERIOD)
                simulation.run_queue(range(SLOTS))
            answers = simulation.answers((now // PERIOD + 2) * PERIOD + simulation.publish_delay)
            simulation.sweep(Worker(undisturbed))
            assert simulation.unreferenced() == set()
            return Ending(done, used.tables(), answers, first.calls)
        finally:
            simulation.stack.functions.update(functions)


def deploy(used: Used, **changes: str) -> None:
    """Give the functions other variables."""
    functions = used.simulation.stack.functions
    for name, function in functions.items():
        variables = {f"KANON_{key}": value for key, value in changes.items() if f"KANON_{key}" in function.environment}
        functions[name] = replace(function, environment={**function.environment, **variables})


def after_an_outage(used: Used) -> dict[str, Any]:
    used.simulation.set_time(used.simulation.true_time() + 55 * PERIOD)
    return {}


def without_a_type(used: Used) -> dict[str, Any]:
    deploy(used, TYPES=json.dumps({name: type_ for name, type_ in TYPES.items() if name != "one"}))
    return {"type_name": "one"}


def without_states(used: Used) -> dict[str, Any]:
    """The objects of slot 0 since its first step are lost."""
    simulation, place = used.simulation, Place(0, 0)
    row = used.running.control.row(place)
    parts = simulation.parts(place)
    names = [piece.name for piece in parts.list_of(row.manifest or "").pieces]
    for name in (row.manifest or "", *names):
        if step_of(name) == FIRST_STEP:
            continue
        simulation.s3.delete_object(Bucket=used.running.evaluate.states_bucket, Key=name)
    return {}


def from_earlier_states(used: Used) -> dict[str, Any]:
    without_states(used)
    return {"from_": None}


def a_set(used: Used) -> dict[str, Any]:
    type_name, set_id = used.simulation.sets[0]
    return {"place": f"{type_name}/{encoded(set_id)}"}


def a_client(used: Used) -> dict[str, Any]:
    """A client with joins in every set, evaluated and not, single and packed."""
    for place in used.simulation.sets:
        used.simulation.join(place, [3], used.simulation.true_time())
    used.file.write_text("".join(f"{encoded(set_id)}\n" for _, set_id in used.simulation.sets))
    return {"client": "3", "sets": used.file, "base64": True}


def a_suppressed_set(used: Used) -> dict[str, Any]:
    used.running.statuses.suppress(used.simulation.keys[used.simulation.sets[0]])
    return a_set(used)


COMMANDS = [
    Command("skip", after_an_outage, hours=12),
    Command("retire", without_a_type),
    Command("repair", without_states),
    Command("replay", from_earlier_states),
    Command("new_generation", lambda _: {}, between=False),  # an evaluation between two runs moves its first step
    Command("suppress", a_set),
    Command("unsuppress", a_suppressed_set),
    Command("forget", a_client),
]


def chosen(calls: list[str]) -> list[tuple[int, Any]]:
    """The default: one end after the last kind of write has begun, and one before the last call."""
    numbered = reversed([*enumerate(calls, 1)])
    writes = {name: number for number, name in numbered if re.search("Put|Update|Delete|Write", name)}
    return [(max(writes.values()), dies_after), (len(calls), dies_before)]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    with SimulatedStack(SETS, slots=SLOTS, parameters={"OutageAllowance": "172800"}) as simulation:
        yield Used(simulation, tmp_path_factory.mktemp("sets") / "sets.txt")


@pytest.fixture(autouse=True)
def the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs that forget a client choose the same random tokens."""
    monkeypatch.setattr(forgetting, "secrets", SimpleNamespace(randbits=random.getrandbits))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_that_dies_at_any_call_completes_when_it_is_run_again(
    used: Used, command: Command, record_property: Callable[[str, object], None]
) -> None:
    whole = command.ending(used)
    assert whole.later != whole.done  # the evaluation that follows makes progress
    points = [(number, dies) for number in range(1, len(whole.calls) + 1) for dies in (dies_before, dies_after)]
    for turn, (number, dies) in enumerate(points[::ONE_IN] if ONE_IN else chosen(whole.calls)):
        evaluated = command.between and turn % 2 == 1

        def behaviour(call: Call, number: int = number, dies: Any = dies) -> Any:
            return dies(call, used.simulation.pass_time) if call.number == number else call.send()

        found = command.ending(used, behaviour, evaluated=evaluated)
        assert found.answers == whole.answers, (number, dies.__name__)
        if not evaluated:
            assert (found.done, found.later) == (whole.done, whole.later), (number, dies.__name__)
    record_property("fault_points", turn + 1)
