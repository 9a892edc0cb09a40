"""A past log becomes the first states: every row in the step of its time, no decision for the past, every set due."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kanon.errors import ConfigurationError
from kanon.gate.storage.disk.control import ControlFile
from kanon.joinlog.numbered import JoinBatch
from kanon.serving.arrivals import Arrivals
from kanon.serving.directory import IMPORTING
from kanon.serving.gating import run
from kanon.serving.importing import import_log
from tests.integration.serving.own_joins import FIRST, PERIOD, SETS, TYPES, Oracle, Row, batches, opened, unreferenced

pytestmark = pytest.mark.usefixtures("small")


def past(rng: random.Random) -> list[Row]:
    """Rows of the last steps, with returning clients; some are too old, or of the step of now."""
    return [
        Row((FIRST - rng.randrange(9)) * PERIOD + rng.randrange(PERIOD), text, str(client))
        for text in SETS
        for client in rng.choices(range(14), k=rng.randrange(18))
    ]


@pytest.mark.parametrize("seed", range(6))
def test_the_answers_are_those_of_the_plain_algorithm_that_begins_with_the_past(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = past(rng)
    now = (FIRST + 0.9) * PERIOD
    with opened(tmp_path / "d", now, to_import=True) as directory:
        oracle = Oracle(directory)
        counted = import_log(directory, batches(rows), now)
        assert len(directory.control.manifest().pieces) > 2  # type: ignore[union-attr]
    within = {row for row in rows if row.time // PERIOD > FIRST - 6}
    assert (counted.new, counted.old) == (len(within), sum(row.time // PERIOD <= FIRST - 6 for row in rows))
    for row in within:
        oracle.join(row, int(row.time // PERIOD), FIRST)
    true = 0
    for step in range(FIRST, FIRST + 12):
        with opened(tmp_path / "d", (step + 0.9) * PERIOD) as directory:
            ran = run(directory, batches(rows), (step + 0.9) * PERIOD)
            assert (ran.counted.new, ran.waits_for) == (0, None)
            assert ran.statuses is not None
            assert ran.statuses.true == oracle.through(step)
            directory.segments.keep((step + 1) * PERIOD)
            assert unreferenced(directory) == set()
        true += len(ran.statuses.true)
    assert true > 20


def test_it_is_refused_where_something_was_evaluated_or_counted(tmp_path: Path) -> None:
    now = FIRST * PERIOD + 1.0
    rows = [Row(now - 1, SETS[0], "a")]
    for name in ("evaluated", "imported"):
        with opened(tmp_path / name, now, to_import=True) as directory:
            if name == "imported":
                import_log(directory, batches(rows), now)
            else:
                run(directory, batches([]), now)
            with pytest.raises(ConfigurationError, match="has states already: import into a new directory"):
                import_log(directory, batches(rows), now)
    with opened(tmp_path / "counted", now, to_import=True) as directory:
        with closing(Arrivals(directory.path)) as arrivals:
            arrivals.database.execute("INSERT INTO seen VALUES (x'00', 1)")
        with pytest.raises(ConfigurationError, match="has counted joins already"):
            import_log(directory, batches(rows), now)


def test_an_import_that_stopped_is_not_taken_for_a_deployment_and_begins_anew(tmp_path: Path) -> None:
    now = FIRST * PERIOD + 1.0
    rows = past(random.Random(1))

    def broken() -> Iterator[JoinBatch]:
        yield from batches(rows[:50])
        raise OSError("the pipe broke")

    with opened(tmp_path / "d", now, to_import=True) as directory, pytest.raises(OSError, match="the pipe broke"):
        import_log(directory, broken(), now)
    with pytest.raises(ConfigurationError, match="was not finished: run `kanon operate import` again"):
        opened(tmp_path / "d", now)
    with opened(tmp_path / "d", now, to_import=True) as directory:
        counted = import_log(directory, batches(rows), now)
        assert directory.control.text(IMPORTING) is None
    assert counted.new == len({row for row in rows if row.time // PERIOD > FIRST - 6})


def test_the_joins_of_the_step_of_now_are_in_the_log_if_an_import_dies_and_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start brings them to the log, and then the import deletes this."""
    now = (FIRST + 0.5) * PERIOD
    rows = [Row(FIRST * PERIOD, SETS[0], str(client)) for client in range(6)]

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with opened(tmp_path / "d", now, to_import=True) as directory, monkeypatch.context() as patch:
            patch.setattr(ControlFile, "begin_with", dies)
            with pytest.raises(KeyboardInterrupt):
                import_log(directory, batches(rows), now)
    with opened(tmp_path / "d", now, to_import=True) as directory:
        import_log(directory, batches(rows), now)
    with opened(tmp_path / "d", now) as directory:
        assert directory.log.count(FIRST) == len(rows) * len(TYPES)


def test_of_a_popular_set_the_latest_members_are_kept(tmp_path: Path) -> None:
    now = (FIRST + 0.5) * PERIOD
    rows = [Row((FIRST - 1 - client % 4) * PERIOD, SETS[0], str(client)) for client in range(40)]
    with opened(tmp_path / "d", now, to_import=True) as directory:
        import_log(directory, batches(rows), now)
        (grid, crossing) = sorted(
            (
                (int(part.types[row]), part)
                for piece in directory.control.manifest().pieces  # type: ignore[union-attr]
                for part in [directory.parts.read(piece)]
                for row in range(len(part))
            ),
            key=lambda each: each[0],
        )
        kept = directory.types["grid"].parameters.members_kept
        for _, part in (grid, crossing):
            assert part.sizes.tolist() == [kept] * len(part)
            assert set(part.lasts.tolist()) == {FIRST - 1}
