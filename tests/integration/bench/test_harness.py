"""The harness: ratios of adjacent turns, sides in processes of their own, and what makes a run fail."""

import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench.__main__ as program
from bench.harness import Comparison, Count, Failed, Ratio, Row, Side, SideError, Took, Turn, compare, timed
from bench.harness import results as measured
from tests.integration.bench.sides import answering, of_its_process, refusing, side
from tests.paths import ROOT


def row(ours: Side, theirs: Side, turns: int = 3, **more: object) -> Comparison:
    return Comparison("a time", "all", "the bare call", "call", ours, theirs, turns, **more)  # type: ignore[arg-type]


def test_a_figure_is_the_median_of_the_ratios_of_adjacent_turns_without_the_first() -> None:
    ours, theirs = Side(side, (99.0, 1.0, 6.0, 8.0)), Side(side, (1.0, 2.0, 2.0, 2.0))
    found = compare(row(ours, theirs, target=3.0))
    assert found.ratios == [0.5, 3.0, 4.0]
    assert (found.median, found.seconds, found.met) == (3.0, (6.0, 2.0), True)
    assert compare(row(ours, theirs, target=2.9)).met is False


def test_a_first_turn_counts_if_there_is_no_other_and_a_time_is_that_of_a_unit() -> None:
    assert timed(Turn(4, lambda: Took(8.0)))[0] == 2.0
    found = compare(row(Side(side, (6.0,)), Side(side, (3.0,)), 1, warm=False))
    assert (found.ratios, found.met) == ([2.0], None)


def test_each_side_has_a_process_of_its_own() -> None:
    with pytest.raises(SideError, match="different answers"):
        compare(row(Side(of_its_process), Side(of_its_process), 1))


def test_the_objects_that_were_there_before_a_turn_are_frozen() -> None:
    seen: list[int] = []
    timed(Turn(1, lambda: seen.append(gc.get_freeze_count())))
    gc.unfreeze()
    assert seen[0] > 1000


@pytest.mark.parametrize("where", ["start", "prepare", "work"])
def test_a_side_that_raises_fails_its_row_with_its_reason(where: str) -> None:
    with pytest.raises(SideError, match=r"^RuntimeError: no \| such table$"):
        compare(row(Side(side, (1.0, 1.0)), Side(refusing, (where,)), 1))


def test_a_side_whose_process_ends_fails_its_row() -> None:
    with pytest.raises(SideError, match="ended"):
        compare(row(Side(refusing, ("exit",)), Side(side, (1.0, 1.0)), 1))


def test_sides_that_answer_differently_fail_their_row() -> None:
    sides = [Side(answering, (answer,)) for answer in ([1, 2], [1, 2], [1, 3])]
    assert compare(row(sides[0], sides[1], 1)).ratios == [1.0]
    with pytest.raises(SideError, match="different answers"):
        compare(row(sides[0], sides[2], 1))
    (failed,) = measured("a claim", [row(sides[0], sides[2], 1)])
    assert failed == Failed("a time", "the two sides give different answers")


COUNT = Count("a count", "a workload", 1.0, 2.0)
TIME = Ratio(row(Side(side), Side(side)), (1e-3, 2e-3, 4e-3), (1e-3, 1e-3, 1e-3))


def broken() -> Iterator[Row]:
    """Rows of a claim that ends early."""
    yield COUNT
    raise RuntimeError("no | such\ntable")


def test_a_claim_that_fails_loses_only_its_further_rows() -> None:
    assert list(measured("a claim", broken())) == [COUNT, Failed("a claim", "RuntimeError: no | such table")]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A page, and the figures of `kanon cost`; the run measures a count, a failure and a time."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{program.BEGIN}\nold\n{program.END}\nafter\n")
    monkeypatch.setattr(program, "PAGE", page)
    monkeypatch.setattr(program, "HISTORY", tmp_path / "history.jsonl")
    monkeypatch.setattr(program, "COST", tmp_path / "measured.json")
    monkeypatch.setattr(program, "with_times", lambda text, _: text + " with times")
    program.COST.write_text("figures")
    monkeypatch.setattr(program, "measure", lambda *_: iter([COUNT, Failed("other", "no | table"), TIME]))
    return page


def test_a_run_that_is_kept_replaces_the_table_of_the_page_and_adds_to_the_history(page: Path) -> None:
    assert program.main(["--keep"]) == 1
    text = page.read_text()
    assert text.startswith(f"before\n{program.BEGIN}\n\nRun of ")
    assert text.endswith(f".\n\n{program.END}\nafter\n")
    assert "| a time | all | the bare call | 2.00 | 1.00, 4.00 | 2 ms a call, against 1 ms | - | - |" in text
    assert "| other | | | not measured: no / table | | | | no |" in text
    assert "\nTargets missed in this run: other.\n" in text
    assert "old" not in text
    (ran,) = map(json.loads, program.HISTORY.read_text().splitlines())
    assert [figures["name"] for figures in ran["figures"]] == ["a count", "a time"]
    assert program.COST.read_text() == "figures with times"
    assert (ran["failed"], ran["yardstick"]) == ([{"name": "other", "reason": "no | table"}], program.YARDSTICK)


def test_a_run_changes_nothing_unless_it_is_kept_and_a_part_of_a_run_cannot_be_kept(page: Path) -> None:
    before = page.read_text()
    program.main(["units"])
    for part in (["--keep", "--short"], ["--keep", "units"], ["no-claim"]):
        with pytest.raises(SystemExit):
            program.main(part)
    assert (page.read_text(), program.HISTORY.exists()) == (before, False)


def test_a_cell_that_repeats_the_one_above_is_the_same() -> None:
    rows = ["| a | all of it | a bare call | 1 |", "| b | all of it | a bare call | 1 |", "| c | all of it | x | 1 |"]
    assert program.without_repetitions([*rows, rows[2]]) == [
        rows[0],
        "| b | the same | the same | 1 |",
        "| c | the same | x | 1 |",
        "| c | the same | the same | 1 |",
    ]
    assert program.without_repetitions(["| a | | | 2 |", "| b | | | 2 |"]) == ["| a | | | 2 |", "| b | | | 2 |"]


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="once each"):
        program.with_table("text", {}, [])


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (COUNT, 0),
        (TIME, 0),
        (Count("a count", "b", 2.1, 2.0), 1),
        (Failed("a", "b"), 1),
    ],
)
def test_a_count_above_its_target_and_a_failure_are_errors_and_a_time_is_not(
    monkeypatch: pytest.MonkeyPatch, result: program.Result | Failed, status: int
) -> None:
    monkeypatch.setattr(program, "measure", lambda *_: iter([result]))
    assert program.main([]) == status


def test_every_claim_has_rows() -> None:
    claims = [path.stem for path in (ROOT / "bench").glob("*.py") if "\ndef rows(form: Form)" in path.read_text()]
    assert sorted(claims) == sorted(program.CLAIMS)


def test_a_run_without_a_miss_says_so() -> None:
    assert program.missed([COUNT, TIME]) == "Every target was met in this run."


LAST = json.loads((ROOT / "docs/evidence/benchmarks.jsonl").read_text().splitlines()[-1])
COST = program.COST.read_text()


def test_the_figures_of_the_page_are_those_of_the_last_whole_run_of_the_history() -> None:
    table = program.PAGE.read_text().partition(program.BEGIN)[2].partition(program.END)[0]
    assert f"Run of {LAST['when']}, commit `{LAST['commit']}`" in table
    names = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)[1:]
    assert set(names) <= {entry["name"] for entry in LAST["figures"] + LAST["failed"]}
    assert len(names) > 15


def test_the_times_of_kanon_cost_are_those_of_the_last_run() -> None:
    entries, again = (json.loads(text)["values"] for text in (COST, program.with_times(COST, LAST)))
    assert {name: entry["value"] for name, entry in entries.items()} == pytest.approx(
        {name: entry["value"] for name, entry in again.items()}, rel=2e-3
    )  # the history of this run has two digits after the point
    faster = [{**row, "microseconds": 1500.0} if row["name"] == "join, a request" else row for row in LAST["figures"]]
    made = json.loads(program.with_times(COST, {"figures": faster}))["values"]
    assert {name for name in made if made[name] != again[name]} == {"join_ms"}
    assert made["join_ms"]["value"] == 1.5
    other = json.loads(program.with_times(COST, {"figures": [{**row, "microseconds": 1e6, "microseconds_against": 2e6}
                                                             for row in LAST["figures"]]}))["values"]  # fmt: skip
    named = {name for name, entry in entries.items() if entry["from"].startswith("make bench")}
    assert {name for name in other if other[name] != again[name]} == named
    assert (len(named), other["query_ms"]["value"], other["hash_ms"]["value"]) == (6, 2000.0, -10.0)


@pytest.mark.parametrize("times", [0, 2])
def test_a_row_that_a_run_does_not_have_once_is_named(times: int) -> None:
    row = {"name": "join, a request", "microseconds": 1.0, "microseconds_against": 1.0}
    with pytest.raises(ValueError, match=rf"{times} rows of the run are called 'join, a request'"):
        program.with_times(COST, {"figures": times * [row]})
