"""Builds once per session: for AWS, and for this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kanon.local import Stack
from kanon.local.engines import Ministack
from kanon.local.source import ROOT


def make(target: str, variable: str, directory: Path, *path: Path) -> Path:
    """Run a build target of the Makefile into the directory its variable names, with ``path`` in front of PATH."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "KANON_"))}
    environment["PATH"] = os.pathsep.join(map(str, (*path, environment["PATH"])))
    command = ["make", "--no-print-directory", target, f"{variable}={directory}", f"VENV={sys.prefix}"]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return directory


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that records calls of docker and python3.13 by a build; both fail when called."""
    return tmp_path_factory.mktemp("calls") / "calls"


@pytest.fixture(scope="session")
def aws_build(tmp_path_factory: pytest.TempPathFactory, calls: Path) -> Path:
    """`make build` on a machine whose docker and python3.13 do not work."""
    broken = tmp_path_factory.mktemp("broken")
    for name in ("docker", "python3.13"):
        command = broken / name
        command.write_text(f'#!/bin/sh\necho {name} "$@" >> "{calls}"\nexit 99\n')
        command.chmod(0o755)
    return make("build", "BUILD_DIR", tmp_path_factory.mktemp("aws") / "build", broken)


@pytest.fixture(scope="session")
def host_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make build-host`."""
    return make("build-host", "HOST_BUILD_DIR", tmp_path_factory.mktemp("host") / "build")


@pytest.fixture(scope="session")
def runtime_boto3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the oldest boto3 the functions promise to run with, as a Lambda runtime has one."""
    directory = tmp_path_factory.mktemp("runtime") / "boto3"
    lock = ROOT / "requirements" / "lambda-runtime.txt"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*command, "--require-hashes", "--no-deps", "--target", directory, "-r", lock], check=True)
    return directory


@pytest.fixture(scope="session")
def emulated() -> Iterator[Stack]:
    """The stack on an emulator that another process can reach, on the real clock."""
    with Stack(engine=Ministack) as stack:
        yield stack


@pytest.fixture(params=["aws_build", "host_build"])
def build(request: pytest.FixtureRequest) -> Path:
    """Each of the two builds."""
    found: Path = request.getfixturevalue(request.param)
    return found
