"""The model of reports in `kanon cost` against the usage of the functions of the local stack."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from kanon.cost import reports as model
from kanon.cost.billing import read_measured
from kanon.cost.reports import ReportLoad, messages_of, read_units_of_job, requests_of_job, written_units
from kanon.local import Stack
from tests.e2e.reports.test_drills import START, Service

MEASURED = {**read_measured(), "polls": 1.0}
DESTINATIONS = 60
"""Each is a row of budget, so a commit has two chunks."""
LISTED_AS_PUT = ("PutObject", "ListObjectsV2")
WORKERS = ("jobs", "decrypt", "aggregate")


@dataclass
class Counted:
    """The usage of collecting reports and of one job over them, by function and call."""

    calls: Counter[tuple[str, str]]
    written: float
    read: float
    bytes_sent: int
    bytes_stored: int

    def of(self, *operations: str) -> int:
        return sum(
            count for (function, name), count in self.calls.items() if name in operations and function in WORKERS
        )


def run(stack: Stack, objects: int) -> Counted:
    """Reports of 60 destinations in so many objects, and a job over all of them."""
    service = Service(stack)
    keys = service.keys
    for first in range(objects):
        service.send([service.encrypted(keys, f"https://shop{n}.test") for n in range(first, DESTINATIONS, objects)])
    meter = stack.meter
    sent, stored = meter.sent["collect"], meter.stored["store"]
    before = sum(meter.written[name] for name in WORKERS), sum(meter.read.get(name, 0.0) for name in WORKERS)
    job = service.create()
    stack.run_queues()
    assert service.code(job) == "SUCCESS"
    written = sum(meter.written[name] for name in WORKERS) - before[0]
    read = sum(meter.read.get(name, 0.0) for name in WORKERS) - before[1]
    return Counted(Counter(meter.calls), written, read, sent, stored)


@pytest.mark.parametrize("objects", [1, 4])
def test_the_units_and_requests_of_the_model_equal_those_of_a_job(
    new_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch, objects: int
) -> None:
    if objects > 1:  # each object is a shard, and each key a part
        monkeypatch.setattr("kanon.reports.service.shards.SHARD_BYTES", 1)
        monkeypatch.setattr("kanon.reports.histogram.KEYS_A_PARTITION", 1)
        monkeypatch.setattr(model, "SHARD_BYTES", DESTINATIONS * 1_300 / objects)
        monkeypatch.setattr(model, "KEYS_A_PART", 1)
    counted = run(new_stack({"Reports": "ON"}, start=START), objects)
    load = ReportLoad(DESTINATIONS, keys=3, rows=DESTINATIONS)
    assert (load.shards, load.parts, load.chunks) == (objects, 1 if objects == 1 else 3, 2)
    assert counted.written == pytest.approx(written_units(load), rel=0.05)
    assert counted.read == pytest.approx(read_units_of_job(load, MEASURED), rel=0.2)
    puts, gets = requests_of_job(load, objects)
    assert counted.of(*LISTED_AS_PUT) == pytest.approx(puts, rel=0.15)
    assert counted.of("GetObject") == pytest.approx(gets, rel=0.15)
    assert counted.calls["collect", "SendMessage"] == DESTINATIONS
    assert counted.calls["store", "PutObject"] == objects
    message, _ = messages_of(replace(load, size=counted.bytes_stored // DESTINATIONS), MEASURED)
    assert counted.bytes_sent / DESTINATIONS == pytest.approx(message, rel=0.05)
