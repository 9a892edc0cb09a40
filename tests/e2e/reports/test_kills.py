"""A worker is killed in the middle of each stage of a job, from one moment, and the summaries are the same bytes.

The stack, its handlers and roles are those of the template. Time and randomness are values of this process: the
product has no such setting. After each kill the queue delivers the message again and the sweep goes on. Then the
summaries equal those of an undisturbed run bit for bit, every unit has spent what was released, and no sum is left or
told. ``tests/faults/reports`` kills and disturbs workers at every call.
"""

from collections.abc import Iterator

import pytest

from tests.faults.failures import FAILURES
from tests.faults.reports.simulated_reports import History, SimulatedReports
from tests.faults.reports.undisturbed import Point, Undisturbed

# Powertools says so of every handler that has nothing to count, as when it fails.
pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")

KILL = next(failure for failure in FAILURES if failure.name == "dies-after")
STAGES = {
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
    """A job that releases its summary."""
    return Undisturbed(history, history.kept, history.service.work, "decrypt", "aggregate")


@pytest.fixture(scope="module")
def refused(history: History) -> Undisturbed:
    """A job that holds one row, finds another one short, and gives the first one back."""
    return Undisturbed(history, history.holding, history.service.work, "aggregate")


@pytest.fixture(scope="module")
def collected(history: History) -> Undisturbed:
    """Reports that are sent, stored and released."""

    def act() -> None:
        with history.service.noise_without_plan():
            history.collect()
            history.create("collected", "10")
            history.service.work()

    return Undisturbed(history, history.edge, act, "collect", "store", "jobs")


def middle(run: Undisturbed, state: str, function: str, operation: str = "") -> Point:
    """The call in the middle of those that a function makes while the job is in a state."""
    found = [
        point
        for point in run.points
        if point.function == function
        and run.runs[point.run].states[point.call - 1] == state
        and operation in point.operation
    ]
    return found[(len(found) - 1) // 2]


@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_killed_in_the_middle_of_a_stage_changes_no_byte(kept: Undisturbed, stage: str) -> None:
    operation = "TransactWriteItems" if stage == "commit" else ""
    point = middle(kept, *STAGES[stage], operation)
    assert kept.fail(point, KILL) == kept.expected
    assert kept.service.runs[point.run].worker.dead


def test_the_kill_during_a_commit_is_between_its_chunks(kept: Undisturbed) -> None:
    point = middle(kept, *STAGES["commit"], "TransactWriteItems")
    chunks = [one for one in kept.points if one.run == point.run and "TransactWriteItems" in one.operation]
    assert chunks.index(point) == 0
    assert len(chunks) == 3, "a hold, the commit, and the end of the job"


def test_a_worker_killed_during_an_abort_leaves_no_budget_spent(
    refused: Undisturbed,
) -> None:
    point = middle(refused, "ABORTING", "aggregate", "TransactWriteItems")
    assert refused.fail(point, KILL) == refused.expected
    assert "refused" not in refused.service.spent()


@pytest.mark.parametrize("function", ["collect", "store", "jobs"])
def test_a_killed_worker_of_collect_store_or_jobs_loses_no_report(collected: Undisturbed, function: str) -> None:
    found = [point for point in collected.points if point.function == function]
    assert collected.fail(found[len(found) // 2], KILL) == collected.expected
