"""Clients whose listings come in pages of one, and whose reads of reports' tables must be strongly consistent.

Engines answer everything that a test writes in one page, and never read an old item. AWS does both otherwise.
"""

from typing import Any

PAGES = {"dynamodb.Query": "Limit", "dynamodb.Scan": "Limit", "s3.ListObjectsV2": "MaxKeys"}
READS = ("GetItem", "BatchGetItem", "Query", "TransactGetItems")


def give_small_pages(session: Any) -> None:
    """Let every listing of the clients that the session will create come in pages of one."""
    for operation, size in PAGES.items():
        session.events.register(f"provide-client-params.{operation}", _of_one(size))


def _of_one(size: str) -> Any:
    def change(params: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {**params, size: 1}

    return change


def expect_consistent_reads(client: Any) -> None:
    """Fail at a read of this client that may return an old item."""

    def check(params: dict[str, Any], model: Any, **_: Any) -> None:
        asked = params["RequestItems"].values() if model.name == "BatchGetItem" else [params]
        assert all(one.get("ConsistentRead") for one in asked), f"{model.name} may return an old item"

    for operation in READS:
        client.meta.events.register(f"provide-client-params.dynamodb.{operation}", check)
