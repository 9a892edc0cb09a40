"""The contract of a job's commit, on every engine available here."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kanon import clock
from kanon.dynamo.transactions import PASSING, all_or_none
from kanon.errors import ThrottledError
from kanon.reports.job import Amount
from kanon.reports.shared_info import Unit
from kanon.reports.storage.budgets import ROWS_A_CHUNK, Budgets, CommitOutcome, charges, exhausted
from kanon.reports.storage.report_jobs import SECONDS_TO_COMMIT, State
from tests.integration.gate.tables import Running, running, take_turns
from tests.integration.reports.tables import CAP, CLAIM, EPOCH, ReportTables, fresh_tables, unit
from tests.moto_engine import ENGINES

TEN = Amount.of(Fraction(10), Fraction(1, 10**8))
LAST = ROWS_A_CHUNK + 2
MANY = [unit(number, hour) for number in range(LAST + 1) for hour in ((0, 7, 23) if number in (0, LAST) else (7,))]
"""Of two chunks. In the first and the last row of several hours: moto takes long for these."""
SOME = [*MANY[:2], *MANY[-2:]]


@pytest.fixture(scope="module", params=sorted(ENGINES, reverse=True))
def engine(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as engine:
        yield engine


@pytest.fixture
def tables(engine: Running) -> ReportTables:
    return fresh_tables(engine)


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The length of every wait, which is skipped."""
    waited: list[float] = []
    monkeypatch.setattr(clock, "sleep", waited.append)
    return waited


def test_a_commit_spends_from_every_hour_and_forgets_the_secret(tables: ReportTables) -> None:
    job, units = tables.job("a"), [unit(0, 5), unit(0, 6), unit(1, 5)]
    tables.calls.clear()
    assert tables.committing().commit(job, charges(units), TEN, CLAIM, parts=["x"]) is CommitOutcome.COMMITTED
    assert tables.calls == ["PutItem", "GetItem", "TransactWriteItems"], "the witness, the epoch, the commit"
    assert [tables.spent(one) for one in units] == [TEN] * 3
    assert tables.spent(unit(0, 7)) == Amount(0, 0)
    row = tables.jobs.read(job)
    assert row is not None
    assert (row.state, row.secret, row.values["parts"], row.committed) == (State.COMMITTED, None, ["x"], True)


def test_a_job_without_units_commits_and_spends_nothing(tables: ReportTables) -> None:
    assert tables.committing().commit(tables.job("a"), [], TEN, CLAIM) is CommitOutcome.COMMITTED


def test_many_rows_are_one_call_for_each_49_of_them(tables: ReportTables) -> None:
    job = tables.job("a")
    tables.calls.clear()
    assert tables.committing().commit(job, charges(MANY), TEN, CLAIM) is CommitOutcome.COMMITTED
    assert tables.calls.count("TransactWriteItems") == 2
    assert {tables.spent(one) for one in SOME} == {TEN}


def test_a_commit_that_is_repeated_spends_once(tables: ReportTables) -> None:
    job = tables.job("a")
    for expected in (CommitOutcome.COMMITTED, CommitOutcome.LEFT):
        assert tables.committing().commit(job, charges(MANY), TEN, CLAIM) is expected
    assert {tables.spent(one) for one in SOME} == {TEN}


def hold_first_chunk(tables: ReportTables, job: str, amount: Amount) -> None:
    """What a worker does before it crashes."""
    first = charges(MANY)[:ROWS_A_CHUNK]
    hold = [write for charge in first for write in tables.budgets.take(charge, job, amount, CLAIM)]
    assert all_or_none(tables.client, [tables.jobs.still(job, State.COMMITTING), *hold]) is None


def test_a_commit_continues_after_the_holds_of_a_crashed_worker(tables: ReportTables) -> None:
    job = tables.job("a")
    hold_first_chunk(tables, job, TEN)
    assert tables.committing().commit(job, charges(MANY), TEN, CLAIM) is CommitOutcome.COMMITTED
    assert {tables.spent(one) for one in SOME} == {TEN}


def test_a_spent_unit_refuses_a_job_with_the_budget_left(tables: ReportTables) -> None:
    for name in "abcdef":
        assert tables.committing().commit(tables.job(name), charges([unit()]), TEN, CLAIM) is CommitOutcome.COMMITTED
    assert (
        tables.committing().commit(tables.job("g"), charges([unit(), unit(1)]), TEN, CLAIM) is CommitOutcome.EXHAUSTED
    )
    four = Amount(CAP.epsilon - 6 * TEN.epsilon, CAP.delta - 6 * TEN.delta)
    assert exhausted(tables.budgets, [unit(), unit(1)], TEN) == [(unit(), four)]
    assert tables.spent(unit(1)) == Amount(0, 0)


def test_delta_alone_can_exhaust_a_unit(tables: ReportTables) -> None:
    most = Amount(1, CAP.delta)
    assert tables.committing().commit(tables.job("a"), charges([unit()]), most, CLAIM) is CommitOutcome.COMMITTED
    assert (
        tables.committing().commit(tables.job("b"), charges([unit()]), Amount(1, 1), CLAIM) is CommitOutcome.EXHAUSTED
    )
    assert (
        tables.committing().commit(tables.job("c"), charges([unit()]), Amount(1, 0), CLAIM) is CommitOutcome.COMMITTED
    )


def test_a_unit_that_another_job_merely_holds_makes_a_job_wait(tables: ReportTables) -> None:
    holder, held = tables.job("a"), charges(MANY)
    hold_first_chunk(tables, holder, CAP)
    second, wanted = tables.job("b"), held[:1]
    assert tables.committing().commit(second, wanted, TEN, CLAIM) is CommitOutcome.WAIT
    row = tables.jobs.read(holder)
    assert row is not None
    assert tables.jobs.move(row, State.ABORTING, tables.now)
    for _ in range(2):
        assert tables.committing().abort(holder, held, CAP, CLAIM) is None
    assert {tables.spent(one) for one in SOME} == {Amount(0, 0)}
    assert tables.committing().commit(second, wanted, TEN, CLAIM) is CommitOutcome.COMMITTED


def test_only_an_aborting_job_returns_its_holds(tables: ReportTables) -> None:
    job = tables.job("a")
    hold_first_chunk(tables, job, TEN)
    assert tables.committing().abort(job, charges(MANY), TEN, CLAIM) is CommitOutcome.LEFT
    assert tables.budgets.held(charges(MANY)[:ROWS_A_CHUNK], job, CLAIM) == ROWS_A_CHUNK


@pytest.mark.parametrize("state", [State.COMMITTING, State.ABORTING])
@pytest.mark.parametrize("units", [[unit()], MANY], ids=["one chunk", "two chunks"])
def test_a_job_whose_row_was_put_back_after_its_commit_spends_and_returns_nothing(
    tables: ReportTables, units: list[Unit], state: State
) -> None:
    job = tables.job("a", state)
    copy = tables.copy(job)
    if state is State.ABORTING:
        tables.put_back(copy | {"state": {"S": State.COMMITTING}})
    assert tables.committing().commit(job, charges(units), TEN, CLAIM) is CommitOutcome.COMMITTED
    tables.put_back(copy)
    again = tables.committing().commit if state is State.COMMITTING else tables.committing().abort
    assert again(job, charges(units), TEN, CLAIM) is CommitOutcome.SPENT
    assert tables.state(job) is state
    assert tables.spent(units[0]) == tables.spent(units[-1]) == TEN


def test_a_chunk_counts_as_held_only_if_the_job_took_every_row_of_it(tables: ReportTables) -> None:
    """A copy of the job met fewer reports, and took some of these rows."""
    job, wanted = tables.job("a"), charges(MANY)
    copy = tables.copy(job)
    assert tables.committing().commit(job, wanted[:11], TEN, CLAIM) is CommitOutcome.COMMITTED
    tables.put_back(copy)
    assert tables.committing().commit(job, wanted, TEN, CLAIM) is CommitOutcome.SPENT
    assert tables.budgets.held(wanted[:ROWS_A_CHUNK], job, CLAIM) == 11


def test_the_claim_of_a_job_changes_with_its_secret_its_plan_and_its_units(tables: ReportTables) -> None:
    row = tables.jobs.read(tables.job("a"))
    assert row is not None
    pinned = {"plan": "a plan", "sources": "units"}
    claims = [
        replace(row, secret=secret, values=pinned | changes).claim
        for secret in (bytes(32), bytes(31) + b"1")
        for changes in ({}, {"plan": "another"}, {"sources": "others"})
    ]
    assert len(set(claims)) == len(claims)


def test_a_slow_worker_cannot_take_returned_budget_again(tables: ReportTables) -> None:
    job = tables.job("a", State.ABORTING)
    assert tables.committing().abort(job, charges(MANY), TEN, CLAIM) is None
    assert tables.committing().commit(job, charges(MANY), TEN, CLAIM) is CommitOutcome.LEFT
    assert tables.spent(MANY[0]) == Amount(0, 0)


@pytest.mark.parametrize("late", [SECONDS_TO_COMMIT, 30 * 86_400])
@pytest.mark.parametrize("wanted", [[unit()], MANY], ids=["one chunk", "two chunks"])
def test_a_worker_that_was_paused_to_the_deadline_commits_and_holds_nothing(
    tables: ReportTables, wanted: list[Unit], late: int
) -> None:
    job = tables.job("a")
    tables.now += late
    assert tables.committing().commit(job, charges(wanted), TEN, CLAIM) is CommitOutcome.LATE
    assert {tables.spent(one) for one in wanted[:: len(wanted) - 1 or 1]} == {Amount(0, 0)}


def test_a_witness_stays_for_a_day(tables: ReportTables) -> None:
    check = tables.budgets.put_witness(tables.now)["ConditionCheck"]
    item = tables.client.get_item(TableName=check["TableName"], Key=check["Key"], ConsistentRead=True)["Item"]
    assert int(item["ttl"]["N"]) == tables.now + 86_400


def test_a_job_commits_in_the_last_second_before_its_deadline(tables: ReportTables) -> None:
    job = tables.job("a")
    tables.now += SECONDS_TO_COMMIT - 1
    assert tables.committing().commit(job, charges([unit()]), TEN, CLAIM) is CommitOutcome.COMMITTED


def test_a_budget_table_that_was_created_again_is_refused(tables: ReportTables) -> None:
    job = tables.job("a")
    assert tables.committing("another").commit(job, charges([unit()]), TEN, CLAIM) is CommitOutcome.REPLACED
    assert tables.spent(unit()) == Amount(0, 0)


@pytest.mark.parametrize("epoch", [None, EPOCH], ids=["created again", "restored"])
@pytest.mark.parametrize("wanted", [[unit()], MANY], ids=["one chunk", "two chunks"])
def test_a_table_that_is_replaced_after_its_epoch_was_read_is_refused(
    tables: ReportTables, wanted: list[Unit], epoch: str | None
) -> None:
    """Another worker of the job has written its witness into the new table."""
    job = tables.job("a")

    def read_and_replaced() -> bool:
        found = tables.budgets.epoch() == EPOCH
        tables.replace_budgets(epoch)
        tables.budgets.put_witness(tables.now)
        return found

    committing = replace(tables.committing(), in_force=read_and_replaced)
    assert committing.commit(job, charges(wanted), TEN, CLAIM) is CommitOutcome.REPLACED
    assert tables.state(job) is State.COMMITTING
    assert tables.spent(wanted[-1]) == Amount(0, 0)


def test_only_as_many_jobs_commit_as_the_cap_allows(engine: Running) -> None:
    tables = fresh_tables(engine)
    jobs = [tables.job(f"job {n}") for n in range(20)]
    take_turns(engine, tables.client)

    def commit(job: str) -> CommitOutcome:
        while (found := tables.committing().commit(job, charges([unit()]), TEN, CLAIM)) is CommitOutcome.WAIT:
            pass
        return found

    with ThreadPoolExecutor(8) as workers:
        outcomes = list(workers.map(commit, jobs))
    assert outcomes.count(CommitOutcome.COMMITTED) == CAP.epsilon // TEN.epsilon
    assert outcomes.count(CommitOutcome.EXHAUSTED) == 20 - CAP.epsilon // TEN.epsilon
    assert tables.spent(unit()) == Amount(6 * TEN.epsilon, 6 * TEN.delta)


def _failing(code: str, times: int, reasons: list[dict[str, Any]] | None = None) -> Any:
    """A call that fails so often before it goes through."""
    left = [times]

    def before(**_: Any) -> None:
        if left[0]:
            left[0] -= 1
            response: Any = {"Error": {"Code": code, "Message": "planted"}}
            if reasons is not None:
                response["CancellationReasons"] = reasons
            raise ClientError(response, "TransactWriteItems")

    return before


@pytest.mark.parametrize("reason", sorted(PASSING))
def test_a_conflicting_transaction_is_retried(tables: ReportTables, reason: str, waits: list[float]) -> None:
    job = tables.job("a")
    planted = _failing("TransactionCanceledException", 2, [{"Code": "None"}, {"Code": reason}])
    tables.client.meta.events.register_first("before-call.dynamodb.TransactWriteItems", planted)
    assert tables.committing().commit(job, charges([unit()]), TEN, CLAIM) is CommitOutcome.COMMITTED
    assert len(waits) == 2


def test_a_transaction_that_fails_in_every_attempt_is_an_error(tables: ReportTables) -> None:
    job = tables.job("a")
    planted = _failing("ThrottlingException", 99)
    tables.client.meta.events.register_first("before-call.dynamodb.TransactWriteItems", planted)
    with pytest.raises(ThrottledError):
        tables.committing().commit(job, charges([unit()]), TEN, CLAIM)


def test_rows_that_dynamodb_leaves_are_read_after_a_pause(tables: ReportTables, waits: list[float]) -> None:
    read = tables.client.batch_get_item

    def first_only(RequestItems: dict[str, Any]) -> Any:  # noqa: N803, as the client names it
        ((table, wanted),) = RequestItems.items()
        keys = wanted["Keys"]
        answer = read(RequestItems={table: {**wanted, "Keys": keys[:1]}})
        return {**answer, "UnprocessedKeys": {table: {**wanted, "Keys": keys[1:]}} if keys[1:] else {}}

    tables.committing().commit(tables.job("a"), charges([unit(0), unit(1), unit(2)]), Amount(1, 0), CLAIM)
    slow = SimpleNamespace(batch_get_item=first_only)
    budgets = Budgets(slow, tables.budgets.table, CAP)  # type: ignore[arg-type]
    waits.clear()
    rows = [unit(number).row for number in range(3)]
    assert budgets.left(rows) == tables.budgets.left(rows)
    assert len(waits) == 2
    with pytest.raises(ThrottledError):
        budgets.left([unit(number).row for number in range(7)])
