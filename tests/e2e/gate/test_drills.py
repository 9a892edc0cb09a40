"""The drills of docs/guides/operate.md, executed as written on both local engines. Rows are copied for a restore."""

import json
import random
import re
import shlex
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.gate.storage.aws.true_objects import step_of
from kanon.local import Stack
from tests.conftest import START
from tests.e2e.gate.backups import RUNBOOK, objects, put_back, put_object, rows, runbook_commands, states
from tests.e2e.gate.operating import deploy_generations
from tests.e2e.gate.oracle import Oracle
from tests.e2e.gate.test_mixtures import TYPES, join_some, next_steps
from tests.integration.gate.doctor_view import run_on
from tests.integration.gate.edge import base64url
from tests.moto_engine import ENGINES


@dataclass
class Drill:
    """A stack after four steps, and an operator's commands."""

    stack: Stack
    oracle: Oracle
    key: str = ""
    typed: list[str] = field(default_factory=list)

    def type(self, section: str) -> list[tuple[int, str]]:
        """Run the commands of a section; status and output of each."""
        done = []
        for line in runbook_commands(section):
            program, *words = [{"KEY": self.key}.get(word, word) for word in shlex.split(line)]
            self.typed.append(line)
            done.append((self._aws if program == "aws" else self._kanon)(words))
        return done

    def _aws(self, words: list[str]) -> tuple[int, str]:
        service, operation, *options = words
        given = dict(zip(options[::2], options[1::2], strict=True))
        client = self.stack.session.client(service)  # type: ignore[call-overload]
        call = getattr(client, operation.replace("-", "_"))
        call(**{"".join(part.title() for part in name[2:].split("-")): value for name, value in given.items()})
        return 0, ""

    def _kanon(self, words: list[str]) -> tuple[int, str]:
        at = words.index("--stack")
        assert words[at + 1] == "NAME"
        rest = [*words[:at], *words[at + 2 :]]
        if self.stack.engine.endpoint is None:
            return run_on(self.stack, *rest, answer="y\n")
        with closing(self.stack.serve()) as server:
            result = CliRunner().invoke(app, [*rest, "--url", server.url], input="y\n", env={"COLUMNS": "250"})
        return result.exit_code, result.output


@pytest.fixture(params=sorted(ENGINES))
def drill(request: pytest.FixtureRequest) -> Iterator[Drill]:
    parameters = {"Types": json.dumps(TYPES), "OutageAllowance": "172800"}
    with Stack(parameters, engine=ENGINES[request.param], start=START, seed=8) as stack:
        oracle, chance = Oracle(stack), random.Random(1)
        for _ in range(4):
            join_some(oracle, chance)
            assert oracle.finish_step() == 0
        yield Drill(stack, oracle)


def test_states_that_are_lost_are_computed_again_and_no_answer_changes(drill: Drill) -> None:
    before = states(drill.stack)
    newest = max(objects(drill.stack), key=step_of)
    for name in objects(drill.stack):
        if step_of(name) == step_of(newest):
            put_object(drill.stack, name, None)
    done = drill.type("States are lost or wrong")
    assert [code for code, _ in done] == [0, 0], done
    assert "Every released crossing is the same." in done[0][1]
    assert states(drill.stack) == before
    assert next_steps(drill.oracle) == (False, [0, 0])


def test_after_wrong_answers_only_a_new_generation_continues(drill: Drill) -> None:
    kept = min(map(step_of, objects(drill.stack)))
    statuses = [
        item for item in rows(drill.stack, "Statuses") if "crossings" in item and int(item["newest"]["N"]) > kept
    ]
    client, name = drill.stack.session.client("dynamodb"), drill.stack.storage.tables["Statuses"]
    client.delete_item(TableName=name, Key={"set_key": statuses[0]["set_key"]})
    done = drill.type("States are lost or wrong")
    assert done[0][0] == 2
    assert "the replay differs from what was released" in done[0][1]
    begin_generation(drill, "Wrong answers were released")


def test_after_statuses_was_restored_evaluation_stops_and_a_new_generation_continues(drill: Drill) -> None:
    backup = {"Statuses": rows(drill.stack, "Statuses")}
    assert next_steps(drill.oracle) == (False, [0, 0])
    put_back(drill.stack, backup, ("Statuses",))
    assert next_steps(drill.oracle)[0]
    begin_generation(drill, "Tables of different times")


def test_after_statuses_was_restored_a_new_generation_suppresses_what_was_suppressed(drill: Drill) -> None:
    true = [(name, set_id) for name in "ac" for set_id in (b"one", b"two")]
    drill.oracle.join_all([(*place, f"c{number}") for place in true for number in range(40)])
    assert drill.oracle.finish_step() == 0
    backup = {"Statuses": rows(drill.stack, "Statuses")}
    assert all(drill.oracle.answered[place] for place in true)
    for command, places in (("suppress", true), ("unsuppress", true[:1])):
        for name, set_id in places:
            words = ["operate", command, f"{name}/{base64url(set_id)}", "--yes", "--stack", "NAME"]
            assert drill._kanon(words)[0] == 0
    put_back(drill.stack, backup, ("Statuses",))
    begin_generation(drill, "Tables of different times")
    answers = drill.oracle.answers()
    assert [place for place in true if answers[place]] == true[:1]


def begin_generation(drill: Drill, section: str) -> None:
    """Run the command of a section, deploy what it prints, and see evaluation continue."""
    ((code, output),) = drill.type(section)
    assert code == 0, output
    first = deploy_generations(drill.stack, output.splitlines()[-1])
    drill.stack.advance_to((first + 1) * 3600 + 1800)
    (mark,) = [i["evaluated_through"]["N"] for i in rows(drill.stack, "Control") if "evaluated_through" in i]
    assert int(mark) == first


def test_every_drill_is_executed() -> None:
    (text,) = re.findall(r"^## Recovery\n(.*?)(?=^## )", RUNBOOK, re.MULTILINE | re.DOTALL)
    with_commands = [section.partition("\n")[0] for section in text.split("\n### ")[1:] if "```sh" in section]
    assert with_commands == ["Tables of different times", "States are lost or wrong", "Wrong answers were released"]
