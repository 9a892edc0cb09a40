"""A request of join, batchJoin and query relative to a minimal handler, and the start of each function.

Both sides of a request use the service's own client of DynamoDB. For one join they make the same call; for a batch the
other side writes an item a join, and for a query it reads the items that the service has in memory. A start is that of
a new interpreter: imports and one client, relative to the libraries alone.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
from pydantic import BaseModel

from bench.harness import Comparison, Form, Side, SideError, Turn
from bench.stack import CONTEXT, PERIOD, START, TYPES, Service, log_of, service, variables
from kanon.client import encoded
from kanon.dynamo.batches import WRITES_A_CALL, chunks
from kanon.dynamo.transactions import all_or_none
from kanon.gate.memory import SPREAD
from kanon.gate.names import set_key
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.statuses import MOST_STATUSES, SHOWN, Statuses
from kanon.gate.true_sets import KEY_BYTES, encode, name_of
from kanon.keys import Secret
from kanon.local import Stack
from kanon.local.source import ROOT

TYPE = "fledge"
SLOTS = 16
PARAMETERS = {
    "Types": TYPES,
    "Slots": json.dumps([{"slots": SLOTS, "partitions": 16, "from_step": 0}], separators=(",", ":")),
}
"""The layout is the default of template.yaml."""
BATCH = 500
HASHES = 100
STEP = START // PERIOD - 2
"""The visible step of the queries."""
REQUEST = "the whole handler: routing, validation, HMAC of names, the calls, log context, metrics"
MINIMAL = "a Powertools handler with validation and one"
HTTP = """
import botocore.session
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
APIGatewayHttpResolver(enable_validation=True)
botocore.session.get_session().create_client("dynamodb", region_name="us-east-1")
"""
QUEUE = """
import botocore.session, numpy
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType
from pydantic import BaseModel
BatchProcessor(event_type=EventType.SQS)
botocore.session.get_session().create_client("dynamodb", region_name="us-east-1")
"""
OURS = "import app; from kanon import aws; aws.dynamodb()"
STARTS = ("join", "query", "evaluate", "reports/collect", "reports/jobs")
"""The folders of the functions that start while somebody waits, and ``evaluate``."""

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def rows(form: Form) -> Iterator[Comparison]:
    """Each request relative to a minimal one, each start relative to the libraries."""
    turns = form.size(25, 1)
    for name, inside, against, unit, side, count, target in (
        ("join, a request", REQUEST, f"{MINIMAL} put_item of the same client", "request", join, (25, 5), 1.3),
        (
            "batchJoin, a join", f"a batch of {BATCH}: {REQUEST}",
            "bare batch_write_item calls of one item a join, with the same client", "join", batch_join, (1, 1), 1.3,
        ),
        (
            f"query, {HASHES} hashes, the true sets in memory", REQUEST,
            f"{MINIMAL} batch_get_item of {HASHES} keys of the same client", "request", query, (10, 1), 1.3,
        ),
    ):  # fmt: skip
        ours, theirs = (Side(side, (form.size(*count), bare)) for bare in (False, True))
        yield Comparison(name, inside, against, unit, ours, theirs, turns, target)
    yield from starts(form.size(9, 1))


def starts(turns: int) -> Iterator[Comparison]:
    """The start of each function."""
    with Stack({"Reports": "ON"}) as stack:
        environments = {name: dict(function.environment) for name, function in stack.functions.items()}
    for function in STARTS:
        name = Path(function).name
        paths = os.pathsep.join([str(ROOT / "functions" / function), str(ROOT / "shared")])
        variables = {"AWS_DEFAULT_REGION": "us-east-1", "PYTHONPATH": paths, "PATH": os.environ["PATH"]}
        least, libraries = (
            (QUEUE, "botocore, numpy, pydantic and Powertools' batch processor")
            if name == "evaluate"
            else (HTTP, "botocore and Powertools' event handler with validation")
        )
        ours, theirs = (Side(interpreter, (text, {**environments[name], **variables})) for text in (OURS, least))
        inside = "a new interpreter: imports, settings and models of the function, one client; no call"
        against = f"importing {libraries}, one client"
        yield Comparison(f"start of {name}", inside, against, "start", ours, theirs, turns)


def interpreter(text: str, environment: Mapping[str, str]) -> AbstractContextManager[Callable[[], Turn]]:
    """A new interpreter that runs a text."""
    run = partial(subprocess.run, [sys.executable, "-c", text], env=dict(environment), check=True)
    return nullcontext(lambda: Turn(1, run))


def answered(handler: Handler, asked: list[dict[str, Any]]) -> None:
    """Send requests; each must succeed."""
    if refused := {handler(each)["statusCode"] for each in asked} - {200}:
        raise RuntimeError(f"requests were answered {sorted(refused)}")


@contextmanager
def join(requests: int, bare: bool) -> Iterator[Callable[[], Turn]]:
    """Consecutive joins, each of a new client in a new set."""
    with service(PARAMETERS) as running:
        chance, handler = Random(1), minimal_join(running) if bare else partial(running.call, "join")

        def prepare() -> Turn:
            asked = [
                running.request("POST", f"/v1/types/{TYPE}/sets/{name}:join", {"client": f"client-{chance.random()}"})
                for name in names(chance, requests)
            ]
            return Turn(requests, partial(answered, handler, asked))

        yield prepare


@contextmanager
def batch_join(batches: int, bare: bool) -> Iterator[Callable[[], Turn]]:
    """Batches of joins, or bare calls that write as many items."""
    with service(PARAMETERS) as running:
        chance, table = Random(2), running.new_table("bare-batch", "step_slot", "set_token")
        client = running.dynamodb

        def item() -> dict[str, Any]:
            keys = {"step_slot": {"B": chance.randbytes(9)}, "set_token": {"B": chance.randbytes(36)}}
            return {**keys, "type": {"S": TYPE}, "ttl": {"N": "1700000000"}}

        def bare_calls() -> Turn:
            puts: Any = [{"PutRequest": {"Item": item()}} for _ in range(batches * BATCH)]
            calls: list[Any] = list(chunks(puts, WRITES_A_CALL))
            return Turn(
                batches * BATCH, lambda: [client.batch_write_item(RequestItems={table: each}) for each in calls]
            )

        def join_all(asked: dict[str, Any]) -> dict[str, Any]:
            answer: dict[str, Any] = running.call("join", asked)
            if json.loads(answer["body"]) != {"results": [{}] * BATCH}:
                raise RuntimeError("a join of the batch was refused")
            return answer

        def prepare() -> Turn:
            asked = [
                [{"type": TYPE, "set": name, "client": f"client-{name}"} for name in names(chance, BATCH)]
                for _ in range(batches)
            ]
            events = [running.request("POST", "/v1:batchJoin", {"joins": joins}) for joins in asked]
            return Turn(batches * BATCH, partial(answered, join_all, events))

        yield bare_calls if bare else prepare


@contextmanager
def query(requests: int, bare: bool) -> Iterator[Callable[[], Turn]]:
    """The same queries in every turn. Half of the sets are true: in memory, or for the bare calls in the table."""
    with service(PARAMETERS) as running:
        chance = Random(3)
        asked = [names(chance, HASHES) for _ in range(requests)]
        keys = [set_keys(running, hashes) for hashes in asked]
        true = [key for each in keys for key in each[: HASHES // 2]]
        if bare:
            fill_table(running, true)
            handler = minimal_query(running)
            bodies: list[Any] = [{"hashes": [base64.urlsafe_b64encode(key).decode() for key in each]} for each in keys]
        else:
            put_objects(running, true)
            handler = partial(running.call, "query")
            bodies = [{"setsForType": [{"type": TYPE, "hashes": hashes}]} for hashes in asked]
        events = [running.request("POST", "/v1:query", body) for body in bodies]
        answered(handler, events[:1])  # this reads the horizons of all slots, and says which objects are needed
        running.stack.clock.set(START + SPREAD)
        with variables(running.environments["query"]):  # for its client of S3
            answered(handler, events[:1] * SLOTS)  # each loads one object
        found = sum(len(hashes) for event in events for hashes in found_in(handler(event)))
        if found != len(true):
            raise SideError(f"{found} of {len(true)} sets read true")
        yield lambda: Turn(requests, partial(answered, handler, events))


def found_in(answer: dict[str, Any]) -> list[list[str]]:
    """The hashes that read true, by type; a bare answer has one list."""
    body = json.loads(answer["body"])
    return [body["hashes"]] if "hashes" in body else [entry["hashes"] for entry in body["kAnonymousSets"]]


class MinimalJoin(BaseModel):
    """The body of a minimal join."""

    client: str


class MinimalQuery(BaseModel):
    """The body of a minimal query. It takes set keys for hashes."""

    hashes: list[str]


def minimal_join(service: Service) -> Handler:
    """A Powertools handler with validation and one put_item."""
    app = APIGatewayHttpResolver(enable_validation=True)
    context: Any = CONTEXT
    table = service.new_table("bare-join", "step_slot", "set_token")

    @app.post("/v1/types/<type_name>/sets/<set_id>")
    def join(type_name: str, set_id: str, body: MinimalJoin) -> dict[str, str]:
        item: dict[str, Any] = {
            "step_slot": {"B": b"step-slot"},
            "set_token": {"B": set_id.encode() + body.client.encode()},
            "type": {"S": type_name},
            "ttl": {"N": "1700000000"},
        }
        service.dynamodb.put_item(TableName=table, Item=item)
        return {}

    return lambda asked: app.resolve(asked, context)


def minimal_query(service: Service) -> Handler:
    """A Powertools handler with validation. It reads the hashes, as set keys, from Statuses."""
    app = APIGatewayHttpResolver(enable_validation=True)
    context: Any = CONTEXT
    table = service.tables["Statuses"]

    @app.post("/v1:query")
    def query(body: MinimalQuery) -> dict[str, list[str]]:
        asked = [*map(base64.urlsafe_b64decode, body.hashes)]
        keys: Any = [{"set_key": {"B": key}} for key in asked]
        wanted: Any = {"Keys": keys, "ConsistentRead": False, "ProjectionExpression": f"set_key, {SHOWN}"}
        answer = service.dynamodb.batch_get_item(RequestItems={table: wanted})
        found = {item["set_key"]["B"] for item in answer["Responses"][table]}
        return {"hashes": [text for text, key in zip(body.hashes, asked, strict=True) if key in found]}

    return lambda asked: app.resolve(asked, context)


def names(chance: Random, count: int) -> list[str]:
    """Set ids in the encoding of the API."""
    return [encoded(chance.randbytes(32)) for _ in range(count)]


def set_keys(service: Service, hashes: list[str]) -> list[bytes]:
    """The set keys of set ids in the encoding of the API."""
    pepper = Secret.derived("set-pepper", service.stack.storage.secrets["SetPepper"])
    return [set_key(pepper, TYPE, base64.urlsafe_b64decode(name + "==")) for name in hashes]


def fill_table(service: Service, keys: list[bytes]) -> None:
    """Write an item with a crossing for each set, as evaluation does."""
    statuses = Statuses(service.dynamodb, service.tables["Statuses"])
    control, place = Control(service.dynamodb, service.tables["Control"]), Place(0, 0)
    row = control.lease(place, "bench", START, START + 1)
    assert row is not None
    for some in chunks(keys, MOST_STATUSES):
        statuses.write(control.fence(place, row.run, 0), [(key, (STEP,), START + 10**8) for key in some])


def put_objects(service: Service, keys: list[bytes]) -> None:
    """Put the true sets of each slot, and write its horizon, which names them."""
    layout = log_of(service.stack, service.dynamodb).layouts.at(0)
    statuses = Statuses(service.dynamodb, service.tables["Statuses"])
    for slot in range(SLOTS):
        rows = ((key[:KEY_BYTES], STEP, STEP + 1000) for key in sorted(keys) if layout.slot_of(key) == slot)
        content = encode(b"".join(struct.pack(f"<{KEY_BYTES}sII", *row) for row in rows))
        name = name_of(f"0/{slot}/{STEP}-1-0", content)
        service.s3.put_object(Bucket=service.bucket, Key=name, Body=content)
        _, first, _ = statuses.horizon_moves(slot, STEP, START, None, name)
        assert all_or_none(service.dynamodb, [first]) is None
