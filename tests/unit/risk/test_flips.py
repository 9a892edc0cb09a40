"""Whom an exact threshold announces, against a count hour by hour."""

import json
import random
from pathlib import Path

import pytest

from kanon.risk.flips import HOUR, Flips, flips
from tests.paths import REAL_LOG
from tests.unit.cli.commands import run


def plain(rows: list[tuple[int, str, str]], k: int, window: int) -> Flips:
    """The clients of every window, one hour after the other."""
    turned, alone, sets = 0, 0, set()
    hours = range(min(hour for hour, _, _ in rows) - 1, max(hour for hour, _, _ in rows) + window + 1)
    for name in {name for _, name, _ in rows}:
        before: set[str] = set()
        for hour in hours:
            now = {client for at, other, client in rows if other == name and hour - window < at <= hour}
            if len(before) < k <= len(now):
                turned += 1
                alone += len(now - before) == 1
                sets.add(name)
            before = now
    return Flips(turned, alone, len(sets))


def written(path: Path, rows: list[tuple[int, str, str]]) -> Path:
    path.write_text("time,set,client\n" + "".join(f"{hour * HOUR + 7},{name},{who}\n" for hour, name, who in rows))
    return path


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_a_count_hour_by_hour_shows(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = [(rng.randrange(400_000, 400_040), f"s{rng.randrange(3)}", f"c{rng.randrange(9)}") for _ in range(90)]
    k, window = rng.randrange(1, 6), rng.randrange(1, 9)
    expected = plain(rows, k, window)
    assert flips(written(tmp_path / "log.csv", rows), "set", "client", k, window) == expected
    assert expected.turned >= expected.alone


@pytest.mark.slow
def test_the_figure_of_the_guide_is_that_of_the_real_log() -> None:
    if not REAL_LOG.exists():
        pytest.skip(f"{REAL_LOG.name} is not beside the checkout")
    status, output = run("risk", "no-noise", str(REAL_LOG), "--hourly", "--k", "50", "--window-days", "30")
    assert status == 0
    assert output == (
        "HAVING COUNT(DISTINCT client) >= 50 over 30 days, every hour: 37 values turned true 281 times."
        " 233 times (83%) exactly one client was new in that hour.\n"
    )


def test_a_log_of_ones_own_has_its_own_columns(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("time,query,who\n3600,a,x\n7200,a,y\n")
    told = run("risk", "no-noise", str(log), "--hourly", "--k", "2", "--value", "query", "--user", "who", "--json")
    assert json.loads(told[1]) == {"k": 2, "windowDays": 30, "turned": 1, "alone": 1, "sets": 1}
    log.write_text("time,set,client\n")
    assert "turned true 0 times. 0 times exactly one" in run("risk", "no-noise", str(log), "--hourly")[1]
    log.write_text("time,set,clint\n3600,a,x\n")
    assert "has no column 'client': it has 'clint'" in run("risk", "no-noise", str(log), "--hourly")[1]


def test_options_that_have_no_effect_are_refused(tmp_path: Path) -> None:
    assert "--hourly needs a log" in run("risk", "no-noise", "--hourly")[1]
    log = str(written(tmp_path / "log.csv", [(1, "a", "b")]))
    assert "--fakes has no effect with --hourly" in run("risk", "no-noise", log, "--hourly", "--fakes", "1")[1]
