"""Backups of tables, and the commands of the runbook. No local engine has point-in-time recovery: rows are copied."""

import re
from typing import Any

from kanon.local import Stack
from kanon.local.source import ROOT

RUNBOOK = (ROOT / "docs" / "guides" / "operate.md").read_text()

Rows = dict[str, list[dict[str, Any]]]


def rows(stack: Stack, table: str) -> list[dict[str, Any]]:
    pages = stack.session.client("dynamodb").get_paginator("scan").paginate(TableName=stack.storage.tables[table])
    return [item for page in pages for item in page["Items"]]


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


def restored(stack: Stack, table: str, items: list[dict[str, Any]], name: str) -> str:
    """A new table with the rows of a backup, as a point-in-time recovery makes one; its name."""
    client = stack.session.client("dynamodb")
    old = client.describe_table(TableName=stack.storage.tables[table])["Table"]
    client.create_table(
        TableName=name,
        KeySchema=old["KeySchema"],
        AttributeDefinitions=old["AttributeDefinitions"],
        BillingMode="PAY_PER_REQUEST",
    )
    for item in items:
        client.put_item(TableName=name, Item=item)
    return name


def runbook_commands(section: str) -> list[str]:
    """The commands in a section of the runbook."""
    (text,) = re.findall(rf"^### {section}\n(.*?)(?=^##)", RUNBOOK, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line.partition("   #")[0] for block in blocks for line in block.splitlines()]
