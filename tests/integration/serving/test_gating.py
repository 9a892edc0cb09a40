"""Rows of a log count once, in the step in which they arrive, and the statuses are those of the plain algorithm."""

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kanon.errors import ConfigurationError
from kanon.joinlog import LogError
from kanon.joinlog.numbered import JoinBatch
from kanon.serving import arrivals
from kanon.serving.arrivals import Arrivals
from kanon.serving.directory import Directory, new_generation
from kanon.serving.gating import NamedSet, Ran, run
from kanon.serving.output import append, changed, description_of, written
from tests.integration.serving.own_joins import FIRST, PERIOD, SETS, TYPES, Oracle, Row, batches, opened, unreferenced

GRID = {"grid": TYPES["grid"]}


@pytest.fixture(autouse=True)
def portions(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins are moved in portions, too."""
    monkeypatch.setattr(arrivals, "ENTRIES_A_MOVE", 3)


def some_rows(rng: random.Random, step: int) -> list[Row]:
    """Rows of times before and in a step, some of them late or too old, and one in the future."""
    if rng.random() < 0.25:
        return []
    rows = [
        Row((step - rng.choice((0, 0, 0, 1, 2, 4, 5, 6, 9))) * PERIOD + rng.randrange(PERIOD), text, str(client))
        for n, text in enumerate(SETS)
        for client in rng.sample(range(12), rng.choice((0, 0, 1, 2, 3)))
        if (step // 7 + n) % 3
    ]
    return [*rows, Row((step + 1) * PERIOD, SETS[0], "early")]


@pytest.mark.parametrize("seed", range(4))
def test_statuses_are_those_of_the_plain_algorithm_over_the_rows_as_they_arrive(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    directory = opened(tmp_path / "d", FIRST * PERIOD)
    oracle = Oracle(directory)
    directory.close()
    table = tmp_path / f"statuses.{rng.choice(('csv', 'parquet'))}"
    log: list[Row] = []
    step, true = FIRST, 0
    for _ in range(60):
        log += some_rows(rng, step)
        arrival = max(step, oracle.stepped + 1)
        with opened(tmp_path / "d", (step + 0.5) * PERIOD) as directory:
            ran = run(directory, batches(log), (step + 0.5) * PERIOD)
            new = oracle.arrive(log, arrival, step)
            assert ran.counted.new == new
            assert ran.waits_for == (arrival if new and arrival > step else None)
            assert ran.statuses is not None
            assert ran.statuses.step == step
            assert ran.statuses.true == oracle.through(step)
            append(table, ran.statuses, PERIOD)
            assert standing(table) == ran.statuses.true
            directory.segments.keep((step + 1) * PERIOD)
            assert unreferenced(directory) <= {f"waiting {arrival}"}
        true += len(ran.statuses.true)
        if rng.random() < 0.2:  # edits and removals behind it change nothing
            log = [row._replace(client="edited") if rng.random() < 0.05 else row for row in log if rng.random() < 0.8]
        step += rng.choice((0, 1, 1, 1, 2, 3))
    assert true > 100


def standing(table: Path) -> frozenset[NamedSet]:
    """The sets that are true by the last row of each in a table."""
    from kanon.serving.output import _read

    last = {NamedSet(row["type"], row["value"]): row["status"] for row in _read(table)}
    return frozenset(value for value, status in last.items() if status)


def crowd(step: int, text: str = SETS[0], number: int = 12) -> list[Row]:
    """So many clients join that any noise is exceeded."""
    return [Row(step * PERIOD + n, text, f"client {n}") for n in range(number)]


def gated(path: Path, rows: list[Row], step: int, table: Path | None = None) -> Ran:
    """One run of the command at a step."""
    now = (step + 0.1) * PERIOD
    before = None if table is None else written(table)
    with opened(path, now, GRID) as directory:
        ran = run(directory, batches(rows), now, -1 if before is None else before.step)
        if table is not None and ran.statuses is not None:
            append(table, ran.statuses, PERIOD)
    return ran


def test_a_row_counts_once_also_if_the_clock_was_ahead_and_is_set_back(tmp_path: Path) -> None:
    """The run that was ahead has forgotten the rows that had left the window then."""
    window = TYPES["grid"]["window"]
    rows = [row for step in (FIRST, FIRST + window) for row in crowd(step)]
    assert gated(tmp_path / "d", crowd(FIRST), FIRST).counted.new == 12
    assert gated(tmp_path / "d", rows, FIRST + window).counted.new == 12
    again = gated(tmp_path / "d", [*rows, *crowd(FIRST + 1)], FIRST + 1)
    assert (again.counted.new, again.counted.old, again.counted.future) == (12, 12, 12)
    again = gated(tmp_path / "d", rows, FIRST)
    assert (again.counted.new, again.waits_for) == (0, FIRST + window + 1)


def test_a_second_run_in_a_step_leaves_its_statuses_and_its_rows_count_in_the_next_step(tmp_path: Path) -> None:
    first = gated(tmp_path / "d", [], FIRST)
    again = gated(tmp_path / "d", crowd(FIRST), FIRST)
    assert (again.counted.new, again.waits_for) == (12, FIRST + 1)
    assert again.statuses == first.statuses
    later = gated(tmp_path / "d", [], FIRST + 1)  # a pipe need not bring them again
    assert later.statuses is not None
    assert later.statuses.true == {NamedSet("grid", SETS[0])}


def test_rows_that_were_counted_before_a_process_stopped_are_in_the_log_whoever_opens_it(tmp_path: Path) -> None:
    opened(tmp_path / "d", FIRST * PERIOD, GRID).close()
    with closing(Arrivals(tmp_path / "d")) as record:
        record.wait(FIRST, [bytes([n]) * 37 for n in range(5)])
    with opened(tmp_path / "d", FIRST * PERIOD, GRID) as directory:
        assert directory.log.count(FIRST) == 5
        assert unreferenced(directory) == set()


def test_no_row_of_a_log_counts_if_a_later_one_cannot_be_read(tmp_path: Path) -> None:
    def broken() -> Iterator[JoinBatch]:
        yield from batches(crowd(FIRST))
        raise LogError("row 13: not a time")

    now = (FIRST + 0.5) * PERIOD
    with opened(tmp_path / "d", now) as directory:
        with pytest.raises(LogError):
            run(directory, broken(), now)
        ran = run(directory, batches(crowd(FIRST)), now)
    assert (ran.counted.new, ran.counted.known) == (12, 0)


def test_a_set_that_turns_false_is_named_when_no_row_names_it_any_more(tmp_path: Path) -> None:
    table = tmp_path / "s.csv"
    gated(tmp_path / "d", crowd(FIRST), FIRST, table)
    for step in range(FIRST + 1, FIRST + 40, 3):
        gated(tmp_path / "d", [], step, table)
    lines = table.read_text().splitlines()
    assert lines[0] == '"value","type","step","time","status"'
    assert [line.rpartition(",")[2] for line in lines[1:3]] == ["true", "false"]
    assert standing(table) == frozenset()


def test_nothing_is_kept_of_rows_that_have_left_the_window(tmp_path: Path) -> None:
    gated(tmp_path / "d", crowd(FIRST, number=3), FIRST)
    file = tmp_path / "d" / arrivals.NAME
    assert SETS[0].encode() in file.read_bytes()
    gated(tmp_path / "d", [], FIRST + 30)
    assert SETS[0].encode() not in file.read_bytes()
    with closing(Arrivals(tmp_path / "d")) as record:
        assert record.empty
        assert record.database.execute("SELECT COUNT(*) FROM texts").fetchone() == (0,)


def test_a_new_output_begins_with_the_sets_that_are_true(tmp_path: Path) -> None:
    gated(tmp_path / "d", crowd(FIRST), FIRST)
    table = tmp_path / "later.parquet"
    gated(tmp_path / "d", [], FIRST, table)
    assert standing(table) == {NamedSet("grid", SETS[0])}


def test_an_output_that_missed_runs_is_brought_up_to_date(tmp_path: Path) -> None:
    table = tmp_path / "s.csv"
    gated(tmp_path / "d", [], FIRST, table)
    gated(tmp_path / "d", crowd(FIRST + 1), FIRST + 1)
    gated(tmp_path / "d", [], FIRST + 2, table)
    assert standing(table) == {NamedSet("grid", SETS[0])}


@pytest.mark.parametrize(
    "text", ['a "quoted", one', "two\nlines", "é漢", "NULL", "", " ", "long" * 600_000], ids=lambda text: text[:15]
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_value_is_the_same_text_in_every_table(tmp_path: Path, text: str, form: str) -> None:
    table = tmp_path / f"s.{form}"
    gated(tmp_path / "d", crowd(FIRST, text or "-"), FIRST, table)
    gated(tmp_path / "d", [], FIRST + 1, table)
    assert standing(table) == {NamedSet("grid", text or "-")}


def test_the_digest_of_an_output_cannot_be_computed_from_guessed_states(tmp_path: Path) -> None:
    """Two deployments without a join have the same states, and different digests."""
    digests = [gated(tmp_path / name, [], FIRST).statuses.digest for name in "ab"]  # type: ignore[union-attr]
    assert digests[0] != digests[1]


def test_an_output_knows_a_step_that_an_older_copy_of_the_directory_does_not_know(tmp_path: Path) -> None:
    """The copy has the same noise. It begins a generation, which changes the noise of what it decides next."""
    table = tmp_path / "s.csv"
    gated(tmp_path / "d", [], FIRST, table)
    known = written(table)
    assert known is not None
    with opened(tmp_path / "d", FIRST * PERIOD, GRID) as directory, closing(Arrivals(directory.path)) as record:
        assert record.released(known.step) == known.digest
        assert record.released(known.step + 1) is None
        tapes = directory.segments._tapes_of("grid", FIRST + 1)
    assert new_generation(tmp_path / "d") == FIRST + 1
    with opened(tmp_path / "d", (FIRST + 1) * PERIOD, GRID) as directory:
        assert directory.segments._tapes_of("grid", FIRST + 1) != tapes


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("s.txt", None, "give a name that ends in .csv or .parquet"),
        ("s.csv", {"s.csv": "value\n"}, "was not written by `kanon gate`"),
        ("s.csv", {"s.json": "{}"}, "does not describe a table"),
        ("s.csv", {"s.json": '{"deployment": "d", "step": 1, "digest": "x", "more": 1}'}, "does not describe"),
    ],
)
def test_a_table_that_is_not_one_of_statuses_is_refused(
    tmp_path: Path, name: str, content: dict[str, str] | None, told: str
) -> None:
    for each, text in (content or {}).items():
        (tmp_path / each).write_text(text)
    with pytest.raises(ConfigurationError, match=told):
        written(tmp_path / name)


def test_a_table_that_was_damaged_is_refused_and_not_written_over(tmp_path: Path) -> None:
    table = tmp_path / "s.parquet"
    ran = gated(tmp_path / "d", crowd(FIRST), FIRST, table)
    table.write_bytes(b"PAR1 damaged")
    assert ran.statuses is not None
    with pytest.raises(ConfigurationError, match="cannot be read as a table of statuses"):
        append(table, ran.statuses, PERIOD)
    assert table.read_bytes() == b"PAR1 damaged"


def test_the_description_is_what_the_guide_says(tmp_path: Path) -> None:
    table = tmp_path / "s.csv"
    ran = gated(tmp_path / "d", [], FIRST, table)
    assert ran.statuses is not None
    assert json.loads(description_of(table).read_text()) == {
        "deployment": ran.statuses.deployment,
        "step": FIRST,
        "digest": ran.statuses.digest,
    }
    assert changed([], ran.statuses, PERIOD) == []


def test_a_suppressed_set_is_false_in_the_output(tmp_path: Path) -> None:
    gated(tmp_path / "d", crowd(FIRST), FIRST)
    with opened(tmp_path / "d", FIRST * PERIOD, GRID) as directory:
        directory.control.suppress(Oracle(directory).key("grid", SETS[0]))
    ran = gated(tmp_path / "d", [], FIRST)
    assert ran.statuses is not None
    assert ran.statuses.true == frozenset()
    with opened(tmp_path / "d", FIRST * PERIOD, GRID) as directory:
        assert isinstance(directory, Directory)
        assert directory.control.show(Oracle(directory).key("grid", SETS[0]))
    ran = gated(tmp_path / "d", [], FIRST)
    assert ran.statuses is not None
    assert ran.statuses.true == {NamedSet("grid", SETS[0])}
