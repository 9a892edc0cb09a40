"""The number of calls of a job's commit, by the budget rows that it charges. It is the same on every machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from infra.measure.measure import Count
from infra.measure.rows import Form, row
from infra.measure.service import START, service
from kanon.reports.account import HOUR, Unit
from kanon.reports.service.committing import Committing, Outcome
from kanon.reports.storage.budgets import MOST_ROWS, ROWS_A_CHUNK, Amount, Budgets, charges
from kanon.reports.storage.report_jobs import ReportJobs, State

TEN = Amount.of(Fraction(10), Fraction(1, 10**8))
CAP = Amount.of(Fraction(50), Fraction(5, 10**8))
EPOCH = "of the bench"
MOST_CALLS = 620
"""Of the commit of a job with the most rows."""
_TO_COMMIT = (State.MAPPING, State.MATCHING, State.REDUCING, State.COMMITTING)
_numbers = itertools.count()


@row("reports: calls of a commit")
def calls_of_a_commit(form: Form) -> Iterator[Count]:
    """Calls of a commit on an engine: one chunk, a row more than one chunk, and the most rows of a job."""
    most = form.size(MOST_ROWS, 20 * ROWS_A_CHUNK)
    with service() as running:
        client: Any = running.dynamodb
        jobs = running.new_table("commit-jobs", "job:S", "part:S")
        budgets = running.new_table("commit-budgets", "row", "part:S")
        client.transact_write_items(TransactItems=[Budgets(client, budgets, CAP).begin(EPOCH)])
        for rows in (ROWS_A_CHUNK, ROWS_A_CHUNK + 1, most):
            yield Count(
                f"calls of the commit of a job, {rows:,} rows of budget", "every call to DynamoDB, on an engine",
                calls_of(client, jobs, budgets, rows), most_calls(rows),
            )  # fmt: skip


def most_calls(rows: int) -> int:
    """The target: one call for each chunk, the witness and the epoch. A job with the most rows has its own target."""
    return MOST_CALLS if rows == MOST_ROWS else -(-rows // ROWS_A_CHUNK) + 2


def calls_of(client: Any, jobs_table: str, budgets_table: str, rows: int) -> int:
    """Calls that a client makes from COMMITTING to COMMITTED.

    Raises:
        RuntimeError: the job did not commit.
    """
    jobs, budgets = ReportJobs(client, jobs_table), Budgets(client, budgets_table, CAP)
    job = f"job of {rows} rows, {next(_numbers)}"
    if not jobs.create(job, {}, START, bytes(32)):
        raise RuntimeError("there is a job of this name")
    for state in _TO_COMMIT:
        found = jobs.read(job)
        if found is None or not jobs.move(found, state, START):
            raise RuntimeError(f"the job did not reach {state}")
    wanted = charges(Unit(f"key {number}", "https://report.test", START // HOUR) for number in range(rows))
    made: list[str] = []

    def count(model: Any, **_: Any) -> None:
        made.append(model.name)

    events = client.meta.events
    events.register_last("before-call.dynamodb", count)
    try:
        committing = Committing(client, jobs, budgets, lambda: budgets.epoch() == EPOCH, lambda: START)
        outcome = committing.commit(job, wanted, TEN, "0" * 32)
    finally:
        events.unregister("before-call.dynamodb", count)
    if outcome is not Outcome.COMMITTED:
        raise RuntimeError(f"the job of {rows} rows ended as {outcome.value}")
    return len(made)
