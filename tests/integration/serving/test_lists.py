"""A list is what queries answer at its step, value by value, whatever happens before it is published."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import parquet

from kanon.errors import ConfigurationError, FingerprintMismatchError
from kanon.findings import Verdict
from kanon.gate import deciding, sealing, segments
from kanon.gate import lists as gate_lists
from kanon.gate.joining import Join
from kanon.gate.lists import ReadableList, place_of_step, true_since
from kanon.gate.mechanism.parameters import CrossingRestart, Parameters
from kanon.gate.mechanism.searches import Searches
from kanon.gate.names import set_key
from kanon.gate.parts import Part, decode
from kanon.gate.publishing import clock_step
from kanon.gate.storage.disk.control import ControlFile
from kanon.noise.laws import two_sided
from kanon.serving import lists
from kanon.serving.backup import backup
from kanon.serving.directory import Directory, new_generation, retire
from kanon.serving.doctor import examine_directory
from kanon.serving.lists import Lister, history_of
from kanon.serving.replaying import replay
from kanon.serving.secret_files import LIST_KEY
from kanon.serving.unlisting import take_over, unlist
from tests.integration.serving.listing import (
    FIRST,
    LISTED,
    PERIOD,
    TYPES,
    VALUES,
    answers,
    closed,
    go_on,
    join,
    joins_at,
    opened,
    set_of,
    values,
    visible,
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are split, joins are read in ranges, and history is written in groups, although there are few."""
    monkeypatch.setattr(deciding, "MOST_PART_BYTES", 3000)
    monkeypatch.setattr(deciding, "MOST_JOINS_A_RANGE", 2 * deciding.LISTED_WEIGHT)
    monkeypatch.setattr(gate_lists, "ROWS_A_GROUP", 2)


def key_of(directory: Directory, name: str, value: str) -> bytes:
    return set_key(directory.joining.pepper, name, set_of(value))


class Compared:
    """Where lists differ from answers, and how many values they had; ``alone`` turned true without a join."""

    def __init__(self, path: Path) -> None:
        self.path, self.found, self.true, self.alone, self.unopened = path, list[str](), 0, 0, 0
        self.open(FIRST * PERIOD)

    def open(self, now: float) -> None:
        self.directory = opened(self.path, now)
        self.lister = Lister(self.directory)

    def compare(self, now: float) -> None:
        """Publish at ``now``, and compare each list with what queries answer then."""
        self.lister.publish(now)
        self.unopened += self.lister.unopened
        clock = clock_step(now, PERIOD, self.directory.settings.publish_delay)
        for name in LISTED:
            newest, (step, true) = self.lister.file.newest(name), answers(self.directory, name, now)
            if (newest and newest.step) != step:
                self.found.append(f"{step} {name}: the list is of step {newest and newest.step}")
            elif newest and (step == clock or name != "grid"):  # an answer on a grid is for the step of the clock
                if values(self.lister, name) != true:
                    self.found.append(f"{step} {name}: the values are others")
                self.true += newest.values
                joined = {(each.type_name, each.set_id) for each in joins_at(newest.step)}
                new = [sha for sha, row in rows_of(self.lister, name) if row.since == step]
                self.alone += sum((name, sha) not in joined for sha in new)


def compared(path: Path, steps: range) -> Compared:
    """A time with suppressions, restarts, runs before the tick and late evaluation, until a list is wrong."""
    rng, run, last = random.Random(5), Compared(path), FIRST
    for step in steps:
        join(run.directory, step)
        if rng.random() < 0.15:
            run.directory.close()
            run.open(closed(step))
        if rng.random() < 0.8 or step - last > 2:
            run.directory.evaluate(closed(step))
            run.directory.segments.keep(closed(step))
            last = step
        run.compare(closed(step))
        control = run.directory.control
        if rng.random() < 0.3 and last == step:  # it counts from the next list on
            control.suppress(key_of(run.directory, rng.choice(LISTED), rng.choice(VALUES)))
            control.show(key_of(run.directory, rng.choice(LISTED), rng.choice(VALUES)))
        run.compare(visible(run.directory, step))
        if run.found:
            break
    run.directory.close()
    return run


def test_every_list_is_what_queries_answer_at_its_step(tmp_path: Path) -> None:
    run = compared(tmp_path / "d", range(FIRST, FIRST + 80))
    assert run.found == []
    assert run.unopened == 0
    assert run.true > 200
    assert run.alone > 0


def _below(control: ControlFile, number: int) -> Any:
    """Every set that has a sealed value, as if it had just crossed."""
    for key, value in control.database.execute("SELECT set_key, value FROM sealed WHERE type = ?", (number,)):
        yield bytes(key), (FIRST + 10_000_000,), bytes(value)


def _suppressed(control: ControlFile, number: int) -> Any:
    rows = control.database.execute(
        "SELECT set_key, earlier, newest, value FROM statuses JOIN sealed USING (set_key)"
        " WHERE type = ? AND newest IS NOT NULL",
        (number,),
    )
    for key, earlier, newest, value in rows:
        yield bytes(key), (newest,) if earlier is None else (earlier, newest), bytes(value)


LISTED_ROWS = ControlFile.listed


def _carried(control: ControlFile, number: int) -> Any:
    rows = list(LISTED_ROWS(control, number))
    sealed = [value for _, _, value in rows]
    for (key, crossings, _), value in zip(rows, [*sealed[1:], *sealed[:1]], strict=True):
        yield key, crossings, value


def _older(control: ControlFile, number: int) -> Any:
    for key, crossings, value in LISTED_ROWS(control, number):
        yield key, crossings[:1], value


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a suppressed value": lambda patch: patch.setattr(ControlFile, "listed", _suppressed),
    "a value carried from another set": lambda patch: patch.setattr(ControlFile, "listed", _carried),
    "an older crossing": lambda patch: patch.setattr(ControlFile, "listed", _older),
    "a value of a set below the threshold": lambda patch: (
        patch.setattr(ControlFile, "listed", _below),
        patch.setattr(lists, "true_since", lambda *_: FIRST),
    )[0],
    "the step that is evaluated and not visible": lambda patch: patch.setattr(
        Lister, "visible", lambda self, _: self.directory.control.evaluated_through()
    ),
    "the step of the clock": lambda patch: patch.setattr(
        Lister, "visible", lambda self, now: int(now - self.directory.settings.publish_delay) // PERIOD - 1
    ),
    "a list that is never replaced": lambda patch: patch.setattr(
        Lister, "_publish", lambda self, type_, step: bool(self.file.newest(type_.name)) or _publish(self, type_, step)
    ),
    "the sealed values of the step only": lambda patch: patch.setattr(
        Part, "with_sealed", lambda self, values: WITH_SEALED(replace(self, sealed=None), values)
    ),
}
_publish, WITH_SEALED = Lister._publish, Part.with_sealed


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    PLANTED[mistake](monkeypatch)
    assert compared(tmp_path / "d", range(FIRST, FIRST + 40)).found


def at(directory: Directory, step: int) -> Lister:
    """The directory with the joins of some steps, all evaluated, and its lists."""
    for each in range(FIRST, step + 1):
        join(directory, each)
        directory.evaluate(closed(each))
    lister = Lister(directory)
    lister.publish(visible(directory, step))
    return lister


def rows_of(lister: Lister, name: str) -> list[Any]:
    """The rows of the newest list, with their hashes."""
    found = lister.file.newest(name)
    assert found is not None
    return lister.file.page(name, found, b"", 1000) or []


def test_since_is_the_first_step_of_the_run_of_true_answers_that_two_crossings_show() -> None:
    laws = (two_sided(Fraction(3, 4), 1), two_sided(Fraction(3, 4), 1))
    crossing = Searches(Parameters(4, 5, PERIOD, *laws, restart=CrossingRestart(5, 40)), 0)
    grid = Searches(Parameters(4, 6, PERIOD, *laws), 0)
    kept = [(), (21,), (15,), (16,), (11, 16), (10, 16), (16, 21)]
    assert [true_since(crossing, each, 20) for each in kept] == [None, None, None, 16, 11, 16, 16]
    kept = [(17,), (19,), (17, 18), (16, 19), (11, 19)]  # an instance has the steps 18 to 23
    assert [true_since(grid, each, 20) for each in kept] == [None, 19, 17, 19, 19]


def test_a_value_is_listed_only_after_its_review(tmp_path: Path) -> None:
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        at(directory, FIRST + 20)
        now = visible(directory, FIRST + 20)
        (tmp_path / "d" / lists.NAME).unlink()
        lister = Lister(directory, review=2)
        lister.publish(now)
        rows = [row for name in LISTED for row in rows_of(lister, name)]
        assert rows
        assert all(listed.since <= FIRST + 18 for _, listed in rows)
        assert any(answers(directory, name, now)[1] - values(lister, name) for name in LISTED)
        with pytest.raises(ConfigurationError, match="not be longer than its window of 6 steps"):
            Lister(directory, review=7)


def test_what_is_suppressed_within_its_review_is_in_no_list_and_no_history(tmp_path: Path) -> None:
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        at(directory, FIRST + 3)
        (tmp_path / "d" / lists.NAME).unlink()
        shutil.rmtree(tmp_path / "d" / lists.FOLDER)
        value, lister = "=1+1", Lister(directory, review=2)
        joins = [Join("grid", set_of(value), "client", b"%d" % n, value.encode()) for n in range(9)]
        for step in range(FIRST + 4, FIRST + 20):
            assert directory.joining.join_all(joins, step * PERIOD) == [True] * len(joins)
            join(directory, step)
            directory.evaluate(closed(step))
            lister.publish(visible(directory, step))
            if step == FIRST + 4:
                assert value in answers(directory, "grid", visible(directory, step))[1]  # true, and in review
                directory.control.suppress(key_of(directory, "grid", value))
            assert value not in values(lister, "grid")
        assert in_history(directory, "grid")
        assert value not in in_history(directory, "grid")


def test_a_repeated_run_and_another_one_write_the_same_bytes(tmp_path: Path) -> None:
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        lister = at(directory, FIRST + 20)
        now = visible(directory, FIRST + 20)
        file = history_of(directory.path, "grid") / place_of_step(FIRST + 20, PERIOD)
        before, rows = file.read_bytes(), rows_of(lister, "grid")
        assert lister.publish(now) == 0
        lister.file.close()
        (tmp_path / "d" / lists.NAME).unlink()
        again = Lister(directory)
        assert again.publish(now) == len(LISTED)
        assert file.read_bytes() == before
        assert rows_of(again, "grid") == rows


def test_each_value_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opens: list[bytes] = []
    original = sealing.opened

    def opened_once(sealed: bytes, key: Any, name: bytes) -> bytes:
        opens.append(name)
        return original(sealed, key, name)

    monkeypatch.setattr(sealing, "opened", opened_once)
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        lister = Lister(directory)
        go_on(lister, range(FIRST, FIRST + 25))
        assert len(opens) == len(set(opens)) > len(VALUES)


def test_a_value_that_does_not_open_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        at(directory, FIRST + 20)
        key = key_of(directory, "grid", min(answers(directory, "grid", visible(directory, FIRST + 20))[1]))
        directory.control.database.execute("UPDATE sealed SET value = x'00' WHERE set_key = ?", (key,))
        (tmp_path / "d" / lists.NAME).unlink()
        lister = Lister(directory)
        assert lister.publish(visible(directory, FIRST + 20)) == len(LISTED)
        assert lister.unopened == 1
        assert len(values(lister, "grid")) == len(answers(directory, "grid", visible(directory, FIRST + 20))[1]) - 1


def test_nothing_but_the_list_holds_a_value_in_clear(tmp_path: Path) -> None:
    texts = [value.encode() for value in VALUES if len(value) > 3]
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        for step in range(FIRST, FIRST + 20):
            join(directory, step)
            directory.evaluate(closed(step))
        stored = b"".join(path.read_bytes() for path in (tmp_path / "d").rglob("*") if path.is_file())
        assert not [text for text in texts if text in stored]
        lister = Lister(directory)
        lister.publish(visible(directory, FIRST + 19))
        assert values(lister, "grid")


def test_types_that_are_not_listed_have_no_sealed_value_and_parts_of_format_1(tmp_path: Path) -> None:
    types = {name: {**type_, "listed": False} for name, type_ in TYPES.items()}
    with opened(tmp_path / "d", FIRST * PERIOD, types) as directory:
        for step in range(FIRST, FIRST + 5):
            directory.joining.join_all(
                [Join("plain", set_of(value), "client", b"%d" % n) for value in VALUES for n in range(9)], step * PERIOD
            )
            directory.evaluate(closed(step))
            assert directory.log.sealed(step, bytes(32), None) == {}
        parts = [part.read_bytes() for part in (tmp_path / "d" / "parts").glob("*.part")]
        assert parts
        assert all(part[8:12] == b"\0\0\0\1" and decode(part).sealed is None for part in parts)
        assert not (tmp_path / "d" / "secrets" / LIST_KEY).exists()
        assert directory.control.database.execute("SELECT COUNT(*) FROM sealed").fetchone() == (0,)


def test_replay_makes_the_same_parts_with_their_sealed_values(tmp_path: Path) -> None:
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        at(directory, FIRST + 20)
        found = replay(directory, None, closed(FIRST + 20))
        assert found.differences == ()
        assert found.parts > 2


def test_a_lost_key_of_the_lister_is_refused_and_not_made_again(tmp_path: Path) -> None:
    opened(tmp_path / "d", FIRST * PERIOD).close()
    key = tmp_path / "d" / "secrets" / LIST_KEY
    saved = key.read_text()
    key.unlink()
    with pytest.raises(ConfigurationError, match="put it back from a backup"):
        opened(tmp_path / "d", FIRST * PERIOD)
    key.write_text("ab" * 32)
    with pytest.raises(FingerprintMismatchError, match="list-key differs"):
        opened(tmp_path / "d", FIRST * PERIOD)
    key.write_text(saved)
    opened(tmp_path / "d", FIRST * PERIOD).close()


def test_a_type_cannot_become_listed_or_stop_to_be(tmp_path: Path) -> None:
    opened(tmp_path / "d", FIRST * PERIOD).close()
    for name, listed in (("plain", True), ("grid", False)):
        with pytest.raises(FingerprintMismatchError, match=f"type {name}"):
            opened(tmp_path / "d", FIRST * PERIOD, {**TYPES, name: {**TYPES[name], "listed": listed}})


def test_an_unlisted_value_leaves_lists_and_history_and_never_comes_back(tmp_path: Path) -> None:
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        lister = Lister(directory)
        go_on(lister, range(FIRST, FIRST + 12))
        value = min(values(lister, "grid"))
        assert unlist(directory, "grid", value) > 0
        assert value not in values(lister, "grid")
        go_on(lister, range(FIRST + 12, FIRST + 24))
        (tmp_path / "d" / lists.NAME).unlink()
        Lister(directory).publish(visible(directory, FIRST + 23))
        assert value not in in_history(directory, "grid")
        assert unlist(directory, "grid", value) == 0
        assert any(value in answers(directory, "grid", visible(directory, FIRST + 23))[1] for value in VALUES)
        for name in ("plain", "absent"):
            with pytest.raises(ConfigurationError, match="listed types: grid, crossing"):
                unlist(directory, name, value)


def test_no_byte_of_an_unlisted_value_or_a_retired_type_is_left_in_the_file_of_lists(tmp_path: Path) -> None:
    file = tmp_path / "d" / lists.NAME
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        lister = at(directory, FIRST + 20)
        value = min(values(lister, "grid") & values(lister, "crossing"))
    assert value.encode() in file.read_bytes()
    with opened(tmp_path / "d", closed(FIRST + 20)) as directory:
        assert all(unlist(directory, name, value) for name in LISTED)
    assert value.encode() not in file.read_bytes()
    assert b"grid" in file.read_bytes()
    retire(tmp_path / "d", "grid")
    assert b"grid" not in file.read_bytes()


def test_a_backup_has_the_history_and_what_was_taken_out_and_publishes_the_same_list(tmp_path: Path) -> None:
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        lister = at(directory, FIRST + 20)
        value = min(values(lister, "grid"))
        unlist(directory, "grid", value)
        expected = {name: values(lister, name) for name in LISTED}
    backup(tmp_path / "d", tmp_path / "b")
    for place in history_of(tmp_path / "d", "grid").rglob("*.parquet"):
        assert (tmp_path / "b" / place.relative_to(tmp_path / "d")).read_bytes() == place.read_bytes()
    new_generation(tmp_path / "b")
    with opened(tmp_path / "b", closed(FIRST + 20)) as directory:
        lister = Lister(directory)
        lister.publish(visible(directory, FIRST + 20))
        assert {name: values(lister, name) for name in LISTED} == expected
        assert value not in expected["grid"]


def test_a_restored_backup_takes_what_was_suppressed_and_unlisted_since(tmp_path: Path) -> None:
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        lister = at(directory, FIRST + 20)
        shown = values(lister, "grid")
        unlisted, suppressed, *_ = sorted(shown)
        backup(tmp_path / "d", tmp_path / "b")
        shutil.copy(tmp_path / "d" / lists.NAME, tmp_path / "b")  # a copy of the directory has it too
        unlist(directory, "grid", unlisted)
        directory.control.suppress(key_of(directory, "grid", suppressed))
        take_over(tmp_path / "b", tmp_path / "d")  # beside a running service
    take_over(tmp_path / "b", tmp_path / "d")
    new_generation(tmp_path / "b")
    with opened(tmp_path / "b", closed(FIRST + 20)) as directory:
        lister = Lister(directory)
        lister.publish(visible(directory, FIRST + 20))
        assert values(lister, "grid") == shown - {unlisted, suppressed}
        assert unlisted not in in_history(directory, "grid")
    with opened(tmp_path / "other", FIRST * PERIOD, of="another"):
        pass
    with pytest.raises(ConfigurationError, match="another deployment"):
        take_over(tmp_path / "b", tmp_path / "other")
    with pytest.raises(ConfigurationError, match="holds no deployment"):
        take_over(tmp_path / "b", tmp_path / "none")


def in_history(directory: Directory, name: str) -> set[str]:
    """The values of a type that its history has."""
    files = history_of(directory.path, name).rglob("values.parquet")
    return {value for file in files for value in parquet.read_table(file, partitioning=None)["value"].to_pylist()}


def test_doctor_sees_lists_that_are_late(tmp_path: Path) -> None:
    def verdict(now: float) -> Verdict:
        found = examine_directory(tmp_path / "d", now)
        return next(finding.verdict for finding in found if finding.check == "lists")

    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        lister = at(directory, FIRST + 5)
        now = visible(directory, FIRST + 5)
        assert verdict(now) is Verdict.OK
        assert verdict(now + PERIOD) is Verdict.OK
        assert verdict(now + 2 * PERIOD) is Verdict.WARN
        lister.file.database.execute("DELETE FROM lists WHERE type = 'grid'")
        assert verdict(now) is Verdict.WARN


def test_history_is_kept_for_its_days(tmp_path: Path) -> None:
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        lister = at(directory, FIRST + 5)
        lister.days = 2
        now = visible(directory, FIRST + 5)
        folder = history_of(directory.path, "grid")
        assert len(list(folder.glob("date=*"))) == 1
        lister.publish(now + 86_400)
        assert len(list(folder.glob("date=*"))) == 1
        lister.publish(now + 4 * 86_400)
        assert not list(folder.glob("date=*"))


def test_lists_go_on_after_a_new_generation_and_without_a_retired_type(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with opened(path, FIRST * PERIOD) as directory:
        at(directory, FIRST + 20)
    new_generation(path)
    with opened(path, closed(FIRST + 20)) as directory:
        join(directory, FIRST + 21)
        directory.evaluate(closed(FIRST + 21))
        lister = Lister(directory)
        now = visible(directory, FIRST + 21)
        lister.publish(now)
        assert {name: values(lister, name) for name in LISTED} == {n: answers(directory, n, now)[1] for n in LISTED}
    files = sorted(history_of(path, "grid").rglob("*.parquet"))
    retire(path, "grid")
    with closing(sqlite3.connect(path / lists.NAME)) as database:
        for table in ("lists", "entries"):
            types = database.execute(f"SELECT DISTINCT type FROM {table}").fetchall()
            assert types == [("crossing",)]
    assert sorted(history_of(path, "grid").rglob("*.parquet")) == files != []  # for its days
    left = {name: type_ for name, type_ in TYPES.items() if name != "grid"}
    with opened(path, closed(FIRST + 21), left) as directory:
        directory.evaluate(closed(FIRST + 22))
        lister = Lister(directory)
        assert lister.publish(visible(directory, FIRST + 22)) == 1
        assert lister.file.newest("crossing") == ReadableList(FIRST + 22, 0, len(values(lister, "crossing")))


def test_no_list_is_of_a_step_so_early_that_crossings_that_count_there_may_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service catches up 40 steps. Those that were evaluated before a tick are shown; it goes on behind them."""
    last = FIRST + 40
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        lister = Lister(directory)
        go_on(lister, range(FIRST, FIRST + 8))
        before = {name: (lister.file.newest(name), values(lister, name)) for name in LISTED}
        assert all(true for _, true in before.values())
        for step in range(FIRST + 8, last + 1):
            join(directory, step)
        passed = iter([0.0] * 5)
        monkeypatch.setattr(segments, "time", SimpleNamespace(monotonic=lambda: next(passed, PERIOD / 2)))
        directory.evaluate(closed(last))
        now = visible(directory, last)
        assert lister.visible(now) == FIRST + 11
        lister.publish(now)
        assert {name: (lister.file.newest(name), values(lister, name)) for name in LISTED} == before
        lister.publish(now + PERIOD)
        assert {lister.file.newest(name).step for name in LISTED} == {last}  # type: ignore[union-attr]
        assert (last, values(lister, "crossing")) == answers(directory, "crossing", now + PERIOD)
