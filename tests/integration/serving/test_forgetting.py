"""A client that was forgotten is found nowhere, and no count and no answer is another one."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from kanon.gate import deciding
from kanon.gate.forgetting import members
from kanon.gate.names import client_token
from kanon.gate.parts import Part, decode
from kanon.gate.storage.disk.control import ControlFile
from kanon.gate.storage.disk.log import entry_of
from kanon.serving.directory import PLACE, Directory, place_of
from kanon.serving.forgetting import forget
from kanon.serving.gating import run
from tests.integration.serving.own_joins import FIRST, PERIOD, SETS, Oracle, Row, batches, opened, sizes, unreferenced

WHO = "who"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MOST_PART_BYTES", 400)


def filled(path: Path, seed: int) -> None:
    """Three steps with joins, and rows that wait for the fourth."""
    rng = random.Random(seed)
    for step in (FIRST, FIRST + 1, FIRST + 2, FIRST + 2):
        rows = [
            Row(step * PERIOD + rng.randrange(PERIOD), text, client)
            for text in SETS
            for client in [*map(str, rng.sample(range(9), rng.randrange(5))), *([WHO] if rng.random() < 0.5 else [])]
        ]
        now = (step + 0.99) * PERIOD
        with opened(path, now) as directory:
            run(directory, batches(rows), now)


def copied(path: Path, to: Path) -> Path:
    """The same deployment once more; only a test may do this."""
    shutil.copytree(path, to)
    control = ControlFile(to)
    control.put_text(PLACE, place_of(to))
    control.close()
    return to


def entries_of(directory: Directory) -> set[bytes]:
    """The joins of the client as the log stores them."""
    oracle = Oracle(directory)
    return {
        entry_of(key, client_token(directory.names.client_key, key, "client", WHO.encode(), bits), number)
        for name, number in directory.segments.numbers.items()
        for bits in [directory.types[name].parameters.client_bits]
        for text in SETS
        for key in [oracle.key(name, text)]
    }


def occurrences(directory: Directory) -> int:
    """How often the client's tokens are in states, and in any file of the log."""
    entries = entries_of(directory)
    found = 0
    for path in directory.parts.folder.iterdir():
        part = decode(path.read_bytes())
        starts = part.sizes.cumsum() - part.sizes
        for row in range(len(part)):
            members = part.tokens[starts[row] : starts[row] + part.sizes[row]].tolist()
            key, number = bytes(part.keys[row]).ljust(32, b"\0"), int(part.types[row])
            found += sum(entry_of(key, token, number) in entries for token in members)
    for path in (directory.path / "log").iterdir():
        found += sum(entry in path.read_bytes() for entry in entries)
    return found + sum(entry in (directory.path / "control.db").read_bytes() for entry in entries)


@pytest.mark.parametrize("seed", range(4))
def test_the_client_is_gone_and_every_later_answer_is_the_same(tmp_path: Path, seed: int) -> None:
    filled(tmp_path / "a", seed)
    copied(tmp_path / "a", tmp_path / "b")
    answers = []
    for name in "ab":
        with opened(tmp_path / name, (FIRST + 2.99) * PERIOD) as directory:
            assert occurrences(directory) > 5
            before = sizes(directory)
            if name == "b":
                assert forget(directory, WHO, [text.encode() for text in SETS]) > 3
                assert sizes(directory) == before
                assert forget(directory, WHO, [text.encode() for text in SETS]) == 0
                assert unreferenced(directory) == set()
                assert [manifest.step for manifest in directory.control.manifests()] == [FIRST + 2]
                assert [step for step in directory.log.steps() if step <= FIRST + 2] == []
        if name == "b":  # the files, when nobody has them open
            with opened(tmp_path / name, (FIRST + 2.99) * PERIOD) as directory:
                assert occurrences(directory) == 0
        true = []
        for step in range(FIRST + 3, FIRST + 15):
            with opened(tmp_path / name, (step + 0.5) * PERIOD) as directory:
                ran = run(directory, batches([]), (step + 0.5) * PERIOD)
                assert ran.statuses is not None
                true.append(ran.statuses.true)
                true.append(frozenset(sizes(directory).items()))  # type: ignore[arg-type]
        answers.append(true)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("end", [b"", b"\0", b"\0\0"])
def test_a_set_whose_key_ends_with_zero_bytes_is_found(end: bytes) -> None:
    keys = [bytes([n]) * (32 - len(end)) + end for n in (1, 2, 3)]
    none = np.zeros(0, np.int64)
    sets = np.array(keys, "S32")
    part = Part.of(4, sets, np.ones(3, np.uint8), np.array([1, 2, 1]), np.arange(4), np.arange(4), none, none, none)
    assert [members(part, key).tolist() for key in [*keys, b"x" * 32]] == [[0], [1, 2], [3], []]


def test_only_the_sets_that_are_named_are_changed(tmp_path: Path) -> None:
    filled(tmp_path / "d", 0)
    with opened(tmp_path / "d", (FIRST + 2.99) * PERIOD) as directory:
        before = occurrences(directory)
        assert forget(directory, WHO, [SETS[0].encode(), b"no such set"]) <= 2
        assert forget(directory, "nobody", [text.encode() for text in SETS]) == 0
        after = occurrences(directory)
        assert 0 < after < before


def test_a_process_that_stops_between_states_and_log_is_made_up_for_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "d", 0)

    def stops(*_: object) -> None:
        raise KeyboardInterrupt

    with opened(tmp_path / "d", (FIRST + 2.99) * PERIOD) as directory:
        monkeypatch.setattr("kanon.serving.forgetting.finish_forgetting", stops)
        with pytest.raises(KeyboardInterrupt):
            forget(directory, WHO, [text.encode() for text in SETS])
        waiting = directory.log.count(FIRST + 3)
    with opened(tmp_path / "d", (FIRST + 2.99) * PERIOD) as directory:
        assert directory.control.replaced() == {}
        assert directory.log.count(FIRST + 3) == waiting
        directory.segments.keep((FIRST + 3) * PERIOD)
        directory.log.forget_before(FIRST + 3)
    with opened(tmp_path / "d", (FIRST + 2.99) * PERIOD) as directory:
        assert occurrences(directory) == 0
