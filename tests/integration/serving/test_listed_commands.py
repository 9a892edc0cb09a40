"""``kanon listed``, ``kanon operate unlist`` and the options of lists, as a user types them."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from kanon.serving.lists import Lister
from tests.integration.serving.listing import FIRST, PERIOD, TYPES, go_on, opened, values
from tests.unit.cli.commands import run

LAST = FIRST + 40
LISTED_TYPE = '{"k": 20, "window": 24, "profile": "crossing", "listed": true}'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the lists of some steps."""
    path = tmp_path_factory.mktemp("made") / "d"
    with opened(path, FIRST * PERIOD) as directory:
        lister = Lister(directory)
        go_on(lister, range(FIRST, LAST + 1))
        (path.parent / "newest.json").write_text(json.dumps(sorted(values(lister, "grid"))))
        lister.file.close()
    return path


@pytest.fixture
def newest(made: Path) -> list[str]:
    return json.loads((made.parent / "newest.json").read_text())


def test_the_history_names_the_values_of_its_newest_list(made: Path, newest: list[str]) -> None:
    status, told = run("listed", "grid", "--data", str(made), "--format", "json")
    assert status == 0
    assert sorted(row["value"] for row in json.loads(told)) == newest


def test_since_a_day_every_value_has_its_first_and_last_list(made: Path, newest: list[str]) -> None:
    status, told = run("listed", "grid", "--data", str(made), "--since", "1971-01-01", "--format", "json")
    rows = json.loads(told)
    assert status == 0
    assert set(newest) <= {row["value"] for row in rows}
    assert all(FIRST <= row["first"] <= row["last"] <= LAST for row in rows)
    assert {row["value"] for row in rows if row["last"] == LAST} == set(newest)
    assert run("listed", "grid", "--data", str(made), "--since", "2100-01-01", "--format", "json") == (0, "[]\n")


def test_parquet_goes_to_a_pipe(made: Path, newest: list[str]) -> None:
    command = [sys.executable, "-m", "kanon.cli.start", "listed", "grid", "--data", str(made), "--format", "parquet"]
    ran = subprocess.run(command, capture_output=True, check=True)
    table = parquet.read_table(io.BytesIO(ran.stdout))
    assert table.schema.names == ["value", "since"]
    assert table.schema.field("since").type == pa.int64()
    assert sorted(table["value"].to_pylist()) == newest


def test_a_table_shows_control_characters_as_escapes(made: Path) -> None:
    _, told = run("listed", "grid", "--data", str(made), "--since", "1971-01-01")
    assert "\\x1b[2J" in told
    assert "\\u202e" in told
    assert "\x1b[2J" not in told
    assert "\u202e" not in told


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["plain", "--data", "d"], "no lists of type 'plain': types with lists: crossing, grid"),
        (["empty", "--data", "d"], "no lists of type 'empty': types with lists: crossing, grid"),
        (["grid", "--data", "absent"], "holds no deployment"),
        (["grid", "--since", "2026-01-01"], "name it with --data"),
        (["grid", "--data", "d", "--url", "http://127.0.0.1:1"], "not both"),
        (["grid", "--data", "d", "--key", "k"], "--key has no effect"),
        (["grid", "--data", "d", "--since", "yesterday"], "give a day as 2026-07-31"),
        (["grid", "--url", "http://127.0.0.1:1"], "no answer"),
        (["grid", "--url", "127.0.0.1"], "http"),
    ],
)
def test_what_cannot_be_read_is_refused(
    made: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    from kanon.client import calls

    monkeypatch.chdir(made.parent)
    Path("d/lists/empty").mkdir(exist_ok=True)  # its days have passed
    monkeypatch.setattr(calls.Calls, "deadline", 0.0, raising=False)
    monkeypatch.setattr("kanon.client.client.DEADLINE", 0.0)
    status, told = run("listed", *words)
    assert (status, reason in told) == (2, True), told


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--type", LISTED_TYPE, "--join-auth", "OPEN"], "such as --review-steps 24"),
        (["--type", LISTED_TYPE, "--list-auth", "OPEN"], "such as --review-steps 24"),
        (["--type", LISTED_TYPE, "--list-auth", "OPEN", "--review-steps", "0"], "such as --review-steps 24"),
        (["--type", LISTED_TYPE, "--list-auth", "JWT"], "JWT needs --jwks"),
        (["--type", LISTED_TYPE.replace(', "listed": true', ""), "--review-steps", "3"], "no type is listed"),
    ],
)
def test_a_service_that_would_list_what_anybody_sends_does_not_start(
    tmp_path: Path, words: list[str], reason: str
) -> None:
    status, told = run("serve", "--data", str(tmp_path / "d"), "--port", "0", *words)
    assert (status, reason in told) == (2, True), told
    assert not (tmp_path / "d").exists()


def test_a_log_has_no_listed_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text("time,set,client\n1800000000,a,b\n")
    for words in (["gate", "log.csv"], ["operate", "import", "log.csv"]):
        status, told = run(*words, "--data", "d", "--type", LISTED_TYPE)
        assert (status, "is listed: its joins come over HTTP" in told) == (2, True), told
    assert not Path("d").exists()
    opened(tmp_path / "e", FIRST * PERIOD, TYPES).close()
    status, told = run("gate", "log.csv", "--data", "e")
    assert (status, "is listed: its joins come over HTTP" in told) == (2, True), told


def test_unlist_says_what_it_does_and_refuses_other_types(made: Path, newest: list[str]) -> None:
    status, told = run("operate", "unlist", "plain", "x", "--data", str(made), "--yes")
    assert (status, "listed types: grid, crossing" in told) == (2, True), told
    status, told = run("operate", "unlist", "grid", "never listed", "--data", str(made), "--yes")
    assert (status, told.splitlines()[-1]) == (0, "It is unlisted. Lists of the history that had it: 0.")
