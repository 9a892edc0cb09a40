"""The commands `kanon demo` and `kanon serve`, end to end."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kanon.cli.demo import MONTH
from kanon.cli.main import app
from kanon.client import Client
from kanon.demo.logs import DemoLog
from kanon.demo.machine import Machine, machine
from kanon.demo.replay import ReplayError, replay
from kanon.joinlog import LoggedJoin

START = 1_700_000_000 // 3600 * 3600
SECONDS = 60.0


def write_log(path: Path, clients: int, hours: int) -> Path:
    """Set ``large`` is joined by all clients in the first hour, ``small`` by two every hour."""
    rows = [f"{START + 60 + n},large,c{n}" for n in range(clients)]
    rows += [f"{START + hour * 3600 + 5},small,c{n}" for hour in range(hours) for n in range(2)]
    path.write_text("\n".join(["time,set,client", *rows]))
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def figure(output: str, name: str) -> str:
    found = re.search(rf"│ {name}[^\d]*([\d,.]+)", output)
    assert found is not None, output
    return found[1].replace(",", "")


def test_demo_replays_a_log_over_http_and_compares_every_answer(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", clients=120, hours=4)
    picture = tmp_path / "demo.svg"
    code, output = run("demo", "--log", str(log), "--plot", str(picture))
    assert code == 0, output
    assert figure(output, "joins ") == "128"
    assert figure(output, "sets ") == "2"
    assert figure(output, "evaluations") == "5"  # large once, small in each of four hours
    assert figure(output, "flips") == "1"  # large turns true at once
    assert figure(output, "answers") == "8"
    assert figure(output, "false positives") == "0"
    assert "stays true until its restart, also while its count is below k" in output
    assert figure(output, "false negatives") == "0"
    assert b"large turns true at 120 clients" in picture.read_bytes()


def test_demo_explains_why_it_refuses_a_log(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", clients=1, hours=1)
    code, output = run("demo", "--log", str(log), "--from", "2024-01-01")
    assert (code, "change --from or --to" in output) == (2, True)


def test_demo_replays_the_given_types_side_by_side(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", clients=40, hours=2)
    laws = {role: {"shape": "two-sided", "epsilon": "1", "truncation": 3} for role in ("threshold", "query")}
    types = {"low": {"k": 20, "window": 24, "laws": laws}, "high": {"k": 60, "window": 24, "laws": laws}}
    (file := tmp_path / "types.json").write_text(json.dumps(types))
    arguments = ["demo", "--log", str(log), "--types", str(file)]
    code, output = run(*arguments, "--plot", str(tmp_path / "demo.svg"))
    assert code == 0, output
    (flips,) = [line for line in output.splitlines() if "flips" in line]
    assert re.findall(r"\d+", flips) == ["1", "0"]  # 40 clients are enough only for the first type
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["demo-high.svg", "demo-low.svg"]
    assert "large is the first set that reads true: 40 clients by 2023-11-14 23:00 UTC" in output


def test_a_step_that_is_not_visible_at_its_tick_stops_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    log = DemoLog("log", START, [LoggedJoin(START + 1, "a", "1"), LoggedJoin(START + 3601, "a", "1")])
    monkeypatch.setattr(Machine, "advance_to", lambda self, moment: setattr(self, "_now", moment))  # no evaluation
    late = pytest.raises(ReplayError, match=f"step None, but the tick of step {START // 3600} has passed")
    with machine(MONTH, 3600, START, 1) as service, late:
        replay(service, log, ["fledge"], lambda _: None)


def test_one_seed_gives_one_demo(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", clients=50, hours=24)
    pictures = []
    for name, seed in (("one", "1"), ("again", "1"), ("other", "2")):
        code, output = run("demo", "--log", str(log), "--plot", str(tmp_path / f"{name}.svg"), "--seed", seed)
        assert code == 0, output
        pictures.append((tmp_path / f"{name}.svg").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail if it never does."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """The address of `kanon serve` on a free port, stopped as by Ctrl-C."""
    with console(*options) as (address, _):
        yield address


@contextmanager
def console(*options: str) -> Iterator[tuple[str, str]]:
    """The same, with the token of its console."""
    command = [sys.executable, "-m", "kanon.cli.start", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            printed = ""
            while "/v1/types/fledge\n" not in printed.replace("/sets", "/sets\n"):
                line = process.stdout.readline()
                assert line, process.stderr.read()
                printed += line
            (address,) = set(re.findall(r"http://127\.0\.0\.1:\d+", printed))
            yield address, re.findall(r"Console: .*/#(\S+)", printed)[0]
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
            output, errors = process.stdout.read(), process.stderr.read()  # `communicate` forgets buffered lines
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, errors
    assert "Stopping." in output
    assert f"reports demo-service --url {address}" in output
    assert [line for line in errors.splitlines() if not line.startswith("starting the service ...")] == []


def test_serve_answers_the_examples_it_prints_and_stops_cleanly() -> None:
    with serving() as address:
        with Client(address) as client:
            client.join("fledge", "aGVsbG8", "client-1")
            assert client.status("fledge", "aGVsbG8").k_anonymous is False
            asked = {"setsForType": [{"type": "fledge", "hashes": ["aGVsbG8", "d29ybGQ"]}]}
            answer = client.call("POST", "/v1:query", asked)
            assert answer["kAnonymousSets"] == [{"type": "fledge", "hashes": []}]
            assert client.type("fledge")["period"] == 10
        code, output = run("doctor", "--url", address, "--secrets")
        assert code in (0, 1)
        assert "fingerprints of join" in output
        # A busy machine evaluates its first steps late, and the doctor says so.
        until(lambda: run("doctor", "--url", address, "--secrets")[0] == 0)
