"""``kanon release`` and ``kanon ledger``: their output, files and errors."""

import csv
import io
import json
import os
import re
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from matplotlib.axes import Axes
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.noise.laws import Table
from kanon.release import output, releasing
from kanon.release.engines import duckdb

ASKED = ("--group", "set", "--epsilon", "1", "--delta", "1e-6", "--dataset", "joins")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def picture(monkeypatch, request):
    """Drawing takes most of the time of a small release: only the tests that look at the picture draw it."""
    if "picture" not in request.function.__name__:
        monkeypatch.setattr(output, "picture", lambda *_: b"\x89PNG\r\n\x1a\n" + bytes(25))


@pytest.fixture
def log(place):
    path = place / "log.csv"
    path.write_text(text_of(("popular", 200), ("known", 120), ("rare", 2)))
    return path


def text_of(*groups, client="c"):
    rows = [f"1767225600,{name},{client}{user}" for name, users in groups for user in range(users)]
    return "\n".join(["time,set,client", *rows]) + "\n"


def run(*arguments, status=0):
    result = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, [str(one) for one in arguments])
    assert result.exit_code == status, result.output
    if status:
        assert result.stderr.count("\n") == 1
        command = " ".join(map(str, arguments[: 2 if arguments[0] == "ledger" else 1]))
        assert result.stderr.startswith(f"kanon {command}: ")
    return result.stderr if status else result.stdout


def files(place):
    return {name: (place / name).read_bytes() for name in ("released.csv", "released.json", "released.png")}


def test_a_release_writes_a_table_its_guarantee_and_a_picture_and_a_repetition_costs_nothing(log, place):
    said = run("release", log, *ASKED, "--groups-per-user", 3)
    assert "is charged (1, 1.00e-6)" in said
    assert "who counts in at most 3 groups" in said
    first = files(place)
    rows = list(csv.DictReader(first["released.csv"].decode().splitlines()))
    assert [row["set"] for row in rows] == ["known", "popular"]
    assert int(rows[0]["users_counted_low"]) < int(rows[0]["users_counted"]) < int(rows[0]["users_counted_high"])
    told = json.loads(first["released.json"])
    assert told["guarantee"]["delta"] <= told["guarantee"]["charged"]["delta"] == 1e-6
    assert told["selection"] == {"A": 40, "floor": 1, "rule": "counted", "surely_released_from": 81}
    assert first["released.png"].startswith(b"\x89PNG")
    again = run("release", log, *ASKED, "--groups-per-user", 3)
    assert "was paid for before: this run costs nothing" in again
    assert files(place) == first
    assert "joins, unit user: (1, 1.00e-6) spent" in run("ledger", "show")


def test_another_order_and_split_of_the_rows_write_the_same_bytes(log, place):
    run("release", log, *ASKED)
    first = files(place)
    header, *rows = log.read_text().splitlines(keepends=True)
    (place / "1.csv").write_text(header + "".join(rows[100::-1]))
    (place / "2.csv").write_text(header + "".join(rows[101:]))
    run("release", "1.csv", "2.csv", *ASKED)
    assert files(place) == first


def test_the_fourth_release_of_a_budget_for_three_is_refused(log, place):
    run("ledger", "add", "--budget", "--dataset", "joins", "--epsilon", 3, "--delta", "1e-5")
    for i in range(3):
        run("release", log, *ASKED, "--name", i)
    before = files(place)
    refused = run("release", log, *ASKED, "--name", 3, status=4)
    assert "(3, 3.00e-6) of (3, 1.00e-5) is spent, and this costs (1, 1.00e-6). Nothing was drawn" in refused
    assert files(place) == before


def test_the_same_name_on_changed_data_is_refused_and_nothing_is_overwritten(log, place):
    run("release", log, *ASKED, "--name", "n")
    before = files(place)
    log.write_text(text_of(("popular", 199), ("known", 120), ("rare", 2)))
    assert "made from other data" in run("release", log, *ASKED, "--name", "n", status=5)
    assert files(place) == before


def test_months_are_parallel_for_user_months_and_add_up_for_users(place):
    path = place / "log.csv"
    months = ("2026-01-05", "2026-02-05")
    path.write_text("time,set,client\n" + "".join(f"{m},s,c{i}\n" for m in months for i in range(100)))
    for unit, cost in (("user-month", "(1, 1.00e-6)"), ("user", "(2, 2.00e-6)")):
        for month in ("2026-01", "2026-02"):
            run("release", path, *ASKED, "--ledger", unit, "--unit", unit, "--days", month)
        shown = run("ledger", "show", "--ledger", unit)
        assert f"joins, unit {unit}: {cost} spent" in shown
        assert "period 2026-02-01..2026-02-28" in shown


def test_a_command_that_ends_while_it_writes_is_completed_by_the_same_command(log, place, monkeypatch):
    class Crash(BaseException):
        pass

    real, calls = Path.replace, []

    def replace(path, target):
        calls.append(path)
        if len(calls) == 2:
            raise Crash
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(Crash):
        CliRunner().invoke(app, ["release", str(log), *ASKED])
    assert not [path for path in place.iterdir() if path not in (log, place / "kanon-ledger")]
    assert "was paid for before" in run("release", log, *ASKED)
    assert run("ledger", "show").count("name") == 1
    assert all(files(place).values())


def test_two_logs_that_differ_in_one_user_get_the_same_messages_and_queries_without_noise(place, monkeypatch):
    monkeypatch.setattr(Table, "draw", lambda self, word: 0)
    said, queries, ask = [], [], duckdb._executed
    monkeypatch.setattr(duckdb, "_executed", lambda *asked: queries.append(None) or ask(*asked))
    for i, groups in enumerate([(("s", 40),), (("s", 41),), (("s", 40), ("t", 1)), (("s", 14),), (("s", 15),)]):
        (place / "log.csv").write_text(text_of(*groups))
        text = run("release", "log.csv", *ASKED, "--ledger", f"l{i}", "--aggregate", "rows:2")
        text = re.sub("No group is in the table.*\n", "", text)  # follows from the released table
        said.append((re.sub("[0-9a-f]{32}", "ID", text), len(queries)))
        queries.clear()
    assert len(set(said)) == 1


def test_no_message_holds_a_group_a_user_or_a_count(log, place, caplog, capfd):
    log.write_text(
        text_of(("SECRETSET", 4321), ("RARE", 1)).replace(",c", ",SECRETCLIENT").replace("SECRETCLIENTlient", "client")
    )
    said = run("release", log, *ASKED, "--operator-report", "operator.json")
    said += run("ledger", "show") + run("ledger", "verify") + (place / "kanon-ledger" / "ledger.jsonl").read_text()
    log.write_text(text_of(("SECRETSET", 4320), client="SECRETCLIENT"))
    said += run("release", log, *ASKED, status=5)
    said += caplog.text + "".join(capfd.readouterr())
    for private in ("SECRETSET", "RARE", "SECRETCLIENT"):
        assert private not in said
    # As numbers: a digest may hold these digits.
    assert not re.search("(?<![0-9a-f])(4320|4321|4322)(?![0-9a-f])", said)
    assert json.loads(Path("operator.json").read_text())["warning"].startswith("NOT PRIVATE")


def test_the_published_files_show_neither_totals_nor_the_digest_of_the_input(log, place):
    run("release", log, *ASKED, "--floor", 50)
    spend = json.loads((place / "kanon-ledger" / "ledger.jsonl").read_text())
    published = b"".join(files(place).values())
    assert b"popular" in published
    assert b"rare" in log.read_bytes()
    assert len(spend["input"]) >= 32
    assert spend["input"].encode() not in published
    assert not re.search(rb"\b322\b", files(place)["released.json"])  # as a number: an id may hold these digits
    assert b"rare" not in published


def test_the_files_the_picture_and_the_screen_say_whom_a_count_counts_and_what_bounding_leaves_out(place, monkeypatch):
    labels, set_label = [], Axes.set_xlabel
    monkeypatch.setattr(
        Axes, "set_xlabel", lambda axes, text, **how: labels.append(text) or set_label(axes, text, **how)
    )
    rows = [(name, user) for name in "abc" for user in range(100 if name == "c" else 300)]
    (place / "log.csv").write_text("set,client\n" + "".join(f"{name},u{user}\n" for name, user in rows))
    bare = run("release", "log.csv", *ASKED)
    told = "users_counted counts a user in at most 1 group: a group may have far more users"
    assert f"Counts: {told}" in bare
    assert "--aggregate all-users releases how many more" in bare
    assert told in json.loads(files(place)["released.json"])["counts"]["meaning"]
    assert told in labels[0]
    said = run("release", "log.csv", *ASKED, "--aggregate", "all-users")
    counts = json.loads(files(place)["released.json"])["counts"]
    most = counts["left_out_at_most"]
    assert 300 < most < 330  # 300 users have two groups or more
    assert counts["column"] == "users_counted"
    for text in (counts["meaning"], said, labels[1]):
        assert f"in at most 1 group: a group has at most {most} users more (95%" in text
    table = {row["set"]: row for row in csv.DictReader(files(place)["released.csv"].decode().splitlines())}
    for name, users in (("a", 300), ("b", 300)):
        assert int(table[name]["users_counted_high"]) < users
        assert int(table[name]["all_users_low"]) <= users <= int(table[name]["all_users_high"])


def test_each_release_says_that_no_budget_limits_it_and_how_to_set_one(log):
    said = run("release", log, *ASKED)
    (line,) = [line for line in said.splitlines() if line.startswith("Nothing limits")]
    command = line.partition(": ")[2].replace("E --delta D", "3 --delta 1e-5").split()
    assert "no budget: no limit" in said
    assert "(1, 1.00e-6) spent of (3, 1.00e-5)" in run(*command[1:])
    assert "Nothing limits" not in run("release", log, *ASKED, "--name", "2")


@pytest.mark.parametrize(
    ("more", "warnings"),
    [
        ((), []),
        (("--epsilon", 11), ["epsilon 11 is above 10"]),
        (("--delta", "0.009"), ["delta 9.00e-3 is above 1 divided by"]),
        (
            ("--user", "set", "--group", "client", "--delta", "2e-6"),
            ["a user by set is another unit than one by client"],
        ),
        (
            ("--unit", "user-month", "--time", "new"),
            ["user-month by client and new is another unit than one by client and"],
        ),
    ],
)
def test_a_weak_guarantee_and_another_column_are_warned_of(log, more, warnings):
    log.write_text(
        "".join(f"{line},{'2026-01-05' if i else 'new'}\n" for i, line in enumerate(log.read_text().split()))
    )
    run("release", log, *ASKED, "--unit", "user-month", "--epsilon", "0.5", "--name", "first")
    said = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(one) for one in ("release", log, *ASKED, *more)])
    assert said.exit_code == 0, said.output
    found = [line for line in said.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(found) == len(warnings)
    assert all(text in line for text, line in zip(warnings, found, strict=True))


def test_a_delta_that_protects_nobody_is_refused_before_anything_is_read(log, place):
    for more in ((), ("--dry-run",)):
        assert "--delta must be below 0.01, not 0.01" in run("release", log, *ASKED, "--delta", "0.01", *more, status=2)
    assert not (place / "kanon-ledger" / "ledger.jsonl").exists()


def test_a_dry_run_warns_by_public_numbers_alone(place):
    said = CliRunner().invoke(app, ["release", "--dry-run", *ASKED, "--delta", "0.009", "--floor", "200"])
    assert "is above 1 divided by 200 users" in said.stderr


def test_parquet_holds_the_same_table(log, place):
    run("release", log, *ASKED, "--aggregate", "rows:2")
    run("release", log, *ASKED, "--aggregate", "rows:2", "--out", "t.parquet")
    table = pq.read_table("t.parquet").to_pylist()
    rows = list(csv.DictReader(Path("released.csv").read_text().splitlines()))
    assert [{name: str(value) for name, value in row.items()} for row in table] == [
        {name: value if name == "set" or name.startswith("users") else str(float(value)) for name, value in row.items()}
        for row in rows
    ]


def test_the_ledger_shows_adds_verifies_and_forgets(log, place):
    run("ledger", "add", "--dataset", "joins", "--epsilon", "2.25", "--delta", "1e-6", "--note", "the service")
    run("release", log, *ASKED)
    told = json.loads(run("ledger", "show", "--json"))
    assert told["accounts"] == [
        {"dataset": "joins", "unit": "user", "spent": {"epsilon": "13/4", "delta": "1/500000"}, "budget": None}
    ]
    assert "2 spends, the chain is whole" in run("ledger", "verify")
    release = told["releases"][1]["id"]
    assert "is forgotten" in run("ledger", "forget", release)
    assert "forgotten" in run("ledger", "show")
    assert "was destroyed" in run("release", log, *ASKED, status=6)
    run("ledger", "add", "--dataset", "joins", "--note", "the log was deleted")
    ledger = place / "kanon-ledger" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace("13/4", "1").replace("9/4", "1/4"))
    assert "Put no older copy in its place" in run("ledger", "verify", status=6)
    assert "Put no older copy in its place" in run("release", log, *ASKED, "--name", "n", status=6)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("log.csv", *ASKED[:-2]), 2, "--dataset names the data"),
        (ASKED, 2, "give at least one file"),
        (("nowhere.csv", *ASKED), 5, "there is no file"),
        (("log.csv", *ASKED, "--user", "who"), 5, "no column 'who'"),
        (("log.csv", *ASKED, "--out", "x.txt"), 2, ".csv or .parquet"),
        (("log.csv", *ASKED, "--out", "log.csv/x.csv"), 2, "cannot be written"),
        (("log.csv", *ASKED, "--epsilon", "one"), 2, "--epsilon must be a number"),
        (("log.csv", *ASKED, "--only", "counts"), 2, "--only must be: groups"),
        (("log.csv", *ASKED, "--weight", "a"), 2, "whole numbers"),
        (("log.csv", *ASKED, "--where", "set"), 2, "column=text"),
        (("more.csv", *ASKED, "--groups", "log.csv", "--group", "country"), 2, "no column 'country'"),
        (("log.csv", *ASKED, "--groups", "nowhere.csv"), 2, "there is no file nowhere.csv"),
        (("log.csv", *ASKED, "--explain", "duckdb", "--dry-run"), 2, "give --explain or --dry-run, not both"),
        (("log.csv", *ASKED, "--cells", 8), 2, "--cells has no effect without a quantile, min or max"),
        (("log.csv", *ASKED, "--only", "groups", "--weight", 2), 2, "--weight has no effect without --aggregate"),
        (("log.csv", *ASKED, "--name", ""), 2, "--name is empty"),
        (("log.csv", "./log.csv", *ASKED), 2, "log.csv is the same file as log.csv"),
        (("log.csv", "link.csv", *ASKED), 2, "link.csv is the same file as log.csv"),
        (("log.csv", *ASKED, "--out", "/proc/x.csv"), 2, "/proc/x.csv cannot be written"),
        (("log.csv", *ASKED, "--operator-report", "/proc/x"), 2, "/proc/x cannot be written"),
        (("log.csv", *ASKED, "--explain", "oracle"), 2, "--explain must be one of"),
        (("log.csv", *ASKED, "--memory", "lots"), 2, "--memory"),
        (("log.csv", *ASKED, "--aggregate", "sum:time:auto", "--epsilon", "0.01"), 2, "0.005"),
    ],
)
def test_wrong_use_ends_with_one_line_that_says_what_to_change_and_charges_nothing(log, arguments, status, message):
    log.with_name("link.csv").symlink_to(log)
    assert message in run("release", *arguments, status=status)
    assert not (log.parent / "kanon-ledger" / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("set\nParis, France\n", "line 2: more values than columns"),
        ("set,set\na,b\n", "two columns 'set': rename one"),
        ("set\na\0b\n", "line 2: a zero byte: remove it"),
        ("x,set\na,b\nc,\n", "line 3, column set: it is empty"),
        ("set\na\n\udcff\n", "line 3, column set: not UTF-8"),
        ("set\n", "groups.csv names no group: write one per line"),
    ],
)
def test_a_list_of_groups_is_refused_as_a_log_is_before_anything_is_charged(log, place, listed, message):
    (place / "groups.csv").write_text(listed, errors="surrogateescape")
    said = run("release", log, *ASKED, "--groups", "groups.csv", status=2)
    assert message in said
    assert "--skip-bad-rows" not in said
    assert not (place / "kanon-ledger").exists()


def test_the_log_is_no_list_of_public_groups(log, place):
    (place / "copy.csv").symlink_to(log)
    said = run("release", log, *ASKED, "--groups", "copy.csv", status=2)
    assert "--groups is the log: its groups are not public, and all would be named" in said
    assert not (place / "kanon-ledger").exists()


@pytest.mark.parametrize(
    "listed", ['set\n"Paris, France"\nb\n', "n;set\n1;Paris, France\n2;b\n", '{"set":"Paris, France"}\n{"set":"b"}\n']
)
def test_a_list_of_groups_has_every_form_of_a_log(log, place, listed):
    (place / "groups").write_text(listed)
    run("release", log, *ASKED, "--groups", "groups")
    rows = csv.DictReader(files(place)["released.csv"].decode().splitlines())
    assert [row["set"] for row in rows] == ["Paris, France", "b"]


@pytest.mark.parametrize("option", ["--out", "--operator-report"])
def test_a_file_that_fails_late_is_written_elsewhere_at_no_cost(log, place, option):
    (place / "full.csv").symlink_to("/dev/full")
    said = run("release", log, *ASKED, option, "full.csv", status=2)
    assert f"The release is charged: running it again with another {option} costs nothing" in said
    assert "this run costs nothing" in run("release", log, *ASKED, option, "other.csv")
    assert "(1, 1.00e-6) spent" in run("ledger", "show")


def test_a_report_of_the_operator_is_not_made_of_a_pipe_which_can_be_read_once(log, place):
    os.mkfifo(place / "pipe")
    for pipe in ("-", "pipe"):
        said = run("release", log, pipe, *ASKED, "--operator-report", "operator.json", status=2)
        assert "a pipe is read once: give the name of a file" in said
    assert not (place / "kanon-ledger").exists()


def test_a_log_that_fails_while_it_is_read_again_leaves_the_table(log, place, monkeypatch):
    release = releasing.release

    def and_cut(*given, **more):
        made = release(*given, **more)
        log.write_text("")
        return made

    monkeypatch.setattr(releasing, "release", and_cut)
    run("release", log, *ASKED, "--operator-report", "operator.json", status=5)
    assert b"popular" in files(place)["released.csv"]
    assert not (place / "operator.json").exists()


def test_a_name_in_a_ledger_has_no_effect_on_the_terminal(place):
    odd = "\x1b[2J\u202e\n"
    run("ledger", "add", "--dataset", "d", "--epsilon", 1, "--note", f"n{odd}")
    shown = run("ledger", "show")
    escaped = r"\x1b[2J\u202e\n"
    assert f"name n{escaped}" in shown
    assert not {"\x1b", "\u202e"} & set(shown)
    assert shown.count("\n") == 2


@pytest.mark.parametrize(
    ("more", "unused"),
    [
        (("--note", "service", "--delta", "1e-5"), "--delta has no effect on a remark: give --epsilon for a cost"),
        (("--note", "service", "--days", "2026-01"), "--days has no effect on a remark"),
        (("--epsilon", 3, "--budget", "--days", "2026-01"), "--days has no effect on a budget: leave it out"),
        (("--epsilon", 3, "--budget", "--note", "until May"), "--note has no effect on a budget"),
    ],
)
def test_an_option_that_the_ledger_would_not_enter_is_refused(place, more, unused):
    assert unused in run("ledger", "add", "--dataset", "d", *more, status=2)
    assert not (place / "kanon-ledger").exists()


def test_a_dataset_that_the_ledger_does_not_have_is_refused_with_the_nearest_name(place):
    budget = run("ledger", "add", "--dataset", "joins", "--epsilon", 1, "--budget")
    assert budget == "joins, unit user: (0, 0) spent of (1, 0)\n"
    run("ledger", "add", "--dataset", "views", "--note", "only a remark")
    for more in ((), ("--json",)):
        said = run("ledger", "show", "--dataset", "jons", *more, status=2)
        assert "no dataset 'jons'; the nearest name is 'joins'" in said
    assert "joins, unit user" in run("ledger", "show", "--dataset", "Joins")
    assert "Nothing is spent" in run("ledger", "show", "--dataset", "views")


def test_failed_bounds_and_a_missing_ledger_have_different_messages(place):
    (place / "log.csv").write_text(text_of(("s", 3)))
    assert "cost is spent" in run("release", "log.csv", *ASKED, "--aggregate", "sum:time:auto", status=3)
    assert "there is no ledger" in run("ledger", "show", "--ledger", "nowhere", status=2)
    assert "--unit must be one of" in run("ledger", "add", "--dataset", "d", "--epsilon", 1, "--unit", "x", status=2)


def test_a_library_that_is_not_installed_is_named_with_its_extra(log, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "kanon.release.engines.duckdb", raising=False)
    ran = CliRunner().invoke(app, ["release", str(log), *ASKED])
    said = "duckdb is missing: pip install 'kanon-dp[desk]', or run `make install` in a checkout of kanon\n"
    assert (ran.exit_code, ran.stderr) == (1, f"kanon release: {said}")


def test_the_picture_of_groups_in_any_script_is_drawn_without_a_warning(place):
    (place / "log.csv").write_text(text_of(("名前$x$", 90), ('"a, b"', 90), ("ж" * 90, 90)))
    said = run("release", "log.csv", *ASKED)
    assert "released.png" in said
    assert files(place)["released.png"].startswith(b"\x89PNG")


def test_without_matplotlib_nothing_is_spent(log, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["release", str(log), *ASKED])
    assert result.exit_code == 1
    assert "matplotlib is missing: pip install 'kanon-dp[desk]'" in result.stderr
    assert not (place / "kanon-ledger").exists()


def test_a_dry_run_reads_and_spends_nothing(place):
    said = run("release", "--dry-run", *ASKED, "--floor", 50, "--aggregate", "rows:20", "--aggregate", "sum:x:auto")
    assert "Nothing is read, nothing is spent" in said
    assert "users on; counts +-" in said
    assert "rows:20: noise of its totals" in said
    assert "bounds need more than" in said
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("engine", ["duckdb", "athena"])
def test_the_plan_is_printed_without_any_secret(place, engine):
    said = run("release", "--explain", engine, *ASKED, "--group", "set,country", "--aggregate", "distinct:page")
    assert "SAMPLING_SECRET" in said
    assert "from source_table source" in said
    assert said.rstrip().endswith(";")
    assert said.count("-- NOT PRIVATE: this query gives exact counts") == said.count(";\n")
    assert list(place.iterdir()) == []


NAMES = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\uff1d1", "'=1", "plain", "a=1", "'plain"]


def test_a_name_that_a_spreadsheet_could_run_is_a_text_in_csv_and_no_two_names_become_one():
    shown = [output.shown_as_text(name) for name in NAMES]
    assert shown == [f"'{name}" for name in NAMES[:8]] + NAMES[8:]
    assert len(set(shown)) == len(NAMES)
    released = SimpleNamespace(columns=["users"], rows=[((name,), (Fraction(-3),)) for name in NAMES])
    rows = list(csv.reader(io.StringIO(output.csv_bytes(released, ["set"]).decode(), newline="")))
    assert rows[1:] == [[name, "-3"] for name in shown]
