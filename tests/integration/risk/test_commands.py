"""``kanon risk``: the output, files and errors of each command."""

import importlib
import json
import stat
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.risk import scan


def run(*arguments: object) -> Result:
    environment = {"COLUMNS": "160", "NO_COLOR": "1"}
    return CliRunner(env=environment).invoke(app, ["risk", *map(str, arguments)])


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"kanon risk {arguments[0]}: ")
    return result.stderr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Ten sets: n has n clients and two rows for each; each day has one row of each client."""
    path = tmp_path / "log.csv"
    rows = [f"{86_400 * client},{n},c{client}" for n in range(1, 11) for client in range(n) for _ in range(2)]
    path.write_text("\n".join(["time,set,client", *rows, "5,,c1"]) + "\n")
    return path


def test_one_column_prints_its_curve_as_json(log: Path) -> None:
    told = json.loads(run("uniqueness", log, "--json").stdout)
    assert told["exact"]
    assert (told["rows"], told["rowsLeftOut"], told["numberOfValues"]) == (110, 1, 10)
    at_5 = next(point for point in told["curve"] if point["k"] == 5)
    assert at_5 == {"k": 5, "values": 0.4, "rows": 20 / 110, "standardError": 0.0, "rowsStandardError": 0.0}


def test_the_report_names_what_is_dangerous_and_what_thresholds_cost(log: Path) -> None:
    shown = run("uniqueness", log, "--combinations", "set,set+day,set+client", "--k", 5).stdout
    assert "110 rows, 1 left out" in shown
    assert "(set): 10.0% of 10 values have one user, 100.0% have at most 10." in shown
    assert "(set, day) is dangerous: 100.0% of 55 values have one user" in shown
    assert "(set, client) holds the user column: it is an identifier" in shown
    assert "(set): k = 5 loses 18.2% of rows (40.0% of values)." in shown
    assert "this noise needs k of at least 18" in shown
    assert "Do not publish it" in shown


def test_several_columns_are_a_list_in_json_with_the_dangerous_ones_named(log: Path) -> None:
    told = json.loads(run("uniqueness", log, "--combinations", "set, set + day", "--json").stdout)
    assert told["dangerous"] == ["(set, day)"]
    assert [one["columns"] for one in told["columns"]] == [["set"], ["set", "day"]]
    assert [one["verdict"] for one in told["columns"]] == ["not flagged", "dangerous"]


def test_the_report_shows_the_loss_through_the_service(log: Path) -> None:
    shown = run("uniqueness", log, "--k", 60, "--profile", "sharp", "--window", 24).stdout
    assert "profile sharp, 24 steps" in shown
    assert "(set) through the service: k = 60 loses 100.0% of rows" in shown


def test_the_picture_is_a_png(log: Path, tmp_path: Path) -> None:
    picture = tmp_path / "pictures" / "curve.png"
    assert run("uniqueness", log, "--plot", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


def test_the_page_is_one_file_that_loads_nothing(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run("uniqueness", log, "--combinations", "set,set+day,set+client", "--html", page).exit_code == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    for outside in (" src=", "@import", "<script", "<link", "url(http"):
        assert outside not in text
    svg = text[text.index("<svg") : text.index("</svg>") + 6]
    ET.fromstring(svg)
    assert svg.count('<g id="axes_') == 2  # none of the identifier
    assert '<p class="dangerous">(set, day) is dangerous' in text
    for heading in ("<h2>(set)</h2>", "<h2>(set, day)</h2>", "<h2>(set, client)</h2>"):
        assert heading in text


def test_names_of_columns_are_escaped_on_the_page(tmp_path: Path) -> None:
    log, page = tmp_path / "log.csv", tmp_path / "report.html"
    log.write_text("<script>,client\na,b\n")
    assert run("uniqueness", log, "--value", "<script>", "--html", page).exit_code == 0
    text = page.read_text()
    assert "<script>" not in text
    assert "(&lt;script&gt;)" in text


def sketched(log: Path, name: str, *options: object) -> Path:
    out = log.parent / name
    result = run("uniqueness", log, "--out", out, "--key", log.parent / "key", "--json", *options)
    assert result.exit_code == 0, result.output
    assert "raw personal data" in result.stderr
    return out


def test_sketches_of_parts_merge_to_the_bytes_of_the_whole(log: Path, tmp_path: Path) -> None:
    whole = sketched(log, "whole.khll", "--size", 16)
    lines = log.read_text().splitlines()
    parts = []
    for part in range(7):
        piece = tmp_path / f"{part}.csv"
        piece.write_text("\n".join([lines[0], *lines[1 + part :: 7]]) + "\n")
        parts.append(sketched(piece, f"{part}.khll", "--size", 16))
    for order in (parts, parts[::-1], parts[2:] + parts[:2]):
        merged = tmp_path / "merged.khll"
        result = run("merge", *order, "--out", merged)
        assert result.exit_code == 0, result.output
        assert "raw personal data" in result.stderr
        assert merged.read_bytes() == whole.read_bytes()
        assert stat.S_IMODE(merged.stat().st_mode) == 0o600


def test_columns_of_one_key_are_joined_and_the_verdict_follows(log: Path) -> None:
    sets, days = sketched(log, "set.khll"), sketched(log, "days.khll", "--combinations", "set+day")
    shown = run("join", sets, sets).stdout
    assert "100.0%" in shown
    assert "Not joinable" in shown
    assert "Joinable: rows can be linked" in run("join", days, days).stdout
    told = json.loads(run("join", sets, days, "--json").stdout)
    assert told["firstInSecond"] == {"matched": 0.0, "standardError": 0.0, "thesis": 0.0}
    assert (told["estimator"], told["joinable"]) == ("matched", False)
    assert (told["firstUnique"], told["secondUnique"]) == (0.1, 1.0)


def test_a_log_that_cannot_be_read_leaves_no_new_key(log: Path, tmp_path: Path) -> None:
    key, bad = tmp_path / "new key", tmp_path / "bad.csv"
    bad.write_text("set,client\na,b,c\n")
    assert run("uniqueness", bad, "--key", key).exit_code == 2
    assert run("uniqueness", log, "--profile", "crosing", "--key", key).exit_code == 2
    assert not key.exists()
    sketched(log, "set.khll")
    kept = (tmp_path / "key").read_bytes()
    assert run("uniqueness", bad, "--key", tmp_path / "key").exit_code == 2
    assert (tmp_path / "key").read_bytes() == kept


def test_sketches_of_different_keys_refuse_to_be_merged_or_joined(log: Path, tmp_path: Path) -> None:
    one = sketched(log, "one.khll")
    other = tmp_path / "other.khll"
    run("uniqueness", log, "--out", other)
    assert "different keys" in refused("join", one, other)
    assert "different keys" in refused("merge", one, other, "--out", tmp_path / "both.khll")
    assert not (tmp_path / "both.khll").exists()


def test_sketches_of_different_columns_refuse_to_be_merged(log: Path, tmp_path: Path) -> None:
    one = sketched(log, "one.khll")
    for name, options in (("value", ("--value", "time")), ("user", ("--user", "time"))):
        other = sketched(log, f"{name}.khll", *options)
        assert "are of different columns" in refused("merge", one, other, "--out", tmp_path / "both.khll")
        assert run("join", one, other).exit_code == 0


def test_a_merge_of_sketches_of_different_sizes_says_which_it_keeps(log: Path, tmp_path: Path) -> None:
    one, other = sketched(log, "one.khll"), sketched(log, "other.khll", "--size", 16)
    said = " ".join(run("merge", one, other, "--out", out := tmp_path / "both.khll").stdout.split())
    assert said == f"The sketches keep 16 and 2,048 values: {out} keeps 16."
    assert run("merge", one, one, "--out", out, "--force").stdout == ""


def test_the_attack_is_shown_beside_its_prediction(log: Path) -> None:
    told = json.loads(run("sketch-leak", log, "--group", "1*", "--json").stdout)
    assert (told["public"]["found"], told["public"]["members"], told["public"]["strangers"]) == (10, 10, 0)
    shown = run("sketch-leak", log, "--group", "4").stdout
    assert "2^15 registers counts 4 users" in shown
    assert "4 of 4" in shown
    assert "guessing does as well with probability" in shown


def test_a_threshold_without_noise_is_judged_from_numbers() -> None:
    told = json.loads(
        run("no-noise", "--k", 51, "--clients", 100_000, "--expected", 10, "--fakes", 0, "--fakes", 20, "--json").stdout
    )
    assert told["moreThan"] == 50
    assert [f"{result['deltaBound']:.3g}" for result in told["results"]] == ["1.85e-19", "2.56e-07"]
    assert "Void against k - 1 fake members, void for repeated releases" in told["caveat"]


def test_a_threshold_without_noise_is_judged_from_the_rates_of_a_log(log: Path) -> None:
    told = json.loads(run("no-noise", log, "--k", 9, "--fakes", 0, "--json").stdout)
    assert (told["clients"], told["groupsFromKOn"]) == (10, 2)
    assert [(result["group"], result["expected"]) for result in told["results"]][:3] == [("8", 8), ("7", 7), ("6", 6)]
    by_days = json.loads(run("no-noise", log, "--k", 2, "--window-days", 5, "--json").stdout)
    expected = {result["group"]: result["expected"] for result in by_days["results"]}
    assert expected == {"3": 1.5, "2": 1.0, "1": 0.5}  # clients 0..4 come in one window, 5..9 in the next
    shown = run("no-noise", log, "--k", 9).stdout
    assert "2 groups have an expected count of k or more" in shown
    assert shown.rstrip().endswith("void for repeated releases, not a guarantee of kanon.")


def test_a_user_whose_rows_lie_in_several_batches_counts_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "ROWS_IN_BATCH", 1)
    monkeypatch.setattr("kanon.joinlog.batches.BLOCK_BYTES", 64)
    lines = log.read_text().splitlines()
    log.write_text("\n".join([lines[0], *sorted(lines[1:], key=lambda line: line.split(",")[2])]) + "\n")
    told = json.loads(run("no-noise", log, "--k", 11, "--fakes", 0, "--json").stdout)
    assert [result["expected"] for result in told["results"]] == pytest.approx([*range(10, 1, -1), 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["uniqueness", "none.csv"], "there is no file none.csv"),
        (["uniqueness", "LOG", "--value", "group"], "has no column 'group': line 1 has 3 columns separated by commas"),
        (
            ["uniqueness", "LOG", "--combinations", "set,,day"],
            "--combinations must look like set,set+day, not 'set,,day'",
        ),
        (["uniqueness", "LOG", "--combinations", "set+set"], "--combinations must look like"),
        (["uniqueness", "LOG", "--combinations", "set,set+day", "--out", "x.khll"], "--out writes one sketch"),
        (["uniqueness", "LOG", "--profile", "loud"], "profile must be one of balanced, balanced-2, crossing"),
        (["uniqueness", "LOG", "--out", "LOG/x.khll"], "x.khll cannot be written"),
        (["uniqueness", "LOG", "--plot", "LOG/x.png"], "cannot be written"),
        (["uniqueness", "LOG", "--json", "--k", "7"], "--k has no effect with --json"),
        (["uniqueness", "LOG", "--combinations", "set", "--value", "day"], "--value has no effect with --combinations"),
        (["merge", "LOG", "--out", "x.khll"], "is not a sketch file (.khll)"),
        (["merge", "x", "y", "./x", "--out", "x.khll"], "a sketch is given twice, so its rows would count twice"),
        (["join", "LOG", "LOG"], "is not a sketch file (.khll)"),
        (["sketch-leak", "LOG", "--group", "nobody"], "no value of column 'set' matches --group"),
        (["no-noise"], "give a log, or --clients and at least one --expected"),
        (["no-noise", "DAYS", "--window-days", "7"], "column 'day' must hold dates such as 2012-02-05"),
        (["no-noise", "LOG", "--clients", "5"], "give either a log, or --clients and --expected"),
        *(
            (["no-noise", "--clients", "50", "--expected", "9", *given], f"{given[0]} has no effect without a log")
            for given in (
                ["--window-days", "7"],
                ["--value", "page"],
                ["--user", "who"],
                ["--dates", "mdy"],
                ["--skip-bad-rows"],
            )
        ),
        (["no-noise", "--clients", "5", "--expected", "9"], "must be above 0 and at most 1"),
        (["no-noise", "LOG", "--k", "3", "--fakes", "3"], "give 0 to 2 fakes"),
    ],
)
def test_bad_input_prints_one_line_that_says_what_to_change(
    arguments: list[str], message: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(log.parent)
    Path("days.csv").write_text("day,set,client\nMonday,a,b\n")
    assert message in refused(*(one.replace("LOG", str(log)).replace("DAYS", "days.csv") for one in arguments))
    assert sorted(path.name for path in log.parent.iterdir()) == ["days.csv", "log.csv"]


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("pyarrow", ["uniqueness", "LOG"]),
        ("pyarrow", ["sketch-leak", "LOG", "--group", "4"]),
        ("duckdb", ["no-noise", "LOG"]),
        ("matplotlib", ["uniqueness", "LOG", "--plot", "x.png"]),
    ],
)
def test_a_missing_library_names_the_extra_that_brings_it(
    missing: str, arguments: list[str], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kanon.risk.scan", importlib.import_module("kanon.risk.scan"))  # put back afterwards
    monkeypatch.delitem(sys.modules, "kanon.risk.scan")
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    ran = run(*(argument.replace("LOG", str(log)) for argument in arguments))
    assert ran.exit_code == 1
    said = f"kanon risk {arguments[0]}: {missing} is missing: pip install 'kanon-dp[desk]'"
    assert ran.stderr.startswith(said)
    assert ran.stderr.count("\n") == 1


def test_sketch_files_and_numbers_need_no_extra(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sketched(log, "a.khll")
    for missing in ("pyarrow", "duckdb"):
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "kanon.risk.scan")
    assert run("join", path, path).exit_code == 0
    assert run("merge", path, "--out", path, "--force").exit_code == 0
    assert run("no-noise", "--clients", 10, "--expected", 1, "--k", 3).exit_code == 0
