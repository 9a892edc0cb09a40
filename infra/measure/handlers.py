"""Join, batchJoin and query relative to minimal handlers of the same kind."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
from pydantic import BaseModel

from infra.measure.measure import Ratio, Turn, compare
from infra.measure.service import CONTEXT, PERIOD, START, Service
from kanon.gate.names import set_key
from kanon.gate.storage.statuses import Statuses
from kanon.keys import Secret

TYPE = "fledge"
BATCH = 500
HASHES = 100

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


def minimal_query(service: Service, table: str) -> Handler:
    """A Powertools handler with validation and one batch_get_item."""
    app = APIGatewayHttpResolver(enable_validation=True)

    @app.post("/v1/query")
    def query(body: MinimalQuery) -> dict[str, list[str]]:
        keys: list[Any] = [{"set_key": {"B": text.encode()}} for text in body.hashes]
        answer = service.dynamodb.batch_get_item(RequestItems={table: {"Keys": keys}})
        found = {item["set_key"]["B"].decode() for item in answer["Responses"][table]}
        return {"hashes": [text for text in body.hashes if text in found]}

    return app.resolve


def at_path(asked: dict[str, Any], path: str) -> dict[str, Any]:
    """The same event at another path."""
    http = {**asked["requestContext"]["http"], "path": path}
    context = {**asked["requestContext"], "http": http}
    return {**asked, "rawPath": path, "requestContext": context}


def names(chance: Random, count: int) -> list[str]:
    """Set ids in the encoding of the API."""
    return [base64.urlsafe_b64encode(chance.randbytes(32)).decode().rstrip("=") for _ in range(count)]


def join(service: Service, turns: int, requests: int) -> Ratio:
    """Consecutive requests, each of a new client in a new set."""
    chance = Random(1)
    bare = minimal_join(service, service.new_table("bare-join", "step_slot", "set_token"))

    def events(_: int) -> list[dict[str, Any]]:
        return [
            service.request("POST", f"/v1/types/{TYPE}/sets/{name}:join", {"client": f"client-{chance.random()}"})
            for name in names(chance, requests)
        ]

    def ours(turn: int) -> Turn:
        asked = events(turn)
        return Turn(requests, lambda: [service.call("join", each) for each in asked])

    def theirs(turn: int) -> Turn:
        asked = [at_path(each, each["rawPath"].removesuffix(":join")) for each in events(turn)]
        return Turn(requests, lambda: [bare(each, CONTEXT) for each in asked])

    assert service.call("join", events(0)[0])["statusCode"] == 200
    assert theirs(0).work()[0]["statusCode"] == 200
    return compare(
        "join, a request",
        "a Powertools handler with validation and one put_item",
        "request",
        ours,
        theirs,
        turns=turns,
        target=1.4,
    )


def batch_join(service: Service, turns: int, requests: int) -> Ratio:
    """Batches of 500 joins relative to the same items in bare calls of 25."""
    chance = Random(2)
    table = service.new_table("bare-batch", "step_slot", "set_token")

    def ours(_: int) -> Turn:
        asked = [
            service.request(
                "POST",
                "/v1:batchJoin",
                {"joins": [{"type": TYPE, "set": name, "client": f"client-{name}"} for name in names(chance, BATCH)]},
            )
            for _ in range(requests)
        ]
        return Turn(BATCH * requests, lambda: [service.call("join", each) for each in asked])

    def theirs(_: int) -> Turn:
        puts: list[Any] = [
            {
                "PutRequest": {
                    "Item": {
                        "step_slot": {"B": chance.randbytes(9)},
                        "set_token": {"B": chance.randbytes(36)},
                        "type": {"S": TYPE},
                        "ttl": {"N": "1700000000"},
                    }
                }
            }
            for _ in range(BATCH * requests)
        ]
        calls = [puts[start : start + 25] for start in range(0, len(puts), 25)]
        return Turn(len(puts), lambda: [service.dynamodb.batch_write_item(RequestItems={table: c}) for c in calls])

    answer = ours(0).work()[0]
    assert json.loads(answer["body"]) == {"results": [{}] * BATCH}
    return compare(
        "batchJoin, a join",
        "the bare batch_write_item calls",
        "join",
        ours,
        theirs,
        turns=turns,
        target=1.3,
    )


@dataclass
class Queries:
    """Requests of 100 hashes each, and a clock that invalidates the cache."""

    service: Service
    requests: int
    chance: Random
    hours: int = 0

    def tick(self) -> None:
        """Let an hour pass, which invalidates the cache."""
        self.hours += 1
        self.service.stack.clock.set(START + PERIOD * self.hours)

    def asked(self) -> list[dict[str, Any]]:
        """Requests for new sets, half of them with an item."""
        asked = []
        for _ in range(self.requests):
            hashes = names(self.chance, HASHES)
            fill_statuses(self.service, hashes[: HASHES // 2])
            body = {"setsForType": [{"type": TYPE, "hashes": hashes}]}
            asked.append(self.service.request("POST", "/v1:query", body))
        return asked

    def call(self, asked: list[dict[str, Any]]) -> None:
        """Send them."""
        for each in asked:
            assert self.service.call("query", each)["statusCode"] == 200

    def cold(self, _: int) -> Turn:
        """Each request is the first after a tick. It also reads the slot's horizon: 101 keys in two calls."""
        asked = self.asked()

        def work() -> None:
            for each in asked:
                self.tick()
                self.call([each])

        return Turn(self.requests, work)

    def new(self, _: int) -> Turn:
        """The horizon is cached; sets never are: one call of 100 keys."""
        asked = self.asked()
        self.tick()
        self.call(self.asked()[:1])
        return Turn(self.requests, lambda: self.call(asked))


def query(service: Service, turns: int, requests: int) -> list[Ratio]:
    """Requests of 100 hashes, half of them of sets with an item, with and without the horizon in the cache."""
    queries = Queries(service, requests, Random(3))
    table = service.new_table("bare-query", "set_key")
    bare = minimal_query(service, table)
    known = names(queries.chance, HASHES // 2)
    for name in known:
        item: dict[str, Any] = {
            "set_key": {"B": name.encode()},
            "crossings": {"L": [{"N": "472222"}]},
            "newest": {"N": "472222"},
            "ttl": {"N": "1700000000"},
        }
        service.dynamodb.put_item(TableName=table, Item=item)

    def theirs(_: int) -> Turn:
        bodies = [{"hashes": known + names(queries.chance, HASHES - len(known))} for _ in range(requests)]
        asked = [at_path(service.request("POST", "/v1:query", body), "/v1/query") for body in bodies]
        return Turn(requests, lambda: [bare(each, CONTEXT) for each in asked])

    assert theirs(0).work()[0]["statusCode"] == 200
    against = "a Powertools handler with validation and one batch_get_item"
    return [
        compare(f"query, {HASHES} {what}", against, "request", ours, theirs, turns=turns, target=target)
        for what, ours, target in (
            ("hashes, the horizon not cached", queries.cold, 1.3),
            ("hashes, the horizon cached", queries.new, 1.3),
        )
    ]


def fill_statuses(service: Service, known: list[str]) -> None:
    """Write an item with a crossing for each set, as evaluation does."""
    pepper = Secret.derived("set-pepper", service.stack.storage.secrets["SetPepper"])
    statuses = Statuses(service.dynamodb, service.tables["Statuses"])
    step = START // PERIOD
    for name in known:
        key = set_key(pepper, TYPE, base64.urlsafe_b64decode(name + "=="))
        statuses.write(key, (step,), START + 10**8)
    statuses.move_horizon(0, step, START)
