"""``kanon plan``: its output, files and errors."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.plan import planner


@pytest.fixture(scope="module", autouse=True)
def _plan_once() -> Iterator[None]:
    """Several tests look at the same plan, which takes a third of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "best_plan", cache(planner.best_plan))
        yield


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["plan", *arguments])


def test_a_profile_keeps_its_split_of_epsilon() -> None:
    told = json.loads(run("--profile", "sharp", "--delta", "1e-8", "--json").output)
    assert [told["laws"][role]["epsilon"] for role in ("threshold", "query")] == ["0.9", "1.2"]
    assert told["bounds"]["intervalAware"]["delta"] <= 1e-8


def test_a_plan_for_a_year_of_joins_has_a_longer_hold() -> None:
    told = json.loads(run("--window", "168", "--unit", "year", "--epsilon", "24", "--json").stdout)
    assert told["rejoining"][-1]["days"] == 365
    assert told["rejoining"][-1]["epsilon"] <= 24
    assert (told["restart"], told["epoch"]) == ("crossing", 8904)
    assert told["hold"] > 168


def test_a_plan_on_the_grid_has_the_wider_zone_of_the_grid() -> None:
    told = json.loads(run("--window", "168", "--restart", "grid", "--json").output)
    assert (told["restart"], told["hold"], told["partialShare"]) == ("grid", None, 0)
    false, true = told["zone99"]
    assert true - false == 12


def test_the_table_shows_laws_bounds_and_what_stands_beside_the_zone() -> None:
    shown = run("--window", "168").output
    assert "k = 50, window = 168 steps of 3600 s" in shown
    assert "expected delay, steps" in shown
    rows = {
        line.split("│")[1].strip(): line.split("│")[2].strip() for line in shown.splitlines() if line.count("│") == 3
    }
    other = "threshold noise (mu)", "one join: interval-aware bound", "never true below", "surely true from"
    assert {*other, "members kept", "bytes of a full set"} <= rows.keys()
    assert rows["one join: paper's bound"] == "does not apply"
    assert rows["99% zone, clients"] == "9"
    assert rows["mean delay at its upper end, steps"] == "0.08"
    assert rows["steps with a partial count, while false"] == "3.8%"
    assert rows["steps a crossing is kept"] == str(4368 + 168)
    assert rows["steps a noise key is needed"] == "4368"
    assert rows["false at once after long silence"] == "6.2%"
    assert rows["re-joining one set for 365 days"].startswith("(90.48, ")
    assert rows["one join, 10,000 sets watched for a year"] == "(3, 6.95e-6)"
    assert "No mechanism has a 99% zone below 5 clients" in shown


def test_a_comparison_shows_the_profiles_side_by_side() -> None:
    shown = run("--compare", "--window", "168").output
    header = next(line for line in shown.splitlines() if "published" in line)
    for name in ("crossing", "returning", "balanced", "sharp", "planned"):
        assert name in header
    zone = next(line for line in shown.splitlines() if "99% zone" in line)
    assert [int(cell) for cell in zone.replace("│", " ").split()[-6:]] == [9, 9, 22, 16, 12, 9]


def test_a_comparison_shows_which_laws_meet_the_target() -> None:
    shown = run("--compare", "--window", "168", "--epsilon", "2.5", "--delta", "1.1e-6").output
    (row,) = (line for line in shown.splitlines() if "within (2.5, 1.10e-6)" in line)
    assert row.replace("│", " ").split()[-6:] == ["no", "no", "yes", "no", "no", "yes"]


def test_a_comparison_as_json_is_a_list() -> None:
    told = json.loads(run("--compare", "--json").output)
    assert [plan["name"] for plan in told] == ["crossing", "returning", "published", "balanced-2", "sharp-2", "planned"]


@pytest.mark.parametrize("arguments", [("--window", "24", "--plot"), ("--window", "24", "--compare", "--plot")])
def test_pictures_are_written(arguments: tuple[str, ...], tmp_path: Path) -> None:
    picture = tmp_path / "pictures" / "out.png"
    result = run(*arguments, str(picture))
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


def test_the_papers_figures_are_printed_for_every_reading(tmp_path: Path) -> None:
    picture = tmp_path / "figure.png"
    shown = run("--paper", str(picture)).output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
    assert "3 in total, 25 per noise" in shown
    assert "(3, 2.72e-06)" in shown
    assert "13.67" in shown


@pytest.mark.parametrize(
    ("arguments", "warnings"),
    [
        (("--epsilon", "12"), ["epsilon 12 is above 10"]),
        (("--k", "1000", "--delta", "0.005"), ["delta 5.00e-3 is above 1 divided by 1000 users"]),
        (("--k", "100", "--delta", "0.009"), []),
    ],
)
def test_a_weak_target_is_warned_of(arguments: tuple[str, ...], warnings: list[str]) -> None:
    result = run("--window", "24", *arguments)
    assert result.exit_code == 0
    found = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert [text in line for text, line in zip(warnings, found, strict=True)] == [True] * len(warnings)
