"""Shared by the tests of the public functions of reports."""

from collections.abc import Iterator

import pytest

from tests.integration.gate.tables import Running, running
from tests.integration.reports.front import Front, front


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with running("moto") as engine:
        yield engine


@pytest.fixture(scope="module")
def shared(engine: Running) -> Front:
    return front(engine)
