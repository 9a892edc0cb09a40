"""The engine of tests that keep the state of a slot, and no stack; and functions that end without a metric."""

from collections.abc import Iterator

import pytest

from tests.integration.gate.tables import Running, running


def pytest_itemcollected(item: pytest.Item) -> None:
    """Powertools warns about every handler without a metric, for example after a failure."""
    item.add_marker(pytest.mark.filterwarnings("ignore:No application metrics to publish"))


@pytest.fixture(scope="module")
def moto() -> Iterator[Running]:
    with running("moto", small_pages=False) as running_:
        yield running_
