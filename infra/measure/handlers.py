"""Join, batchJoin and query relative to minimal handlers of the same kind.

Both sides use the service's own client of DynamoDB and make the same calls, so a ratio shows the project's code alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
from pydantic import BaseModel

from infra.measure.measure import Ratio, Turn, compare
from infra.measure.rows import Form, row
from infra.measure.service import CONTEXT, PERIOD, START, TYPES, Service, service
from kanon.client import encoded
from kanon.dynamo.batches import KEYS_A_CALL, WRITES_A_CALL, chunks
from kanon.gate.names import set_key
from kanon.gate.storage.statuses import SHOWN, Statuses
from kanon.keys import Secret

TYPE = "fledge"
SLOTS = 16
LAYOUT = json.dumps([{"slots": SLOTS, "partitions": 16, "from_step": 0}], separators=(",", ":"))
"""The default of template.yaml."""
BATCH = 500
HASHES = 100
REQUEST = "the whole handler: routing, validation, HMAC of names, the calls, log context, metrics"

Handler = Callable[[dict[str, Any], Any], dict[str, Any]]


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


@row("join")
def join(form: Form) -> Iterator[Ratio]:
    """Consecutive requests, each of a new client in a new set."""
    with service({"Types": TYPES, "Slots": LAYOUT}) as running:
        chance, requests = Random(1), form.size(25, 5)
        bare = minimal_join(running, running.new_table("bare-join", "step_slot", "set_token"))

        def events() -> list[dict[str, Any]]:
            return [
                running.request("POST", f"/v1/types/{TYPE}/sets/{name}:join", {"client": f"client-{chance.random()}"})
                for name in names(chance, requests)
            ]

        def ours() -> Turn:
            asked = events()
            return Turn(requests, lambda: [running.call("join", each) for each in asked])

        def theirs() -> Turn:
            asked = [at_path(each, each["rawPath"].removesuffix(":join")) for each in events()]
            return Turn(requests, lambda: [bare(each, CONTEXT) for each in asked])

        answered(ours().work())
        answered(theirs().work())
        yield compare(
            "join, a request",
            "a Powertools handler with validation and one put_item of the same client",
            "request",
            ours,
            theirs,
            inside=REQUEST,
            turns=form.size(25, 1),
            target=1.3,
        )


@row("batchJoin")
def batch_join(form: Form) -> Iterator[Ratio]:
    """Batches of 500 joins relative to the same items in bare calls."""
    with service({"Types": TYPES, "Slots": LAYOUT}) as running:
        chance = Random(2)
        table = running.new_table("bare-batch", "step_slot", "set_token")

        def ours() -> Turn:
            joins = [{"type": TYPE, "set": name, "client": f"client-{name}"} for name in names(chance, BATCH)]
            asked = running.request("POST", "/v1:batchJoin", {"joins": joins})
            return Turn(BATCH, lambda: running.call("join", asked))

        def theirs() -> Turn:
            items = [
                {
                    "step_slot": {"B": chance.randbytes(9)},
                    "set_token": {"B": chance.randbytes(36)},
                    "type": {"S": TYPE},
                    "ttl": {"N": "1700000000"},
                }
                for _ in range(BATCH)
            ]
            calls: list[Any] = list(chunks([{"PutRequest": {"Item": item}} for item in items], WRITES_A_CALL))
            return Turn(BATCH, lambda: [running.dynamodb.batch_write_item(RequestItems={table: c}) for c in calls])

        if json.loads(ours().work()["body"]) != {"results": [{}] * BATCH}:
            raise RuntimeError("a join of the batch was refused")
        yield compare(
            "batchJoin, a join",
            "bare batch_write_item calls of one item a join, with the same client",
            "join",
            ours,
            theirs,
            inside=f"a batch of {BATCH}: {REQUEST}",
            turns=form.size(25, 1),
            target=1.3,
        )


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


@row("query")
def query(form: Form) -> Iterator[Ratio]:
    """Requests of 100 hashes, half of them of sets with an item, with and without the horizons in the cache."""
    with service({"Types": TYPES, "Slots": LAYOUT}) as running:
        queries = Queries(running, form.size(10, 1))
        horizons = tuple(bytes([slot]) for slot in range(SLOTS))
        for what, ours, keys, calls in (
            ("nothing cached", queries.cold, horizons, f"two batch_get_item of {HASHES} and {SLOTS} keys"),
            ("the horizons cached", queries.new, (), f"one batch_get_item of {HASHES} keys"),
        ):
            bare = minimal_query(running, keys)
            yield compare(
                f"query, {HASHES} hashes, {what}",
                f"a Powertools handler with validation and {calls} of the same client, for the same items",
                "request",
                ours,
                partial(queries.bare, bare),
                inside=REQUEST,
                turns=form.size(25, 1),
                target=1.3,
            )


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
