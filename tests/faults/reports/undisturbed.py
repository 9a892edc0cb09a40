"""Runs from a moment of a history, with and without a failure, and the checks of their results."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from kanon.reports.avro import read_summary
from kanon.reports.storage.budgets import WITNESS
from tests.faults.failures import OBJECT_FAILURES, Failure
from tests.faults.reports.simulated_reports import DAY, SUMS, History, Origin, SimulatedReports, State
from tests.unit.reports import made


@dataclass(frozen=True)
class Point:
    """A call: the number of the invocation, that of the call in it, its operation, and the function that makes it."""

    run: int
    call: int
    operation: str
    function: str


class Undisturbed:
    """A moment to start from, the actions from then on, and their result without a failure."""

    def __init__(self, history: History, moment: State, act: Callable[[], None], *functions: str) -> None:
        self.history, self.service, self.moment, self.act = history, history.service, moment, act
        self.expected = self.run(SimulatedReports.note_states)
        self.runs = self.service.runs[:-1]  # but for the sweep a day later
        self.points = [
            Point(number, call, operation, run.function)
            for number, run in enumerate(self.runs)
            if run.function in functions
            for call, operation in enumerate(run.worker.calls, 1)
        ]

    def run(self, disturb: Callable[[SimulatedReports], None] = lambda service: None) -> dict[str, Any]:
        """Run it once. Returns its result."""
        disturb(self.history.restore(self.moment))
        self.act()
        return ending(self.service)

    def fail(self, point: Point, failure: Failure) -> dict[str, Any]:
        """Run it once with a failing call. Returns its result."""
        fails = failure.at(point.call, point.operation, self.service.pass_time)
        random.seed(point.call)
        found = self.run(lambda service: service.disturb.update({point.run: fails}))
        assert fails.met, point
        return found

    def possible(self, failure: Failure) -> list[Point]:
        """The calls that can fail in this way."""
        return [
            point
            for point in self.points
            if failure.applies_to(point.operation)
            and (failure not in OBJECT_FAILURES or point.operation.startswith("s3."))
        ]


def ending(service: SimulatedReports) -> dict[str, Any]:
    """The visible results, after the time that the service has to clean up.

    A file of exhausted units is compared by its name only: its contents depend on other jobs.
    """
    found: dict[str, Any] = {
        name: "privacy_budget" in name or body for name, body in service.objects("SummariesBucket").items()
    }
    found |= {"codes": service.codes(), "spent": service.spent()}
    found["counters"] = {job: row.get("v_counters") for job, row in service.jobs().items()}
    check_budgets(service)
    check_nothing_is_left(service)
    check_nothing_is_told(service)
    return found


def check_budgets(service: SimulatedReports) -> None:
    """Check that exactly the jobs that published a summary have spent budget."""
    released = {job for job, code in service.codes().items() if code.startswith("SUCCESS")}
    assert service.spent().keys() == released
    summaries = {name.rpartition("/")[2].partition("-")[0] for name in service.objects("SummariesBucket")}
    assert summaries - {"keys.avro", "privacy_budget_exhausted_2026"} == released


def check_nothing_is_left(service: SimulatedReports) -> None:
    """Check that no sums and parts remain after a day, and no worker's records and witnesses after eight days, and that
    lasting rows remain."""
    budgets = [row for row in service.rows("Budgets") if not bytes(row["row"]["B"]).startswith(WITNESS)]
    before = service.objects("ReportsBucket"), service.objects("SummariesBucket"), budgets
    service.set_time(service.true_time() + DAY)
    service.wake("aggregate")
    service.stack.sweep()
    assert not service.waiting
    assert not service.objects("WorkBucket")
    assert not service.open_jobs()
    assert not [job for job, row in service.jobs().items() if "secret" in row]
    service.set_time(service.true_time() + 7 * DAY)
    service.stack.sweep()
    assert {row["part"]["S"] for row in service.rows("ReportJobs")} <= {"job"}
    assert before == (service.objects("ReportsBucket"), service.objects("SummariesBucket"), service.rows("Budgets"))
    assert service.touched["WorkBucket"] <= {"decrypt", "aggregate"}


def check_nothing_is_told(service: SimulatedReports) -> None:
    """Check that no log, metric, error or message of the queue of jobs holds a bucket, sum, report id, origin or
    job."""
    logs: Any = service.stack.logs
    told = "\n".join([logs.getvalue(), *map(str, service.stack.failures), *service.said])
    words = [text for key in Origin.KEYS for text in (str(key), f"{key:x}", made.key16(key).hex())]
    words += [
        made.ORIGIN,
        *Origin.DESTINATIONS,
        *map(str, SUMS),
        *service.jobs(),
        *service.stack.storage.buckets.values(),
    ]
    words += [*service.objects("ReportsBucket"), *service.objects("WorkBucket")]
    words += [json.loads(body["shared_info"])["report_id"] for body in service.bodies]
    for name, body in service.objects("SummariesBucket").items():
        if name.startswith("output/") and name.endswith(".avro"):
            # Shorter ones, such as a noise of 748, occur in a time.
            words += [str(fact.metric) for fact in read_summary(BytesIO(body)) if abs(fact.metric) > 9_999]
    found = [word for word in set(words) if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", told)]
    assert not found, found
