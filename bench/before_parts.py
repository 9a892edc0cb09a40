"""Runs with the code of commit ea1d11a, where each set was an item of a table: ``bench.step`` starts it in a process.

Its arguments are the fewest and the most members of a set, and the number of touched sets. DynamoDB answers from
memory behind the whole client, as that commit's own ``infra/measure/large_k.py`` does. Prints the result as JSON.
"""

from __future__ import annotations

import base64
import gc
import json
import sys
from importlib import import_module
from typing import Any

import numpy as np

ITEMS_A_PAGE, JOINS_AN_ITEM = 60, 500


def measured(least: int, most: int, touched: int) -> dict[str, float]:
    """Processor seconds, write units and MiB of a step that touches so many sets, all of them known."""
    old = import_module("infra.measure.large_k")
    log = import_module("kanon.gate.storage.step_log")
    packing = import_module("kanon.gate.storage.packing")
    columns = import_module("kanon.gate.mechanism.columns")
    step = old.STEP
    token_bytes = 2

    class Answers(old.Answers):  # type: ignore[misc, name-defined]
        """The tables: sets of these sizes, and a log of packed items with a join of each set."""

        def __init__(self) -> None:
            super().__init__(old.fledge(), touched)
            chance = np.random.default_rng(3)
            self._items = [self._item(count, chance) for count in range(least, most + 1)]
            order = chance.permutation(touched).tolist()
            self._rows = [("fledge", self.keys[n], int(chance.integers(1 << 15, 1 << 16))) for n in order]

        def _item(self, count: int, chance: Any) -> dict[str, Any]:
            lasts = -np.sort(-(step - 1 - chance.integers(0, 718, count)))
            tokens = columns.Tokens(np.array([count]), np.arange(1, count + 1))
            packed = packing.pack_all(tokens, lasts, step - 1, token_bytes)[0]
            item: dict[str, Any] = {
                "members": {"B": base64.b64encode(packed).decode()},
                "evaluated": {"N": str(step - 1)},
            }
            if count >= self.type.parameters.k:  # it has crossed
                item["crossings"] = {"L": [{"N": str(step - 1)}]}
            return item

        def Query(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802, the operation's name
            """A page of packed items. The key of an item names its page."""
            first = base64.b64decode(asked["ExpressionAttributeValues"][":first"]["B"])
            if first > log.LAST_PACKED:
                return {"Items": []}
            page = 0 if first == log.FIRST_PACKED else int.from_bytes(first[8:16], "big") + 1
            size = ITEMS_A_PAGE * JOINS_AN_ITEM
            rows = self._rows[page * size : (page + 1) * size]
            key = {"B": base64.b64encode(log.FIRST_PACKED + page.to_bytes(8, "big") + bytes(8)).decode()}
            packed = [log.pack_joins(rows[at : at + JOINS_AN_ITEM]) for at in range(0, len(rows), JOINS_AN_ITEM)]
            items = [{"set_token": key, "joins": {"B": base64.b64encode(item).decode()}} for item in packed]
            more = len(self._rows) > (page + 1) * size
            return {"Items": items, **({"LastEvaluatedKey": {"set_token": key}} if more else {})}

        def BatchGetItem(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802, the operation's name
            """The items of Members."""
            ((table, wanted),) = asked["RequestItems"].items()
            items = [
                {**key, **self._items[base64.b64decode(key["set_key"]["B"])[0] % len(self._items)]}
                for key in wanted["Keys"]
            ]
            return {"Responses": {table: items}}

    tables = Answers()
    gc.collect()
    gc.freeze()
    found = old.evaluated(tables, partitions=1)
    return {"processor": found["processor"], "memory": found["memory"]}


if __name__ == "__main__":
    print(json.dumps(measured(*map(int, sys.argv[1:]))))
