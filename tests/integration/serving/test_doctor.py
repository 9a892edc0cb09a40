"""`kanon doctor --data` finds what is wrong with a directory, beside a running service, and changes nothing."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kanon import clock
from kanon.cli.main import app
from kanon.errors import ConfigurationError
from kanon.findings import Finding, Verdict
from kanon.serving.doctor import examine_directory
from tests.integration.serving.machine import PERIOD, START, Machine, machine

DAY = 86_400


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Machine]:
    """A service with a step behind it that has a part."""
    with machine(tmp_path / "data") as made:
        joins = [{"type": "fledge", "set": "c2V0", "client": f"client-{n}"} for n in range(5)]
        made.request("POST", "/v1:batchJoin", {"joins": joins})
        made.evaluate()
        yield made


def examined(served: Machine) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine_directory(served.directory.path, served.now)}


def content(path: Path) -> dict[str, str]:
    files = [file for file in path.rglob("*") if file.is_file() and not file.name.endswith("-shm")]
    return {str(file): sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_healthy_directory_is_examined_beside_its_service_and_not_changed(served: Machine) -> None:
    before = content(served.directory.path)
    found = examined(served)
    assert {check: finding.verdict for check, finding in found.items()} == dict.fromkeys(
        ("deployment", "process", "evaluation", "disk", "permissions", "log", "API keys", "parts"), Verdict.OK
    )
    assert found["deployment"].seen == f"{served.directory.settings.deployment}, steps of {PERIOD} s"
    assert found["evaluation"].seen.startswith("0 closed steps are not evaluated; the last one that is: step 30000000,")
    assert found["API keys"].seen.startswith("key-1 of 2027-01-15")
    assert content(served.directory.path) == before
    served.evaluate()  # the service goes on


def test_a_directory_without_a_service_is_a_warning(tmp_path: Path) -> None:
    with machine(tmp_path / "data") as served:
        served.evaluate()
    found = {finding.check: finding for finding in examine_directory(tmp_path / "data", START + PERIOD)}
    assert found["process"].verdict is Verdict.WARN
    assert f"kanon serve --data {tmp_path / 'data'}" in found["process"].advice
    with machine(tmp_path / "data"):
        pass


def test_a_new_directory_is_examined_too(tmp_path: Path) -> None:
    with machine(tmp_path / "data") as served:
        assert "no step yet" in examined(served)["evaluation"].seen
        assert all(not finding.wrong for finding in examined(served).values())


def test_evaluation_that_is_late_is_a_warning_and_fails_when_joins_may_be_lost(served: Machine) -> None:
    served.now += 3 * PERIOD
    late = examined(served)["evaluation"]
    assert (late.verdict, late.seen.partition(";")[0]) == (Verdict.WARN, "3 closed steps are not evaluated")
    served.now += 8 * DAY
    lost = examined(served)["evaluation"]
    assert lost.verdict is Verdict.FAIL
    assert "too low" in lost.advice


def test_steps_that_a_clock_ahead_evaluated_are_a_failure(served: Machine) -> None:
    served.service.evaluating.turn(served.now + 400 * DAY)
    found = examined(served)["evaluation"]
    assert found.verdict is Verdict.FAIL
    assert found.seen.startswith("steps are closed up to 2028-02-19 08:01 UTC, which is later than now")
    assert "a new deployment in another directory" in found.advice


def test_a_deployment_that_a_clock_ahead_made_is_a_failure(tmp_path: Path) -> None:
    with machine(tmp_path / "data") as served:
        served.now -= DAY
        found = examined(served)["evaluation"]
        assert found.verdict is Verdict.FAIL
        assert found.seen.startswith("steps are closed up to 2027-01-15 08:00 UTC, which is later than now")
        assert served.request("GET", "/healthz").status == 503


def test_keys_that_are_revoked_and_joins_that_are_too_old_are_seen(served: Machine) -> None:
    served.directory.control.database.execute("DELETE FROM api_keys")
    assert examined(served)["API keys"].verdict is Verdict.NOT_SEEN
    (served.directory.path / "log" / f"{int(START // PERIOD) - 10 * DAY // PERIOD}.db").touch()
    old = examined(served)["log"]
    assert (old.verdict, old.seen) == (Verdict.WARN, "joins of 1 steps are older than the outage allowance")


@pytest.mark.parametrize("name", [".", "secrets", "secrets/set-pepper", "secrets/noise-keys.json"])
@pytest.mark.parametrize("mode", [0o040, 0o004])
def test_secrets_that_others_may_read_are_found(served: Machine, name: str, mode: int) -> None:
    file = served.directory.path / name
    file.chmod(file.stat().st_mode | mode)
    found = examined(served)["permissions"]
    assert found.verdict is Verdict.FAIL
    assert str(file) in found.seen


def test_a_full_disk_is_a_warning(served: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    assert examined(served)["disk"].verdict is Verdict.WARN


def damaged(part: Path) -> None:
    text = bytearray(part.read_bytes())
    text[len(text) // 2] ^= 1
    part.write_bytes(text)


def cut(part: Path) -> None:
    os.truncate(part, part.stat().st_size - 1)


@pytest.mark.parametrize("spoil", [Path.unlink, damaged, cut])
def test_a_part_that_is_missing_or_damaged_is_found(served: Machine, spoil: Callable[[Path], None]) -> None:
    (part,) = (served.directory.path / "parts").iterdir()
    spoil(part)
    found = examined(served)["parts"]
    assert (found.verdict, found.seen) == (Verdict.FAIL, "1 parts are missing or damaged, 1 of them in use")
    assert "`kanon operate replay --data" in found.advice
    assert "backup" in found.advice


def test_a_part_that_only_a_recovery_needs_is_a_warning(served: Machine) -> None:
    (old,) = (served.directory.path / "parts").iterdir()
    served.request("POST", "/v1/types/fledge/sets/c2V0:join", {"client": "another"})
    served.evaluate()
    assert old.exists()
    old.unlink()
    found = examined(served)["parts"]
    assert (found.verdict, found.seen) == (Verdict.WARN, "1 parts are missing or damaged, 0 of them in use")


def test_parts_that_the_service_sweeps_meanwhile_are_not_missing(
    served: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kanon.serving import doctor

    manifests = iter([served.directory.control.manifests()])
    real = doctor.ControlFile.manifests
    monkeypatch.setattr(doctor.ControlFile, "manifests", lambda self: next(manifests, None) or real(self))
    (part,) = (served.directory.path / "parts").iterdir()
    served.directory.control.forget_manifests([int(START // PERIOD)])
    part.unlink()
    served.directory.control.database.execute("INSERT INTO manifests VALUES (?, '[]')", (int(START // PERIOD),))
    assert examined(served)["parts"].verdict is Verdict.OK


def test_a_copy_is_refused(served: Machine, tmp_path: Path) -> None:
    with closing(sqlite3.connect(served.directory.path / "control.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = shutil.copytree(served.directory.path, tmp_path / "copy")
    found = {finding.check: finding for finding in examine_directory(copy, served.now)}
    assert found["deployment"].verdict is Verdict.FAIL
    assert f"kanon operate new-generation --data {copy}" in found["deployment"].advice


def test_what_is_no_deployment_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no deployment"):
        examine_directory(tmp_path, START)
    (tmp_path / "control.db").write_bytes(b"no database " * 1000)
    with pytest.raises(ConfigurationError, match="cannot be read: file is not a database"):
        examine_directory(tmp_path, START)


@pytest.mark.parametrize("name", ["accounts.db", "reports.db", "arrivals.db", "lists.db"])
def test_a_damaged_file_is_named_and_the_others_are_examined(served: Machine, name: str) -> None:
    (served.directory.path / name).write_bytes(b"no database " * 1000)
    (served.directory.path / "seen" / f"{name}-3").touch()
    found = examined(served)
    assert found["files"].verdict is Verdict.FAIL
    assert found["files"].seen == f"{served.directory.path / name} cannot be read: file is not a database"
    assert {finding.check for finding in found.values() if finding.wrong} == {"files"}


@pytest.mark.parametrize("name", ["accounts.db", "reports.db", "arrivals.db", "lists.db"])
def test_a_file_that_cannot_be_opened_is_not_called_damaged(served: Machine, name: str) -> None:
    """A restored backup costs a new generation, and would not help."""
    file = served.directory.path / name
    file.unlink(missing_ok=True)
    file.mkdir()  # root may open every file
    found = examined(served)["files"]
    assert (found.verdict, found.seen.startswith(f"{file} cannot be read: ")) == (Verdict.FAIL, True)
    assert found.advice == "check the disk, who may read the file, and that no command holds it"


@pytest.mark.parametrize("name", ["set-pepper", "client-key", "noise-keys.json"])
def test_a_secret_that_is_missing_or_another_one_is_found(served: Machine, name: str) -> None:
    file = served.directory.path / "secrets" / name
    other = '{"1": "another"}' if name.endswith("json") else "another" * 9
    damaged = "must be a JSON object" if name.endswith("json") else "is damaged, and anybody could guess it"
    for spoil, seen in (
        (lambda: file.write_text(other), "changed since the first"),
        (lambda: file.write_text(""), damaged),
        (file.unlink, "is missing: put"),
    ):
        spoil()
        found = examined(served)["secrets"]
        assert (found.verdict, seen in found.seen) == (Verdict.FAIL, True), found


def test_what_keeps_the_service_from_starting_is_found(served: Machine) -> None:
    control = served.directory.control
    for text, value, seen in (
        ("importing", "begun", "an import was not finished"),
        ("accounts.db", "1 2", "accounts.db is missing or was put back: one person could enrol twice"),
    ):
        control.put_text(text, value)
        found = examined(served)["deployment"]
        assert (found.verdict, found.seen) == (Verdict.FAIL, seen)


def test_the_command_shows_findings_and_ends_with_1_if_something_is_wrong(
    served: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["doctor", "--data", str(served.directory.path), "--json"]
    good = CliRunner().invoke(app, arguments)
    assert good.exit_code == 0
    findings = json.loads(good.stdout)["findings"]
    assert [finding["verdict"] for finding in findings] == ["OK"] * 8
    next((served.directory.path / "parts").iterdir()).unlink()
    monkeypatch.setattr(clock, "now", lambda: served.now)
    bad = CliRunner().invoke(app, arguments[:-1])
    assert bad.exit_code == 1
    assert "missing or damaged" in bad.stdout
    assert "client" not in good.stdout + bad.stdout
    mixed = CliRunner().invoke(app, [*arguments, "--stack", "a"])
    assert mixed.exit_code == 2
    assert "--stack has no effect with --data" in mixed.stderr
