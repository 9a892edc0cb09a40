"""The load tool in its short form: it finds lost joins."""

from collections import Counter
from itertools import islice

import pytest

from bench.stack import workload
from kanon.local.engines import MINISTACK_PYTHON
from tests.faults.gate.load.driving import drive
from tests.faults.gate.load.served import Served

pytestmark = pytest.mark.skipif(not MINISTACK_PYTHON.exists(), reason="needs ministack: run `make install`")


def test_a_few_sets_get_most_of_the_joins():
    sizes = sorted(Counter(join.set_id for join in islice(workload("fledge", 5000, seed=1), 20_000)).values())
    assert sum(sizes[-50:]) > sum(sizes) / 2
    assert sizes[len(sizes) // 2] <= 3


def test_every_acknowledged_join_is_in_the_log_and_refused_joins_get_a_retry_after():
    with Served(environments=4) as served:
        stream = workload("fledge", 500, seed=1)
        free = drive(served, stream, rate=15, seconds=2)
        assert free.statuses.keys() == {200}
        assert len(free.acknowledged) == free.joins > 50
        assert free.missing == free.refused == 0
        served.throttle(1.0)
        busy = drive(served, stream, rate=6, seconds=2, seed=3)
        assert busy.statuses.keys() == {200, 503}
        assert busy.without_retry_after == 0
        assert 0 < busy.refused_alone < busy.refused < busy.joins  # some joins of a batch, and joins alone
        assert busy.missing == 0 < len(busy.acknowledged)  # the halves that were written


def test_the_load_tool_finds_a_join_that_is_not_in_the_log(monkeypatch):
    with Served(environments=4) as served:
        monkeypatch.setattr(served, "rows", set)
        tally = drive(served, workload("fledge", 500, seed=1), rate=10, seconds=1)
        assert tally.missing == len(tally.acknowledged) > 0
