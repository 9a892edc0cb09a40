"""The four tables of the template on an engine, with a record of every call."""

import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import boto3
from moto.dynamodb.parsing.reserved_keywords import ReservedKeywords

from kanon import aws
from kanon.dynamo.units import item_size
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.columns import States, step_column
from kanon.gate.reading import Touched, touched
from kanon.gate.slots import Layouts
from kanon.gate.stamps import put_stamps
from kanon.gate.storage.control import Control
from kanon.gate.storage.members import Members, Update
from kanon.gate.storage.statuses import Statuses
from kanon.gate.storage.step_log import Joins, StepLog, unpack_joins
from kanon.local.engines import Emulator
from kanon.local.partiql import read
from kanon.local.source import ROOT
from kanon.local.template import Template
from tests.moto_engine import ENGINES, Moto
from tests.small_pages import give_small_pages
from tests.unit.examples import ONE_SLOT

KEYS = {
    "StepLog": ("step_slot", "set_token"),
    "Members": ("set_key",),
    "Statuses": ("set_key",),
    "Control": ("name",),
}
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
        if "Statements" in self.asked:
            name = read(self.asked["Statements"][0]).table
        else:
            name = self.asked["TableName"] if "TableName" in self.asked else next(iter(self.asked["RequestItems"]))
        return str(name).rpartition("-")[2]

    @property
    def puts(self) -> list[dict[str, Any]]:
        """The items it puts."""
        if self.operation == "PutItem":
            return [self.asked["Item"]]
        if self.operation == "BatchWriteItem":
            (requests,) = self.asked["RequestItems"].values()
            return [request["PutRequest"]["Item"] for request in requests]
        if self.operation == "BatchExecuteStatement":
            return [read(statement).item for statement in self.asked["Statements"]]
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
            case "BatchWriteItem" | "BatchExecuteStatement":
                return len(self.puts)
            case _:
                return 1


@dataclass
class Tables:
    """Fresh tables of one test."""

    running: "Running"
    client: Any
    names: Mapping[str, str]
    calls: list[Call] = field(default_factory=list)
    layouts: Layouts = ONE_SLOT

    @property
    def log(self) -> StepLog:
        return StepLog(self.client, self.names["StepLog"], self.layouts)

    def touched(self, step: int, slot: int = 0, keep: int = 10_000, after: bytes | None = None) -> list[Touched]:
        """The sets with rows in a step, as evaluation reads them."""
        return list(touched(self.log, step, slot, keep, window=1, after=after))

    def mark(self, slot: int, step: int) -> None:
        """Give a slot its first mark, with the stamps that go before it."""
        put_stamps(slot, step, self.members, self.statuses)
        self.control.advance(slot, None, step)

    @property
    def members(self) -> Members:
        return Members(self.client, self.names["Members"])

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
        return sum(self.running.engine.expire(self.names[t], "ttl", now) for t in ("StepLog", "Members", "Statuses"))

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
    tables = Tables(running, client, names)
    watch(tables)
    return tables


def joins_of(item: dict[str, Any]) -> Iterator[tuple[str, bytes, int]]:
    """Type, set key and token of every join in an item of StepLog, packed or not; a wake-up is none."""
    if "joins" not in item:
        key = item["set_token"]["B"]
        packed: Iterable[Joins] = [Joins(item["type"]["S"], len(key) - 32, key)] if len(key) > 32 else []
    else:
        packed = unpack_joins(item["joins"]["B"])
    for type_name, token_bytes, entries in packed:
        for start in range(0, len(entries), 32 + token_bytes):
            entry = entries[start : start + 32 + token_bytes]
            yield type_name, entry[:32], int.from_bytes(entry[32:], "big")


def watch(tables: Tables) -> None:
    """Record every call and fail at the first one that AWS would refuse, even if the engine accepts it."""

    def before(params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        context["asked"] = params
        problem = refused_by_aws(model.name, params)
        assert problem is None, f"{model.name}: {problem}"

    def after(model: Any, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        tables.calls.append(Call(model.name, context["asked"], parsed))

    tables.client.meta.events.register_first("before-parameter-build.dynamodb", before)
    tables.client.meta.events.register_last("after-call.dynamodb", after)


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
    if operation == "BatchExecuteStatement":
        return _statements_refused(asked["Statements"])
    if operation == "PutItem" and (problem := _item_refused(asked["Item"])):
        return problem
    return _expressions_refused(asked)


def _statements_refused(statements: list[dict[str, Any]]) -> str | None:
    if not 1 <= len(statements) <= 25:
        return f"{len(statements)} statements in a batch"
    writes = [read(statement) for statement in statements]
    for statement, write in zip(statements, writes, strict=True):
        if len(statement["Statement"]) > 8192:
            return "a statement of more than 8192 characters"
        if statement["Statement"].count("?") != len(statement["Parameters"]):
            return "a statement with other parameters than it names"
        if write.stored is not None and set(write.changed) & set(write.removed):
            return "a statement that sets and removes an attribute"
    if _repeats([write.item["set_key"]["B"] for write in writes]):
        return "a batch with two statements for one key"
    return next((problem for write in writes if (problem := _item_refused(write.item))), None)


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
        keywords = {"SET", "REMOVE", "BETWEEN", "AND", "OR", "NOT", "attribute_not_exists", "attribute_exists"}
        reserved = {word for word in words if word.upper() in RESERVED and word not in keywords}
        if reserved:
            return f"reserved words {sorted(reserved)} in an expression"
    used = set(re.findall(r"[:#]\w+", " ".join(expressions)))
    given = {*asked.get("ExpressionAttributeValues", {}), *asked.get("ExpressionAttributeNames", {})}
    if used != given:
        return f"placeholders {sorted(used ^ given)} that are not both given and used"
    return None


def _repeats(keys: list[Any]) -> bool:
    return len(set(keys)) < len(keys)


def write(
    members: Members,
    set_key: bytes,
    type_name: str,
    state: SetState,
    client_bits: int,
    expires: int,
    stored: int | None = None,
) -> None:
    """Write the state of a set whose stored state is that of step ``stored``, or unknown."""
    write_all(members, type_name, {set_key: state}, client_bits, expires, stored)


def write_all(
    members: Members,
    type_name: str,
    states: Mapping[bytes, SetState],
    client_bits: int,
    expires: int,
    stored: int | None = None,
) -> None:
    """Write the states of sets, all evaluated at one step, whose stored states are those of step ``stored``."""
    (step,) = {state.evaluated for state in states.values()}
    assert step is not None
    columns, before = States.of(list(states.items())), step_column([stored] * len(states))
    update = Update(type_name, client_bits, columns, before, [expires] * len(states))
    with ThreadPoolExecutor(1) as writers:
        members.write(step, [update], writers)


def states_of(members: Members, set_keys: Iterable[bytes]) -> dict[bytes, SetState]:
    """The states of the sets that have one."""
    set_keys = list(set_keys)
    found = zip(set_keys, members.read(set_keys).states(), strict=True)
    return {set_key: state for set_key, state in found if state.evaluated is not None}


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


def throttle(tables: Tables, operation: str, often: int) -> None:
    """Let the first calls of an operation be throttled whole, as the client sees it after its own retries."""
    calls = itertools.count(1)

    def call(**_: Any) -> tuple[Any, dict[str, Any]] | None:
        if next(calls) > often:
            return None
        error = {"Code": "ProvisionedThroughputExceededException", "Message": "injected"}
        return SimpleNamespace(status_code=400), {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}

    tables.client.meta.events.register(f"before-call.dynamodb.{operation}", call)
