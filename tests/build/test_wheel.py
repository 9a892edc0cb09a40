"""The wheel, installed into empty environments, runs from any folder.

The environments hold the pinned versions and nothing else, so these tests need a package registry, as `make install`
does. They fail with the installer's reason where there is none.
"""

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from kanon import __version__
from kanon.client import Client, Join, value_id
from tests.paths import ROOT

pytestmark = pytest.mark.build
LOCKS = ("demo", "local", "dev")
"""The pins of a user's environment: those of the first file, then those that only the second file has."""
NOON = 1_700_000_000 // 3600 * 3600


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = directory.glob("*.whl")
    return built


def pins() -> dict[str, str]:
    """The lines of the locks by package: a version and its hashes."""
    found: dict[str, str] = {}
    for lock in LOCKS:
        text = (ROOT / "requirements" / f"{lock}.txt").read_text()
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            found.setdefault(line.partition("==")[0], line)
    return found


class Ran(NamedTuple):
    code: int
    output: str
    errors: str


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and an empty folder in which its `kanon` runs."""

    path: Path

    def start(self, *arguments: str, folder: Path) -> subprocess.Popen[str]:
        variables = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "COLUMNS": "200"}
        return subprocess.Popen(
            [self.path / "bin" / "kanon", *arguments],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, folder: Path) -> Ran:
        with self.start(*arguments, folder=folder) as process:
            output, errors = process.communicate(timeout=120)
        return Ran(process.returncode, output, errors)


class Installer:
    """Installs the wheel with extras, each set of extras once."""

    def __init__(self, wheel: Path, directory: Path) -> None:
        self._wheel, self._directory = wheel, directory
        self._constraints = directory / "pins.txt"
        self._constraints.write_text("\n".join(pins().values()))

    def environment(self, extras: str) -> Environment:
        path = self._directory / (extras.replace(",", "-") or "none")
        if not path.exists():
            wanted = f"kanon-dp[{extras}] @ {self._wheel.as_uri()}"
            self._uv("venv", "--quiet", "--python", sys.executable, str(path))
            failure = self._uv(
                "pip", "install", "--quiet", "--python", str(path), "--no-build",
                "--constraint", str(self._constraints), wanted,
            )  # fmt: skip
            if failure:
                shutil.rmtree(path)
                pytest.fail(f"the pinned packages were not installed; is a package registry reachable?\n{failure}")
        return Environment(path)

    @staticmethod
    def _uv(*arguments: str) -> str:
        command = [Path(sys.prefix, "bin", "uv"), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.stderr[-2000:] if done.returncode else ""


@pytest.fixture(scope="module")
def installer(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installer:
    return Installer(wheel, tmp_path_factory.mktemp("environments"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder, with a join log in it: 120 clients join one set, one joins another."""
    rows = [(NOON + 60 + n, "large", f"c{n}") for n in range(120)] + [(NOON + 4000, "small", "c1")]
    with (tmp_path / "joins.csv").open("w") as file:
        csv.writer(file).writerows([("time", "set", "client"), *rows])
    return tmp_path


def test_the_wheel_holds_the_package_the_template_and_the_handlers_and_nothing_else(installer: Installer) -> None:
    (site,) = installer.environment("").path.glob("lib/python*/site-packages")
    (record,) = site.glob("kanon_dp-*.dist-info/RECORD")
    files = {row[0] for row in csv.reader(record.read_text().splitlines()) if not row[0].startswith("..")}
    assert {name.split("/")[0].partition("-")[0] for name in files} == {"kanon", "kanon_dp"}
    source = {name.removeprefix("kanon/local/source/") for name in files if name.startswith("kanon/local/source/")}
    assert "template.yaml" in source
    assert {f"infra/{name}.yaml" for name in ("anonymous", "edge", "observability", "reports")} <= source
    assert {f"functions/{name}/app.py" for name in ("join", "query", "evaluate")} <= source
    assert {"kanon/gate/openapi.json", "kanon/gate/docs.html"} <= files
    assert not [name for name in files if name.endswith(".pyc")]


@pytest.mark.parametrize("extras", ["", "aws", "desk", "reports", "local", "serve", "jwt", "async", "opentelemetry"])
def test_every_installed_package_is_pinned(installer: Installer, extras: str) -> None:
    found = {path.name for path in installer.environment(extras).path.glob("lib/python*/site-packages/*.dist-info")}
    names = {name.partition("-")[0].replace("_", "-").lower() for name in found}
    assert {"kanon-dp", "typer"} <= names <= {*pins(), "kanon-dp"}


def test_the_base_installation_is_small(installer: Installer) -> None:
    (site,) = installer.environment("").path.glob("lib/python*/site-packages")
    assert not {"numpy", "botocore", "boto3"} & {path.name for path in site.iterdir()}
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert size < 20_000_000


def test_the_service_of_one_machine_is_small_and_needs_no_aws(installer: Installer) -> None:
    (site,) = installer.environment("serve").path.glob("lib/python*/site-packages")
    assert not {"botocore", "boto3", "ministack", "moto", "matplotlib"} & {path.name for path in site.iterdir()}
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    print(f"{size / 1e6:.0f} MB")
    assert size < 100_000_000


ROOMS = {
    "": ("cli", "client", "joinlog", "noise"),
    "aws": ("dynamo", "gate", "http", "operate"),
    "desk": ("cost", "plan", "release", "risk", "simulate"),
    "reports": ("client", "reports"),
    "relay": ("client", "gateway"),
    "anonymous": ("credentials",),
    "async": ("client",),
    "local": ("audit", "local", "reports"),
    "serve": ("console", "demo", "serving"),
    "jwt": ("serving",),
    "listed": ("serving",),
}
"""The rooms that an extra brings everything for."""
CLIENTS = ("kanon.client.asynchronous", "kanon.client.reporting", "kanon.client.relaying")
"""The modules of the client that need the extra ``async``, ``reports``, and ``relay``."""
ANONYMOUS = (
    *("kanon.client.anonymous", "kanon.gate.admitting", "kanon.gate.enrol_routes", "kanon.gate.storage.disk.accounts"),
    *("kanon.gate.storage.aws.accounts", "kanon.serving.enrolment"),
)
"""Those that need the extra ``anonymous``."""
REPORTS_THERE = ("kanon.serving.reporting", "kanon.serving.released_keys")
"""Reports on one machine."""
OTHERS = {
    "": ("kanon.joinlog.batches", "kanon.joinlog.columns", "kanon.joinlog.numbered", *CLIENTS, *ANONYMOUS),
    "async": (*CLIENTS[1:], *ANONYMOUS),
    "aws": (
        "kanon.gate.sealing",
        "kanon.gate.listing",
        "kanon.operate.lister_key",
        *ANONYMOUS,
    ),
    "serve": (
        *("kanon.serving.tokens", *REPORTS_THERE, *ANONYMOUS, "kanon.serving.relayed"),
        *("kanon.demo.reported_log", "kanon.demo.released_log"),
    ),
    "desk": ("kanon.joinlog.batches", "kanon.release.engines.spark", "kanon.release.shared_stores"),
    "reports": (
        "kanon.reports.service",
        "kanon.reports.storage",
        "kanon.reports.collect_routes",
        CLIENTS[0],
        *ANONYMOUS,
    ),
    "jwt": (*REPORTS_THERE, *ANONYMOUS),
    "listed": ("kanon.serving.tokens", *REPORTS_THERE, *ANONYMOUS),
    "relay": (*CLIENTS[:2], *ANONYMOUS),
}
"""Modules of these rooms for other extras: tokens, Spark, ledgers in DynamoDB, functions and demo of reports."""
IMPORT = """
import importlib, pkgutil, sys
rooms, others = (tuple(text.split(",")) for text in sys.argv[1:])
for room in rooms:
    package = importlib.import_module(f"kanon.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"kanon.{room}.", onerror=lambda name: None):
        if not module.name.startswith(others):
            importlib.import_module(module.name)
"""


@pytest.mark.parametrize("extra", ROOMS)
def test_every_module_of_a_room_is_imported_with_the_extra_of_the_room_alone(
    installer: Installer, extra: str, tmp_path: Path
) -> None:
    others = (*OTHERS.get(extra, ()), "kanon.local.source")
    command = [installer.environment(extra).path / "bin" / "python", "-c", IMPORT, ",".join(ROOMS[extra])]
    ran = subprocess.run([*command, ",".join(others)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize(
    ("module", "extra", "missing"),
    [
        ("kanon.client.asynchronous", "async", "anyio"),
        ("kanon.client.reporting", "reports", ""),
        ("kanon.client.relaying", "relay", "cryptography"),
        ("kanon.credentials.arc", "anonymous", "Crypto"),
        ("kanon.opentelemetry", "opentelemetry", "opentelemetry"),
    ],
)
def test_a_module_of_an_extra_is_imported_with_it_and_names_it_without(
    installer: Installer, module: str, extra: str, missing: str, tmp_path: Path
) -> None:
    for extras in (extra, ""):
        command = [installer.environment(extras).path / "bin" / "python", "-c", f"import {module}"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        if extras:
            assert ran.returncode == 0, ran.stderr[-2000:]
        else:
            told = ran.stderr.splitlines()[-1]
            assert told.startswith(f"ImportError: {missing}"), told
            assert told.endswith(f" is missing: pip install 'kanon-dp[{extra}]'"), told


def test_rooms_of_extras_are_all_rooms() -> None:
    packages = {path.parent.name for path in (ROOT / "shared" / "kanon").glob("*/__init__.py")}
    assert packages == {room for rooms in ROOMS.values() for room in rooms}


def test_the_base_installation_prints_its_version(installer: Installer, folder: Path) -> None:
    assert installer.environment("").run("--version", folder=folder) == (0, f"kanon {__version__}\n", "")


def test_serve_answers_a_request_and_stops(installer: Installer, folder: Path) -> None:
    process = installer.environment("local").start("serve", "--port", "0", folder=folder)
    try:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
        with Client(found[0]) as client:
            assert client.type("fledge")["period"] == 10
            client.join_many(Join("fledge", value_id("popular"), f"client-{n}") for n in range(120))
            client.join("fledge", value_id("rare"), "client-1")
            sets = [("fledge", value_id(name)) for name in ("popular", "rare")]
            assert client.query(sets).k_anonymous <= {("fledge", value_id("popular"))}
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert "Stopping." in output


def test_demo_replays_a_log_and_draws_it(installer: Installer, folder: Path) -> None:
    ran = installer.environment("serve").run("demo", "--log", "joins.csv", folder=folder)
    assert ran.code == 0, ran.errors
    assert re.search(r"joins +\S* +121 ", ran.output.replace("│", " ")), ran.output
    assert b"large turns true" in (folder / "build" / "demo.svg").read_bytes()


def test_plan_draws_a_picture(installer: Installer, folder: Path) -> None:
    ran = installer.environment("local").run("plan", "--profile", "published", "--plot", "plan.png", folder=folder)
    assert ran.code == 0, ran.errors
    assert (folder / "plan.png").stat().st_size > 10_000


@pytest.mark.parametrize("extra", ["desk", "local"])
def test_simulate_computes_the_answers_on_a_log(installer: Installer, folder: Path, extra: str) -> None:
    """`local` brings no pyarrow."""
    ran = installer.environment(extra).run(
        "simulate", "joins.csv", "--profile", "published", "--html", "report.html", "--json", folder=folder
    )
    assert ran.code == 0, ran.errors
    (judged,) = json.loads(ran.output)["results"]
    assert judged["sets"] == {"total": 2, "true": 1, "reachedK": 1}
    assert "<svg" in (folder / "report.html").read_text()


A_TYPE = '{"k":50,"window":24,"profile":"published"}'


@pytest.mark.parametrize(
    ("extras", "missing", "command"),
    [
        ("", "local", "serve"),
        ("", "local", "audit"),
        ("", "serve", "demo"),
        ("", "local", "reports demo"),
        ("", "desk", "plan --profile published --plot plan.png"),
        ("", "desk", "simulate joins.csv"),
        ("", "desk", "risk uniqueness joins.csv"),
        ("", "desk", "release joins.csv --dataset joins --group set --epsilon 1 --delta 1e-6"),
        ("", "reports", "reports keys"),
        ("", "aws", "doctor --stack kanon"),
        ("", "serve", f"serve --data data --type {A_TYPE}"),
        ("", "serve", "doctor --data data"),
        ("serve", "jwt", f"serve --data data --type {A_TYPE} --join-auth JWT --jwks j --issuer i --audience a"),
        ("desk", "serve", "demo"),
        ("desk", "spark", "release joins.csv --dataset joins --group set --epsilon 1 --delta 1e-6 --engine spark"),
        ("desk", "aws", "release joins.csv --dataset joins --group set --epsilon 1 --delta 1e-6 --ledger dynamodb:t"),
    ],
)
def test_a_command_names_the_extra_that_is_missing(
    installer: Installer, folder: Path, extras: str, missing: str, command: str
) -> None:
    ran = installer.environment(extras).run(*command.split(), folder=folder)
    assert (ran.code, ran.output, ran.errors.count("\n")) == (1, "", 1), ran
    assert f"pip install 'kanon-dp[{missing}]'" in ran.errors


def test_without_a_registry_the_error_names_the_registry(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    with pytest.raises(pytest.fail.Exception, match="is a package registry reachable"):
        Installer(wheel, tmp_path).environment("")


def test_another_project_with_the_same_import_name_is_named(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "kanon-1.0.dist-info").mkdir()
    (tmp_path / "kanon-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: kanon\nVersion: 1.0\n")
    command = [sys.executable, "-m", "kanon.cli.start", "--version"]
    ran = subprocess.run(
        command, env={"PYTHONPATH": f"{ROOT / 'shared'}:{tmp_path}"}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "pip uninstall kanon" in ran.stderr
