"""The engine of tests that keep the state of a slot, and no stack."""

from collections.abc import Iterator

import pytest

from tests.integration.gate.tables import Running, running


@pytest.fixture(scope="module")
def moto() -> Iterator[Running]:
    with running("moto", small_pages=False) as running_:
        yield running_
