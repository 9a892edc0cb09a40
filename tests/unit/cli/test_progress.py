"""Commands that may take longer than two seconds show what they do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app

EVENTS = "time,client,key,value\n" + "".join(f"{1_700_000_000 + n},c{n},{n % 3},1\n" for n in range(9))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the commands say of their work, in a folder with a log and a table of events."""
    told: list[str] = []

    @contextmanager
    def working(what: str) -> Iterator[None]:
        told.append(what)
        yield

    for command in ("doctor", "plan", "release", "reports", "risk", "serve", "simulate"):
        monkeypatch.setattr(f"kanon.cli.{command}.working", working)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "joins.csv").write_text("time,set,client\n" + "".join(f"{n},set-{n % 2},c{n}\n" for n in range(9)))
    (tmp_path / "events.csv").write_text(EVENTS)
    (tmp_path / "keys.txt").write_text("1\n2\n")
    return told


def run(command: str) -> None:
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output


def test_commands_that_read_a_log_say_so(told: list[str]) -> None:
    run("risk uniqueness joins.csv")
    run("risk no-noise joins.csv --k 3")
    run("risk sketch-leak joins.csv --group set-1")
    run("simulate joins.csv --profile published")
    assert told == [
        *("reading the log", "computing the report"),
        *("reading the log", "computing epsilon and delta"),
        *("reading the log", "attacking the sketch"),
        *("reading the log", "deciding every set"),
    ]


def test_commands_that_encrypt_or_open_reports_say_so(told: list[str]) -> None:
    run("reports keys")
    run("reports simulate events.csv")
    run("reports domain keys.txt")
    run("reports aggregate reports.avro --domain domain.avro --keys private-keys.json --any-age")
    assert told == ["encrypting reports", "opening and adding up the reports"]


@pytest.mark.slow
def test_commands_that_draw_say_so(told: list[str]) -> None:
    run("plan --paper figure.png")
    assert told == ["drawing Figure 1"]


def test_a_command_that_starts_the_service_says_so(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class RefusedError(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise RefusedError

    monkeypatch.setattr("kanon.local.Stack", refuse)
    assert isinstance(CliRunner().invoke(app, ["serve"]).exception, RefusedError)
    assert told == ["starting the service"]
