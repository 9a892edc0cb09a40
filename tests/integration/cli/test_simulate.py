"""``kanon simulate``: its output, files and errors."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.gate.types import read_types


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, ["simulate", *arguments], input=stdin)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """120 clients join one set, 5 another, within two days; 40 of the first set come back a month later."""
    path = tmp_path_factory.mktemp("log") / "joins.csv"
    rows = [f"2026-01-0{5 + n % 2}T0{n % 7}:10:00Z,popular,client-{n}" for n in range(120)]
    rows += [f"2026-01-05T10:20:00Z,rare,client-{n}" for n in range(5)]
    rows += [f"2026-02-09T10:20:00Z,popular,client-{n}" for n in range(40)]
    path.write_text("\n".join(["time,set,client", *rows]))
    return str(path)


def test_the_table_shows_the_profiles_side_by_side_with_their_types(log: str) -> None:
    shown = run(log).output
    assert "165 joins of 2 sets, 2026-01-05 to 2026-02-09" in shown
    for expected in ("k=50 w=720 crossing", "k=50 w=720 published", "k=50 w=720 sharp-2", "1 (50.0%)", "97.0%"):
        assert expected in shown
    assert "not differentially private" in " ".join(shown.split())
    assert '{"fledge": {"k": 50, "window": 720, "profile": "sharp-2"}}' in shown


def test_json_has_the_figures_and_types_that_the_service_accepts(log: str) -> None:
    own = '{"k": 60, "window": 24, "laws": {"threshold": {"shape": "two-sided", "epsilon": "1", "truncation": 9},'
    own += ' "query": {"shape": "one-sided", "epsilon": "0.5", "truncation": 12}}, "client_bits": 20, "phase": "zero"}'
    told = json.loads(run(log, "--type", own, "--json").output)
    assert told["log"] == {
        "joins": 165, "sets": 2, "period": 3600, "steps": 851, "from": "2026-01-05T00:00:00Z",
        "to": "2026-02-09T11:00:00Z",
    }  # fmt: skip
    (result,) = told["results"]
    assert result["sets"] == {"total": 2, "true": 1, "reachedK": 1}
    assert result["joins"]["total"] == 165
    assert result["cost"]["writeUnits"] > 165
    assert result["cost"]["dollarsAMonth"] == pytest.approx(sum(result["cost"]["byService"].values()))
    assert read_types(json.dumps(result["types"]), 3600) == read_types(f'{{"fledge": {own}}}', 3600)
    names = re.findall(r'"(\w+)":', json.dumps({**told, "results": [{**result, "types": {}}]}))
    assert [name for name in names if "_" in name] == []


def test_every_k_is_combined_with_every_window_and_unusable_ones_are_named(log: str) -> None:
    ran = run(log, "--k", "20,50", "--window", "168,24", "--profile", "published,sharp-2", "--json")
    labels = [result["label"] for result in json.loads(ran.stdout)["results"]]
    assert labels == [
        "k=20 w=168 sharp-2", "k=20 w=24 sharp-2", "k=50 w=168 published", "k=50 w=168 sharp-2",
        "k=50 w=24 published", "k=50 w=24 sharp-2",
    ]  # fmt: skip
    assert "left out: k=20 w=168 published: its noise needs a k of at least 50" in ran.stderr


def test_types_of_a_file_keep_their_names(log: str, tmp_path: Path) -> None:
    (path := tmp_path / "types.json").write_text(
        '{"ad": {"k": 50, "window": 24, "profile": "published"}, "term": {"k": 99, "window": 24, "profile": "sharp-2"}}'
    )
    told = json.loads(run(log, "--types", str(path), "--json").output)
    assert [result["label"] for result in told["results"]] == ["ad k=50 w=24 published", "term k=99 w=24 sharp-2"]
    assert [*told["results"][1]["types"]] == ["term"]


def test_the_page_loads_nothing_and_says_that_it_is_not_private(log: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    ran = run(log, "--html", str(path))
    assert f"Report: {path}" in ran.output.replace("\n", "")
    text = path.read_text()
    assert "They are not differentially private" in text
    assert text.count("<svg") == text.count("<figure>") == 4
    assert not re.search(r"<script|<link|<img|src=|@import|url\((?!#)", text)
    assert not [name for name in ("popular", "rare", "client-") if name in text]
    assert "{&quot;fledge&quot;: {&quot;k&quot;: 50" in text
    run(log, "--html", str(tmp_path / "again.html"))
    assert (tmp_path / "again.html").read_text() == text


def test_the_seed_chooses_the_noise(log: str) -> None:
    def crossings(seed: str) -> Any:
        own = '{"k": 25, "window": 24, "profile": "sharp-2"}'
        return json.loads(run(log, "--seed", seed, "--type", own, "--json").output)["results"][0]["answers"]

    answers = [crossings(str(seed)) for seed in (1, 1, 2, 3, 4)]
    assert answers[0] == answers[1]
    assert len({json.dumps(answer) for answer in answers}) > 1


def test_no_combination_that_can_be_used_is_refused_after_those_that_are_left_out(log: str) -> None:
    ran = run(log, "--k", "20", "--profile", "published")
    assert ran.exit_code == 2
    assert "left out" in ran.stderr
    assert "no combination of --k, --window and --profile can be used" in ran.stderr


def test_crossings_are_shown_with_the_answers_and_not_with_the_cost(log: str) -> None:
    shown = run(log).output
    headings = "How well the answers fit the exact counts", "Privacy", "Cost"
    answers, privacy, cost = (shown.index(f"│ {heading} ") for heading in headings)
    assert answers < shown.index("│ crossings  ") < shown.index("│ crossings below k ") < privacy < cost


def test_a_missing_library_names_its_extra(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = run(log, "--html", str(tmp_path / "x.html"))
    assert ran.exit_code == 1
    assert "matplotlib is missing: pip install 'kanon-dp[desk]', or run `make install` in a checkout" in ran.stderr


WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
from kanon.cli.start import main
main()
"""


def test_a_gzipped_log_on_standard_input_without_pyarrow_gives_the_same_result(log: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW, "simulate", "-", "--profile", "sharp-2", "--json"],
        input=gzip.compress(Path(log).read_bytes()), capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.decode() == run(log, "--profile", "sharp-2", "--json").stdout


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "log.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ran = run(str(path))
    assert ran.exit_code == 2
    assert "is Parquet, and pyarrow is missing: pip install 'kanon-dp[desk]'" in ran.stderr
