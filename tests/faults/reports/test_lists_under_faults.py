"""Every call that reads a list for a job fails in every way; the job has the keys of its list, or spends nothing.

Before the job is planned the next list is published, with other values. The default fails each call in some ways;
``make faults`` in all of them.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest

from kanon.client.values import bucket_of
from kanon.reports.avro import read_summary
from tests.faults.failures import FAILURES, OBJECT_FAILURES, FailsAt, Failure
from tests.faults.fault_injector import Call
from tests.faults.reports.simulated_reports import History, SimulatedReports
from tests.faults.reports.undisturbed import Undisturbed
from tests.integration.reports.released import TYPES, Publishing

pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")

ALL = bool(os.environ.get("FAULTS"))
STEP, NEVER_TOLD = 490_000, "a value of the history"
FIRST = [f"{NEVER_TOLD} {number}" for number in range(9)]
NEXT = [*FIRST[3:], f"{NEVER_TOLD} that is new"]
CALLS = ["dynamodb.GetItem", "s3.GetObject", "s3.GetObject"]
"""Those of the pointer, and of the two objects of the list."""
POINTS = [
    (failure, number)
    for number, operation in enumerate(CALLS)
    for failure in (*FAILURES, *(OBJECT_FAILURES if operation.startswith("s3.") else ()))
    if failure.applies_to(operation)
]


class WithLists(SimulatedReports):
    parameters = {"Reports": "ON", "Types": json.dumps(TYPES)}  # noqa: RUF012


class Released(Undisturbed):
    """A job in mode kanon, and the next list, which is published before the job is planned."""

    def __init__(self, history: History) -> None:
        service = history.service
        storage = service.stack.storage
        self.publishing = Publishing(service.stack.session, storage.tables["Control"], storage.buckets["ListBucket"])
        history.restore(history.stored)
        self.publishing.publish(STEP, FIRST)
        super().__init__(history, history._moment(), self.do, "jobs", "aggregate")

    def do(self) -> None:
        given = {"output_domain": {"mode": "kanon", "type": "terms"}}
        for name in ("bucket_name", "blob_prefix"):
            given[f"job_parameters__output_domain_{name}"] = None  # type: ignore[assignment]
        with self.service.noise_without_plan():  # the plan has the time of receipt
            self.history.create("released", "10", **given)
            self.publishing.publish(STEP + 1, NEXT)
            self.service.work()

    def keys(self) -> set[int]:
        parts = [body for name, body in self.service.objects("SummariesBucket").items() if "/released-" in name]
        return {int.from_bytes(fact.bucket, "big") for part in parts for fact in read_summary(BytesIO(part))}

    def failing(self, number: int, failure: Failure) -> tuple[dict[str, Any], list[str]]:
        """The result if the ``number``-th call that reads a list fails, and these calls."""
        calls: list[str] = []
        fails: list[FailsAt] = []

        def behave(call: Call) -> Any:
            if call.attempt == 1 and reads_a_list(call):
                calls.append(call.operation)
                if len(calls) == number + 1:
                    fails.append(failure.at(call.number, call.operation, self.service.pass_time))
            same = fails and call.worker is self.service.faults.worker and call.number >= fails[0].number
            return fails[0](call) if same and not (len(calls) > number + 1) else call.send()

        return self.run(lambda service: setattr(service, "disturb", defaultdict(lambda: behave))), calls


def reads_a_list(call: Call) -> bool:
    if call.operation == "s3.GetObject":
        return "/current/" in str(call.request.url)
    return call.operation == "dynamodb.GetItem" and b"list#" in call.request.body


@pytest.fixture(scope="module")
def released() -> Iterator[Released]:
    with WithLists() as service:
        yield Released(History(service))


def test_the_undisturbed_job_has_the_keys_of_the_list_at_its_receipt(released: Released) -> None:
    found, calls = released.failing(len(CALLS), FAILURES[0])
    assert found == released.expected
    assert found["codes"]["released"] == "SUCCESS"
    assert found["spent"]["released"] == {"e": 20_000, "d": 0}
    assert released.keys() == set(map(bucket_of, FIRST))
    assert calls == CALLS


@pytest.mark.parametrize(("failure", "number"), POINTS if ALL else POINTS[::8], ids=str)
def test_a_failure_of_a_call_that_reads_a_list_changes_no_key(
    released: Released, failure: Failure, number: int
) -> None:
    found, calls = released.failing(number, failure)
    assert found == released.expected
    assert calls[: number + 1] == CALLS[: number + 1]
    logs: Any = released.service.stack.logs
    assert NEVER_TOLD not in logs.getvalue()
