"""What `pip install kanon` brings: the wheel runs the service from any folder, without the checkout."""

import re
import signal
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from kanon.client import Client, Join, set_id
from tests.paths import ROOT

pytestmark = pytest.mark.build


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory / "dist"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (directory / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "site")
    return directory / "site"


class Kanon:
    """Runs `kanon` from the wheel and the libraries of this environment, and nothing of the checkout."""

    def __init__(self, installed: Path, directory: Path) -> None:
        self._environment = {"PYTHONPATH": f"{installed}:{sysconfig.get_path('purelib')}", "COLUMNS": "200"}
        self._directory = directory

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        # -S leaves out the .pth file by which a development install finds the checkout.
        return subprocess.Popen(
            [sys.executable, "-S", "-m", "kanon.cli.main", *arguments],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        with self.start(*arguments) as process:
            output, errors = process.communicate(timeout=120)
        return process.returncode, output + errors


@pytest.fixture
def kanon(installed: Path, tmp_path: Path) -> Kanon:
    (tmp_path / "empty").mkdir()
    return Kanon(installed, tmp_path / "empty")


def test_the_wheel_holds_the_package_the_template_and_the_handlers_and_nothing_else(installed: Path) -> None:
    files = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert {name.split("/")[0].partition("-")[0] for name in files} == {"kanon"}
    source = {name.removeprefix("kanon/local/source/") for name in files if name.startswith("kanon/local/source/")}
    assert "template.yaml" in source
    assert {f"functions/{name}/app.py" for name in ("join", "query", "evaluate")} <= source
    assert "functions/query/openapi.json" in source
    assert not [name for name in files if name.endswith(".pyc")]


def test_serve_runs_from_an_empty_folder(kanon: Kanon) -> None:
    process = kanon.start("serve", "--engine", "moto", "--port", "0")
    try:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
        with Client(found[0]) as client:
            assert client.type("fledge")["period"] == 10
            client.join_all(Join("fledge", set_id("popular"), f"client-{n}") for n in range(120))
            client.join("fledge", set_id("rare"), "client-1")
            sets = [("fledge", set_id(name)) for name in ("popular", "rare")]
            assert client.query(sets).k_anonymous <= {("fledge", set_id("popular"))}
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (0, "")
    assert "Stopping." in output


def test_demo_runs_from_an_empty_folder(kanon: Kanon, tmp_path: Path) -> None:
    start = 1_700_000_000 // 3600 * 3600
    rows = [f"{start + 60 + n},large,c{n}" for n in range(120)] + [f"{start + 4000},small,c1"]
    (tmp_path / "log.csv").write_text("\n".join(["time,set,client", *rows]))
    code, output = kanon.run("demo", "--engine", "moto", "--log", "../log.csv")
    assert code == 0, output
    assert re.search(r"joins +\S* +121 ", output.replace("│", " ")), output
    assert (tmp_path / "empty" / "build" / "demo.png").stat().st_size > 10_000


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_without_ministack_the_error_says_what_to_do(kanon: Kanon, command: str) -> None:
    code, output = kanon.run(command)
    assert code == 1
    assert "ministack is missing: pip install 'kanon[local]'" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("missing", "extra", "arguments"),
    [
        ("matplotlib", "plot", ["demo", "--engine", "moto"]),
        ("matplotlib", "plot", ["plan", "--profile", "published", "--plot", "plan.png"]),
        ("yaml", "local", ["serve", "--engine", "moto"]),
        ("moto", "moto", ["serve", "--engine", "moto"]),
        ("waitress", "local", ["demo", "--engine", "moto"]),
    ],
)
def test_without_an_optional_library_the_error_names_the_extra(
    kanon: Kanon, tmp_path: Path, missing: str, extra: str, arguments: list[str]
) -> None:
    absent = f"raise ModuleNotFoundError(\"No module named '{missing}'\", name='{missing}')"
    (tmp_path / "empty" / f"{missing}.py").write_text(absent)  # found first: -m puts the current folder ahead
    code, output = kanon.run(*arguments)
    assert (code, output.count("\n")) == (1, 1), output
    assert f"{missing} is missing: pip install 'kanon[{extra}]'" in output
