"""The benchmark: a row that fails loses only itself, and only a whole run changes the page and the history."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.measure import bench, rows
from infra.measure.measure import Count, Ratio, Turn, compare
from infra.measure.rows import Failed, Form, Result

ROOT = Path(__file__).parents[3]


def counted(_: Form) -> Iterator[Count]:
    yield Count("a count", "a workload", 1.0, 2.0)


def half_broken(_: Form) -> Iterator[Result]:
    yield Count("another count", "a workload", 1.0, 2.0)
    raise RuntimeError("no | such\ntable")


def timed(_: Form) -> Iterator[Ratio]:
    yield Ratio("a time", "all", "the bare call", "call", (1.0, 2.0, 4.0), 2e-3, 1e-3, None)


MEASURED = {"first": half_broken, "second": counted, "third": timed}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(bench, "every_row", lambda: (MEASURED, []))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n")
    return page


def kept(page: Path) -> list[str]:
    return ["--page", str(page), "--history", str(page.with_suffix(".jsonl"))]


def test_a_row_that_fails_loses_only_itself_and_is_an_error(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(kept(page)) == 1
    table = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[0] for line in table] == ["| another count", "| first", "| a count", "| a time"]
    assert "not measured: RuntimeError: no / such table" in table[1]
    (ran,) = map(json.loads, page.with_suffix(".jsonl").read_text().splitlines())
    assert [figures["name"] for figures in ran["figures"]] == ["another count", "a count", "a time"]
    assert ran["failed"] == [{"name": "first", "reason": "RuntimeError: no | such table"}]
    assert ran["yardstick"] == bench.YARDSTICK


def test_a_row_is_printed_before_the_next_one_is_measured(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(_: Form) -> Iterator[Count]:
        raise KeyboardInterrupt

    monkeypatch.setitem(MEASURED, "third", stopped)
    with pytest.raises(KeyboardInterrupt):
        bench.main([])
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_a_whole_run_replaces_the_table_of_the_page_and_nothing_else(page: Path) -> None:
    bench.main(kept(page))
    text = page.read_text()
    assert text.startswith(f"before\n{bench.BEGIN}\n\nRun of ")
    assert text.endswith(f".\n\n{bench.END}\nafter\n")
    assert "| a time | all | the bare call | 2.00 | 1.00, 4.00 | 2 ms a call, against 1 ms | - | - |" in text
    assert "\nTargets missed in this run: first.\n" in text
    assert "old" not in text


@pytest.mark.parametrize("part", [["--short"], ["--rows", "second"]])
def test_a_part_of_a_run_changes_neither_page_nor_history(page: Path, part: list[str]) -> None:
    before = page.read_text()
    bench.main([*kept(page), *part])
    assert page.read_text() == before
    assert not page.with_suffix(".jsonl").exists()


def test_rows_are_chosen_by_a_part_of_their_name(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--rows", "sec"]) == 0
    assert "another count" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        bench.main(["--rows", "fourth"])


def test_a_count_above_its_target_is_an_error(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASURED, "first", lambda _: iter([Count("a count", "a workload", 2.1, 2.0)]))
    assert bench.main([]) == 1


def test_a_run_without_a_miss_says_so() -> None:
    met = [Count("a count", "a workload", 1.0, 2.0), *timed(Form())]
    assert bench.missed(met) == "Every target was met in this run."


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="once each"):
        bench.with_table("text", {}, [])


def test_every_module_of_rows_is_found_and_one_that_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, failed = rows.every_row()
    assert {"units of joins", "evaluate", "evaluate without calls", "join", "query", "start"} <= set(found)
    assert failed == []

    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(rows.importlib, "import_module", refuse)  # type: ignore[attr-defined]
    assert Failed("infra.measure.plain", "ImportError: infra.measure.plain") in rows.every_row()[1]


def test_two_rows_cannot_have_one_name() -> None:
    rows.every_row()
    with pytest.raises(ValueError, match="two rows are named 'evaluate'"):
        rows.row("evaluate")(counted)


def test_a_ratio_is_measured_in_turns_without_the_first() -> None:
    called = []

    def side(name: str, seconds: int) -> Turn:
        called.append(name)
        return Turn(1, lambda: sum(range(seconds)))

    ratio = compare("a", "b", "c", lambda: side("ours", 1), lambda: side("bare", 1), inside="all", turns=3, target=1)
    assert "".join(name[0] for name in called) == "boobboob"
    assert len(ratio.ratios) == 3


def test_the_page_holds_the_last_whole_run_of_the_history() -> None:
    history = (ROOT / "docs" / "evidence" / "benchmarks.jsonl").read_text().splitlines()
    last = json.loads(history[-1])
    page = (ROOT / "docs" / "evidence" / "performance.md").read_text()
    table = page.partition(bench.BEGIN)[2].partition(bench.END)[0]
    assert f"Run of {last['when']}, commit `{last['commit']}`" in table
    names = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)[1:]
    assert sorted(names) == sorted(entry["name"] for entry in last["figures"] + last["failed"])
