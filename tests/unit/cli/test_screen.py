"""Progress off a terminal, and the width of a table that is piped."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table

from kanon.cli import demo, screen, serve
from tests.unit.cli.commands import run


@pytest.fixture(autouse=True)
def two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of progress comes when it does for a user."""
    monkeypatch.setattr(screen, "QUIET", 2.0)


def test_progress_off_a_terminal_is_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 2.0, 3.0, 7.0, 8.0])
    with screen.progress("steps", 100, lambda: next(times)) as advance:
        for _ in range(5):
            advance(10)
    assert capsys.readouterr().err.splitlines() == [
        "steps: 20 of 100, about 8 s left",
        "steps: 40 of 100, about 10 s left",
    ]


def test_the_remaining_time_is_shown_after_a_twentieth_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 3.0, 9.0])
    with screen.progress("steps", 400, lambda: next(times)) as advance:
        advance(1)
        advance(19)
    assert capsys.readouterr().err.splitlines() == ["steps: 1 of 400", "steps: 20 of 400, about 171 s left"]


def test_work_of_less_than_two_seconds_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.5, 1.9])
    with screen.progress("steps", 2, lambda: next(times)) as advance:
        advance(1)
        advance(1)
    assert capsys.readouterr().err == ""


def test_work_of_unknown_length_is_named_after_2_4_and_8_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    waits = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 4

    screen._said("finding noise", wait)
    assert waits == [2, 2, 4, 8]
    assert capsys.readouterr().err.splitlines() == [
        "finding noise ... 2 s",
        "finding noise ... 4 s",
        "finding noise ... 8 s",
    ]


def test_finished_or_failed_work_is_no_longer_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    def said(_: str, wait: Callable[[float], bool]) -> None:
        ended.append(wait(60))

    monkeypatch.setattr(screen, "_said", said)
    before = set(threading.enumerate())
    with pytest.raises(KeyError), screen.working("finding noise"):
        raise KeyError
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
    assert ended == [True]


def test_a_piped_table_has_its_full_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table("column")
    table.add_row("long " * 60)
    screen.screen().print(table)
    assert "long " * 59 + "long" in capsys.readouterr().out


def test_a_page_of_the_documentation_is_named_by_its_title_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "run it: docs/guides/operate.md#kanon-doctor names the permissions"
    assert screen.pages(text) == text
    monkeypatch.setattr(screen, "DOCS", tmp_path)
    named = "run it: the page 'operate' of kanon's documentation, section 'kanon doctor' names the permissions"
    assert screen.pages(text) == named
    assert "docs/" not in demo.next_steps("kanon")
    status, output = run("doctor", "--url", "http://127.0.0.1:1")
    assert (status, "docs/" in output) == (2, False)
    assert screen.pages("see docs/start.md.") == "see the page 'start' of kanon's documentation."


def test_serve_says_that_its_figures_have_no_meaning_for_privacy(capsys: pytest.CaptureFixture[str]) -> None:
    serve._explain("http://127.0.0.1:8000", 10, "fledge")
    assert (
        "an epsilon that it shows is one for steps of 10 s, and has no meaning for privacy" in capsys.readouterr().out
    )
