"""Clients that others' generators make from docs/openapi.json compile, are typed, and work against a running service.

`make clients-test` installs the generators.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from infra.openapi import WHOLE
from kanon.local import Stack
from tests.integration.reports.test_over_http import publish
from tests.paths import ROOT
from tests.unit.reports import made

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
DESCRIPTION = WHOLE.files[-1]
VECTOR = (ROOT / "docs" / "reference" / "vectors.json").read_text()
PYTHON = ROOT / ".venv-clients" / "bin"
NODE = HERE / "node_modules" / ".bin"


def run(*command: str | Path, folder: Path, given: str = "", **environment: str) -> str:
    """The output of a command, which must succeed."""
    ran = subprocess.run(
        command,
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A service with reports, at the time of the vector."""
    start = int(json.loads(json.loads(VECTOR)["report"]["sharedInfo"])["scheduled_report_time"])
    with Stack({"Reports": "ON"}, start=start) as stack:
        publish(stack, start)
        server = stack.serve()
        try:
            yield server.url
        finally:
            server.close()


@pytest.fixture(scope="module")
def python_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package `generated`, and of the program that uses it."""
    folder = tmp_path_factory.mktemp("python")
    path = f"{PYTHON}{os.pathsep}{os.environ['PATH']}"  # it formats the package with its own ruff
    said = run(
        *(PYTHON / "openapi-python-client", "generate", "--path", DESCRIPTION),
        *("--output-path", folder / "generated", "--meta", "none", "--fail-on-warning"),
        folder=folder,
        PATH=path,
    )
    assert "WARNING" not in said
    shutil.copy(HERE / "use_client.py", folder)
    return folder


MISTAKES = {
    "join": ('{ client: "client-1" }', '{ cliant: "client-1" }'),
    "query": ("setsForType: [{ type", "setsForTypes: [{ type"),
    "answer": ("one.bounds.watched.epsilon", "one.bounds.watched.epsilom"),
    "parameter": (', day: "2026-11-20" }', " }"),
}
"""A part of the TypeScript program, and the same with a mistake."""


class Compiled(NamedTuple):
    """The folder of compiled programs, and what the compiler said."""

    folder: Path
    said: str


@pytest.fixture(scope="module")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The program that uses the generated types, and one for each mistake, compiled strictly."""
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "node_modules").symlink_to(HERE / "node_modules")
    shutil.copy(HERE / "package.json", folder)
    run(NODE / "openapi-typescript", DESCRIPTION, "-o", "api.d.ts", folder=folder)
    program = (HERE / "use_client.ts").read_text()
    (folder / "right.ts").write_text(program)
    for name, (right, wrong) in MISTAKES.items():
        assert right in program
        (folder / f"{name}.ts").write_text(program.replace(right, wrong))
    options = ("--strict", "--target", "es2022", "--module", "nodenext", "--types", "node")
    files = ("right.ts", *(f"{name}.ts" for name in MISTAKES))
    command = (NODE / "tsc", *options, *files)
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    return Compiled(folder, ran.stdout)


def check(answered: str) -> None:
    """What every client must have been answered."""
    found: dict[str, Any] = json.loads(answered)
    assert ["fledge", 50] in [one[:2] for one in found["types"]]
    assert all(one[2] > 0 for one in found["types"])
    unknown = "no such type (did you mean fledge?): GET /v1/types lists those of this deployment"
    assert found["results"] == ["joined"] * 3 + [unknown]
    assert found["sets"] == [{"type": "fledge", "hashes": []}]
    assert datetime.fromisoformat(found["nextUpdate"]) > datetime(2026, 11, 20, tzinfo=UTC)
    assert found["kAnonymous"] is False
    assert found["refused"] == unknown
    assert found["keys"] == [made.KEY_ID]
    assert (found["taken"], found["budget"]) == (200, 24)


def test_a_generated_python_client_works(python_client: Path, url: str) -> None:
    check(run(PYTHON / "python", "use_client.py", url, folder=python_client, given=VECTOR))


def test_a_generated_python_client_is_typed(python_client: Path) -> None:
    # Only the program is judged: the generated package itself is not strict.
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent")
    mypy = (*mypy, "--python-executable", PYTHON / "python")
    run(*mypy, "use_client.py", folder=python_client)
    program = python_client / "misspelt.py"
    right = (HERE / "use_client.py").read_text()
    program.write_text(right.replace("QueryBody(sets_for_type=", "QueryBody(set_for_type="))
    with pytest.raises(AssertionError, match="sets_for_type"):
        run(*mypy, program.name, folder=python_client)


def test_a_generated_typescript_client_works(typescript: Compiled, url: str) -> None:
    assert "right.ts" not in typescript.said
    check(run("node", "right.js", url, folder=typescript.folder, given=VECTOR))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_does_not_compile(typescript: Compiled, name: str) -> None:
    assert re.search(rf"^{name}\.ts\(\d+,\d+\): error ", typescript.said, re.MULTILINE)
