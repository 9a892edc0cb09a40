"""``python -m infra.measure.packed_step``: the memory and time of a step of packed joins.

Each row is a process of its own that evaluates one slot and step. All joins are in packed items of 500, in random
order, so each set has joins in most items. DynamoDB answers from memory behind the whole client, as in
:mod:`infra.measure.large_k`. Memory is the largest resident memory of the process, with the interpreter and the SDK.
"""

from __future__ import annotations

import base64
import sys
from typing import Any

import numpy as np

from infra.measure.large_k import MOST_MEMORY, Answers, evaluated, in_processes
from infra.measure.service import fledge
from kanon.gate.storage.step_log import FIRST_PACKED, LAST_PACKED, pack_joins

ROWS = ((1_000,), (100_000,), (1_000_000,), (2_000_000,))
SETS = 5_000
JOINS_AN_ITEM, ITEMS_A_PAGE = 500, 50
"""A page of 1 MB holds some more: an item takes 17 KB."""
HEADER = (
    "| joins | calls that read the log | slowest page with its chunk, s | processor time, s | memory, MiB |\n"
    "|---|---|---|---|---|"
)


def main() -> int:
    """Print the table; 1 if a row takes too much memory."""
    print(HEADER, flush=True)
    failed = False
    for (joins,), found in in_processes(measured, ROWS):
        print(
            f"| {joins:,} | {found['calls']} | {found['slowest']:.2f} | {found['processor']:.0f} |"
            f" {found['memory']:.0f} |",
            flush=True,
        )
        failed |= found["memory"] > MOST_MEMORY
    return int(failed)


def measured(joins: int) -> dict[str, float]:
    """One row, measured in this process."""
    tables = PackedAnswers(joins)
    return {**evaluated(tables, partitions=1), "calls": tables.calls}


class PackedAnswers(Answers):
    """The same tables with a log of packed items; each page is made when it is asked for."""

    def __init__(self, joins: int) -> None:
        super().__init__(fledge(), min(SETS, joins))
        self._joins = joins
        self.calls = 0

    def Query(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802, the operation's name
        """A page of packed items. The key of an item names its page."""
        self.calls += 1
        first = base64.b64decode(asked["ExpressionAttributeValues"][":first"]["B"])
        if first > LAST_PACKED:
            return {"Items": []}
        page = 0 if first == FIRST_PACKED else int.from_bytes(first[8:16], "big") + 1
        a_page = JOINS_AN_ITEM * ITEMS_A_PAGE
        pages = -(-self._joins // a_page)
        items = self._page(page, min(a_page, self._joins - page * a_page))
        return {
            "Items": items,
            **({"LastEvaluatedKey": {"set_token": items[-1]["set_token"]}} if page + 1 < pages else {}),
        }

    def _page(self, page: int, joins: int) -> list[dict[str, Any]]:
        sets = np.resize(np.random.default_rng(page).permutation(len(self.keys)), joins).tolist()
        tokens = np.random.default_rng((page, 1)).integers(0, 1 << 16, joins).tolist()
        key = base64.b64encode(FIRST_PACKED + page.to_bytes(8, "big") + bytes(8)).decode()
        packed = [
            pack_joins(
                ("fledge", self.keys[each], token)
                for each, token in zip(sets[at : at + JOINS_AN_ITEM], tokens[at : at + JOINS_AN_ITEM], strict=True)
            )
            for at in range(0, joins, JOINS_AN_ITEM)
        ]
        return [{"set_token": {"B": key}, "joins": {"B": base64.b64encode(item).decode()}} for item in packed]


if __name__ == "__main__":
    sys.exit(main())
