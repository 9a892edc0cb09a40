"""Shared by the tests of reports on an engine."""

from collections.abc import Iterator

import pytest

from kanon import clock
from tests.integration.gate.tables import Running, running
from tests.integration.reports.aggregation import Aggregation, aggregation
from tests.integration.reports.front import Front, front


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with running("moto") as engine:
        yield engine


@pytest.fixture(scope="module")
def shared(engine: Running) -> Front:
    return front(engine)


@pytest.fixture
def service(engine: Running, monkeypatch: pytest.MonkeyPatch) -> Aggregation:
    """A new deployment whose workers do not wait."""
    monkeypatch.setattr(clock, "sleep", lambda _: None)
    return aggregation(engine)
