"""Shared by the fault tests of reports without a stack."""

from collections.abc import Iterator

import pytest

from tests.integration.gate.tables import Running, running


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with running("moto") as engine:
        yield engine
