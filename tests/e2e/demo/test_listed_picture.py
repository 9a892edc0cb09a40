"""The demo of a listed type, and the picture of its lists."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.demo.listed_picture import ACROSS, LEFT, MOST_ROWS, ListHistory, draw
from kanon.demo.logs import generated_log
from kanon.demo.machine import machine
from kanon.demo.replay import replay
from kanon.pictures import GREEN
from kanon.serving.lists import ListEntry, history_of, place_of_step, write_history
from tests.integration.serving.listing import VALUES

SVG = "{http://www.w3.org/2000/svg}"
TYPE = '{"k": 20, "window": 24, "profile": "crossing", "listed": true}'


def bars(drawn: bytes) -> list[tuple[float, float, float]]:
    """Left and right edge and height of each bar."""
    found = [bar.attrib for bar in ET.fromstring(drawn).iter(f"{SVG}rect") if bar.get("fill") == GREEN]
    return [(float(bar["x"]), float(bar["x"]) + float(bar["width"]), float(bar["y"])) for bar in found]


def test_the_picture_of_a_replayed_log_shows_the_steps_in_which_queries_answered_true() -> None:
    log = generated_log(3, days=7, joins=1_500, sets=12)
    with machine(f'{{"terms": {TYPE}}}', 3600, log.start, 1) as service:
        result = replay(service, log, ["terms"], lambda _: None)["terms"]
        history = ListHistory.read(history_of(service.directory.path, "terms"), 3600)
    first = log.start // 3600
    assert list(history.lists) == list(range(first, first + result.steps))
    true = {
        name: {step for step, status in enumerate(of.statuses, of.first) if status}
        for name, of in result.histories.items()
    }
    listed = {name: {step for step, values in history.lists.items() if name in values} for name in true}
    assert listed == true
    assert any(len(runs) > 1 for runs in history.runs.values())
    scale = ACROSS / result.steps
    edges = [
        (LEFT + scale * (begin - first), LEFT + scale * (until + 1 - first))
        for runs in history.runs.values()
        for begin, until in runs
    ]
    drawn = bars(draw(history, "title"))
    assert [edge for *edge_, _ in drawn for edge in edge_] == pytest.approx(
        [x for edge in edges for x in edge], abs=0.2
    )


def test_a_bar_ends_where_a_list_lacks_the_value_and_not_where_a_list_is_missing(tmp_path: Path) -> None:
    lists = {10: ["a", "b"], 11: ["b"], 13: ["a", "b"], 14: ["a"]}
    for step, values in lists.items():
        write_history(tmp_path / place_of_step(step, 3600), [ListEntry(value, 1) for value in values])
    history = ListHistory.read(tmp_path, 3600)
    assert history.lists == lists
    assert history.runs == {"a": [(10, 10), (13, 14)], "b": [(10, 13)]}
    assert list(history.longest(1)) == ["b"]


def test_hostile_values_are_texts_of_the_picture_and_nothing_else() -> None:
    values = [*VALUES, "</text><script>alert(1)</script>", "]]>&amp;&#0;", "\0\ud800"]
    drawn = draw(ListHistory(3600, {500_000: values}), "title <b>")
    root = ET.fromstring(drawn)
    assert {each.tag.removeprefix(SVG) for each in root.iter()} == {"svg", "rect", "polyline", "text"}
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert {"=1+1", "<img src=x onerror=alert(1)>", "\ufffd[2J", "\ufffdgnp", "ünï"} <= set(texts)
    assert {",\"'\ufffd", "]]>&amp;&#0;", "\ufffd\ufffd", f"{'x' * 27}…"} <= set(texts)
    assert all(text.isprintable() for text in texts)
    assert len(bars(drawn)) == len(values)


def test_the_picture_of_many_values_shows_those_that_were_listed_for_the_longest_time() -> None:
    lists = {step: [f"value {number}" for number in range(60) if number <= step] for step in range(60)}
    drawn = draw(ListHistory(3600, lists), "title")
    assert len(bars(drawn)) == MOST_ROWS
    assert b"40 of 60 values" in drawn
    assert b">value 39<" in drawn
    assert b">value 40<" not in drawn


def test_the_picture_of_lists_without_values_is_drawn() -> None:
    assert b"0 values" in draw(ListHistory(3600, {1: [], 2: []}), "title")


def test_the_demo_of_a_listed_type_writes_both_pictures(tmp_path: Path) -> None:
    rows = [f"2026-01-01T0{hour}:00:00,{name},client {n}" for hour in range(3) for name in "ab" for n in range(40)]
    (tmp_path / "log.csv").write_text("\n".join(["time,set,client", *rows]))
    arguments = ["demo", "--log", str(tmp_path / "log.csv"), "--type", TYPE, "--plot", str(tmp_path / "p.svg")]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    assert str(tmp_path / "p-list.svg") in told.output.replace("\n", "")
    assert b">a<" in (tmp_path / "p-list.svg").read_bytes()
    assert (tmp_path / "p.svg").exists()
    (tmp_path / "log.csv").write_text(f"time,set,client\n2026-01-01,{'x' * 513},b\n")
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert "1 to 512 bytes" in refused.output.replace("\n", " ")
