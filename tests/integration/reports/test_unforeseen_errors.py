"""An error that nobody foresaw leaves every function without its text, which may hold a key, a set or a client."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kanon import clock
from kanon.gate.evaluation import Evaluation
from kanon.gate.listing import Listing
from kanon.gate.storage.aws.accounts import Accounts
from kanon.gate.sweeping import Sweeping
from kanon.gateway.answering import Gateway
from kanon.http import edge
from kanon.local import Stack
from kanon.local.functions import FunctionError
from kanon.local.source import ROOT
from kanon.reports.service.rotation import Rotation
from kanon.reports.service.shards import Shards
from kanon.reports.service.stages import Stages
from kanon.reports.service.storing import ReportBatch
from kanon.reports.storage.report_jobs import ReportJobs

TEXT = "a text that holds a key"
POST = {"rawPath": "/v1/x", "requestContext": {"http": {"method": "POST", "path": "/v1/x"}, "stage": "$default"}}
SCHEDULED = {"schedule": True}
TYPE = {"k": 20, "window": 24, "profile": "crossing"}
TYPES = {"terms": {**TYPE, "listed": True}, "people": {**TYPE, "credential": True}}
LISTED = {"Types": json.dumps(TYPES), "ReviewSteps": "1"}


def message(**body: Any) -> dict[str, Any]:
    return {"Records": [{"messageId": "1", "body": json.dumps(body), "eventSource": "aws:sqs", "attributes": {}}]}


CASES: list[tuple[str, Any, str, dict[str, Any]]] = [
    *((name, edge, "readable", POST) for name in ("join", "query", "released", "issuer", "collect", "jobs")),
    ("gateway", Gateway, "answer", POST),
    ("evaluate", clock, "now", SCHEDULED),
    ("evaluate", Evaluation, "run", message(slot=0)),
    ("sweep", Sweeping, "sweep", SCHEDULED),
    ("list", Listing, "run", SCHEDULED),
    ("issuer", Accounts, "forget", SCHEDULED),
    ("decrypt", Shards, "run", message(job="j", stage="map", shard=0)),
    ("aggregate", ReportJobs, "unfinished", SCHEDULED),
    ("aggregate", Stages, "run", message(job="j")),
    ("rotate", Rotation, "run", SCHEDULED),
    ("store", ReportBatch, "add", message()),
]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(
        {"Reports": "ON", "Gateway": "ON", "RelayAuth": "OPEN", "JoinAuth": "OPEN", **LISTED},
        start=1_700_000_000.0,
        logs=io.StringIO(),
    ) as stack:
        yield stack


@pytest.mark.filterwarnings("ignore:No application metrics to publish")
@pytest.mark.parametrize(("function", "owner", "name", "event"), CASES, ids=[f"{case[0]} {case[2]}" for case in CASES])
def test_only_the_type_and_the_place_of_an_unforeseen_error_are_logged(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, function: str, owner: Any, name: str, event: dict[str, Any]
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise LookupError(TEXT)

    logs: Any = stack.logs
    before = logs.tell()
    monkeypatch.setattr(owner, name, fails)
    try:
        told = json.dumps(stack.invoke(function, event))
    except FunctionError as error:
        told = str(error)
    told += logs.getvalue()[before:]
    assert "LookupError" in told
    line = fails.__code__.co_firstlineno + 1
    assert re.search(rf"<locals>\.fails(:| line ){line}\b", told.replace("\\u003c", "<"))
    assert TEXT not in told


def test_every_handler_withholds_texts_and_is_tried_above() -> None:
    handlers = [Path(path) for path in (ROOT / "functions").rglob("app.py")]
    assert {path.parent.name for path in handlers} == {case[0] for case in CASES}
    for path in handlers:
        above, _, _ = path.read_text().partition("\ndef handler(")
        assert "@texts_withheld()" in above.rpartition("\n\n")[2].splitlines()[:1], path
