"""Join, batchJoin and query relative to minimal handlers of the same kind.

Both sides use the service's own client of DynamoDB and make the same calls, so a ratio shows the project's code alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
from pydantic import BaseModel

from bench.harness import Comparison, Form, Side, Turn
from bench.stack import CONTEXT, PERIOD, START, TYPES, Service, service
from kanon.client import encoded
from kanon.dynamo.batches import KEYS_A_CALL, WRITES_A_CALL, chunks
from kanon.gate.names import set_key
from kanon.gate.storage.statuses import SHOWN, Statuses
from kanon.keys import Secret

TYPE = "fledge"
SLOTS = 16
PARAMETERS = {
    "Types": TYPES,
    "Slots": json.dumps([{"slots": SLOTS, "partitions": 16, "from_step": 0}], separators=(",", ":")),
}
"""The layout is the default of template.yaml."""
BATCH = 500
HASHES = 100
REQUEST = "the whole handler: routing, validation, HMAC of names, the calls, log context, metrics"
MINIMAL = "a Powertools handler with validation and"

Handler = Callable[[dict[str, Any], Any], dict[str, Any]]


def rows(form: Form) -> Iterator[Comparison]:
    """Each request relative to a minimal one."""
    turns, requests, queries = form.size(25, 1), form.size(25, 5), form.size(10, 1)
    yield Comparison(
        "join, a request", REQUEST, f"{MINIMAL} one put_item of the same client", "request",
        Side(join, (requests,)), Side(bare_join, (requests,)), turns, 1.3,
    )  # fmt: skip
    yield Comparison(
        "batchJoin, a join", f"a batch of {BATCH}: {REQUEST}",
        "bare batch_write_item calls of one item a join, with the same client", "join",
        Side(batch_join), Side(bare_batch), turns, 1.3,
    )  # fmt: skip
    for cached, what, calls in (
        (False, "nothing cached", f"two batch_get_item of {HASHES} and {SLOTS} keys"),
        (True, "the horizons cached", f"one batch_get_item of {HASHES} keys"),
    ):
        yield Comparison(
            f"query, {HASHES} hashes, {what}", REQUEST, f"{MINIMAL} {calls} of the same client, for the same items",
            "request", Side(query, (queries, cached)), Side(bare_query, (queries, cached)), turns, 1.3,
        )  # fmt: skip


def join_events(running: Service, chance: Random, count: int) -> list[dict[str, Any]]:
    """Requests, each of a new client in a new set."""
    return [
        running.request("POST", f"/v1/types/{TYPE}/sets/{name}:join", {"client": f"client-{chance.random()}"})
        for name in names(chance, count)
    ]


@contextmanager
def join(requests: int) -> Iterator[Callable[[], Turn]]:
    """Consecutive joins of the service."""
    with service(PARAMETERS) as running:
        chance = Random(1)

        def prepare() -> Turn:
            asked = join_events(running, chance, requests)
            return Turn(requests, lambda: answered([running.call("join", each) for each in asked]))

        yield prepare


@contextmanager
def bare_join(requests: int) -> Iterator[Callable[[], Turn]]:
    """The same requests for a minimal handler."""
    with service(PARAMETERS) as running:
        chance, handler = Random(1), minimal_join(running, running.new_table("bare-join", "step_slot", "set_token"))

        def prepare() -> Turn:
            events = join_events(running, chance, requests)
            asked = [at_path(each, each["rawPath"].removesuffix(":join")) for each in events]
            return Turn(requests, lambda: answered([handler(each, CONTEXT) for each in asked]))

        yield prepare


@contextmanager
def batch_join() -> Iterator[Callable[[], Turn]]:
    """A batch of joins."""
    with service(PARAMETERS) as running:
        chance = Random(2)

        def work(asked: dict[str, Any]) -> None:
            if json.loads(running.call("join", asked)["body"]) != {"results": [{}] * BATCH}:
                raise RuntimeError("a join of the batch was refused")

        def prepare() -> Turn:
            joins = [{"type": TYPE, "set": name, "client": f"client-{name}"} for name in names(chance, BATCH)]
            asked = running.request("POST", "/v1:batchJoin", {"joins": joins})
            return Turn(BATCH, lambda: work(asked))

        yield prepare


@contextmanager
def bare_batch() -> Iterator[Callable[[], Turn]]:
    """Bare calls that write as many items."""
    with service(PARAMETERS) as running:
        chance, table = Random(2), running.new_table("bare-batch", "step_slot", "set_token")

        def item() -> dict[str, Any]:
            keys = {"step_slot": {"B": chance.randbytes(9)}, "set_token": {"B": chance.randbytes(36)}}
            return {**keys, "type": {"S": TYPE}, "ttl": {"N": "1700000000"}}

        def prepare() -> Turn:
            puts: Any = [{"PutRequest": {"Item": item()}} for _ in range(BATCH)]
            calls: list[Any] = list(chunks(puts, WRITES_A_CALL))
            return Turn(BATCH, lambda: [running.dynamodb.batch_write_item(RequestItems={table: c}) for c in calls])

        yield prepare


class MinimalJoin(BaseModel):
    """The body of a minimal join."""

    client: str


class MinimalQuery(BaseModel):
    """The body of a minimal query."""

    hashes: list[str]


def minimal_join(service: Service, table: str) -> Handler:
    """A Powertools handler with validation and one put_item."""
    app = APIGatewayHttpResolver(enable_validation=True)

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

    return app.resolve


def minimal_query(service: Service, more_keys: tuple[bytes, ...]) -> Handler:
    """A Powertools handler with validation. It reads the hashes, as set keys, and ``more_keys`` from Statuses."""
    app = APIGatewayHttpResolver(enable_validation=True)
    table = service.tables["Statuses"]

    @app.post("/v1/query")
    def query(body: MinimalQuery) -> dict[str, list[str]]:
        asked = [*map(base64.urlsafe_b64decode, body.hashes), *more_keys]
        found = set()
        for part in chunks(asked, KEYS_A_CALL):
            keys: Any = [{"set_key": {"B": key}} for key in part]
            wanted: Any = {"Keys": keys, "ConsistentRead": False, "ProjectionExpression": f"set_key, {SHOWN}"}
            answer = service.dynamodb.batch_get_item(RequestItems={table: wanted})
            found |= {item["set_key"]["B"] for item in answer["Responses"][table]}
        return {"hashes": [text for text, key in zip(body.hashes, asked, strict=False) if key in found]}

    return app.resolve


def at_path(asked: dict[str, Any], path: str) -> dict[str, Any]:
    """The same event at another path."""
    http = {**asked["requestContext"]["http"], "path": path}
    context = {**asked["requestContext"], "http": http}
    return {**asked, "rawPath": path, "requestContext": context}


def names(chance: Random, count: int) -> list[str]:
    """Set ids in the encoding of the API."""
    return [encoded(chance.randbytes(32)) for _ in range(count)]


class Queries:
    """Requests of 100 hashes each, and a clock that invalidates the cache.

    Every turn sends the same requests: the service caches horizons until the next tick, but never a set.
    """

    def __init__(self, service: Service, requests: int) -> None:
        chance = Random(3)
        self._service, self._hours = service, 0
        self._hashes = [names(chance, HASHES) for _ in range(requests)]
        self._keys = [set_keys(service, hashes) for hashes in self._hashes]
        for keys in self._keys:
            fill_statuses(service, keys[: HASHES // 2])

    def tick(self) -> None:
        """Let an hour pass, which invalidates the cache."""
        self._hours += 1
        self._service.stack.clock.set(START + PERIOD * self._hours)

    def asked(self) -> list[dict[str, Any]]:
        """Requests in which half of the sets have an item."""
        bodies = [{"setsForType": [{"type": TYPE, "hashes": hashes}]} for hashes in self._hashes]
        return [self._service.request("POST", "/v1:query", body) for body in bodies]

    def cold(self) -> Turn:
        """Each request is the first after a tick. It also reads the horizons of all slots: 116 keys in two calls."""
        asked = self.asked()

        def work() -> None:
            for each in asked:
                self.tick()
                answered([self._service.call("query", each)])

        return Turn(len(asked), work)

    def new(self) -> Turn:
        """The horizons are cached: one call of 100 keys."""
        asked = self.asked()
        self.tick()
        answered([self._service.call("query", each) for each in asked])  # these read the horizons of all slots
        return Turn(len(asked), lambda: answered([self._service.call("query", each) for each in asked]))

    def bare(self, handler: Handler) -> Turn:
        """The same requests for a minimal handler, which takes set keys for hashes."""
        bodies = [{"hashes": [base64.urlsafe_b64encode(key).decode() for key in keys]} for keys in self._keys]
        asked = [at_path(self._service.request("POST", "/v1:query", body), "/v1/query") for body in bodies]
        return Turn(len(asked), lambda: answered([handler(each, CONTEXT) for each in asked]))


@contextmanager
def query(requests: int, cached: bool) -> Iterator[Callable[[], Turn]]:
    """Queries of the service, half of whose sets have an item."""
    with service(PARAMETERS) as running:
        queries = Queries(running, requests)
        yield queries.new if cached else queries.cold


@contextmanager
def bare_query(requests: int, cached: bool) -> Iterator[Callable[[], Turn]]:
    """The same queries for a minimal handler."""
    with service(PARAMETERS) as running:
        queries = Queries(running, requests)
        handler = minimal_query(running, () if cached else tuple(bytes([slot]) for slot in range(SLOTS)))
        yield lambda: queries.bare(handler)


def answered(answers: list[dict[str, Any]]) -> None:
    """Check that every request succeeded."""
    if refused := {answer["statusCode"] for answer in answers} - {200}:
        raise RuntimeError(f"requests were answered {sorted(refused)}")


def set_keys(service: Service, hashes: list[str]) -> list[bytes]:
    """The set keys of set ids in the encoding of the API."""
    pepper = Secret.derived("set-pepper", service.stack.storage.secrets["SetPepper"])
    return [set_key(pepper, TYPE, base64.urlsafe_b64decode(name + "==")) for name in hashes]


def fill_statuses(service: Service, keys: list[bytes]) -> None:
    """Write an item with a crossing for each set and the horizons of all slots, as evaluation does."""
    statuses = Statuses(service.dynamodb, service.tables["Statuses"])
    step = START // PERIOD
    for key in keys:
        statuses.write(key, (step,), START + 10**8)
    for slot in range(SLOTS):
        statuses.move_horizon(slot, step, START)
