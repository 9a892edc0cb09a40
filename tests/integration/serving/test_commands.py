"""The commands on a directory, as a user types them: what they print, and what they refuse."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kanon import clock
from kanon.keys import Secret
from kanon.noise.words import NoiseKey
from kanon.serving.directory import Given, open_directory
from tests.unit.cli.commands import run

HOUR = 3_600
START = 1_800_000_000  # a whole hour
TYPE = '{"k": 50, "window": 24, "profile": "crossing"}'
TABLE = "--out"


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock, in hours after the start. Files of the test are named without their folder."""
    monkeypatch.chdir(tmp_path)

    def move(hours: float) -> None:
        monkeypatch.setattr(clock, "now", lambda: START + hours * HOUR)

    move(0)
    return move


def log(rows: list[tuple[float, str, str]], name: str = "log.csv") -> None:
    text = "".join(f"{START + hours * HOUR:.0f},{text},{client}\n" for hours, text, client in rows)
    Path(name).write_text(f"time,set,client\n{text}")


def crowd(hours: float, text: str = "shoes", number: int = 200) -> list[tuple[float, str, str]]:
    return [(hours, text, f"client {n}") for n in range(number)]


def left(folder: str) -> set[str]:
    return {each.name for each in Path(folder).glob("*")}


def test_an_hourly_run_answers_for_the_rows_that_it_has_read(at: Callable[[float], None]) -> None:
    at(10.1)
    log([*crowd(9.5), (9.5, "rare", "one"), (-40, "shoes", "old"), (11, "shoes", "early")])
    status, told = run("gate", "log.csv", "--data", "d", TABLE, "s.csv", "--type", TYPE)
    assert status == 0
    assert told == (
        "Rows: 201 new, and counted; 1 older than the window of 24 steps, and left out; 1 of a time after now, which"
        " wait (check clock and time zone).\nChanges in s.csv: 1. Sets that are true: 1.\n"
    )
    assert Path("s.csv").read_text().splitlines()[1:] == ['"shoes","fledge",500010,2027-01-15 18:00:00Z,true']
    log([*crowd(9.5), *crowd(10.2, "hats")])
    at(10.5)
    status, told = run("gate", "log.csv", "--data", "d", TABLE, "s.csv")
    assert told.splitlines() == [
        "Rows: 200 new, and counted; 200 counted before.",
        "The step of now is evaluated already: the new rows count in the run after 2027-01-15 19:00:00 UTC.",
        "Changes in s.csv: 0. Sets that are true: 1.",
    ]
    log([])
    at(11.1)
    status, told = run("gate", "log.csv", "--data", "d")
    assert [line.partition(",")[0] for line in told.splitlines() if "fledge" in line] == ['"hats"', '"shoes"']


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_damaged_table_is_refused_before_a_row_is_counted(at: Callable[[float], None], form: str) -> None:
    log(crowd(0))
    assert run("gate", "log.csv", "--data", "d", "--type", TYPE, TABLE, f"s.{form}")[0] == 0
    Path(f"s.{form}").write_bytes(b"no table")
    log(crowd(1.2, "hats"))
    at(1.5)
    wrong = f"s.{form} cannot be read as a table of statuses: choose another name"
    assert run("gate", "log.csv", "--data", "d", TABLE, f"s.{form}") == (2, f"kanon gate: {wrong}\n")
    assert run("gate", "log.csv", "--data", "d", TABLE, "new.csv")[1].startswith("Rows: 200 new, and counted.")


def test_a_service_does_not_start_on_a_damaged_file_and_says_so_in_one_line(at: Callable[[float], None]) -> None:
    log(crowd(0))
    assert run("gate", "log.csv", "--data", "d", "--type", TYPE)[0] == 0
    Path("d/control.db").write_bytes(b"no database" * 1000)
    told = (
        "kanon serve: d/control.db: file is not a database: stop the service and restore the directory from a backup\n"
    )
    assert run("serve", "--data", "d", "--port", "0") == (2, told)


OF_CONTROL = ("replay", "api-key", "backup b", "new-generation --original none", "suppress fledge/YQ", "retire x")


@pytest.mark.parametrize(
    ("name", "command"),
    [*(("control.db", each) for each in OF_CONTROL), *(("arrivals.db", each) for each in OF_CONTROL[:3:2])],
)
def test_a_command_names_the_file_that_is_damaged(at: Callable[[float], None], name: str, command: str) -> None:
    log(crowd(0))
    assert run("gate", "log.csv", "--data", "d", "--type", TYPE)[0] == 0
    Path("d", name).write_bytes(b"no database" * 1000)
    status, told = run("operate", *command.split(), "--data", "d")
    assert (status, f"d/{name}: file is not a database: stop the service and restore" in told) == (2, True), told


def test_rows_come_from_a_pipe(tmp_path: Path) -> None:
    rows = "".join(f"{time.time() - 60:.0f},shoes,client {n}\n" for n in range(200))
    command = [sys.executable, "-m", "kanon.cli.start", "gate", "-", "--data", "d", "--type", TYPE]
    ran = subprocess.run(
        command, input=f"time,set,client\n{rows}", cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stderr == "Rows: 200 new, and counted.\n"
    assert ran.stdout.splitlines()[1].startswith('"shoes","fledge",')


def test_a_parquet_file_with_other_columns(at: Callable[[float], None]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(
        {
            "asked_at": pa.array([START - 60] * 100, pa.timestamp("s", "UTC")),
            "query": ["shoes"] * 100,
            "user_id": list(range(100)),
        }
    )
    parquet.write_table(table, "events.parquet")
    status, told = run("gate", "events.parquet", "--data", "d", "--type", TYPE)
    assert (status, "no column 'time'" in told, "--columns TIME,SET,CLIENT" in told) == (2, True, True)
    named = ["--columns", "asked_at,query,user_id"]
    run("gate", "events.parquet", "--data", "d", TABLE, "s.parquet", *named, "--type", TYPE)
    assert parquet.read_table("s.parquet").column("value").to_pylist() == ["shoes"]


def test_an_empty_directory_with_an_old_output_is_refused_before_anything_is_made(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", TABLE, "s.csv", "--type", TYPE)
    before = Path("s.csv").read_bytes()
    status, told = run("gate", "log.csv", "--data", "new", TABLE, "s.csv", "--type", TYPE)
    assert (status, told.count("\n")) == (2, 1)
    assert "new is new, and s.csv has answers of another deployment. Keep new between runs" in told
    assert not Path("new").exists()
    run("gate", "log.csv", "--data", "new", "--type", TYPE)
    status, told = run("gate", "log.csv", "--data", "new", TABLE, "s.csv")
    assert (status, "--out has answers of another deployment than new: choose another name" in told) == (2, True)
    assert Path("s.csv").read_bytes() == before


def rolled_back(to: Path) -> None:
    """Bring back an earlier content of the same files, as a snapshot of the volume does."""
    for path in to.rglob("*"):
        if path.is_file():
            original = Path("d") / path.relative_to(to)
            original.parent.mkdir(exist_ok=True)
            original.write_bytes(path.read_bytes())
    for path in Path("d").rglob("*"):
        if path.is_file() and not (to / path.relative_to("d")).exists():
            path.unlink()


def test_an_output_that_is_ahead_of_the_directory_begins_a_generation(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", TABLE, "s.csv", "--type", TYPE)
    shutil.copytree("d", "earlier")
    at(1.1)
    run("gate", "log.csv", "--data", "d", TABLE, "s.csv")
    rolled_back(Path("earlier"))
    status, told = run("gate", "log.csv", "--data", "d", TABLE, "s.csv")
    assert status == 0, told
    assert "d is an older copy: it does not know the last answers of --out." in told
    assert "does not know what was suppressed or unlisted later: do that again." in told
    assert "a log generation with new noise begins at step 500001" in told
    assert "Nothing was evaluated: s.csv has the answers of this step already." in told
    at(2.1)
    status, told = run("gate", "log.csv", "--data", "d", TABLE, "s.csv")
    assert "begins at step 500001" in told  # of the same generation of this copy, which has evaluated nothing
    assert json.loads(Path("s.json").read_text())["step"] == 500002
    at(3.1)
    status, told = run("gate", "log.csv", "--data", "d", TABLE, "s.csv")
    assert "older copy" not in told
    with open_directory(Path("d"), None, clock.now()) as directory:
        assert [entry.from_step for entry in directory.settings.log_generations] == [500001]


def test_an_output_of_another_branch_begins_a_generation_too(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", "--type", TYPE)
    shutil.copytree("d", "earlier")
    at(1.1)
    run("gate", "log.csv", "--data", "d", TABLE, "s.csv")
    rolled_back(Path("earlier"))
    log(crowd(0.5, "hats"))
    run("gate", "log.csv", "--data", "d")  # the same step on other rows
    at(2.1)
    status, told = run("gate", "log.csv", "--data", "d", TABLE, "s.csv")
    assert (status, "a log generation with new noise begins at step 500002" in told) == (0, True)


def test_a_copy_and_what_follows(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    run("operate", "import", "log.csv", "--data", "d", "--type", TYPE)
    run("gate", "log.csv", "--data", "d", TABLE, "s.csv")
    status, told = run("operate", "replay", "--data", "d", "--yes")
    assert status == 0
    assert "If nothing differs, the new states take their places.\n" in told
    end = "Steps 500000 to 500000, parts: 1, crossings: 1: all are equal to those that were stored, and in use.\n"
    assert told.endswith(end)
    status, told = run("operate", "backup", "b", "--data", "d")
    assert (status, "b holds the states after step 500000 and the joins after it" in told) == (0, True)
    status, told = run("gate", "log.csv", "--data", "b")
    assert (status, "run `kanon operate new-generation --data b --original DIR` with the dir" in told) == (2, True)
    for more in ([], ["--new-key"]):
        status, told = run("operate", "new-generation", "--data", "b", "--yes", *more)
        assert (status, "--original: name the directory of which this one is a copy" in told) == (2, True)
    assert run("operate", "suppress", "fledge/c2hvZXM", "--data", "d", "--yes")[0] == 0
    begun = run("operate", "new-generation", "--data", "b", "--original", "d", "--yes")
    assert begun[1].endswith("It begins at step 500001.\n")
    status, told = run("operate", "unsuppress", "fledge/c2hvZXM", "--data", "b", "--yes")
    assert status == 0
    status, told = run("operate", "new-generation", "--data", "b", "--original", "none", "--yes")
    assert (status, "suppressed or unlisted since the copy was made counts again" in told) == (0, True)
    assert run("gate", "log.csv", "--data", "b")[0] == 0
    status, told = run("operate", "replay", "--data", "b", "--yes")
    assert (status, "no step after 500000 is evaluated: begin with earlier" in told) == (2, True)
    status, told = run("operate", "backup", "b", "--data", "d")
    assert (status, told) == (2, "kanon operate backup: b is not empty: name a new directory\n")


def test_an_original_that_is_none_is_refused_before_the_question(at: Callable[[float], None]) -> None:
    log([])
    run("gate", "log.csv", "--data", "d", "--type", TYPE)
    run("gate", "log.csv", "--data", "e", "--type", TYPE)
    run("operate", "backup", "b", "--data", "d")
    for name, why in (("no", "no holds no deployment"), ("e", "e holds another deployment than b")):
        told = run("operate", "new-generation", "--data", "b", "--original", name)
        assert told == (2, f"kanon operate new-generation: {why}: check --original\n")


def test_forgetting_says_what_it_does_and_how_much_it_found(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", "--type", TYPE)
    Path("sets.txt").write_text("shoes\nhats\n")
    status, told = run("operate", "forget", "--data", "d", "--client", "client 199", "--sets", "sets.txt", "--yes")
    assert status == 0
    assert "Sets: 2. In each the client's token becomes a random one" in told
    assert "another client may have the same one in a set" in told
    assert "Tokens that were found and replaced: " in told
    Path("ids.txt").write_text("c2hvZXM\n")
    assert run("operate", "forget", "--data", "d", "--client", "x", "--sets", "ids.txt", "--base64", "--yes")[0] == 0
    told = run("operate", "forget", "--data", "d", "--client", "x", "--sets", "sets.txt", "--base64", "--yes")[1]
    assert "sets.txt: the set id must be base64url" in told
    Path("ids.txt").write_text("s0\n")
    told = run("operate", "forget", "--data", "d", "--client", "x", "--sets", "ids.txt", "--base64", "--yes")[1]
    assert "ids.txt: the set id has spare bits: give sw if s0 is a set id; of a value, give what `kanon set-id`" in told
    told = run("operate", "forget", "--data", "d", "--client", "x", "--sets", "no.txt", "--yes")[1]
    assert "no.txt cannot be read: No such file" in told


def test_forgetting_nobody_ends_no_recovery(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", "--type", TYPE)
    Path("sets.txt").write_text("\n")
    status, told = run("operate", "forget", "--data", "d", "--client", "client 1", "--sets", "sets.txt", "--yes")
    assert (status, "sets.txt is empty" in told, "replaced" in told) == (2, True, False)


def test_the_doctor_finds_a_damaged_record_of_rows(at: Callable[[float], None]) -> None:
    log(crowd(0))
    assert run("gate", "log.csv", "--data", "d", "--type", TYPE)[0] == 0
    assert "arrivals.db" not in run("doctor", "--data", "d")[1]
    Path("d/arrivals.db").write_bytes(b"no database" * 1000)
    status, told = run("doctor", "--data", "d")
    assert (status, "arrivals.db cannot be read" in told) == (1, True)


def test_a_first_log_that_cannot_be_read_leaves_nothing_but_a_later_one_what_was_there(
    at: Callable[[float], None],
) -> None:
    log([*crowd(-1), (-1, "a,b,c", "one")])
    assert "line 202: more values than columns" in run("gate", "log.csv", "--data", "d", "--type", TYPE)[1]
    assert left("d") == {"lock"}
    Path("d/logbook").write_text("of somebody else")
    assert "is not empty and holds no deployment" in run("gate", "log.csv", "--data", "d", "--type", TYPE)[1]
    Path("d/logbook").unlink()
    assert "line 202" in run("operate", "import", "log.csv", "--data", "d", "--type", TYPE)[1]
    assert left("d") == {"lock"}
    broken = Path("log.csv").read_text()
    log(crowd(-1))
    assert run("gate", "log.csv", "--data", "d", "--type", TYPE.replace("50", "60"))[0] == 0
    Path("log.csv").write_text(broken)
    assert "line 202" in run("gate", "log.csv", "--data", "d")[1]
    log(crowd(-1))
    assert "200 counted before" in run("gate", "log.csv", "--data", "d")[1]


def test_a_new_deployment_takes_the_secrets_that_it_is_given(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    given = {"set-pepper": "p" * 64, "noise-keys.json": json.dumps({"1": "n" * 43})}
    folder = Path("d/secrets")
    folder.mkdir(parents=True)
    (folder / "..data").mkdir()  # Kubernetes mounts secrets so
    for name, text in given.items():
        (folder / name).write_text(text)
    Path("log.csv").write_text("no log")
    assert run("gate", "log.csv", "--data", "d", "--type", TYPE)[0] == 2
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        told = run("serve", "--data", "d", "--type", TYPE, "--port", port, "--report-origins", "*", "--gateway")[1]
        assert f"port {port} is in use" in told
    assert (left("d"), left("d/secrets")) == ({"lock", "secrets"}, {*given, "..data"})
    log(crowd(-1))
    assert run("gate", "log.csv", "--data", "d", "--type", TYPE)[0] == 0
    assert {name: (folder / name).read_text() for name in given} == given
    assert left("d/secrets") == {*given, "..data", "client-key"}
    with open_directory(Path("d"), None, clock.now()) as directory:
        assert directory.joining.pepper == Secret.derived("set-pepper", "p" * 64)
        assert directory.segments.noise_keys.for_search(0) == NoiseKey("1", Secret.derived("noise-key/1", "n" * 43).key)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("set-pepper", "changeme", "d/secrets/set-pepper has fewer than 43 characters: put random ones there"),
        (
            "set_pepper",
            "p" * 64,
            "d/secrets/set_pepper is no secret that a new deployment takes: take it away, or call it set-pepper",
        ),
        ("noise-keys.json", '{"1": "changeme"}', "noise-keys.json has fewer than 43 characters"),
        ("noise-keys.json", json.dumps({"2": "n" * 64}), "noise-keys.json must have one key with the id 1"),
        ("client-key", "\udcff", "d/secrets/client-key cannot be read as text"),
        ("issuer-key", "i" * 64, "d/secrets/issuer-key is no secret that a new deployment takes"),
    ],
)
def test_a_given_secret_that_is_weak_or_unknown_is_refused(
    at: Callable[[float], None], name: str, text: str, told: str
) -> None:
    log(crowd(-1))
    Path("d/secrets").mkdir(parents=True)
    Path("d/secrets", name).write_bytes(text.encode(errors="surrogateescape"))
    status, error = run("gate", "log.csv", "--data", "d", "--type", TYPE)
    assert status == 2
    assert told in error
    assert left("d") == {"lock", "secrets"}
    assert left("d/secrets") == {name}


def test_a_lost_record_of_counted_rows_is_noticed_until_a_new_generation_accepts_it(
    at: Callable[[float], None],
) -> None:
    log(crowd(-1))
    assert run("gate", "log.csv", "--data", "d", "--type", TYPE)[0] == 0
    first = Path("d/arrivals.db").read_bytes()
    log([*crowd(-1), (-1, "hats", "one")])
    assert run("gate", "log.csv", "--data", "d")[0] == 0
    for content in (None, b"", first):  # lost, empty, of an earlier time
        Path("d/arrivals.db").unlink()
        if content is not None:
            Path("d/arrivals.db").write_bytes(content)
        assert "arrivals.db" in run("doctor", "--data", "d", "--json")[1]
        status, told = run("gate", "log.csv", "--data", "d")
        assert (status, "d/arrivals.db is lost, or was overwritten with an older file: rows" in told) == (2, True)
    assert run("operate", "new-generation", "--data", "d", "--original", "none", "--yes")[0] == 0
    assert "1 new, and counted; 200 counted before" in run("gate", "log.csv", "--data", "d")[1]


def test_a_run_that_is_refused_before_it_counts_loses_no_record(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    run("gate", "log.csv", "--data", "other", "--type", TYPE, TABLE, "s.csv")
    open_directory(Path("d"), Given(types=f'{{"fledge": {TYPE}}}'), clock.now()).close()
    assert "answers of another deployment" in run("gate", "log.csv", "--data", "d", TABLE, "s.csv")[1]
    assert run("gate", "log.csv", "--data", "d")[1].startswith("Rows: 200 new, and counted.")


def test_a_start_that_fails_beside_another_process_deletes_nothing(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    with open_directory(Path("d"), Given(types=f'{{"fledge": {TYPE}}}'), clock.now()) as directory:
        assert "another process has d open" in run("gate", "log.csv", "--data", "d", "--type", TYPE)[1]
        assert {"control.db", "secrets", "log"} < left("d")
        assert directory.before is not None
    with (
        pytest.raises(ValueError, match="later"),
        open_directory(Path("d"), None, clock.now()) as directory,
        directory.or_taken_back(),
    ):
        raise ValueError("later")
    assert {"control.db", "secrets", "log"} < left("d")


def test_a_set_is_suppressed_beside_a_running_service(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", "--type", TYPE)
    with open_directory(Path("d"), None, clock.now()):
        status, told = run("operate", "suppress", "fledge/s0", "--data", "d", "--yes")  # a value, with spare bits
        assert (status, "give sw if s0 is a set id" in told) == (2, True)
        assert run("operate", "suppress", "fledge/c2hvZXM", "--data", "d", "--yes")[0] == 0
        told = run("gate", "log.csv", "--data", "d")[1]
        assert told == "kanon gate: another process has d open: stop it first\n"
    assert "shoes" not in run("gate", "log.csv", "--data", "d")[1]
    assert run("operate", "unsuppress", "fledge/c2hvZXM", "--data", "d", "--yes")[0] == 0
    assert "shoes" in run("gate", "log.csv", "--data", "d")[1]
    assert "this set is not suppressed" in run("operate", "unsuppress", "fledge/c2hvZXM", "--data", "d", "--yes")[1]


def test_a_type_is_retired(at: Callable[[float], None]) -> None:
    Path("types.json").write_text(f'{{"a": {TYPE}, "b": {TYPE}}}')
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", "--types", "types.json")
    assert run("operate", "retire", "a", "--data", "d", "--yes")[1].endswith("Type a is retired.\n")
    at(1)
    assert '"b",' in run("gate", "log.csv", "--data", "d")[1]
    assert "'a' was retired permanently" in run("gate", "log.csv", "--data", "d", "--types", "types.json")[1]


def test_a_type_that_is_not_there_is_refused_before_the_question(at: Callable[[float], None]) -> None:
    log([])
    run("gate", "log.csv", "--data", "d", "--type", TYPE)
    told = run("operate", "retire", "fledgee", "--data", "d")[1]
    assert told == "kanon operate retire: d has no type 'fledgee': did you mean 'fledge'?\n"
    told = run("operate", "retire", "fledge", "--data", "d")[1]
    assert told == "kanon operate retire: 'fledge' is the only type: add another one first with --types\n"


def test_what_is_not_there_is_refused_before_the_question(at: Callable[[float], None]) -> None:
    log([])
    run("gate", "log.csv", "--data", "d", "--type", TYPE)
    told = run("operate", "unlist", "fledge", "a value", "--data", "d")[1]
    assert told == "kanon operate unlist: type 'fledge' is not listed: listed types: none\n"
    told = run("operate", "delete-account", "who", "--data", "d")[1]
    assert told.startswith("kanon operate delete-account: d has no accounts: ")


def test_retiring_a_type_of_a_copy_gives_it_no_right_to_the_noise(at: Callable[[float], None]) -> None:
    Path("types.json").write_text(f'{{"a": {TYPE}, "b": {TYPE}}}')
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", "--types", "types.json")
    assert run("operate", "backup", "b", "--data", "d")[0] == 0
    for command in (["operate", "retire", "a", "--data", "b", "--yes"], ["gate", "log.csv", "--data", "b"]):
        status, told = run(*command)
        assert (status, "b is a copy of a deployment, or was moved" in told) == (2, True), told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gate", "log.csv", "--data", "d"], "kanon gate: a new deployment needs types: give --type or --types"),
        (["gate", "log.csv", "--data", "d", "--type", TYPE, TABLE, "x.txt"], "ends in .csv or .parquet"),
        (["gate", "no.csv", "--data", "d", "--type", TYPE], "there is no file no.csv: check the path"),
        (["gate", "log.csv", "--data", "d", "--type", TYPE, TABLE, "log.csv"], "was not written by `kanon gate`"),
        (
            ["gate", "log.csv", "--data", "d", "--type", TYPE, TABLE, "log.csv/x.csv"],
            "cannot be written (",
        ),
        (["gate", "log.csv", "--data", "d", "--type", TYPE, TABLE, "/proc/x.csv"], "cannot be written ("),
        (["gate", "log.csv", "--data", "d", "--type", TYPE, TABLE, "d/x.csv"], "lies in d, whose files"),
        (["gate", "log.csv", "--data", "d", "--type", TYPE, TABLE, "d/lists/x.db"], "lies in d, whose files"),
        (["operate", "backup", "b", "--data", "d"], "d holds no deployment: check --data"),
        (["operate", "replay", "--data", "d"], "d holds no deployment: check --data"),
        (["operate", "new-generation", "--data", "d", "--yes"], "d holds no deployment: check --data"),
        (["operate", "retire", "a", "--data", "d", "--yes"], "d holds no deployment: check --data"),
        (["operate", "suppress", "a/YQ", "--data", "d", "--yes"], "d holds no deployment: check --data"),
        (["operate", "suppress", "a/YQ", "--data", "d", "--stack", "s"], "give --stack, --url or --data, one of them"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    at: Callable[[float], None], arguments: list[str], told: str
) -> None:
    log([])
    status, output = run(*arguments)
    assert (status, output.count("\n"), told in output) == (2, 1, True), output
    assert left("d") <= {"lock"}


@pytest.mark.parametrize(
    "changed",
    [{"step": "a"}, {"step": -1}, {"step": True}, {"step": 1 << 80}, {"deployment": 1}, {"digest": None}, {"more": 1}],
)
def test_a_damaged_description_of_an_output_changes_nothing(
    at: Callable[[float], None], changed: dict[str, object]
) -> None:
    """It could begin a generation with new noise."""
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", TABLE, "s.csv", "--type", TYPE)
    Path("s.json").write_text(json.dumps(json.loads(Path("s.json").read_text()) | changed))
    at(1.1)
    status, told = run("gate", "log.csv", "--data", "d", TABLE, "s.csv")
    assert (status, "s.json does not describe a table of `kanon gate`" in told) == (2, True)
    with open_directory(Path("d"), None, clock.now()) as directory:
        assert directory.settings.log_generations == ()
        assert directory.evaluated_through == 500000


@pytest.mark.parametrize("name", ["s.csv", "s.db"])
def test_an_output_of_a_later_time_than_now_is_refused_before_a_row_is_counted(
    at: Callable[[float], None], name: str
) -> None:
    log(crowd(-1))
    at(100)
    run("gate", "log.csv", "--data", "d", TABLE, name, "--type", TYPE)
    at(1)
    log(crowd(-1, "hats"))
    status, told = run("gate", "log.csv", "--data", "d", TABLE, name)
    assert (status, "a step after now: correct the clock, or choose another name" in told) == (2, True)
    at(101)
    log(crowd(100.5, "hats"))
    assert "200 new, and counted" in run("gate", "log.csv", "--data", "d", TABLE, name)[1]


def test_the_folder_of_an_output_is_made(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    assert run("gate", "log.csv", "--data", "d", TABLE, "new/folder/s.csv", "--type", TYPE)[0] == 0
    assert "shoes" in Path("new/folder/s.csv").read_text()


def test_ids_may_hold_any_separator_but_line_feeds(at: Callable[[float], None]) -> None:
    texts = ["\u2028sep", "a\x85b", "a\x0cb", "plain"]
    log([row for text in texts for row in crowd(-1, text, 3)])
    assert run("gate", "log.csv", "--data", "d", "--type", TYPE)[0] == 0
    Path("sets.txt").write_text("\n".join(texts), encoding="utf-8")
    forget = ["operate", "forget", "--client", "client 1", "--sets", "sets.txt", "--data", "d", "--yes"]
    assert run(*forget)[1].endswith("Tokens that were found and replaced: 4.\n")


def test_a_backup_of_damaged_states_is_refused(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", "--type", TYPE)
    (part,) = Path("d/parts").iterdir()
    part.write_bytes(part.read_bytes()[:-1])
    told = run("operate", "backup", "b", "--data", "d")[1]
    assert f"the part {part.name} is not the one that was written: `kanon doctor --data` says what to do" in told
    assert left("b") == set()
    part.unlink()
    assert "or lacks a file: stop the service first; `kanon doctor" in run("operate", "backup", "b", "--data", "d")[1]


def test_a_backup_is_for_its_owner_alone(at: Callable[[float], None]) -> None:
    log(crowd(-1))
    run("gate", "log.csv", "--data", "d", "--type", TYPE)
    Path("b").mkdir(mode=0o755)
    assert run("operate", "backup", "b", "--data", "d")[0] == 0
    assert Path("b").stat().st_mode & 0o777 == 0o700
    told = run("operate", "new-generation", "--data", "b", "--original", "b", "--yes")[1]
    assert "this is --data itself" in told


def test_a_period_never_changes(at: Callable[[float], None]) -> None:
    log([])
    assert run("gate", "log.csv", "--data", "d", "--type", TYPE, "--period", "60")[0] == 0
    told = run("gate", "log.csv", "--data", "d", "--period", "30")[1]
    assert "the period of this deployment is 60 s, and never changes" in told
    with open_directory(Path("d"), Given(), clock.now()) as directory:
        assert directory.settings.period == 60
