"""Jobs of reports under faults: any call of any stage fails in any way, and the summaries stay the same bytes.

One history is run without a fault, then again for every call and every kind of fault. At the end each run must
have written the same summaries, byte for byte, ended each job with the same code, and spent exactly what it released.
The short form runs one call for each kind, `make faults` runs all. The short form of ``test_functions_under_faults.py``
makes calls of the same stages fail in about forty ways.
"""

import os
import random
from functools import cache
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from kanon import clock
from kanon.errors import KanonError
from kanon.reports.shared_info import Unit, source_of, units
from kanon.reports.storage.report_jobs import StageMessage, State
from tests.faults.reports.failing_calls import KINDS, Fault, KilledError
from tests.integration.gate.tables import Running
from tests.integration.reports.aggregation import OUTPUT, WORK, Aggregation, aggregation
from tests.unit.reports import made

ALL = bool(os.environ.get("FAULTS"))
SHORT = {
    "refused": ("PutItem", 3),  # it records a part of the summary
    "answer lost": ("TransactWriteItems", 1),  # it holds the first row of budget
    "killed before": ("DeleteObjects", 0),
    "killed after": ("UpdateItem", 4),  # the job begins to commit
    "in conflict": ("TransactWriteItems", 2),  # the job commits
}
"""The call that fails in the short form: the n-th of its operation, from 0."""
DISORDERS = range(40 if ALL else 1)


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Small parts and shards make every stage take part; nothing waits."""
    patch.setattr(clock, "sleep", lambda _: None)
    patch.setattr("kanon.reports.service.shards.SHARD_BYTES", 1)
    patch.setattr("kanon.reports.histogram.KEYS_A_PARTITION", 4)
    patch.setattr("kanon.reports.storage.budgets.ROWS_A_CHUNK", 1)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


@cache
def history() -> tuple[list[Any], ...]:
    """Two files of reports with two reports in common, of two destinations, so that two rows are charged."""
    one = [made.report([(n % 3 + 1, 60_000)], n) for n in range(4)]
    two = [made.report([(n % 3 + 1, 60_000)], n, attribution_destination="https://other.test") for n in range(4, 8)]
    return one, one[:2] + two


UNITS: list[Unit] = units(
    [source_of(made.info()), source_of(made.info(attribution_destination="https://other.test"))], (0,)
)
JOBS: dict[str, dict[str, Any]] = {
    "declared": {"job_parameters__debug_privacy_epsilon": "60", "output_data_blob_prefix": "out/declared.avro"},
    "refused": {"output_data_blob_prefix": "out/refused.avro"},
}


def deployed(engine: Running) -> Aggregation:
    service = aggregation(engine)
    one, two = history()
    service.put_reports("in/a.avro", one)
    service.put_reports("in/b.avro", two)
    service.put_domain("domain/keys.avro", *range(1, 8))
    return service


def finish(service: Aggregation, fault: Fault | None = None, disorder: random.Random | None = None) -> None:
    """Create the jobs and work until all are finished: a failed message comes again, lost ones with the sweep."""
    if fault is not None:
        fault.watch(service.tables.client)
        fault.watch(service.s3)
    for job, changes in JOBS.items():
        secret = service.secrets.getstate()
        for _ in range(2):
            service.secrets.setstate(secret)
            try:
                service.create(job, **changes)
            except (AssertionError, ClientError, ReadTimeoutError, KilledError):  # the caller tries again
                continue
            break
        for _ in range(10):
            service.queue.append(StageMessage(job=job))  # createJob's own message
            work(service, disorder)
            sweep(service)
            if fault is not None:
                fault.watching = False
            done = service.row(job).state is State.FINISHED
            if fault is not None:
                fault.watching = True
            if done:
                break
        else:
            raise AssertionError(f"{job} does not end")


def work(service: Aggregation, disorder: random.Random | None) -> None:
    for _ in range(300):
        if not service.queue:
            return
        if disorder is not None:
            index = disorder.randrange(len(service.queue))
            service.queue.rotate(-index)
            if disorder.random() < 0.3:
                service.queue.append(service.queue[0])
        message = service.queue.popleft()
        try:
            service.run_one(message)
        except (ClientError, ReadTimeoutError, KanonError, KilledError):
            service.queue.append(message)
    raise AssertionError("the queue never gets empty")


def sweep(service: Aggregation) -> None:
    """Run the sweep, as the schedule does. If it fails, the next one follows in five minutes."""
    try:
        service.sweep()
    except (ClientError, ReadTimeoutError, KilledError):
        service.sweep()


def ended(service: Aggregation) -> dict[str, Any]:
    """The visible results."""
    found: dict[str, Any] = {job: service.row(job).values["code"] for job in JOBS}
    found |= {name: service.bucket(OUTPUT).read(name) for name in service.names(OUTPUT)}
    found["spent"] = [service.tables.spent(unit) for unit in UNITS]
    found["left in the work bucket"] = service.names(WORK)
    found["secrets"] = [service.row(job).secret for job in JOBS]
    found["unfinished"] = list(service.tables.jobs.unfinished())
    return found


@pytest.fixture(scope="module")
def undisturbed(engine: Running) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        service, counted = deployed(engine), Fault(-1, "none")
        finish(service, counted)
        counted.watching = False
    return {"calls": counted.operations, **ended(service)}


def test_without_a_fault_one_job_releases_and_one_is_refused(undisturbed: dict[str, Any]) -> None:
    assert [undisturbed[job] for job in JOBS] == ["SUCCESS", "PRIVACY_BUDGET_EXHAUSTED"]
    assert [spent.epsilon for spent in undisturbed["spent"]] == [60_000, 60_000]
    assert undisturbed["left in the work bucket"] == undisturbed["unfinished"] == []
    assert undisturbed["secrets"] == [None] * 2
    assert len(undisturbed["calls"]) * len(KINDS) >= 300
    assert sum(name.startswith("out/declared") for name in undisturbed) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_may_fail_in_every_way_and_the_summaries_are_the_same_bytes(
    engine: Running, undisturbed: dict[str, Any], kind: str
) -> None:
    calls = undisturbed["calls"]
    short, number = SHORT[kind]
    alike = [at for at, operation in enumerate(calls) if operation == short]
    chosen = range(len(calls)) if ALL else [alike[number]]
    print(f"{kind}: {len(chosen)} of {len(calls)} calls")
    for at in chosen:
        service, fault = deployed(engine), Fault(at, kind)
        finish(service, fault)
        assert fault.calls > at, "the fault was not met"
        assert {"calls": calls, **ended(service)} == undisturbed, f"call {at}"


@pytest.mark.parametrize("seed", DISORDERS)
def test_messages_may_come_twice_late_and_in_any_order(engine: Running, undisturbed: dict[str, Any], seed: int) -> None:
    service = deployed(engine)
    finish(service, disorder=random.Random(seed))
    found = ended(service)
    assert found == {name: undisturbed[name] for name in found}
