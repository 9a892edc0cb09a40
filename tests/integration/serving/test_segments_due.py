"""A part is decided at the first step after its wake-up, however late that is."""

import random
from pathlib import Path

import pytest

from kanon.gate.storage.disk.control import ControlFile
from kanon.serving.gating import NamedSet, run
from kanon.serving.importing import import_log
from tests.integration.serving.own_joins import FIRST, PERIOD, SETS, Oracle, Row, batches, opened
from tests.integration.serving.test_importing import past


@pytest.mark.parametrize("skipped", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_states_that_were_due_at_a_step_that_was_skipped_are_decided_at_the_next_one(
    tmp_path: Path, skipped: int, seed: int
) -> None:
    rows = [row for row in past(random.Random(seed)) if row.time < FIRST * PERIOD]
    rows += [Row((FIRST - 1) * PERIOD, "popular until the end of its window", str(n)) for n in range(12)]
    now = (FIRST + 0.5) * PERIOD
    with opened(tmp_path / "d", now, to_import=True) as directory:
        oracle = Oracle(directory)
        import_log(directory, batches(rows), now)
    for row in {row for row in rows if row.time // PERIOD > FIRST - 6}:
        oracle.join(row, int(row.time // PERIOD), FIRST)
    step = FIRST + skipped
    control = ControlFile(tmp_path / "d")  # as if the first steps had been given up
    control.database.execute("UPDATE progress SET evaluated_through = ?", (step - 1,))
    control.database.execute("UPDATE manifests SET step = ?", (step - 1,))
    control.close()
    oracle.stepped = step - 1
    with opened(tmp_path / "d", (step + 0.5) * PERIOD) as directory:
        ran = run(directory, batches([]), (step + 0.5) * PERIOD)
    assert ran.statuses is not None
    assert {value for value in ran.statuses.true if value.text in SETS} == oracle.through(step)
    assert NamedSet("grid", "popular until the end of its window") in ran.statuses.true
