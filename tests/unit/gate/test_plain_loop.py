"""Evaluation writes the Members items of a plain loop over the same rows, byte for byte.

The loop is written as one would write it first: set by set, without numpy, each tape read once. It shares only the
tapes and noise distributions with the service.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from random import Random
from typing import Any

from kanon.local.partiql import read

from bench.stack import KEY, SCHEDULE, evaluate_step, evaluation_of, fledge, stored
from kanon.dynamo.units import item_size
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import SET_KEY_BYTES, Tapes

STEP = 480_000
Item = dict[str, Any]
TOKEN_BYTES = 2
"""Client tokens of 16 bits, the default."""


def evaluate_set(
    parameters: Parameters, tapes: Tapes, step: int, set_key: bytes, old: Item, joined: Iterable[int], allowance: int
) -> Item:
    """The Members item of a set of type ``fledge`` after ``step``; ``old`` is the item before it, or empty."""
    window, lowest = parameters.window, parameters.query_law.lowest
    packed = old["members"]["B"] if old else b""
    evaluated = int.from_bytes(packed[2:10], "big")
    last = {token: evaluated - age for token, age in struct.iter_unpack(">HH", packed[10:])}
    last = {token: at for token, at in last.items() if at > step - window}
    last.update(dict.fromkeys(joined, step))
    members = sorted([(-at, token) for token, at in last.items()])[: parameters.members_kept]
    crossings = [int(number["N"]) for number in old["crossings"]["L"]] if "crossings" in old else []

    phase = int.from_bytes(set_key[-8:], "big") % window
    first = (step - phase) // window * window + phase
    wake_up = None
    for begin in (first, first + window):
        at, count = max(step, begin), len(members)
        if begin == first and crossings and crossings[-1] >= first:
            continue  # true until the end of this instance
        while count and window - members[count - 1][0] <= at:
            count -= 1
        if count < parameters.never_true_below:
            continue
        words = struct.unpack(f">{1 + window}Q", tapes.words(set_key, (begin - phase) // window, 1 + window))
        threshold = parameters.k + parameters.threshold_law.draw(words[0]) - lowest
        cumulative = parameters.query_law.cumulative
        while at < begin + window and count + len(cumulative) - 1 >= threshold:
            if count + bisect_right(cumulative, words[1 + at - begin]) >= threshold:
                break
            at += 1
            while count and window - members[count - 1][0] <= at:
                count -= 1
        else:
            continue
        if at > step:
            wake_up = at
            break
        crossings = [*crossings[-1:], step]

    needed = [step]
    ages = b"".join([struct.pack(">HH", token, step + negative) for negative, token in members])
    item: Item = {
        "set_key": {"B": set_key},
        "type": {"S": "fledge"},
        "members": {"B": struct.pack(">BBq", 1, TOKEN_BYTES, step) + ages},
        "evaluated": {"N": str(step)},
    }
    if members:
        needed.append(window - members[0][0])
    if crossings:
        item["crossings"] = {"L": [{"N": str(at)} for at in crossings]}
        needed.append((crossings[-1] - phase) // window * window + phase + window - 1)
    if wake_up is not None:
        item["wake_up"] = {"N": str(wake_up)}
        needed.append(wake_up)
    item["ttl"] = {"N": str((max(needed) + 1) * parameters.period + allowance)}
    if gap := -item_size(item) % 1024:
        item["p"] = {"B": bytes(gap - 1)}
    return item


class Memory:
    """A client of DynamoDB that answers from memory and keeps what is written to Members."""

    def __init__(self, rows: list[Item], items: dict[bytes, Item]) -> None:
        self._rows, self._items = rows, items
        self._executed: list[Any] = []

    def written(self) -> list[Item]:
        """The Members items that were written, by set key."""
        return sorted((read(one).item for one in self._executed), key=lambda item: item["set_key"]["B"])

    def query(self, **query: Any) -> dict[str, Any]:
        """Pages of 10,000 rows, as 1 MB holds."""
        bound = query["ExpressionAttributeValues"][":first"]["B"]
        first = bisect_left(self._rows, bound, key=lambda row: row["set_token"]["B"])
        page = self._rows[first : first + 10_000]
        more = first + len(page) < len(self._rows)
        return {"Items": page, **({"LastEvaluatedKey": {"set_token": page[-1]["set_token"]}} if more else {})}

    def batch_get_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803, a parameter of boto3
        """The items of Members."""
        ((table, asked),) = RequestItems.items()
        keys = (key["set_key"]["B"] for key in asked["Keys"])
        return {"Responses": {table: [self._items[key] for key in keys if key in self._items]}}

    def put_item(self, **_: Any) -> dict[str, Any]:
        """The stamp of the slot."""
        return {}

    def batch_execute_statement(self, Statements: list[Any]) -> dict[str, Any]:  # noqa: N803, a parameter of boto3
        """Keep the statements; all of them succeed."""
        self._executed += Statements
        return {"Responses": [{} for _ in Statements]}

    def batch_write_item(self, **_: Any) -> dict[str, Any]:
        """Wake-ups."""
        return {}

    def update_item(self, **_: Any) -> dict[str, Any]:
        """Statuses, the horizon, and the lease with the mark of a slot."""
        return {"Attributes": {"evaluated_through": {"N": str(STEP - 1)}}}


def drawn(parameters: Parameters, sets: int) -> tuple[list[Item], dict[bytes, Item]]:
    """Rows of the log, one to three for each set, and Members items: small sets, sets near k, full sets."""
    chance = Random(3)
    rows, items = [], {}
    for _ in range(sets):
        key, kind = chance.randbytes(SET_KEY_BYTES), chance.random()
        near = min(max(1, round(chance.gauss(parameters.k, parameters.k / 5))), parameters.members_kept)
        size = chance.randint(1, 4) if kind < 0.8 else near if kind < 0.95 else parameters.members_kept
        lasts = [STEP - 1 - chance.randrange(parameters.window - 1) for _ in range(size)]
        items[key] = stored(key, fledge(), chance.sample(range(1 << 16), size), lasts, STEP - 1)
        for _ in range(chance.randint(1, 3)):
            row = key + chance.randrange(1 << 16).to_bytes(4, "big")
            rows.append({"set_token": {"B": row}, "type": {"S": "fledge"}})
    return sorted(rows, key=lambda item: item["set_token"]["B"]), items


def looped(parameters: Parameters, rows: list[Item], items: dict[bytes, Item]) -> list[Item]:
    """The items that the plain loop writes, by set key."""
    tapes = Tapes(KEY, "bench", "fledge", parameters)
    joined: dict[bytes, list[int]] = {}
    for row in rows:
        text = row["set_token"]["B"]
        joined.setdefault(text[:SET_KEY_BYTES], []).append(int.from_bytes(text[SET_KEY_BYTES:], "big"))
    return [
        evaluate_set(parameters, tapes, STEP, key, items[key], tokens, SCHEDULE.outage_allowance)
        for key, tokens in sorted(joined.items())
    ]


def test_evaluation_writes_the_items_of_the_plain_loop_byte_for_byte() -> None:
    rows, items = drawn(fledge().parameters, 400)
    memory = Memory(rows, items)
    evaluate_step(evaluation_of(memory, fledge()), STEP, len(items))
    written = memory.written()
    assert written == looped(fledge().parameters, rows, items)
    assert len(written) == 400
    # The draw covers what an item can hold.
    assert any("wake_up" in item for item in written)
    crossed = {item["set_key"]["B"] for item in written if "crossings" in item}
    assert crossed > {key for key, item in items.items() if "crossings" in item}
