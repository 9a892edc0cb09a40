"""Every method of the storage that promises a strongly consistent read asks DynamoDB for one."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kanon.gate.storage import aws as storage
from kanon.gate.storage.aws.accounts import Accounts
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.lists import ListTable
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.step_log import StepLog
from tests.unit.examples import ONE_SLOT

TABLE, KEY = "table", bytes(32)


class Client:
    """A DynamoDB client over empty tables that records every read."""

    def __init__(self) -> None:
        self.reads: list[dict[str, Any]] = []

    def get_item(self, **asked: Any) -> dict[str, Any]:
        self.reads.append(asked)
        return {}

    def query(self, **asked: Any) -> dict[str, Any]:
        self.reads.append(asked)
        return {"Items": []}

    def batch_get_item(self, RequestItems: dict[str, dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        self.reads += RequestItems.values()
        return {"Responses": {TABLE: []}}

    def get_paginator(self, operation: str) -> "Client":
        assert operation == "scan"
        return self

    def paginate(self, **asked: Any) -> Iterator[dict[str, Any]]:
        self.reads.append(asked)
        yield {"Items": []}


CONSISTENT: dict[str, Callable[[Any], object]] = {
    "Accounts.read": lambda client: Accounts(client, TABLE).read(KEY),
    "Control.row": lambda client: Control(client, TABLE).row(Place(0, 0)),
    "Control.rows": lambda client: list(Control(client, TABLE).rows()),
    "Control.recorded": lambda client: Control(client, TABLE).recorded("join"),
    "ListTable.pointer": lambda client: ListTable(client, TABLE).pointer("terms"),
    "Statuses.crossings": lambda client: Statuses(client, TABLE).crossings([KEY]),
    "Statuses.is_suppressed": lambda client: Statuses(client, TABLE).is_suppressed(KEY),
    "Statuses.released": lambda client: Statuses(client, TABLE).released(),
    "StepLog.page": lambda client: StepLog(client, TABLE, ONE_SLOT).page(b"here", b"a", b"b"),
}


def promising() -> set[str]:
    """The public methods of the storage whose docstring says "strongly consistent"."""
    modules = [
        importlib.import_module(f"{storage.__name__}.{found.name}") for found in pkgutil.iter_modules(storage.__path__)
    ]
    classes = {kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)}
    return {
        f"{kind.__name__}.{name}"
        for kind in classes
        if kind.__module__.startswith(storage.__name__)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and "strongly consistent" in " ".join((method.__doc__ or "").split())
    }


@pytest.mark.parametrize("method", CONSISTENT)
def test_a_method_that_promises_it_reads_strongly_consistently(method: str) -> None:
    client = Client()
    CONSISTENT[method](client)
    assert [asked.get("ConsistentRead") for asked in client.reads] == [True]


def test_every_method_that_promises_consistency_is_tested() -> None:
    assert promising() == CONSISTENT.keys()


def test_a_query_reads_eventually_consistently() -> None:
    client = Client()
    Statuses(client, TABLE).read([KEY], [0])  # type: ignore[arg-type]
    assert [asked["ConsistentRead"] for asked in client.reads] == [False]  # answers wait for a margin before the tick
