"""The load tool in its short form: it finds lost joins, and runs a real worker process near its time limit."""

from collections import Counter
from itertools import islice

import pytest

from infra.measure import load_joins as joins
from infra.measure import load_step as step
from infra.measure.served import Served
from infra.measure.workload import joins as workload
from kanon.local.engines import MINISTACK_PYTHON

pytestmark = pytest.mark.skipif(not MINISTACK_PYTHON.exists(), reason="needs ministack: run `make install`")


def test_a_few_sets_get_most_of_the_joins():
    sizes = sorted(Counter(join.set_id for join in islice(workload("fledge", 5000, seed=1), 20_000)).values())
    assert sum(sizes[-50:]) > sum(sizes) / 2
    assert sizes[len(sizes) // 2] <= 3


def test_every_acknowledged_join_is_in_the_log_and_refused_joins_get_a_retry_after():
    with Served("ministack", environments=4) as served:
        stream = workload("fledge", 500, seed=1)
        free = joins.drive(served, stream, rate=15, seconds=2)
        assert free.statuses.keys() == {200}
        assert len(free.acknowledged) == free.joins > 50
        assert free.missing == free.refused == 0
        served.throttle(1.0)
        busy = joins.drive(served, stream, rate=6, seconds=2, seed=3)
        assert busy.statuses.keys() == {200, 503}
        assert busy.without_retry_after == 0
        assert 0 < busy.refused_alone < busy.refused < busy.joins  # some joins of a batch, and joins alone
        assert busy.missing == 0 < len(busy.acknowledged)  # the halves that were written


def test_the_load_tool_finds_a_join_that_is_not_in_the_log(monkeypatch):
    with Served("ministack", environments=4) as served:
        monkeypatch.setattr(served, "rows", set)
        tally = joins.drive(served, workload("fledge", 500, seed=1), rate=10, seconds=1)
        assert tally.missing == len(tally.acknowledged) > 0


def test_workers_out_of_time_hand_over_until_the_step_is_complete():
    figures = step.evaluate_step(1500, timeout=60, seconds_per_call=1)
    assert figures.complete
    assert figures.hops == len(figures.invocations) - 1
    assert figures.hops >= 1
    assert figures.resident_at_most < 256
