"""What DuckDB reads of messy exports. ``test_spark`` asks the same of Spark."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from kanon.release.bounding import Bounding
from kanon.release.engines.duckdb import DuckDB
from kanon.release.errors import InputError
from tests.integration.release.exports import EXPORTS, JANUARY, RIGHT, Export
from tests.integration.release.test_commands import run
from tests.unit.release.made import groups_of


def check(engine: Any, folder: Path, export: Export) -> None:
    """An engine gives the right numbers, or refuses the file and gives them without the row that it refuses."""
    (path := folder / f"export{export.suffix}").write_bytes(export.content)
    bounding = replace(JANUARY, **export.more)

    def read(*, skip: bool) -> list[tuple[Any, ...]]:
        with engine.table([path], replace(bounding, skip_bad_rows=skip), "5e" * 32) as table:
            return [(group.name, group.users, group.measures) for group in groups_of(table)]

    if not export.refused:
        assert read(skip=False) == RIGHT
        return
    with pytest.raises(InputError, match=export.refused) as refused:
        read(skip=False)
    assert str(refused.value).startswith(str(path))
    assert "u3" not in str(refused.value)
    if export.whole_file:
        with pytest.raises(InputError, match=export.refused):
            read(skip=True)
    else:
        assert read(skip=True) == RIGHT


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_a_messy_export_gives_the_right_numbers_or_says_what_to_change(tmp_path: Path, export: Export) -> None:
    check(DuckDB(), tmp_path, export)


ASKED = ("--group", "set", "--epsilon", "20", "--delta", "1e-3", "--dataset", "d", "--aggregate", "sum:amount:0:200")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """1,500 users; every second one paid 10, the others 90.50."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kanon.release.output.picture", lambda *_: b"\x89PNG")
    path = tmp_path / "log.csv"
    path.write_text("set,client,amount\n" + "".join(f"s,u{n},{10 if n % 2 else '90.50'}\n" for n in range(1500)))
    return path


def test_decimals_without_a_scale_are_refused_before_anything_is_charged(log: Path) -> None:
    refused = run("release", log, *ASKED, status=5)
    assert refused == (
        "kanon release: log.csv, column amount: numbers with decimals: name --scale, the decimal places to keep"
        " (rounded half to even)\n"
    ).replace("log.csv", str(log))
    assert not (log.parent / "kanon-ledger" / "ledger.jsonl").exists()
    run("release", log, *ASKED, "--scale", 2)
    name, users, _, _, total, *_ = (log.parent / "released.csv").read_text().splitlines()[1].split(",")
    assert (name, round(float(users), -2)) == ("s", 1500)
    assert abs(float(total) / 1500 - 50.25) < 1


def test_rows_left_out_are_counted_in_the_report_of_the_operator_only(log: Path) -> None:
    log.write_text(log.read_text().replace("s,u7,10\n", "s,u7,$10\ns,,10\n"))
    assert "line 9, column amount: not a number" in run("release", log, *ASKED, "--scale", 2, status=5)
    said = run("release", log, *ASKED, "--scale", 2, "--skip-bad-rows", "--operator-report", "operator.json")
    report = json.loads((log.parent / "operator.json").read_text())
    assert (report["rows"], report["rows_left_out"], report["rows_used"]) == (1501, 2, 1499)
    assert [(one["column"], one["rows"]) for one in report["left_out"]] == [("amount", 1), ("client", 1)]
    assert "1501" not in said
    assert "left out" not in said
    described = json.loads((log.parent / "released.json").read_text())
    assert described["specification"]["skip_bad_rows"] is True
    assert "1501" not in json.dumps(described)


def test_an_input_without_used_rows_is_refused_and_an_empty_table_says_why(log: Path) -> None:
    asked = (*ASKED, "--scale", 2)
    refused = run("release", log, *asked, "--where", "set=t", status=5)
    assert "no row of the input is used: check --where and --days" in refused
    assert not (log.parent / "kanon-ledger" / "ledger.jsonl").exists()
    log.write_text("set,client,amount\ns,u1,1\n")
    assert "No group is in the table: a group is surely released from" in run("release", log, *asked, "--epsilon", 1)


@pytest.mark.parametrize("sign", ["=", "!="])
def test_a_condition_on_a_name_that_no_object_has_is_refused(log: Path, sign: str) -> None:
    """``contry!=DE`` is true of every object, so all of them would be published."""
    rows = [{"set": "s", "client": f"u{n}", "amount": 10} for n in range(1500)]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (more := log.parent / "more.json").write_text(json.dumps(rows[:1]))
    asked = (*ASKED, "--where", f"country{sign}DE")
    said = run("release", log, more, *asked, status=5)
    assert "no row has the column 'country' of --where: correct its name, or leave it out" in said
    assert not (log.parent / "kanon-ledger" / "ledger.jsonl").exists()
    more.write_text(json.dumps([{**rows[0], "country": "DE"}]))
    run("release", log, more, *asked)


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, b"client,set\n1,a\n")
    Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    (closing := Timer(5, lambda: os.close(writer))).start()
    with pytest.raises(KeyboardInterrupt), DuckDB().table([pipe], Bounding("client", ("set",)), ""):
        pass
    assert closing.is_alive()
    closing.cancel()
    os.close(writer)
