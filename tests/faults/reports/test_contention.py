"""Fifty jobs commit at once, on a DynamoDB that cancels overlapping transactions."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kanon import clock
from kanon.errors import ThrottledError
from kanon.reports.job import Amount
from kanon.reports.shared_info import Unit
from kanon.reports.storage.budgets import ROWS_A_CHUNK, Budgets, CommitOutcome, Committing, charges
from kanon.reports.storage.report_jobs import ReportJobs
from tests.faults.reports.contention import Contention

JOBS, CHUNKS = 50, 21
CAP, ONE = Amount(64_000, 0), Amount(1_000, 0)


@pytest.fixture
def contention(monkeypatch: pytest.MonkeyPatch) -> Contention:
    found = Contention()
    monkeypatch.setattr(clock, "sleep", found.sleep)
    random.seed(1)
    return found


def commit_all(contention: Contention, units: Callable[[int], Sequence[Unit]]) -> Counter[str]:
    """How the commits of all jobs end, each with the units of its number."""
    outcomes: Counter[str] = Counter()
    client: Any = contention
    jobs, budgets = ReportJobs(client, "jobs"), Budgets(client, "budgets", CAP)
    committing = Committing(client, jobs, budgets, lambda: True, lambda: 0)

    def worker(number: int) -> Callable[[], None]:
        wanted = charges(units(number))

        def work() -> None:
            try:
                outcomes[committing.commit(f"job {number}", wanted, ONE, "0" * 32).value] += 1
            except ThrottledError:
                outcomes["throttled"] += 1

        return work

    contention.run([worker(number) for number in range(JOBS)])
    return outcomes


def test_jobs_with_other_units_never_meet(contention: Contention) -> None:
    rows = CHUNKS * ROWS_A_CHUNK
    outcomes = commit_all(contention, lambda job: [Unit(f"{job} {n}", "", 0) for n in range(rows)])
    assert not contention.cancelled
    assert outcomes == {CommitOutcome.COMMITTED.value: JOBS}
    assert contention.written == JOBS * CHUNKS


def test_jobs_with_the_same_units_all_commit_in_one_run(
    contention: Contention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They meet at every row, and no worker needs another message."""
    monkeypatch.setattr("kanon.reports.storage.budgets.ROWS_A_CHUNK", 1)
    outcomes = commit_all(contention, lambda _: [Unit(f"{n}", "", 0) for n in range(CHUNKS)])
    assert outcomes == {CommitOutcome.COMMITTED.value: JOBS}
    assert contention.cancelled.total() > JOBS
    assert contention.now < 10
