"""Runs the blocks of a guide as a reader would: in an empty directory, with the programs of this checkout."""

import os
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

from tests.paths import ROOT


def run_blocks(script: str, folder: Path, seconds: int) -> "subprocess.CompletedProcess[str]":
    """Run a script with `kanon` and `python3`, in the new folder `work`."""
    (folder / "bin").mkdir()
    for name, words in (("kanon", "-m kanon.cli.start "), ("python3", "")):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        program.chmod(0o755)
    (work := folder / "work").mkdir()
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.run(
        ["bash", "-e"],
        input=script,
        env=environment,
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def free_port() -> int:
    """A port of loopback that nobody uses: below those that the system gives to connections and other tests."""
    for port in range(10_000 + os.getpid() % 20_000, 32_768):
        with closing(socket.socket()) as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")
