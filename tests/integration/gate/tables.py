"""The three tables and the bucket of the template on an engine, with a record of every call."""

import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import boto3
import numpy as np
from moto.dynamodb.parsing.reserved_keywords import ReservedKeywords

from kanon import aws
from kanon.dynamo.transactions import all_or_none
from kanon.dynamo.units import item_size
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.tape import SET_KEY_BYTES
from kanon.gate.parts import Part, keys_of
from kanon.gate.slots import Layouts
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.step_joins import StepJoins
from kanon.gate.storage.aws.step_log import PackedJoins, StepLog, unpack_joins
from kanon.local.engines import Emulator
from kanon.local.source import ROOT
from kanon.local.template import Template
from tests.moto_engine import ENGINES, Moto
from tests.small_pages import give_small_pages
from tests.unit.examples import ONE_SLOT

KEYS = {
    "StepLog": ("step_slot", "set_token"),
    "Statuses": ("set_key",),
    "Control": ("name",),
}
NUMBERS = {"small": 1, "one-sided": 2, "crossing": 3, "fledge": 4, "t": 5, "published": 6}
"""The numbers of types of tests that read the log without Control."""
RESERVED = frozenset(ReservedKeywords.get_reserved_keywords())
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Call:
    """One call: its request and its answer."""

    operation: str
    asked: dict[str, Any]
    answered: dict[str, Any]

    @property
    def table(self) -> str:
        """The table's name in the template."""
        return self.tables[0]

    @property
    def tables(self) -> list[str]:
        """The names in the template of the table of each of its items; of the bucket, if it is a call to S3."""
        if "Bucket" in self.asked:
            return ["States"]
        if "TransactItems" in self.asked:
            names = [part["TableName"] for entry in self.asked["TransactItems"] for part in entry.values()]
        else:
            names = [self.asked["TableName"]] if "TableName" in self.asked else list(self.asked["RequestItems"])
        return [str(name).rpartition("-")[2] for name in names]

    @property
    def puts(self) -> list[dict[str, Any]]:
        """The items it puts."""
        if self.operation == "PutItem":
            return [self.asked["Item"]]
        if self.operation == "BatchWriteItem":
            (requests,) = self.asked["RequestItems"].values()
            return [request["PutRequest"]["Item"] for request in requests]
        return []

    @property
    def items(self) -> int:
        """How many items it read, asked for or wrote."""
        match self.operation:
            case "Query":
                return len(self.answered["Items"])
            case "BatchGetItem":
                (wanted,) = self.asked["RequestItems"].values()
                return len(wanted["Keys"])
            case "BatchWriteItem":
                return len(self.puts)
            case "TransactWriteItems":
                return len(self.asked["TransactItems"])
            case _:
                return 1


@dataclass
class Tables:
    """Fresh tables of one test."""

    running: "Running"
    client: Any
    s3: Any
    names: Mapping[str, str]
    bucket: str
    calls: list[Call] = field(default_factory=list)
    layouts: Layouts = ONE_SLOT

    @property
    def log(self) -> StepLog:
        return StepLog(self.client, self.names["StepLog"], self.layouts)

    def joined(self, step: int, slot: int = 0) -> dict[bytes, list[int]]:
        """The tokens of each set with joins in a step, in the order of their keys, as evaluation reads them."""
        with StepJoins(self.log, slot, NUMBERS) as joins:
            found = joins.joins(step, bytes(SET_KEY_BYTES), None)
        sets: dict[bytes, list[int]] = {}
        for key, token, _ in found.tolist():
            sets.setdefault(key.ljust(SET_KEY_BYTES, b"\0"), []).append(token)
        return sets

    def mark(self, slot: int, step: int, layout: int = 0) -> None:
        """Give a slot its first mark."""
        name, number = f"slot#{layout}#{slot}", {"N": str(step)}
        item = {"name": {"S": name}, "run": {"N": "0"}, "evaluated_through": number}
        self.other_client().put_item(TableName=self.names["Control"], Item=item)

    def parts(self, place: Place) -> PartObjects:
        """The objects of a slot."""
        return PartObjects(self.s3, self.bucket, place)

    def stored(self, slot: int = 0, layout: int = 0) -> Part:
        """The states of a slot, as its manifest names them."""
        place = Place(layout, slot)
        parts, manifest = self.parts(place), self.control.row(place).manifest
        pieces = () if manifest is None else parts.list_of(manifest).pieces
        return joined_parts([parts.read(piece) for piece in pieces])

    def objects(self) -> list[str]:
        """The names of all objects."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    @property
    def statuses(self) -> Statuses:
        return Statuses(self.client, self.names["Statuses"])

    @property
    def control(self) -> Control:
        return Control(self.client, self.names["Control"])

    def items(self, table: str) -> list[dict[str, Any]]:
        """Every item of a table, by its key."""
        pages = self.running.reader.get_paginator("scan").paginate(TableName=self.names[table])
        found = [item for page in pages for item in page["Items"]]
        return sorted(found, key=lambda item: [next(iter(item[name].values())) for name in KEYS[table]])

    def other_client(self) -> Any:
        """A client that is neither watched nor disturbed."""
        return self.running.client()

    def expire(self, now: float) -> int:
        """Delete what has expired, in every table."""
        return sum(self.running.engine.expire(self.names[t], "ttl", now) for t in ("StepLog", "Statuses"))

    def counted(self) -> Counter[str]:
        """Items read and written so far, by table and operation."""
        counts: Counter[str] = Counter()
        for call in self.calls:
            counts[f"{call.table} {call.operation} calls"] += 1
            counts[f"{call.table} {call.operation} items"] += call.items
        return counts


@dataclass(frozen=True)
class Running:
    """A started engine, and one session for all its clients, because a session is slow to load.

    ``reader``: the client with which tests look at whole tables, in pages of the usual size.
    """

    engine: Emulator
    session: boto3.Session
    reader: Any

    def client(self) -> Any:
        """A client as the functions have it."""
        return self.session.client("dynamodb", config=aws.CONFIG)

    def objects(self) -> Any:
        """A client of S3."""
        return self.session.client("s3", config=aws.OBJECTS.merge(aws.IN_PATH))


@contextmanager
def running(name: str, *, small_pages: bool = True) -> Iterator[Running]:
    """Start an engine. ``small_pages``: listings come in pages of one, so that second pages are read."""
    engine = ENGINES[name]()
    engine.start()
    try:
        session = engine.session()
        if small_pages:
            give_small_pages(session)
        yield Running(engine, session, engine.session().client("dynamodb"))
    finally:
        engine.stop()


def take_turns(running: Running, *clients: Any) -> None:
    """Let the threads that use these clients take turns, call by call: moto locks nothing."""
    if not isinstance(running.engine, Moto):
        return
    turn = threading.Lock()

    def in_turn(call: Callable[..., Any], *given: Any) -> Any:
        with turn:
            return call(*given)

    for client in clients:
        client._make_api_call = partial(in_turn, client._make_api_call)


@cache
def _definitions() -> dict[str, dict[str, Any]]:
    """The tables of the template by name."""
    template = Template.read(ROOT / "template.yaml", {}, "conformance")
    return {table.logical_id: table.properties for table in template.resources("AWS::DynamoDB::Table")}


def fresh(running: Running) -> Tables:
    """New tables as the template defines them, watched."""
    prefix, client = f"conformance-{next(_numbers)}", running.client()
    names = {table: f"{prefix}-{table}" for table in _definitions()}
    for table, properties in _definitions().items():
        client.create_table(
            TableName=names[table],
            KeySchema=properties["KeySchema"],
            AttributeDefinitions=properties["AttributeDefinitions"],
            BillingMode="PAY_PER_REQUEST",
        )
    s3, bucket = running.objects(), f"{prefix}-states"
    s3.create_bucket(Bucket=bucket)
    tables = Tables(running, client, s3, names, bucket)
    watch(tables)
    return tables


def joins_of(item: dict[str, Any]) -> Iterator[tuple[str, bytes, int]]:
    """Type, set key and token of every join in an item of StepLog, packed or not."""
    if "joins" not in item:
        key = item["set_token"]["B"]
        packed: Iterable[PackedJoins] = [PackedJoins(item["type"]["S"], len(key) - 32, key, [])]
    else:
        packed = unpack_joins(item["joins"]["B"])
    for type_name, token_bytes, entries, _ in packed:
        for start in range(0, len(entries), 32 + token_bytes):
            entry = entries[start : start + 32 + token_bytes]
            yield type_name, entry[:32], int.from_bytes(entry[32:], "big")


def watch(tables: Tables) -> None:
    """Record every call and fail at the first one that AWS would refuse, even if the engine accepts it."""

    def before(params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        context["asked"] = params
        problem = None if "Bucket" in params else refused_by_aws(model.name, params)
        assert problem is None, f"{model.name}: {problem}"

    def after(model: Any, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        tables.calls.append(Call(model.name, context["asked"], parsed))

    for client, service in ((tables.client, "dynamodb"), (tables.s3, "s3")):
        client.meta.events.register_first(f"before-parameter-build.{service}", before)
        client.meta.events.register_last(f"after-call.{service}", after)


def refused_by_aws(operation: str, asked: dict[str, Any]) -> str | None:
    """Why AWS would refuse a call that an emulator may accept, or None."""
    if operation == "BatchWriteItem":
        (requests,) = asked["RequestItems"].values()
        table = next(iter(asked["RequestItems"])).rpartition("-")[2]
        items = [request["PutRequest"]["Item"] for request in requests]
        if not 1 <= len(items) <= 25:
            return f"{len(items)} writes in a batch"
        if _repeats([tuple(item[name]["B"] for name in KEYS[table]) for item in items]):
            return "a batch with two writes of one key"
        return next(filter(None, map(_item_refused, items)), None)
    if operation == "BatchGetItem":
        (wanted,) = asked["RequestItems"].values()
        keys = [tuple(value["B"] for value in key.values()) for key in wanted["Keys"]]
        if not 1 <= len(keys) <= 100:
            return f"{len(keys)} keys in a batch"
        if any(not part for key in keys for part in key):
            return "an empty key"
        return "a batch with a key twice" if _repeats(keys) else None
    if operation == "TransactWriteItems":
        return _transaction_refused([part for entry in asked["TransactItems"] for part in entry.values()])
    if operation == "PutItem" and (problem := _item_refused(asked["Item"])):
        return problem
    return _expressions_refused(asked)


def _transaction_refused(parts: list[dict[str, Any]]) -> str | None:
    if not 1 <= len(parts) <= 100:
        return f"{len(parts)} writes in a transaction"
    if _repeats([(part["TableName"], str(part.get("Key", part.get("Item")))) for part in parts]):
        return "a transaction with two writes of one key"
    return next((problem for part in parts if (problem := _expressions_refused(part))), None)


def _item_refused(item: dict[str, Any]) -> str | None:
    if item_size(item) > 400 * 1024:
        return "an item of more than 400 KB"
    if any(not item[name]["B"] for name in ("step_slot", "set_token", "set_key") if name in item):
        return "an empty key"
    return None


def _expressions_refused(asked: dict[str, Any]) -> str | None:
    expressions = [text for name, text in asked.items() if name.endswith("Expression")]
    for text in expressions:
        if len(text.encode()) > 4096:
            return "an expression of more than 4 KB"
        words = re.findall(r"(?<![\w:#])[A-Za-z_]\w*", text)
        keywords = {"SET", "ADD", "REMOVE", "BETWEEN", "AND", "OR", "NOT", "attribute_not_exists", "attribute_exists"}
        reserved = {word for word in words if word.upper() in RESERVED and word not in keywords}
        if reserved:
            return f"reserved words {sorted(reserved)} in an expression"
    used = set(re.findall(r"[:#]\w+", " ".join(expressions)))
    given = {*asked.get("ExpressionAttributeValues", {}), *asked.get("ExpressionAttributeNames", {})}
    if used != given:
        return f"placeholders {sorted(used ^ given)} that are not both given and used"
    return None


def joined_parts(parts: Sequence[Part]) -> Part:
    """The parts of neighbouring ranges as one, without sealed values."""
    step = max((each.step for each in parts), default=0)
    names = [column.name for column in fields(Part) if column.name not in {"step", "sealed"}]
    columns = (np.concatenate([getattr(each.at(step), name) for each in parts]) for name in names)
    return Part(step, *columns) if parts else Part.empty()


def states_of(part: Part) -> dict[bytes, SetState]:
    """The states of the sets of a part."""
    return dict(zip(keys_of(part.keys), part.states().states(), strict=True))


def _repeats(keys: list[Any]) -> bool:
    return len(set(keys)) < len(keys)


def cross(statuses: Statuses, set_key: bytes, crossings: tuple[int, ...], expires: int) -> None:
    """Record a crossing, without a run to be checked."""
    check = {
        "TableName": statuses._table,
        "Key": {"set_key": {"B": b"no set"}},
        "ConditionExpression": "attribute_not_exists(newest)",
    }
    assert statuses.write({"ConditionCheck": check}, [(set_key, crossings, expires)])


def move_horizon(statuses: Statuses, slot: int, step: int, visible_from: int) -> None:
    """Complete a step for a slot."""
    moves = statuses.horizon_moves(slot, step, visible_from, None)
    any(all_or_none(statuses._client, [move]) is None for move in moves)


Left = Callable[[int, int], int]
"""How many requests of the n-th batch are left unprocessed, given how many it has."""


def leave_unprocessed(tables: Tables, operation: str, left: Left) -> None:
    """Let batches leave their last requests unprocessed, really: the engine never sees those."""
    batches = itertools.count(1)
    entries = "UnprocessedItems" if operation == "BatchWriteItem" else "UnprocessedKeys"

    def before(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        ((table, wanted),) = params["RequestItems"].items()
        requests = wanted if operation == "BatchWriteItem" else wanted["Keys"]
        cut = len(requests) - left(next(batches), len(requests))
        context["left"] = {}
        if cut == len(requests):
            return
        rest = requests[cut:] if operation == "BatchWriteItem" else {**wanted, "Keys": requests[cut:]}
        context["left"] = {table: rest}
        context["nothing"] = cut == 0
        taken = requests[:cut] if operation == "BatchWriteItem" else {**wanted, "Keys": requests[:cut]}
        if cut:
            params["RequestItems"] = {table: taken}

    def call(context: dict[str, Any], **_: Any) -> tuple[Any, dict[str, Any]] | None:
        if context.get("nothing"):
            return SimpleNamespace(status_code=200), {"ResponseMetadata": {"HTTPStatusCode": 200}}
        return None

    def after(parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        if context["left"]:
            parsed[entries] = context["left"]

    events = tables.client.meta.events
    events.register(f"before-parameter-build.dynamodb.{operation}", before)
    events.register(f"before-call.dynamodb.{operation}", call)
    events.register(f"after-call.dynamodb.{operation}", after)
