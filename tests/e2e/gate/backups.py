"""Backups of tables, and the commands of the runbook. No local engine has point-in-time recovery: rows are copied."""

import re
from collections.abc import Iterator
from typing import Any

from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.parts import Part, keys_of
from kanon.local import Stack
from kanon.local.source import ROOT
from kanon.operate.stacks import described_stack

RUNBOOK = (ROOT / "docs" / "guides" / "operate.md").read_text()

Rows = dict[str, list[dict[str, Any]]]


def rows(stack: Stack, table: str) -> list[dict[str, Any]]:
    pages = stack.session.client("dynamodb").get_paginator("scan").paginate(TableName=stack.storage.tables[table])
    return [item for page in pages for item in page["Items"]]


def objects(stack: Stack) -> dict[str, bytes]:
    """The objects of the bucket of states."""
    s3, bucket = stack.session.client("s3"), stack.storage.buckets["StatesBucket"]
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
    return {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}


def put_object(stack: Stack, name: str, content: bytes | None) -> None:
    """Give an object another content; None deletes it."""
    s3, bucket = stack.session.client("s3"), stack.storage.buckets["StatesBucket"]
    if content is None:
        s3.delete_object(Bucket=bucket, Key=name)
    else:
        s3.put_object(Bucket=bucket, Key=name, Body=content)


def states(stack: Stack) -> dict[bytes, tuple[int, SetState]]:
    """The type number and the state of every set, of the newest layout in which its slot has states."""
    found: dict[bytes, tuple[int, SetState]] = {}
    for part in parts_of(stack):
        found |= zip(keys_of(part.keys), zip(part.types.tolist(), part.states().states(), strict=True), strict=True)
    return found


def parts_of(stack: Stack) -> Iterator[Part]:
    """The parts of every slot at its mark, those of the newest layout last."""
    running = described_stack(stack.describe(), stack.session, None)
    for place, row in sorted(running.control.rows()):
        if row.manifest is not None:
            parts = running.parts(place)
            yield from map(parts.read, parts.list_of(row.manifest).pieces)


def put_back(stack: Stack, backup: Rows, tables: tuple[str, ...]) -> None:
    """Give tables other rows under the same id, which no restore of DynamoDB does."""
    client = stack.session.client("dynamodb")
    for table in tables:
        name = stack.storage.tables[table]
        key = client.describe_table(TableName=name)["Table"]["KeySchema"][0]["AttributeName"]
        for item in rows(stack, table):
            client.delete_item(TableName=name, Key={key: item[key]})
        for item in backup[table]:
            client.put_item(TableName=name, Item=item)
    stack.restart("evaluate")


def runbook_commands(section: str) -> list[str]:
    """The commands in a section of the runbook."""
    (text,) = re.findall(rf"^### {section}\n(.*?)(?=^##)", RUNBOOK, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line.partition("   #")[0] for block in blocks for line in block.splitlines()]
