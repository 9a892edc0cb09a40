"""The benchmark of a new user's first minutes: what it takes from the output of make, and how it fails."""

import os
import subprocess
from pathlib import Path

import pytest

from bench import first_run
from bench.__main__ import line
from bench.harness import Count, Failed, Form, Once, results

INSTALLS = "mkdir -p .venv-demo && head -c 3000000 /dev/zero > .venv-demo/package"
DEMO = 'echo "a log. This takes about 40 seconds." && echo "a is the first set that reads true: 56 clients"'
SERVE = 'echo "kanon serves on http://127.0.0.1:8000" && exec tail -f /dev/null'


def repository(folder: Path, install: str = INSTALLS, demo: str = DEMO, serve: str = SERVE) -> Path:
    """A repository with the targets of the real one."""
    targets = {".venv-demo/.project": install, "demo": demo, "serve": serve}
    text = "".join(f"{name}:\n\t@{command}\n" for name, command in targets.items())
    (folder / "Makefile").write_text(text)
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Add targets"]):
        name = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
        subprocess.run(["git", *name, *command], cwd=folder, check=True)
    return folder


@pytest.fixture(autouse=True)
def own_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is neither signed nor checked by what the machine's configuration of git asks for."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def test_installation_demo_and_service_are_measured_in_a_clone(tmp_path: Path) -> None:
    measured = list(first_run.measured(repository(tmp_path)))
    assert [type(one) for one in measured] == [Once, Count, Once, Once, Once]
    assert [one.met for one in measured] == [True, True, True, True, None]
    (count,) = [one for one in measured if isinstance(one, Count)]
    assert count.value == pytest.approx(3, rel=0.01)
    assert not (tmp_path / ".venv-demo").exists()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"install": "echo no matching distribution; exit 1"}, "no package registry, or it lacks a pinned package"),
        ({"demo": "echo it failed; exit 1"}, "make demo ended with status 2"),
        ({"demo": "true"}, "make demo ended with status 0"),
        ({"serve": "echo the port is in use; exit 2"}, "make serve PORT=0 ended with status 2"),
    ],
)
def test_a_command_that_fails_is_named(tmp_path: Path, broken: dict[str, str], reason: str) -> None:
    place = repository(tmp_path, **broken)
    *_, failed = results("first_run", first_run.measured(place))
    assert isinstance(failed, Failed)
    assert reason in failed.reason


def test_the_short_form_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_run.subprocess, "run", None)
    monkeypatch.setattr(first_run.subprocess, "Popen", None)
    assert list(first_run.rows(Form(short=True))) == []


def test_seconds_that_miss_their_target_are_shown() -> None:
    slow = Once("first run: a", "installed", 41.04, "50 s elapsed", 40)
    assert line(slow) == "| first run: a | installed | | 41 s | once | 50 s elapsed | at most 40 s | no |"
    assert slow.figures["met"] is False
