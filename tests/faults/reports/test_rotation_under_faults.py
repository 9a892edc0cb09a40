"""Rotation under faults: any call fails in any way, and the next runs leave the keys as if nothing had happened.

The short form runs some of the calls; `make faults` runs all.
"""

import os

import pytest

from kanon import clock
from kanon.reports.storage.key_ring import DAY
from tests.faults.reports.failing_calls import KINDS, Fault, KilledError
from tests.integration.gate.tables import Running
from tests.integration.reports.issuing import Issuing, issuing
from tests.integration.reports.tables import NOW

ALL = bool(os.environ.get("FAULTS"))
SHORT_STRIDE = 17


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "sleep", lambda _: None)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_crash_at_any_call_the_next_rotation_completes_the_work(engine: Running, kind: str) -> None:
    expected, calls = lived(issuing(engine), Fault(-1, "none"))
    assert calls > 30
    for at in range(calls) if ALL else range(KINDS.index(kind), calls, SHORT_STRIDE):
        found, seen = lived(issuing(engine), Fault(at, kind))
        assert seen > at, "the fault was not met"
        assert found == expected, f"call {at}"


def lived(deployment: Issuing, fault: Fault) -> tuple[list[tuple[int, int, int]], int]:
    """The times of the keys after a first, a second and a last key, where every run is repeated until it ends."""
    for day in (0, 7, 123):
        deployment.now = NOW + day * DAY
        for _ in range(3):
            worker, deployment.clients = deployment.worker(), []
            fault.watch(worker.epoch.client)
            fault.watch(worker.private._client)
            try:
                worker.run(deployment.now)
            except (Exception, KilledError):
                continue
            break
    assert deployment.fits()
    assert deployment.ring().pending is None
    return [(key.created, key.published_until, key.opens_until) for key in deployment.ring().keys], fault.calls
