"""A deployment in a directory gives the answers of the plain algorithm, however it is stopped, split and swept."""

import errno
import os
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kanon.errors import ConfigurationError, UndecodableMembersError
from kanon.gate import segments
from kanon.gate.joining import Join
from kanon.gate.names import client_token, set_key
from kanon.gate.schedule import MANIFESTS_KEPT
from kanon.gate.storage.disk.control import MOST_TYPES, ControlFile
from kanon.gate.storage.disk.log import DiskLog
from kanon.gate.storage.disk.parts import PartFiles
from kanon.serving import directory as directory_module
from kanon.serving import secret_files
from kanon.serving.backup import backup
from kanon.serving.directory import Directory
from kanon.serving.relayed import open_gateway
from tests.integration.serving.own_joins import FIRST, PERIOD, TYPES, opened
from tests.naive import Naive

pytestmark = pytest.mark.usefixtures("small")
SETS = [bytes([n]) * 32 for n in range(12)]


def end(step: int) -> float:
    return (step + 1) * PERIOD + 2


class Oracle:
    def __init__(self, directory: Directory) -> None:
        self.pepper, self.client_key = directory.joining.pepper, directory.joining.client_key
        self.naive = {
            name: Naive(type_.parameters, directory.segments._tapes_of(name, FIRST))
            for name, type_ in directory.types.items()
        }

    def join(self, join: Join, step: int) -> None:
        naive = self.naive[join.type_name]
        key = set_key(self.pepper, join.type_name, join.set_id)
        token = client_token(self.client_key, key, "client", join.client, naive.parameters.client_bits)
        naive.join(key, token, step)

    def step(self, step: int) -> dict[tuple[str, bytes], bool]:
        return {
            (name, set_id): naive.step(set_key(self.pepper, name, set_id), step)
            for name, naive in self.naive.items()
            for set_id in SETS
        }


def joins_at(rng: random.Random, step: int) -> list[Join]:
    """Popular sets come and go; many steps have no join at all."""
    if rng.random() < 0.3:
        return []
    return [
        Join(name, SETS[n], "client", str(rng.randrange(9)).encode())
        for name in TYPES
        for n in range(len(SETS))
        for _ in range(rng.choice((0, 0, 1, 2)))
        if (step // 7 + n) % 3
    ]


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_the_plain_algorithm_whenever_it_is_stopped(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    directory = opened(tmp_path / "d", FIRST * PERIOD)
    oracle = Oracle(directory)
    questions = [(name, set_id) for name in TYPES for set_id in SETS]
    true = 0
    for step in range(FIRST, FIRST + 90):
        joins = joins_at(rng, step)
        for join in joins:
            oracle.join(join, step)
        assert directory.joining.join_all(joins, step * PERIOD + rng.randrange(PERIOD)) == [True] * len(joins)
        expected = oracle.step(step)
        if rng.random() < 0.1:
            directory.close()
            directory = opened(tmp_path / "d", end(step))
        if rng.random() < 0.7 or step % 5 == 0:
            directory.evaluate(end(step))
            directory.segments.keep(end(step))
            answer = directory.querying.query(questions, directory.segments.schedule.tick_of(step) + 1)
            assert answer.step == step
            assert dict(zip(questions, answer.above, strict=True)) == expected
            true += sum(answer.above)
    assert true > 100
    assert len(directory.control.manifest().pieces) > 8
    directory.close()


@pytest.mark.parametrize("stops_at", ["_remember", "_check", "DiskLog", "PartFiles"])
def test_a_first_start_that_stops_is_continued_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: str
) -> None:
    def stops(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(directory_module, stops_at, stops)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path / "d", FIRST * PERIOD)
    with opened(tmp_path / "d", (FIRST + 1) * PERIOD) as directory:
        assert directory.joining.join_all([Join("grid", SETS[0], "client", b"c")], (FIRST + 1) * PERIOD) == [True]
        directory.evaluate(end(FIRST + 1))
        assert directory.evaluated_through == FIRST + 1


@pytest.mark.parametrize("at", range(1, 4))
def test_a_first_start_that_stops_while_it_writes_a_secret_leaves_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Anybody could compute a key that is derived from an empty text."""
    numbers = iter(range(1, 99))

    def stops(*given: Any) -> int:
        file = os.open(*given)
        if next(numbers) == at:
            os.close(file)
            raise KeyboardInterrupt
        return file

    with monkeypatch.context() as patch:
        patch.setattr(secret_files, "os", SimpleNamespace(**{**vars(os), "open": stops}))
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path / "d", FIRST * PERIOD)
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        assert directory.evaluate(end(FIRST)).steps == 1
    secrets = {each.name: each.read_text() for each in (tmp_path / "d" / "secrets").iterdir()}
    assert secrets.keys() == {"set-pepper", "client-key", "noise-keys.json"}
    assert all(len(text) >= secret_files.SHORTEST_SECRET for text in secrets.values())


def test_an_empty_secret_is_refused_also_one_that_is_made_later(tmp_path: Path) -> None:
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        (directory.path / "secrets" / "gateway-key").touch()
        with pytest.raises(ConfigurationError, match="gateway-key is damaged, and anybody could guess it"):
            open_gateway(directory)


def test_a_step_that_stops_again_and_again_leaves_no_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first times it fails at its last part. Then processes are killed there."""
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        for step in (FIRST, FIRST + 1):
            assert all(directory.joining.join_all([Join("grid", each, "client", b"c") for each in SETS], step * PERIOD))
        directory.evaluate(end(FIRST))
        *kept, last = directory.control.manifest().pieces  # type: ignore[union-attr]
        (directory.parts.folder / last.name).unlink()
        for _ in range(3):
            with pytest.raises(UndecodableMembersError):
                directory.evaluate(end(FIRST + 1))
            assert {each.name for each in directory.parts.folder.iterdir()} == {piece.name for piece in kept}
    monkeypatch.setattr(Directory, "evaluate", lambda own, now: own.segments.evaluate(now))
    for _ in range(3):
        with opened(tmp_path / "d", FIRST * PERIOD) as directory:
            assert {each.name for each in directory.parts.folder.iterdir()} == {piece.name for piece in kept}
            with pytest.raises(UndecodableMembersError):
                directory.evaluate(end(FIRST + 1))


def test_old_files_are_deleted_while_many_steps_are_caught_up(tmp_path: Path) -> None:
    """Those of a weekend without the service could fill the disk, and then no step is evaluated any more."""
    most = 0
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        for step in range(FIRST, FIRST + 30):
            assert all(directory.joining.join_all([Join("grid", each, "client", b"c") for each in SETS], step * PERIOD))
        commit = ControlFile.commit

        def counted(self: ControlFile, *given: Any) -> None:
            nonlocal most
            commit(self, *given)
            most = max(most, len(self.manifests()))

        directory.control.commit = partial(counted, directory.control)  # type: ignore[method-assign]
        assert directory.evaluate(end(FIRST + 29)).steps == 30
    assert most == MANIFESTS_KEPT + directory_module.STEPS_TO_KEEP + 1  # and one of the day


def test_a_full_disk_is_freed_of_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        for step in range(FIRST, FIRST + 10):
            assert all(directory.joining.join_all([Join("grid", each, "client", b"c") for each in SETS], step * PERIOD))
            directory.segments.evaluate(end(step - 1))
        assert len(directory.control.manifests()) == 9
        monkeypatch.setattr(PartFiles, "put", full)
        with pytest.raises(OSError, match="No space"):
            directory.evaluate(end(FIRST + 9))
        assert len(directory.control.manifests()) == MANIFESTS_KEPT + 1  # and one of the day
        named = {piece.name for each in directory.control.manifests() for piece in each.pieces}
        assert {each.name for each in directory.parts.folder.iterdir()} == named


def test_the_files_of_the_log_are_listed_once_however_many_steps_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log may have many thousand files. Listing them for each step would take longer than the steps."""
    listed, steps = [], DiskLog.steps
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        for step in range(FIRST, FIRST + 5):
            directory.joining.join(Join("grid", SETS[0], "client", b"c"), step * PERIOD)
        monkeypatch.setattr(DiskLog, "steps", lambda log: listed.append(1) or steps(log))
        assert directory.segments.evaluate(end(FIRST + 5)).steps == 6
    assert listed == [1]


def test_a_file_that_is_not_ours_stops_nothing_and_stays(tmp_path: Path) -> None:
    opened(tmp_path / "d", FIRST * PERIOD).close()
    others = [tmp_path / "d" / "log" / f"{FIRST} (copy).db", tmp_path / "d" / "parts" / "a-b-c.part"]
    others.append(tmp_path / "d" / "parts" / ".download.part")
    for other in others:
        other.touch()
    with opened(tmp_path / "d", FIRST * PERIOD) as directory:
        directory.evaluate(end(FIRST))
        directory.segments.keep(end(FIRST))
        backup(directory.path, tmp_path / "b")
    assert all(other.exists() for other in others)


def test_a_type_whose_number_does_not_fit_into_a_join_is_refused_before_any_join(tmp_path: Path) -> None:
    opened(tmp_path / "d", FIRST * PERIOD).close()
    control = ControlFile(tmp_path / "d")
    control.type_numbers(f"t{n}" for n in range(MOST_TYPES - len(TYPES)))
    with pytest.raises(ConfigurationError, match=f"at most {MOST_TYPES} types"):
        control.type_numbers(["one-more"])
    assert max(control.type_numbers().values()) == MOST_TYPES
    control.close()


def test_a_crossing_in_the_next_instance_does_not_hide_the_one_that_readers_still_need(tmp_path: Path) -> None:
    """Each set gets a crowd in one step of six only. It is forgotten, and the next crowd makes it again."""
    directory = opened(tmp_path / "d", FIRST * PERIOD)
    oracle, questions = Oracle(directory), [(name, set_id) for name in TYPES for set_id in SETS]
    before, true = dict.fromkeys(questions, False), 0
    for step in range(FIRST, FIRST + 60):
        crowd = [n for n in range(len(SETS)) if step % 6 == n % 6]
        joins = [Join(name, SETS[n], "client", b"%d" % c) for name in TYPES for n in crowd for c in range(30)]
        for join in joins:
            oracle.join(join, step)
        assert all(directory.joining.join_all(joins, step * PERIOD))
        expected = oracle.step(step)
        directory.evaluate(end(step))
        tick = directory.segments.schedule.tick_of(step)
        for now, wanted in ((tick - 1, before), (tick, expected)):
            answer = directory.querying.query(questions, now)
            assert dict(zip(questions, answer.above, strict=True)) == wanted, (step, now)
        before = expected
        true += sum(expected.values())
    assert true > 100
    directory.close()


def test_a_step_that_takes_longer_than_the_margin_becomes_visible_at_a_later_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick that was next when its evaluation began passes before its commit: readers have cached the horizon."""
    directory = opened(tmp_path / "d", FIRST * PERIOD)
    joins = [Join("grid", set_id, "client", b"%d" % c) for set_id in SETS for c in range(30)]
    assert all(directory.joining.join_all(joins, FIRST * PERIOD))
    seconds = iter((0.0, 40.0))
    monkeypatch.setattr(segments, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    directory.evaluate(end(FIRST))
    tick = directory.segments.schedule.tick_of(FIRST)
    assert end(FIRST) + 40 > tick
    questions = [("grid", set_id) for set_id in SETS]
    shown = [directory.querying.query(questions, now) for now in (tick, tick + PERIOD - 1, tick + PERIOD)]
    # All sets are true then but those whose instance ends with the step, which is all of them once in 6^12 runs.
    assert [(answer.step, any(answer.above)) for answer in shown] == [(None, False), (None, False), (FIRST, True)]
    directory.close()


def test_a_file_of_the_log_without_its_table_is_a_step_without_joins(tmp_path: Path) -> None:
    """A process that is killed may leave it."""
    directory = opened(tmp_path / "d", FIRST * PERIOD)
    (directory.path / "log" / f"{FIRST}.db").touch()
    assert directory.evaluate(end(FIRST)).steps == 1
    directory.close()
