"""The commands of the Containerfile install and run the service in an environment that has nothing else.

There is no engine here: its RUN lines run in a virtual environment, its ENTRYPOINT and HEALTHCHECK as processes. These
have no rights if the tests run as root and everybody may use the interpreter.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kanon.client import Bearer, Client, Join, value_id
from tests.infrastructure.containerfile import ROOT, instructions

pytestmark = pytest.mark.build
FOUND = instructions((ROOT / "Containerfile").read_text())
TYPE = '{"k": 50, "window": 24, "profile": "published"}'
FOR_ALL = all(path.stat().st_mode & 0o001 for path in Path(sys.base_prefix, "bin").resolve().parents)
NOBODY = 10_001 if os.geteuid() == 0 and FOR_ALL else None


def one(name: str) -> str:
    (found,) = (each.rest for each in FOUND if each.name == name)
    return found


@dataclass(frozen=True)
class Image:
    """What the commands of the Containerfile made, in a folder in place of the root."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    def start(self, *command: str) -> subprocess.Popen[str]:
        settings = dict(pair.split("=", 1) for pair in one("ENV").replace("/data", str(self.data)).split())
        return subprocess.Popen(
            [part.replace("/data", str(self.data)) for part in command],
            cwd="/",
            env={"PATH": f"{self.root / 'venv' / 'bin'}:/usr/bin:/bin", **settings},
            user=NOBODY,
            group=NOBODY,
            extra_groups=None if NOBODY is None else [],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str) -> tuple[int, str, str]:
        with self.start(*command) as process:
            output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    root = tmp_path_factory.mktemp("root")
    for folder in (root, root.parent, root.parent.parent):
        folder.chmod(0o755)
    (root / "tmp").mkdir()
    (root / "tmp" / "serve.txt").write_text((ROOT / "requirements" / "serve.txt").read_text())
    wheel = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", root / "tmp"]
    subprocess.run(wheel, cwd=ROOT, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True)
    owner = str(os.geteuid() if NOBODY is None else NOBODY)
    for each in FOUND:
        if each.name == "RUN":
            command = re.sub(r"(?<![\w.])/(tmp|data)", rf"{root}/\1", each.rest)
            command = command.replace("10001", owner) if NOBODY is None else command
            outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
            inside = {**outside, "PATH": f"{root / 'venv' / 'bin'}:{os.environ['PATH']}"}
            done = subprocess.run(command, shell=True, env=inside, check=False, capture_output=True, text=True)
            if done.returncode:
                pytest.fail(f"{command} failed; is a package registry reachable?\n{done.stderr[-2000:]}")
    return Image(root)


@pytest.fixture
def served(image: Image) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The ENTRYPOINT on a free port, and its address."""
    process = image.start(*json.loads(one("ENTRYPOINT")), "--port", "0", "--period", "2", "--type", TYPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        yield process, json.loads(line)["url"].replace("0.0.0.0", "127.0.0.1")
    finally:
        process.kill()
        process.communicate()


def test_the_image_answers_is_healthy_and_stops(image: Image, served: tuple[subprocess.Popen[str], str]) -> None:
    process, url = served
    code, key, told = image.run("kanon", "operate", "api-key", "--data", "/data")
    assert code == 0, told
    key = key.strip()

    with Client(url, auth=Bearer(key)) as client:
        assert client.type("fledge")["period"] == 2
        client.join_many(Join("fledge", value_id("popular"), f"client-{n}") for n in range(120))
    check = one("HEALTHCHECK").partition("CMD ")[2].replace("127.0.0.1:8000", url.removeprefix("http://"))
    assert image.run(*json.loads(check)) == (0, "", "")
    code, findings, _ = image.run("kanon", "doctor", "--data", "/data", "--json")
    assert {each["verdict"] for each in json.loads(findings)["findings"]} == {"OK"}, findings
    process.send_signal(getattr(signal, one("STOPSIGNAL")))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert [json.loads(line)["level"] for line in output.splitlines()] == ["INFO"] * len(output.splitlines())
    assert "let a proxy that speaks HTTPS forward them" in errors
    check = one("HEALTHCHECK").partition("CMD ")[2].replace("127.0.0.1:8000", url.removeprefix("http://"))
    assert image.run(*json.loads(check))[0] != 0


def test_the_data_are_for_the_service_alone(image: Image) -> None:
    found = [image.data, *image.data.rglob("*")]
    assert (image.data / "secrets" / "set-pepper").exists()
    assert [path for path in found if "secrets" in str(path) and path.stat().st_mode & 0o077] == []
    assert image.data.stat().st_mode & 0o077 == 0


def test_the_installation_is_small_and_knows_no_aws(image: Image) -> None:
    (site,) = (image.root / "venv").glob("lib/python*/site-packages")
    names = {path.name for path in site.iterdir()}
    assert {"kanon", "jwt", "waitress"} <= names
    assert not {"boto3", "botocore", "ministack", "moto", "matplotlib", "duckdb"} & names


def test_the_commands_at_its_top_are_those_that_it_is_made_for() -> None:
    text = (ROOT / "Containerfile").read_text()
    commands = [shlex.split(line[4:]) for line in text.splitlines() if line.startswith("#   podman")]
    assert [command[1] for command in commands] == ["build", "run"]
    assert {"--read-only", "--cap-drop"} <= set(commands[1])
    assert one("VOLUME") in commands[1][commands[1].index("--volume") + 1]
