"""Join logs in the order of time, read and generated."""

from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from kanon.demo.logs import DemoLog, generated_log, read_log
from kanon.joinlog import Columns, LogError, LoggedJoin


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "log.csv"
    file.write_text("time,set,client\n7200,b,2\n3700.5,a,1\n2024-02-03T04:05:06,c,3\n2024-02-03T04:05:06+01:00,c,4\n")
    return file


def test_a_log_is_read_in_the_order_of_time_from_a_full_hour_on(path: Path) -> None:
    log = read_log(path, None, None)
    assert log.joins[:2] == [LoggedJoin(3700.5, "a", "1"), LoggedJoin(7200.0, "b", "2")]
    assert [join.client for join in log.joins[2:]] == ["4", "3"]
    assert log.start == 3600
    assert log.title == "log.csv"


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    (file := tmp_path / "log.jsonl").write_text('{"at": 7200, "page": "a", "who": 7}\n')
    assert read_log(file, None, None, Columns("at", "page", "who")).joins == [LoggedJoin(7200, "a", "7")]


def test_dates_select_whole_days(path: Path) -> None:
    assert [join.set for join in read_log(path, datetime(1970, 1, 1), datetime(1970, 1, 1)).joins] == ["a", "b"]
    assert [join.set for join in read_log(path, datetime(2024, 2, 3), None).joins] == ["c", "c"]
    with pytest.raises(LogError, match="holds no join within these dates: change --from or --to"):
        read_log(path, datetime(2020, 1, 1), datetime(2020, 1, 2))
    path.write_text("time,set,client\n")
    with pytest.raises(LogError, match=r"log\.csv holds no join: check the file"):
        read_log(path, None, None)


def test_every_step_occurs_once_including_steps_without_joins() -> None:
    log = DemoLog("log", 3600, [LoggedJoin(3600, "a", "1"), LoggedJoin(7199.9, "a", "2"), LoggedJoin(18000, "b", "1")])
    steps = [(step, [join.client for join in joins]) for step, joins in log.by_step(3600)]
    assert steps == [(1, ["1", "2"]), (2, []), (3, []), (4, []), (5, ["1"])]


@pytest.mark.slow
def test_the_generated_log_depends_on_its_seed_and_has_the_stated_size() -> None:
    log = generated_log(1)
    assert log.joins == generated_log(1).joins
    assert log.joins[:100] != generated_log(2).joins[:100]
    assert len(log.joins) >= 50_000
    assert log.joins == sorted(log.joins)
    assert all(0 <= join.time - log.start < 45 * 86400 for join in log.joins)


@pytest.mark.slow
def test_the_generated_log_has_a_heavy_tail_and_returning_clients() -> None:
    joins = generated_log(1).joins
    sizes = sorted(Counter(join.set for join in joins).values(), reverse=True)
    assert sizes[0] > 100 * sizes[-1]
    assert sum(sizes[:50]) > 0.4 * sum(sizes)
    assert len({(join.set, join.client) for join in joins}) < 0.8 * len(joins)
