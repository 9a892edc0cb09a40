"""Reports of a directory over HTTP: from a client's report to a summary, and never more budget than there is."""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.openapi import WITH_REPORTS, description
from kanon import clock
from kanon.cli.main import app
from kanon.errors import ConfigurationError
from kanon.reports.errors import JobError
from kanon.reports.job import Amount
from kanon.reports.service.one_machine import FileSpending, ReportsWorker
from kanon.reports.storage import disk as storage
from kanon.reports.storage.budgets import Charge, CommitOutcome
from kanon.reports.storage.disk import NAME, FileBudgets, FolderObjects, KeyFiles, ReportsFile, begin_again
from kanon.reports.storage.objects import NameTakenError
from kanon.reports.storage.report_jobs import SECONDS_TO_COMMIT, State
from kanon.serving import backup as backing
from kanon.serving.access import Access, AuthMode
from kanon.serving.backup import backup
from kanon.serving.directory import new_generation, open_directory
from kanon.serving.doctor import examine_directory
from kanon.serving.http import NO_PAGES, event_of
from kanon.serving.measures import ReportMeasures
from kanon.serving.reporting import RequestedParameters, open_reporting
from kanon.serving.routes import RouteKind
from kanon.serving.service import Running
from tests.integration.serving.machine import KEYS, START, TYPES, Machine, machine
from tests.integration.serving.reported import (
    BUCKETS,
    ON,
    ORIGIN,
    OTHER,
    VALUE,
    body,
    code,
    collect,
    create,
    declare,
    left,
    post,
    reporting,
    reports_of,
    row_of,
    sealed,
    summary,
    told,
    turn,
)

DAY = 86_400


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Machine]:
    with reporting(tmp_path / "data") as made:
        declare(made)
        yield made


def close_to(found: dict[int, int], exact: dict[int, int]) -> bool:
    """With epsilon 10 noise is below 200,000 but with probability 10^-9 or so: its scale is 65,536 / 10."""
    return found.keys() == exact.keys() and all(abs(found[key] - exact[key]) < 200_000 for key in exact)


def test_a_job_goes_from_encrypted_reports_to_a_summary(served: Machine) -> None:
    collect(served, range(40))
    create(served, "first")
    assert told(served, "first")["job_status"] == "RECEIVED"
    turn(served)
    assert code(served, "first") == "SUCCESS"
    exact = {BUCKETS[0]: 40 * VALUE, BUCKETS[1]: 40 * VALUE, BUCKETS[2]: 0}
    found = summary(served.directory.path, "first")
    assert close_to(found, exact)
    assert found != exact, "no noise was added"
    answer = told(served, "first")
    assert (answer["privacy"]["epsilon_cap"], answer["privacy"]["rows_charged"]) == ("12", 1)
    assert left(served) == "2"
    assert served.service.reports is not None
    assert served.service.reports.problem(served.now) == ""


def test_nothing_of_a_job_but_its_summary_and_its_row_is_left(served: Machine) -> None:
    collect(served, range(3))
    create(served, "first")
    secret = row_of(served, "first").secret
    assert secret is not None
    turn(served)
    path, file = served.directory.path, reports_of(served).file
    assert list((path / "work").iterdir()) == []
    assert file.recorded("first", "map") == {}
    assert file.unfinished() == []
    assert row_of(served, "first").secret is None
    everything = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    assert secret not in everything
    assert b"first" in everything


def test_a_report_counts_once_however_often_it_arrives(served: Machine) -> None:
    again = sealed(served, 1)
    assert [post(served, again) for _ in range(3)] == [200] * 3
    turn(served)
    served.now += 3600
    assert post(served, again) == 200
    create(served, "first", report_error_threshold_percentage="100")
    turn(served)
    errors = told(served, "first")["result_info"]["error_summary"]["error_counts"]
    assert code(served, "first").startswith("SUCCESS"), errors
    assert row_of(served, "first").values["counters"]["accepted"] == 1


def test_jobs_never_take_more_than_the_cap(served: Machine) -> None:
    collect(served, range(3))
    for number in range(5):
        create(served, f"job-{number}", "5")
    turn(served)
    codes = [code(served, f"job-{number}") for number in range(5)]
    assert codes == ["SUCCESS"] * 2 + ["PRIVACY_BUDGET_EXHAUSTED"] * 3
    assert left(served) == "2"
    written = {file.name for file in (served.directory.path / "summaries" / "output").iterdir()}
    assert {name for name in written if name.endswith(".avro")} == {"job-0-1-of-1.avro", "job-1-1-of-1.avro"}
    assert sum("exhausted" in name for name in written) == 3
    collect(served, range(10, 13), OTHER)
    create(served, "other", "5", attribution_report_to=OTHER)
    turn(served)
    assert (code(served, "other"), left(served, OTHER)) == ("SUCCESS", "7")


def in_state(served: Machine, job: str, state: State = State.COMMITTING) -> ReportsFile:
    """The file of jobs, with a job in a state."""
    file = reports_of(served).file
    assert file.create(job, {}, int(START), bytes(32))
    assert file.move(row_of(served, job), state, START)
    return file


def epoch_of(served: Machine) -> str:
    ring = reports_of(served).epoch.ring.read()
    assert ring is not None
    return ring.epoch


def test_of_jobs_that_commit_at_once_exactly_those_with_budget_win(served: Machine) -> None:
    cap, epoch = Amount(12_000, 10**8), epoch_of(served)
    charges = [Charge(bytes([row]) * 32, 20_000, (3, 4)) for row in range(60)]
    for number in range(8):
        file = in_state(served, f"job-{number}")
    ready = threading.Barrier(8)

    def commit(number: int) -> CommitOutcome:
        spending = FileSpending(FileBudgets(file, cap), epoch, lambda: START + 1)
        ready.wait()
        return spending.commit(f"job-{number}", charges, Amount(5_000, 0), f"claim-{number}", parts=[])

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(commit, range(8)))
    assert sorted(outcomes, key=str) == [CommitOutcome.COMMITTED] * 2 + [CommitOutcome.EXHAUSTED] * 6
    budgets = FileBudgets(file, cap)
    assert budgets.left([charges[7].row]) == {charges[7].row: dict.fromkeys((3, 4), Amount(2_000, 10**8))}
    committed = [number for number, outcome in enumerate(outcomes) if outcome is CommitOutcome.COMMITTED]
    assert {job for job, _, _ in budgets.taken(charges[59].row)} == {f"job-{number}" for number in committed}


@pytest.mark.parametrize(
    ("state", "late", "epoch", "outcome"),
    [
        (State.COMMITTING, 0, "", CommitOutcome.COMMITTED),
        (State.COMMITTING, SECONDS_TO_COMMIT, "", CommitOutcome.LATE),
        (State.COMMITTING, 0, "another", CommitOutcome.REPLACED),
        (State.REDUCING, 0, "", CommitOutcome.LEFT),
    ],
)
def test_a_commit_names_state_deadline_and_epoch(
    served: Machine, state: State, late: int, epoch: str, outcome: CommitOutcome
) -> None:
    file, charges = in_state(served, "job", state), [Charge(bytes(32), 20_000, (3,))]
    spending = FileSpending(FileBudgets(file, Amount(1000, 0)), epoch or epoch_of(served), lambda: START + late)
    assert spending.commit("job", charges, Amount(600, 0), "claim", parts=[]) is outcome
    taken = list(file.taken(bytes(32)))
    assert len(taken) == (outcome is CommitOutcome.COMMITTED)
    if taken:
        assert spending.commit("job", charges, Amount(400, 0), "claim", parts=[]) is CommitOutcome.LEFT


def test_a_row_that_was_put_back_spends_nothing_more(served: Machine) -> None:
    file, charges = in_state(served, "job"), [Charge(bytes(32), 20_000, (3,))]
    file.take(charges, "job", "claim", Amount(100, 0))
    spending = FileSpending(FileBudgets(file, Amount(1000, 0)), epoch_of(served), lambda: START)
    assert spending.commit("job", charges, Amount(100, 0), "claim", parts=[]) is CommitOutcome.SPENT
    assert len(list(file.taken(bytes(32)))) == 1


def test_routes_of_jobs_need_a_key_and_the_collector_none(served: Machine) -> None:
    paths = ["/v1alpha/getJob?job_request_id=a", "/stage/v1alpha/getJob", "/v1/budget", "/v1/budget%0A", "/metrics%0A"]
    assert [served.request("GET", path, key=False).status for path in paths] == [401] * 5
    for path in ("/v1alpha/createJob", "/stage/v1alpha/createJob", "/v1/jobs:preflight", "/v1/jobs:publish"):
        assert served.request("POST", path, body("a"), key=False).status == 401
    refused = served.request("POST", "/v1alpha/createJob", {"job_request_id": "a"})
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (400, 3)
    assert post(served, sealed(served, 1, "https://stranger.test")) == 400
    assert served.request("POST", "/v1/reports", {}, key=False).status == 400
    assert json.loads(served.request("GET", "/openapi.json", key=False).body) == description(WITH_REPORTS)


def test_a_job_may_name_no_other_folder(served: Machine) -> None:
    for name in ("work", "secrets", "reports/../secrets", "..", "other"):
        refused = served.request("POST", "/v1alpha/createJob", {**body("a"), "input_data_bucket_name": name})
        assert refused.status == 400
    refused = served.request("POST", "/v1alpha/createJob", {**body("a"), "output_data_bucket_name": "reports"})
    assert refused.status == 400
    for prefix in ("../secrets/", "../../x/", "/etc/"):
        collect(served, [1])
        job = f"job{len(prefix)}"
        changed = {**body(job, "1"), "input_data_blob_prefix": prefix}
        assert served.request("POST", "/v1alpha/createJob", changed).status == 202
        turn(served)
        assert code(served, job) == "INPUT_DATA_READ_FAILED"
    changed = {**body("out", "1"), "output_data_blob_prefix": "../out.avro"}
    assert served.request("POST", "/v1alpha/createJob", changed).status == 202
    turn(served)
    assert code(served, "out") == "RESULT_WRITE_ERROR"
    assert not list(served.directory.path.glob("out*"))
    again = {"job_request_id": "out", "output_data_blob_prefix": "output/out.avro"}
    assert served.request("POST", "/v1/jobs:publish", again).status == 202
    turn(served)
    assert code(served, "out") == "SUCCESS"
    assert left(served) == "11"


def test_preflight_counts_and_spends_nothing(served: Machine) -> None:
    collect(served, range(4))
    turn(served)
    answer = json.loads(served.request("POST", "/v1/jobs:preflight", body("a")).body)
    assert (answer["reports"], answer["accepted"], answer["units"]) == (4, 4, 1)
    assert left(served) == "12"


def test_keys_rotate_and_old_ones_are_destroyed(served: Machine) -> None:
    def files() -> set[str]:
        return {file.name for file in (served.directory.path / "secrets").glob("report-key-*")}

    first = files()
    assert len(first) == 1
    for _ in range(18):
        served.now += 7 * DAY
        turn(served)
    assert first.isdisjoint(files())
    assert 17 <= len(files()) <= 18
    modes = {(served.directory.path / "secrets" / name).stat().st_mode & 0o777 for name in files()}
    assert modes == {0o600}
    assert json.loads(served.request("GET", "/.well-known/aggregation-service/v1/public-keys", key=False).body)


def test_old_reports_are_deleted(served: Machine) -> None:
    collect(served, [1])
    turn(served)
    (file,) = (served.directory.path / "reports").rglob("*.avro")
    os.utime(file, (served.now, served.now))
    served.now += 98 * DAY
    turn(served)
    assert list((served.directory.path / "reports").rglob("*.avro")) == []


def test_counts_are_those_of_the_stack(served: Machine) -> None:
    collect(served, range(2))
    create(served, "a", "12")
    create(served, "b", "12")
    turn(served)
    text = served.request("GET", "/metrics").body.decode()
    assert "kanon_reports_accepted_total 2.0" in text
    assert "kanon_jobs_finished_total 1.0" in text
    assert "kanon_jobs_refused_total 1.0" in text
    assert ORIGIN not in text
    assert ORIGIN not in served.logs.getvalue()


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (FolderObjects, "put_new", OSError("no space for reports/x")),
        (ReportsWorker, "work_off", sqlite3.OperationalError("no space for the file of jobs")),
    ],
)
def test_a_stage_that_fails_is_told_without_its_text_and_tried_again(
    served: Machine, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    collect(served, [1])
    create(served, "a")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        turn(served)
    assert served.request("GET", "/healthz", key=False).status == 503
    assert "a stage of reports failed" in served.logs.getvalue()
    assert "no space for" not in served.logs.getvalue()
    turn(served)
    assert code(served, "a") == "SUCCESS"
    assert served.request("GET", "/healthz", key=False).status == 200


def refuse(path: Path, asked: RequestedParameters, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why), machine(path, KEYS, asked=asked):
        pass


def test_a_report_that_is_not_stored_is_not_acknowledged(served: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    report = sealed(served, 1)
    monkeypatch.setattr(ReportsFile, "arrive", full)
    assert post(served, report) == 503
    assert "kanon_reports_refused_total 1.0" in served.request("GET", "/metrics").body.decode()


def test_jobs_do_not_wait_for_reports_that_arrive_all_the_time(
    served: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more report arrives whenever some are stored."""
    collect(served, range(3))
    create(served, "first")
    more, store = iter(range(3, 40)), FolderObjects.put_new

    def stored(self: FolderObjects, key: str, body: bytes) -> None:
        store(self, key, body)
        if key.startswith("reports/"):
            collect(served, [next(more)])

    monkeypatch.setattr(FolderObjects, "put_new", stored)
    turn(served)
    assert code(served, "first") == "SUCCESS"
    assert row_of(served, "first").values["counters"]["accepted"] == 3
    assert reports_of(served).file.arrivals() == 1


def test_large_reports_are_read_a_few_at_a_time(served: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    collect(served, range(5))
    file = reports_of(served).file
    (size,) = {len(message) for message in file.arrived(99).values()}
    monkeypatch.setattr(storage, "MOST_CHARACTERS", 2 * size)
    assert len(file.arrived(99)) == 2
    monkeypatch.setattr(storage, "MOST_CHARACTERS", 1)
    turn(served)
    assert file.arrivals() == 0
    assert len(list((served.directory.path / "reports").rglob("*.avro"))) == 5


def test_caps_never_change_and_origins_may(tmp_path: Path) -> None:
    path = tmp_path / "data"
    refuse(path, RequestedParameters(None, "3"), "turn them on with --report-origins")
    with reporting(path):
        pass
    refuse(path, RequestedParameters(None, "13"), "epsilon-cap is 12 in this deployment, and never changes")
    refuse(tmp_path / "b", RequestedParameters("*", "65"), r"EpsilonCap must be from 0\.001 to 64")
    with machine(path, KEYS, asked=RequestedParameters("https://new.test")) as served:
        reports = reports_of(served)
        assert (reports.collecting.allowed_origins, reports.budgets.cap.epsilon) == (("https://new.test",), 12_000)
    with machine(path) as served:
        assert reports_of(served).collecting.allows("https://new.test")
    (path / "secrets" / "report-noise-key").unlink()
    with pytest.raises(ConfigurationError, match="report-noise-key is missing: put it back"), machine(path):
        pass


def test_reports_are_off_unless_they_were_turned_on(tmp_path: Path) -> None:
    with machine(tmp_path / "data") as served:
        assert served.reporting is None
        assert served.request("POST", "/v1/reports", {}, key=False).status == 404
        assert served.request("GET", "/v1/budget").status == 404
        assert served.request("GET", "/v1/budget", key=False).status == 401
        assert not (served.directory.path / "reports.db").exists()


def test_the_thread_of_a_service_begins_a_job_at_once_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reporting(tmp_path / "data") as served:
        declare(served)
        collect(served, range(3))
        logger = served.service._logger
    ended = threading.Event()
    monkeypatch.setattr(ReportMeasures, "count", lambda *_: ended.set())
    monkeypatch.setattr("kanon.serving.service.Logger", lambda **_: logger)
    monkeypatch.setattr(clock, "now", lambda: START + 20)
    directory = open_directory(tmp_path / "data", None, START + 20)
    reports = open_reporting(directory, RequestedParameters())
    running = Running(directory, Access(AuthMode.KEY, AuthMode.KEY, {}), "127.0.0.1", 0, NO_PAGES, reports)
    with closing(running):
        assert running._reports is not None
        jobs = running._reports.routes()[RouteKind.JOBS].app
        assert jobs.resolve(_event("/v1alpha/createJob", body("a")), None)["statusCode"] == 202  # type: ignore[arg-type]
        assert ended.wait(30)
    assert not any(thread.is_alive() for thread in running._threads)
    with reporting(tmp_path / "data") as served:
        assert code(served, "a") == "SUCCESS"


def _event(path: str, sent: Any) -> dict[str, Any]:
    return event_of(
        {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/json",
            "wsgi.input": BytesIO(json.dumps(sent).encode()),
        }
    )


def test_the_command_says_how_to_turn_reports_on(tmp_path: Path) -> None:
    options = ["serve", "--data", str(tmp_path / "d"), "--type", json.dumps(TYPES["fledge"])]
    for more, why in (
        (["--epsilon-cap", "3"], "turn them on with --report-origins"),
        (["--report-origins", "http://x"], "list https origins such as"),
        (["--report-origins", ""], "--report-origins is empty"),
        (["--report-origins", "*", "--delta-cap", "1"], "DeltaCap must be from 1e-12 to 0.001"),
    ):
        ran = CliRunner().invoke(app, [*options, *more])
        assert ran.exit_code == 2, ran.output
        assert why in ran.stderr
        assert {each.name for each in tmp_path.glob("d/*")} <= {"lock"}  # types and period never change
    ran = CliRunner().invoke(app, ["serve", "--report-origins", "*"])
    assert (ran.exit_code, "--report-origins has no effect without --data" in ran.stderr) == (2, True)


def findings(path: Path, now: float) -> dict[str, Any]:
    return {each.check: (each.verdict.value, each.seen) for each in examine_directory(path, now)}


def test_the_doctor_looks_at_keys_and_jobs(served: Machine) -> None:
    collect(served, [1])
    create(served, "a")
    path = served.directory.path
    assert findings(path, served.now)["keys of reports"][1].startswith("1 are published")
    assert findings(path, served.now)["jobs"] == ("OK", "1 are not finished, 0 of them for 12 hours")
    assert findings(path, served.now + DAY)["jobs"] == ("WARN", "1 are not finished, 1 of them for 12 hours")
    assert findings(path, served.now + 30 * DAY)["keys of reports"][0] == "WARN"


def test_a_restored_copy_opens_no_report_of_before_and_spends_nothing_twice(tmp_path: Path) -> None:
    with reporting(tmp_path / "data") as served:
        declare(served)
        collect(served, range(3))
        create(served, "done", "4")
        turn(served)
        before = sealed(served, 7)
        create(served, "open", "4")
        backup(tmp_path / "data", tmp_path / "copy")
        turn(served)
        assert (code(served, "open"), left(served)) == ("SUCCESS", "4")
    copy = tmp_path / "copy"
    assert list(copy.glob("secrets/report-key-*")) == []
    assert not (copy / "reports").exists()
    assert summary(copy, "done") == summary(tmp_path / "data", "done")
    new_generation(copy)
    with reporting(copy) as served:
        assert (code(served, "done"), code(served, "open")) == ("SUCCESS", "PRIVACY_BUDGET_ERROR")
        assert left(served) == "8"
        served.now += 6
        assert post(served, before) == 400
        collect(served, [8])
        create(served, "next", "4")
        turn(served)
        assert (code(served, "next"), left(served)) == ("SUCCESS", "4")


def test_a_backup_begins_again_if_a_summary_is_published_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reporting(tmp_path / "data") as served:
        declare(served)
        collect(served, range(3))
        create(served, "a", "4")
        copy = backing._copy_database

        def late(source: Path, to: Path) -> None:
            copy(source, to)
            if to.name == "reports.db":
                turn(served)

        monkeypatch.setattr(backing, "_copy_database", late)
        (tmp_path / "data" / "secrets" / ".made-half.part").write_text("half")
        backup(tmp_path / "data", tmp_path / "copy")
        assert not list((tmp_path / "copy" / "secrets").glob(".*"))
    new_generation(tmp_path / "copy")
    with reporting(tmp_path / "copy") as served:
        assert (code(served, "a"), left(served)) == ("SUCCESS", "8")  # not a summary of a job that ended without one


def test_a_new_generation_ends_the_keys_of_a_copy_and_of_a_rollback(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with reporting(path) as served:
        declare(served)
        collect(served, range(3))
        turn(served)
        create(served, "open", "4")
    assert len(list(path.glob("secrets/report-key-*"))) == 1
    new_generation(path)
    assert list(path.glob("secrets/report-key-*")) == []
    with reporting(path) as served:
        assert code(served, "open") == "PRIVACY_BUDGET_ERROR"
        create(served, "again", "4", report_error_threshold_percentage="0")
        turn(served)
        assert code(served, "again") == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
        assert left(served) == "12"


def test_an_older_file_of_reports_is_refused_until_a_new_generation_ends_its_keys_and_jobs(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with reporting(path) as served:
        declare(served)
        collect(served, range(3))
        turn(served)
    older = (path / NAME).read_bytes()
    with reporting(path) as served:
        create(served, "a", "4")
        turn(served)
        assert (code(served, "a"), left(served)) == ("SUCCESS", "8")
    (path / NAME).write_bytes(older)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"reports\.db is lost, or was overwritten with an older file"):
            reporting(path).__enter__()
        assert findings(path, START)["deployment"][0] == "FAIL"
    make = KeyFiles(path / "secrets").make
    make("of a ring that is lost")
    new_generation(path)
    assert list(path.glob("secrets/report-key-*")) == []
    with reporting(path) as served:
        create(served, "again", "4", report_error_threshold_percentage="0")
        turn(served)
        assert code(served, "again") == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"


def test_a_committed_summary_is_published_from_a_copy(tmp_path: Path) -> None:
    with reporting(tmp_path / "data") as served:
        declare(served)
        collect(served, range(3))
        (tmp_path / "data" / "summaries" / "output").mkdir()
        (tmp_path / "data" / "summaries" / "output" / "a-1-of-1.avro").write_bytes(b"taken")
        create(served, "a", "4")
        turn(served)
        assert code(served, "a") == "RESULT_WRITE_ERROR"
        backup(tmp_path / "data", tmp_path / "copy")
    for file in (tmp_path / "copy" / "work").rglob("*"):
        os.utime(file, (START, START))  # the time of the service, which deletes what is old
    new_generation(tmp_path / "copy")
    with reporting(tmp_path / "copy") as served:
        again = {"job_request_id": "a", "output_data_blob_prefix": "output/b.avro"}
        assert served.request("POST", "/v1/jobs:publish", again).status == 202
        turn(served)
        assert (code(served, "a"), left(served)) == ("SUCCESS", "8")
        assert summary(tmp_path / "copy", "b").keys() == set(BUCKETS)


class TestFolderObjects:
    def test_an_object_is_written_once(self, tmp_path: Path) -> None:
        place = FolderObjects(tmp_path / "b")
        place.put_new("a/b/c.avro", b"one")
        place.put_new("a/b/c.avro", b"one")
        with pytest.raises(NameTakenError):
            place.put_new("a/b/c.avro", b"two")
        assert place.read("a/b/c.avro") == b"one"
        assert [one.key for one in place.listed("a/b/c", 9)] == ["a/b/c.avro"]
        assert place.listed("a/b/d", 9) == place.listed("b", 9) == []

    @pytest.mark.parametrize(
        "name", ["", "/etc/x", "../x", "a/../../x", ".x", "a//b", "a/b/c.avro/d", "x" * 256, "a\0"]
    )
    def test_a_name_that_no_file_may_have_is_refused(self, tmp_path: Path, name: str) -> None:
        place = FolderObjects(tmp_path / "b")
        place.put_new("a/b/c.avro", b"one")
        with pytest.raises(NameTakenError):
            place.put_new(name, b"two")
        with pytest.raises(JobError, match="does not exist"):
            place.read(name)
        assert [path.name for path in tmp_path.iterdir()] == ["b"]

    def test_a_changed_object_is_not_read(self, tmp_path: Path) -> None:
        place = FolderObjects(tmp_path / "b")
        place.put_new("a", b"one")
        (seen,) = place.listed("", 9)
        assert place.read("a", seen.etag) == b"one"
        (tmp_path / "b" / "a").write_bytes(b"two")
        os.utime(tmp_path / "b" / "a", ns=(0, 5))
        with pytest.raises(JobError, match="has changed since the job began"):
            place.read("a", seen.etag)

    def test_only_what_is_under_a_prefix_is_deleted(self, tmp_path: Path) -> None:
        place = FolderObjects(tmp_path / "b")
        for name in ("a/b/one", "a/b/two", "a/bc", "d"):
            place.put_new(name, b"x")
        place.delete_under("a/b/")
        place.delete_under("a/b/")
        assert [one.key for one in place.listed("", 9)] == ["a/bc", "d"]
        assert not (tmp_path / "b" / "a" / "b").exists()
        with pytest.raises(JobError, match="more than 1 objects"):
            place.listed("", 1)


def test_a_key_file_is_made_once_and_destroyed_again_and_again(tmp_path: Path) -> None:
    keys = KeyFiles(tmp_path)
    public = keys.make("id")
    assert keys.make("id") == public
    assert set(keys.existing(["id", "other"])) == {"id"}
    keys.destroy("id")
    keys.destroy("id")
    assert keys.existing(["id"]) == {}


def test_nothing_begins_again_in_a_file_without_keys(tmp_path: Path) -> None:
    with closing(ReportsFile(tmp_path)) as file:
        begin_again(file, START)
        with pytest.raises(sqlite3.IntegrityError):
            file.take([Charge(bytes(32), 1, (1,))] * 2, "job", "claim", Amount(1, 1))
        assert ON.allowed_origins is not None
