"""A signal or a closed output ends the program with one line and no traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kanon.cli import signals
from kanon.cli.main import app
from tests.unit.cli.commands import run

AT_AN_IMPORT = """
class Finder:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
"""
AT_A_CHECK = """
class Finder:
    def find_spec(self, *_):
        return None
    def find_distributions(self, _):
        os.kill(os.getpid(), signal.SIGINT)
        return []
sys.meta_path.insert(0, Finder())
"""
AT_THE_START = """
fstat = os.fstat
def interrupted(number):
    os.kill(os.getpid(), signal.SIGHUP)
    return fstat(number)
os.fstat = interrupted
"""
IN_DUCKDB = """
import threading
from kanon.release.engines import duckdb
executed = duckdb._executed
def long(connection, *_):
    executed(connection, lambda: connection.execute("create temp table big as select range as x from range(500000)"))
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    asked = "select count(*) from big a, big b where a.x % 7 < b.x % 11"
    return executed(connection, lambda: connection.execute(asked))
duckdb._executed = long
"""
RELEASE = "release joins.csv --dataset d --group set --epsilon 1 --delta 1e-6"


def started(arguments: str, before: str = "", **options: object) -> "subprocess.CompletedProcess[str]":
    """Run the program in a process of its own, after a preparation."""
    code = f"import os, signal, sys\nsys.argv = {['kanon', *arguments.split()]}\n"
    code += (
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, nohup SIGHUP\n"
        f"signal.signal(signal.SIGHUP, signal.SIG_DFL)\n{before}\n"
    )
    code += "from kanon.cli.start import main\nmain()"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (AT_AN_IMPORT.replace("typer", "kanon.cli.signals").replace("TERM", "INT"), signal.SIGINT),
        (AT_THE_START, signal.SIGHUP),
        (AT_A_CHECK, signal.SIGINT),
        (AT_AN_IMPORT, signal.SIGTERM),
        (IN_DUCKDB, signal.SIGINT),
    ],
)
def test_a_signal_ends_the_program_with_one_line(moment: str, number: int, tmp_path: Path) -> None:
    (tmp_path / "joins.csv").write_text("time,set,client\n1767225600,a,1\n")
    ended = started(RELEASE, moment, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (128 + number, "kanon: interrupted\n")


def test_a_closed_standard_output_is_named_and_no_file_gets_its_number() -> None:
    ended = started("--version", preexec_fn=lambda: os.close(1))
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "standard output is closed: leave it open, or redirect it" in ended.stderr


@pytest.mark.parametrize("arguments", ["--version", "cost --table scale"])
def test_a_reader_that_ends_early_is_no_error(arguments: str) -> None:
    read, write = os.pipe()
    os.close(read)
    ended = started(arguments, stdout=write)
    os.close(write)
    assert ended.stderr == ""


def test_an_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = started("--version", "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + AT_AN_IMPORT.replace("TERM", "HUP"))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_error_after_a_signal_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("plan", "--epsilon", "x")[1].startswith("kanon plan: ")
    monkeypatch.setattr(signals, "_received", [signal.SIGINT])
    assert run("plan", "--epsilon", "x") == (1, "")


def test_a_name_from_outside_is_shown_and_has_no_effect_on_the_terminal(tmp_path: Path) -> None:
    status, output = run("reports", "keys", "--private", "/proc/x/\x1b[2J\n\u202e.json")
    assert status == 2
    assert "/proc/x/\\x1b[2J\\n\\u202e.json cannot be written" in output
    assert output.count("\n") == 1


def test_a_group_from_data_is_shown_and_is_no_markup(tmp_path: Path) -> None:
    (log := tmp_path / "log.csv").write_text("set,client\n" + "".join(f"[/x]\x1b[2J,c{n}\n" for n in range(2)))
    shown = CliRunner().invoke(app, ["risk", "no-noise", str(log), "--k", "3"]).output
    assert "[/x]\\x1b[2J" in shown
    assert "\x1b" not in shown
