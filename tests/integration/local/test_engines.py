"""ministack as a child process: it listens on loopback only, and ends with its parent."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kanon import aws
from kanon.local import engines
from kanon.local.engines import Ministack
from kanon.local.source import ROOT

LISTENING = "0A"


def processes_below(pid: int) -> set[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {pid}.union(*(processes_below(int(child)) for child in children))


def sockets_of(pids: set[int]) -> set[str]:
    links = [fd.readlink() for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir()]
    return {str(link)[8:-1] for link in links if str(link).startswith("socket:[")}


def addresses(pid: int) -> list[tuple[str, int]]:
    """Where a process and its children listen: hexadecimal address and port."""
    mine = sockets_of(processes_below(pid))
    rows = [
        row.split()
        for table in ("tcp", "tcp6", "udp", "udp6")
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    found = [row[1].rsplit(":", 1) for row in rows if row[9] in mine and row[3] in (LISTENING, "07")]
    return [(address, int(port, 16)) for address, port in found]


@pytest.fixture
def behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def engine() -> Iterator[Ministack]:
    made = Ministack()
    made.start()
    yield made
    made.stop()
    made.stop()  # twice is harmless


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ministack_listens_on_loopback_and_nowhere_else(engine: Ministack) -> None:
    engine.session().client("dynamodb").list_tables()
    engine.session().client("sqs").list_queues()
    engine.session().client("secretsmanager").list_secrets()
    assert engine.endpoint is not None
    port = int(engine.endpoint.rpartition(":")[2])
    assert addresses(engine.pid) == [("0100007F", port)]


@pytest.mark.usefixtures("behind_a_proxy")
def test_a_proxy_of_the_shell_is_not_used_for_the_engine(engine: Ministack) -> None:
    assert engine.session().client("dynamodb", config=aws.CONFIG).list_tables()["TableNames"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child could not bind the port, either")
def test_the_port_of_a_starting_engine_is_given_to_no_other_process() -> None:
    with engines._held_port() as port, socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", port))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ministack_ends_when_its_parent_is_killed() -> None:
    program = "from kanon.local.engines import Ministack; e = Ministack(); e.start(); print(e.pid, flush=True); input()"
    paths = f"{ROOT}:{ROOT / 'shared'}"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": paths},
        cwd=ROOT,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 60
    while _alive(child) and time.monotonic() < deadline:
        pass
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_missing_ministack_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MINISTACK_PYTHON", ROOT / ".venv-nothing" / "bin" / "python")
    with pytest.raises(ModuleNotFoundError, match="ministack"):
        Ministack().start()
