"""Every AWS call of every function of reports fails in every possible way, and no summary changes.

The handlers run as the template defines them, from the same moment each time. Afterwards the summaries are those of a
run without failures, byte for byte; every unit has spent what was released; a day later no sum and no part is left. The
default is a fixed selection of the crash points; ``make faults`` runs all of them.
"""

import base64
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kanon.reports.storage.key_ring import NEW_EVERY
from tests.faults.failures import (
    FAILURES,
    OBJECT_FAILURES,
    QUEUE_FAILURES,
    TRANSACTION_FAILURES,
    TRANSACTIONS,
    Failure,
)
from tests.faults.fault_injector import Call
from tests.faults.reports.simulated_reports import DAY, HIGH, START, History, SimulatedReports
from tests.faults.reports.undisturbed import Point, Undisturbed, check_budgets, check_nothing_is_told, ending

# Powertools warns about every handler without a metric, for example after a failure.
pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")

ALL = bool(os.environ.get("FAULTS"))
FAILURES_TRIED = (*FAILURES, *QUEUE_FAILURES, *OBJECT_FAILURES, *TRANSACTION_FAILURES)
STEP = 31
"""By default one call fails in each way, so many calls behind that of the way before."""
SIGNED = 300
"""Seconds for which AWS takes a request after it was signed."""
STAGES, EDGE = ("decrypt", "aggregate"), ("collect", "store", "jobs", "rotate")
KILL = next(failure for failure in FAILURES_TRIED if failure.name == "dies-after")
AT_WORK = {
    "plan": ("RECEIVED", "aggregate"),
    "map": ("MAPPING", "decrypt"),
    "match": ("MATCHING", "aggregate"),
    "remap": ("REMAPPING", "decrypt"),
    "reduce": ("REDUCING", "aggregate"),
    "commit": ("COMMITTING", "aggregate"),
    "publish": ("COMMITTED", "aggregate"),
}
"""The state of the job and the function that is at work, by stage."""


@pytest.fixture(scope="module")
def history() -> Iterator[History]:
    with SimulatedReports() as service:
        yield History(service)


@pytest.fixture(scope="module")
def kept(history: History) -> Undisturbed:
    return Undisturbed(history, history.kept, history.service.work, *STAGES)


@pytest.fixture(scope="module")
def refused(history: History) -> Undisturbed:
    return Undisturbed(history, history.holding, history.service.work, *STAGES)


@pytest.fixture(scope="module")
def edge(history: History) -> Undisturbed:
    def act() -> None:
        service = history.service
        with service.noise_without_plan():
            do(service)

    def do(service: SimulatedReports) -> None:
        history.collect()
        service.set_time(START + NEW_EVERY)
        for _ in range(2):
            service.wake("rotate")
            service.pass_time(300)
        history.create("edge", "10")
        service.work()

    return Undisturbed(history, history.edge, act, *EDGE)


def test_the_history_calls_every_function(kept: Undisturbed, refused: Undisturbed, edge: Undisturbed) -> None:
    assert {point.function for point in kept.points} == {*STAGES}
    assert {point.function for point in edge.points} == {*EDGE}
    assert kept.expected["codes"] == {"before": "SUCCESS", "kept": "SUCCESS"}
    assert kept.expected["spent"]["kept"] == {"e": 20_000, "d": 0}
    assert refused.expected["codes"]["over-budget"] == "PRIVACY_BUDGET_EXHAUSTED"
    transactions = [point for point in refused.points if point.operation in TRANSACTIONS]
    assert len(transactions) == 4, "a hold, a refusal, the return of the hold, and the end"
    possible = sum(len(case.possible(failure)) for case in (kept, refused, edge) for failure in FAILURES_TRIED)
    print(f"crash points: {possible}")
    assert possible >= 300


@pytest.mark.parametrize("failure", FAILURES_TRIED, ids=str)
def test_a_failure_of_any_call_changes_no_summary_and_loses_no_report(
    kept: Undisturbed,
    refused: Undisturbed,
    edge: Undisturbed,
    failure: Failure,
    record_property: Callable[[str, object], None],
) -> None:
    possible = [(case, point) for case in (kept, refused, edge) for point in case.possible(failure)]
    chosen = possible if ALL else [possible[STEP * FAILURES_TRIED.index(failure) % len(possible)]]
    for case, point in chosen:
        assert case.fail(point, failure) == case.expected, (point, str(failure))
        if case is edge:
            check_nothing_is_lost(case.service)
    record_property("fault_points", len(chosen))
    print(f"crash points, {failure}: {len(chosen)} of {len(possible)}")


def middle(case: Undisturbed, state: str, function: str, operation: str = "") -> Point:
    """The middle one of a function's calls while the job is in a state."""
    found = [
        point
        for point in case.points
        if point.function == function
        and case.runs[point.run].states[point.call - 1] == state
        and operation in point.operation
    ]
    return found[(len(found) - 1) // 2]


@pytest.mark.parametrize("stage", AT_WORK)
def test_a_worker_killed_in_the_middle_of_a_stage_changes_no_byte(kept: Undisturbed, stage: str) -> None:
    operation = "TransactWriteItems" if stage == "commit" else ""
    point = middle(kept, *AT_WORK[stage], operation)
    assert kept.fail(point, KILL) == kept.expected
    assert kept.service.runs[point.run].worker.dead


def test_the_worker_is_killed_between_two_chunks_of_a_commit(kept: Undisturbed) -> None:
    point = middle(kept, *AT_WORK["commit"], "TransactWriteItems")
    chunks = [one for one in kept.points if one.run == point.run and "TransactWriteItems" in one.operation]
    assert chunks.index(point) == 0
    assert len(chunks) == 3, "a hold, the commit, and the end of the job"


def test_a_worker_killed_during_an_abort_leaves_no_budget_spent(
    refused: Undisturbed,
) -> None:
    point = middle(refused, "ABORTING", "aggregate", "TransactWriteItems")
    assert refused.fail(point, KILL) == refused.expected
    assert "over-budget" not in refused.service.spent()


@pytest.mark.parametrize("function", ["collect", "store", "jobs"])
def test_a_killed_worker_of_collect_store_or_jobs_loses_no_report(edge: Undisturbed, function: str) -> None:
    found = [point for point in edge.points if point.function == function]
    assert edge.fail(found[len(found) // 2], KILL) == edge.expected
    check_nothing_is_lost(edge.service)


def check_nothing_is_lost(service: SimulatedReports) -> None:
    """Every report is stored, and every key of the ring has its private key."""
    sent = {body["aggregation_service_payloads"][0]["payload"] for body in service.bodies}
    assert {base64.b64encode(report.payload).decode() for report in service.stored()} == sent
    ring = service.ring()
    assert len(ring.keys) == 2
    assert ring.pending is None
    assert service.private_keys([key.id for key in ring.keys]).keys() == {key.id for key in ring.keys}


@pytest.mark.parametrize("seed", range(60 if ALL else 1))
def test_messages_may_come_twice_late_and_in_any_order_to_workers_whose_clocks_differ(
    history: History, kept: Undisturbed, seed: int
) -> None:
    service = history.restore(history.both)
    service.disorder = random.Random(seed)
    service.work()
    service.disorder = None
    found = ending(service)
    assert found["codes"] == {"before": "SUCCESS", "kept": "SUCCESS", "over-budget": "PRIVACY_BUDGET_EXHAUSTED"}
    assert found["spent"] == kept.expected["spent"]
    assert {name: found[name] for name in kept.expected if name.startswith("output/")} == {
        name: body for name, body in kept.expected.items() if name.startswith("output/")
    }


class Paused:
    """Before the n-th call its worker stops for a while; ``meanwhile`` happens. Lambda does not end it.

    The call was signed before; AWS accepts it for some minutes.
    """

    def __init__(self, service: SimulatedReports, number: int, meanwhile: Callable[[], None]) -> None:
        self.service, self.number, self.meanwhile = service, number, meanwhile
        self.met = False

    def __call__(self, call: Call) -> Any:
        if call.number == self.number and not self.met:
            self.met, before = True, self.service.true_time()
            call.worker.deadline = float("inf")
            self.service.alone(self.meanwhile)
            if self.service.true_time() - before > SIGNED:
                return call.error(403, "RequestTimeTooSkewed" if call.on_objects else "InvalidSignatureException")
        return call.send()


def test_a_worker_that_wakes_up_after_others_have_done_its_work_changes_nothing(
    kept: Undisturbed, refused: Undisturbed, record_property: Callable[[str, object], None]
) -> None:
    met = 0
    for case in (kept, refused):
        late = [point for point in case.points if point.function == "decrypt"][9:10]  # it writes sums
        late += [point for point in case.points if case.runs[point.run].states[point.call - 1] == "REDUCING"
                 and point.operation == "s3.PutObject"]  # it writes a part of the summary  # fmt: skip
        for point in case.points if ALL else [*late, *case.points[67::67]]:
            paused = Paused(case.service, point.call, case.service.work_again)
            found = case.run(lambda service, at=point.run, pause=paused: service.disturb.update({at: pause}))  # type: ignore[misc]
            assert paused.met
            assert found == case.expected, point
            met += 1
    record_property("fault_points", met)
    print(f"crash points, paused: {met}")


def test_a_worker_that_is_paused_for_30_days_commits_nothing(kept: Undisturbed) -> None:
    service = kept.service
    _, commit, _ = (point for point in kept.points if point.operation in TRANSACTIONS)  # a hold before, the end after
    for point in kept.points[3 :: 1 if ALL else 47]:
        pause = Paused(service, point.call, lambda: service.pass_time(30 * DAY))
        kept.history.restore(kept.moment).disturb[point.run] = pause
        service.work()
        check_nothing_is_told(service)
        if (point.run, point.call) <= (commit.run, commit.call):
            assert service.codes()["kept"] == "RETRIES_EXHAUSTED", point
            check_budgets(service)
        else:
            assert service.spent()["kept"] == {"e": 20_000, "d": 0}
            assert service.codes()["kept"] in ("SUCCESS", "RESULT_WRITE_ERROR")
        assert not service.open_jobs()
        assert not service.objects("WorkBucket")


@pytest.mark.skipif(not ALL, reason="test_committing races the stages; make faults races the functions, too")
def test_only_as_many_racing_jobs_commit_as_the_budget_allows(history: History) -> None:
    service, jobs = history.restore(history.stored), 20
    service.disorder = random.Random(1)
    for number in range(jobs):
        history.create(f"racer{number}", "3", job_parameters__attribution_destinations=HIGH)
    service.work()
    codes = [code for job, code in service.codes().items() if job.startswith("racer")]
    assert codes.count("SUCCESS") == 14 // 3
    assert codes.count("PRIVACY_BUDGET_EXHAUSTED") == jobs - 14 // 3
    check_budgets(service)
