"""Backups, copies with noise of their own, and a second evaluation that is compared with the first."""

import json
import random
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kanon.errors import ConfigurationError, UndecodableMembersError
from kanon.gate.storage.disk.control import ControlFile
from kanon.serving import backup as backing
from kanon.serving.backup import backup
from kanon.serving.directory import PLACE, Directory, new_generation, retire, stored_settings
from kanon.serving.gating import run
from kanon.serving.replaying import replay
from kanon.serving.secret_files import NOISE_KEYS
from tests.integration.serving.own_joins import FIRST, PERIOD, SETS, TYPES, Oracle, Row, batches, opened, unreferenced

pytestmark = pytest.mark.usefixtures("small")
NOW = (FIRST + 30) * PERIOD
QUIET = range(FIRST + 5, FIRST + 9)
"""Steps without a row: only what is due is decided."""


def rows_of(step: int, seed: int = 0) -> list[Row]:
    rng = random.Random(f"{seed} {step}")
    if step in QUIET:
        return []
    return [
        Row(step * PERIOD + rng.randrange(PERIOD), text, client)
        for text in SETS
        for client in map(str, rng.sample(range(12), rng.randrange(6)))
    ]


def gated(path: Path, steps: range, types: dict = TYPES, seed: int = 0) -> list[frozenset]:
    """One run in each step; the sets that are true after each."""
    true = []
    for step in steps:
        with opened(path, (step + 0.5) * PERIOD, types) as directory:
            ran = run(directory, batches(rows_of(step, seed)), (step + 0.5) * PERIOD)
            assert ran.statuses is not None
            true.append(ran.statuses.true)
    return true


def files(path: Path) -> set[str]:
    """All files but the numbers of changes, which grow with each run."""
    return {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file() and each.parent.name != "seen"}


def test_a_backup_holds_the_last_states_and_what_is_not_evaluated(tmp_path: Path) -> None:
    gated(tmp_path / "d", range(FIRST, FIRST + 5))
    with opened(tmp_path / "d", (FIRST + 4.5) * PERIOD) as directory:
        run(directory, batches(rows_of(FIRST + 4, 1)), (FIRST + 4.5) * PERIOD)  # they count in the next step
        assert backup(tmp_path / "d", tmp_path / "b").step == FIRST + 4  # beside a process that has it open
        wanted = {f"parts/{piece.name}" for piece in directory.control.manifest().pieces}  # type: ignore[union-attr]
    secrets = {"secrets/set-pepper", "secrets/client-key", "secrets/noise-keys.json"}
    assert files(tmp_path / "b") == {"control.db", "arrivals.db", f"log/{FIRST + 5}.db", *secrets, *wanted}
    for name in ("b", "b/secrets", "b/parts"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
    assert {stat.S_IMODE((tmp_path / "b" / name).stat().st_mode) for name in secrets} == {0o600}


def test_a_copy_is_refused_until_it_has_noise_of_its_own_and_then_loses_no_join(tmp_path: Path) -> None:
    gated(tmp_path / "d", range(FIRST, FIRST + 5))
    backup(tmp_path / "d", tmp_path / "b")
    shutil.copytree(tmp_path / "d", tmp_path / "c")
    with closing(ControlFile(tmp_path / "b")) as control:
        assert control.text(PLACE) == "a backup"  # whatever number its file gets on another disk
    for name in "bc":
        with pytest.raises(ConfigurationError, match="is a copy of a deployment"):
            opened(tmp_path / name, NOW)
        assert new_generation(tmp_path / name) == FIRST + 5
    first = {}
    for name in "dbc":
        with opened(tmp_path / name, (FIRST + 5) * PERIOD) as directory:
            oracle = Oracle(directory)
        own = {type_name: naive.tapes for type_name, naive in oracle.naive.items()}
        first = first or own
        assert (own == first) == (name == "d")
        for type_name, naive in oracle.naive.items():
            naive.tapes = first[type_name]
        oracle.stepped = FIRST - 1
        for step in range(FIRST, FIRST + 20):
            if name != "d" and step == FIRST + 5:
                for type_name, naive in oracle.naive.items():
                    naive.begin_generation(own[type_name], step)
            oracle.arrive(rows_of(step), step, step)
            true = oracle.through(step)
            if step >= FIRST + 5:
                assert gated(tmp_path / name, range(step, step + 1)) == [true]


def test_the_second_generation_of_a_step_replaces_the_first(tmp_path: Path) -> None:
    gated(tmp_path / "d", range(FIRST, FIRST + 2))
    tapes = []
    for _ in range(2):
        assert new_generation(tmp_path / "d") == FIRST + 2
        with opened(tmp_path / "d", (FIRST + 2) * PERIOD) as directory:
            tapes.append(directory.segments._tapes_of("grid", FIRST))
            assert len(directory.settings.log_generations) == 1
    assert tapes[0] != tapes[1]


def keys_of(path: Path) -> dict[str, str]:
    texts: dict[str, str] = json.loads((path / "secrets" / NOISE_KEYS).read_text())
    return texts


def test_a_new_noise_key_is_in_use_from_the_next_step_on_and_the_old_one_goes_when_no_search_needs_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "d"
    gated(path, range(FIRST, FIRST + 3))
    old, begun = keys_of(path), FIRST + 3
    assert new_generation(path, new_key=True) == begun
    with opened(path, begun * PERIOD) as directory:
        tapes, keys = directory.segments._tapes_of, directory.segments.noise_keys
        allowance = directory.settings.outage_allowance // PERIOD
        for name in TYPES:
            assert (tapes(name, begun - 1) == tapes(name, begun)) is False
        assert [keys.for_search(step).id for step in (begun - 1, begun)] == ["1", "2"]
    assert keys_of(path).items() > old.items()
    longest = max(type_.parameters.cycle for type_ in directory.types.values())
    for step, there in ((begun, {"1", "2"}), (begun + longest + allowance, {"1", "2"})):
        gated(path, range(step, step + 1))
        opened(path, step * PERIOD).close()
        assert keys_of(path).keys() == there
    gated(path, range(begun + longest + allowance + 1, begun + longest + allowance + 2))
    opened(path, (begun + longest + allowance + 2) * PERIOD).close()
    assert keys_of(path).keys() == {"2"}
    with closing(ControlFile(path)) as control:
        assert [entry.id for entry in stored_settings(control).noise_keys] == ["2"]


def test_a_type_is_not_added_before_a_key_covers_all_its_searches(tmp_path: Path) -> None:
    """Its first search begins on the grid, perhaps before the oldest key that is left: the step could never be done."""
    path = tmp_path / "d"
    gated(path, range(FIRST, FIRST + 3))
    begun = new_generation(path, new_key=True)
    with opened(path, begun * PERIOD) as directory:
        longest = max(type_.parameters.cycle for type_ in directory.types.values())
        allowance = directory.settings.outage_allowance // PERIOD
    now = begun + longest + allowance + 1
    cycle = 2 * (now - begun)
    long = TYPES | {"long": {"k": 50, "window": cycle, "profile": "published"}}
    gated(path, range(now, now + 1))
    opened(path, (now + 1) * PERIOD).close()
    assert keys_of(path).keys() == {"2"}
    with pytest.raises(ConfigurationError, match=f"cannot be added before step {begun + cycle}: "):
        opened(path, (now + 1) * PERIOD, long)
    with pytest.raises(ConfigurationError, match=f"cannot be added before step {begun + cycle}: "):
        opened(path, (begun + cycle - 1) * PERIOD, long)
    gated(path, range(begun + cycle, begun + cycle + 1), long)
    opened(path, (now + 1) * PERIOD, long).close()  # it is known by now


def test_the_second_new_key_of_a_step_replaces_the_first_which_was_never_used(tmp_path: Path) -> None:
    gated(tmp_path / "d", range(FIRST, FIRST + 2))
    for number in ("2", "3"):
        assert new_generation(tmp_path / "d", new_key=True) == FIRST + 2
        with opened(tmp_path / "d", (FIRST + 2) * PERIOD) as directory:
            assert [entry.id for entry in directory.settings.noise_keys] == ["1", number]
        assert keys_of(tmp_path / "d").keys() == {"1", number}


def test_answers_follow_the_new_key(tmp_path: Path) -> None:
    """With restart after the crossing every search begins again with a generation, so all noise is of the new key."""
    gated(tmp_path / "d", range(FIRST, FIRST + 5))
    with opened(tmp_path / "d", (FIRST + 5) * PERIOD) as directory:
        oracle = Oracle(directory)
    oracle.naive = {"crossing": oracle.naive["crossing"]}
    new_generation(tmp_path / "d", new_key=True)
    with opened(tmp_path / "d", (FIRST + 5) * PERIOD) as directory:
        own = directory.segments._tapes_of("crossing", FIRST + 5)
    oracle.stepped = FIRST - 1
    for step in range(FIRST, FIRST + 20):
        if step == FIRST + 5:
            oracle.naive["crossing"].begin_generation(own, step)
        oracle.arrive(rows_of(step), step, step)
        true = oracle.through(step)
        if step >= FIRST + 5:
            (found,) = gated(tmp_path / "d", range(step, step + 1))
            assert {value for value in found if value.type_name == "crossing"} == true


def test_a_backup_is_refused_where_it_could_overwrite_or_contain_itself(tmp_path: Path) -> None:
    gated(tmp_path / "d", range(FIRST, FIRST + 1))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for to, told in (("full", "is not empty: name a new directory"), ("d/b", "outside of it")):
        with pytest.raises(ConfigurationError, match=told):
            backup(tmp_path / "d", tmp_path / to)
    with pytest.raises(ConfigurationError, match="holds no deployment: check --data"):
        backup(tmp_path / "full", tmp_path / "b")


@pytest.mark.parametrize("times", [1, backing.ATTEMPTS])
def test_a_backup_begins_again_if_the_service_deletes_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    gated(tmp_path / "d", range(FIRST, FIRST + 5))
    steps = iter(range(FIRST + 5, FIRST + 100))
    left = iter(range(times))
    copy = backing._copy_database

    def late(source: Path, to: Path) -> None:
        copy(source, to)
        if to.name == backing.UNFINISHED and next(left, None) is not None:  # four steps go by
            for _ in range(4):
                gated(tmp_path / "d", range(step := next(steps), step + 1))
                with opened(tmp_path / "d", (step + 1) * PERIOD) as directory:
                    directory.segments.keep((step + 1) * PERIOD + 10**7)

    monkeypatch.setattr(backing, "_copy_database", late)
    if times == backing.ATTEMPTS:
        with pytest.raises(
            ConfigurationError, match="evaluated faster than it can be copied, or lacks a file: stop the"
        ):
            backup(tmp_path / "d", tmp_path / "b")
        assert files(tmp_path / "b") == set()
        return
    step = backup(tmp_path / "d", tmp_path / "b").step
    new_generation(tmp_path / "b")
    with opened(tmp_path / "b", NOW) as directory:
        assert directory.evaluated_through == step
        for piece in directory.control.manifest().pieces:  # type: ignore[union-attr]
            directory.parts.read(piece)


def test_a_backup_that_fails_leaves_nothing_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated(tmp_path / "d", range(FIRST, FIRST + 3))

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(backing, "_sync", full)
        with pytest.raises(OSError, match="No space left"):
            backup(tmp_path / "d", tmp_path / "b")
    assert not any((tmp_path / "b").iterdir())
    assert backup(tmp_path / "d", tmp_path / "b").step == FIRST + 2


def test_a_part_is_copied_where_it_cannot_get_a_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gated(tmp_path / "d", range(FIRST, FIRST + 3))

    def refuses(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(backing.os, "link", refuses)
    backup(tmp_path / "d", tmp_path / "b")
    new_generation(tmp_path / "b")
    gated(tmp_path / "b", range(FIRST + 3, FIRST + 5))


def kept(path: Path, steps: int = 12) -> None:
    gated(path, range(FIRST, FIRST + steps))


def states(directory: Directory) -> list[tuple[int, list[tuple[str, str]]]]:
    """The digests of all parts, each of which can be read."""
    manifests = directory.control.manifests()
    for piece in {piece for each in manifests for piece in each.pieces}:
        directory.parts.read(piece)
    return [(each.step, [(piece.first, piece.digest) for piece in each.pieces]) for each in manifests]


def test_a_second_evaluation_makes_the_same_states_and_leaves_nothing_else(tmp_path: Path) -> None:
    kept(tmp_path / "d")
    with opened(tmp_path / "d", (FIRST + 12) * PERIOD) as directory:
        before, manifests = states(directory), [each.step for each in directory.control.manifests()]
        found = replay(directory, None, NOW)
        assert (found.base, found.through, found.differences) == (manifests[0], FIRST + 11, ())
        assert found.parts > 0
        assert found.crossings > 5
        for base in manifests:
            assert replay(directory, base, NOW).differences == ()
        assert replay(directory, FIRST + 99, NOW).base == manifests[-1]
        with pytest.raises(ConfigurationError, match=f"no states after step 7 are kept: give one of {manifests[0]}"):
            replay(directory, 7, NOW)
        assert states(directory) == before
        assert unreferenced(directory) == set()


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"x")])
def test_lost_and_damaged_parts_are_made_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    kept(tmp_path / "d")
    with opened(tmp_path / "d", (FIRST + 12) * PERIOD) as directory:
        before, (oldest, *later) = states(directory), directory.control.manifests()
        for name in {piece.name for each in later for piece in each.pieces if piece not in oldest.pieces}:
            damage(directory.parts.folder / name)
        with pytest.raises(UndecodableMembersError):
            states(directory)
        assert replay(directory, None, NOW).differences == ()
        assert states(directory) == before
        assert unreferenced(directory) == set()
    gated(tmp_path / "d", range(FIRST + 12, FIRST + 14))


def changed_crossing(directory: Directory) -> None:
    directory.control.database.execute("UPDATE statuses SET newest = newest - 1 WHERE newest > ?", (FIRST + 1,))


def lost_crossing(directory: Directory) -> None:
    directory.control.database.execute("DELETE FROM statuses WHERE newest = (SELECT MAX(newest) FROM statuses)")


def invented_crossing(directory: Directory) -> None:
    row = (b"x" * 32, FIRST + 9, int(NOW) + 10**6)
    directory.control.database.execute("INSERT INTO statuses (set_key, newest, expires) VALUES (?, ?, ?)", row)


def other_joins(directory: Directory) -> None:
    database = sqlite3.connect(directory.path / "log" / f"{FIRST + 9}.db")
    with database:
        database.execute("DELETE FROM joins")
    database.close()


@pytest.mark.parametrize("change", [changed_crossing, lost_crossing, invented_crossing, other_joins])
def test_a_second_evaluation_says_where_it_differs(tmp_path: Path, change: Callable[[Directory], None]) -> None:
    kept(tmp_path / "d")
    with opened(tmp_path / "d", (FIRST + 12) * PERIOD) as directory:
        change(directory)
        manifests, there = directory.control.manifests(), files(tmp_path / "d")
        differences = replay(directory, manifests[0].step, NOW).differences
        assert directory.control.manifests() == manifests
        assert files(tmp_path / "d") == there
    assert differences
    assert all(each.startswith(("set ", "step ")) for each in differences)


@pytest.mark.parametrize("at", [0, -1])
def test_a_damaged_part_to_begin_with_is_named_also_if_no_step_changes_it(tmp_path: Path, at: int) -> None:
    kept(tmp_path / "d")
    with opened(tmp_path / "d", (FIRST + 12) * PERIOD) as directory:
        manifest = directory.control.manifests()[at]
        piece = manifest.pieces[0]
        (directory.parts.folder / piece.name).write_bytes(b"x")
        with pytest.raises(UndecodableMembersError, match=f"{piece.name} is not.* --from with one of {FIRST}, "):
            replay(directory, manifest.step, NOW)


def test_a_second_evaluation_begins_with_the_generation_in_force(tmp_path: Path) -> None:
    kept(tmp_path / "d")
    new_generation(tmp_path / "d")
    gated(tmp_path / "d", range(FIRST + 12, FIRST + 15))
    with opened(tmp_path / "d", (FIRST + 15) * PERIOD) as directory:
        found = replay(directory, None, NOW)
    assert (found.base >= FIRST + 11, found.differences) == (True, ())


def test_a_type_that_is_retired_goes_with_its_states_and_the_others_go_on(tmp_path: Path) -> None:
    expected = gated(tmp_path / "d", range(FIRST, FIRST + 3))
    with pytest.raises(ConfigurationError, match="has no type 'gird': did you mean 'grid'"):
        retire(tmp_path / "d", "gird")
    retire(tmp_path / "d", "grid")
    with pytest.raises(ConfigurationError, match="'crossing' is the only type"):
        retire(tmp_path / "d", "crossing")
    with pytest.raises(ConfigurationError, match="'grid' was retired permanently"):
        opened(tmp_path / "d", NOW)
    rest = {"crossing": TYPES["crossing"]}
    true = gated(tmp_path / "d", range(FIRST + 3, FIRST + 6), rest)
    assert {value.type_name for value in true[-1]} <= {"crossing"}
    assert any(value.type_name == "grid" for value in expected[-1])
    with opened(tmp_path / "d", (FIRST + 6) * PERIOD, rest) as directory:
        assert replay(directory, None, NOW).differences == ()
