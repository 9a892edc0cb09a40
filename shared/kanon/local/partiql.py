"""The PartiQL statements of ``kanon.dynamo.statements``, read back, and executed by moto.

moto reads no ``?`` in an INSERT, no REMOVE beside a SET, scans every table for each statement, and reports success
where DynamoDB reports a failed condition. So this module executes these statements in its place, by DynamoDB's rules.
tests/integration/gate/storage/test_conformance.py compares it with the other engine, which executes them itself.
"""

import re
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

_INSERT = re.compile(r"INSERT INTO \"([^\"]+)\" VALUE \{(.+)\}")
_UPDATE = re.compile(r'UPDATE "([^"]+)" ((?:(?:SET "\w+"=\?|REMOVE "\w+") )+)WHERE (.+)')
_executing = threading.Lock()


class Write(NamedTuple):
    """The write of a statement: an UPDATE of a ``stored`` item with some attributes, or an INSERT if that is None."""

    table: str
    changed: dict[str, Any]
    removed: tuple[str, ...]
    stored: dict[str, Any] | None

    @property
    def item(self) -> dict[str, Any]:
        """The item after the statement."""
        return {**(self.stored or {}), **self.changed}


def read(statement: Mapping[str, Any]) -> Write:
    """A statement and its parameters.

    Raises:
        ValueError: it is not a statement of :mod:`kanon.dynamo.statements`.
    """
    text, values = statement["Statement"], iter(statement["Parameters"])
    if found := _INSERT.fullmatch(text):
        return Write(found[1], dict(zip(re.findall(r"'(\w+)': \?", found[2]), values, strict=True)), (), None)
    if found := _UPDATE.fullmatch(text):
        changed = {name: next(values) for name in re.findall(r'SET "(\w+)"', found[2])}
        stored = dict(zip(re.findall(r'"(\w+)"=\?', found[3]), values, strict=True))
        return Write(found[1], changed, tuple(re.findall(r'REMOVE "(\w+)"', found[2])), stored)
    raise ValueError(f"not a statement of this project (a bug of the local stack): {text}")


def teach_moto() -> None:
    """Make moto execute the statements of a BatchExecuteStatement as DynamoDB does."""
    from moto.dynamodb.models import DynamoDBBackend

    DynamoDBBackend.batch_execute_statement = _batch_execute  # type: ignore[method-assign]


def _batch_execute(self: Any, statements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with _executing:
        return [_execute(self, read(statement)) for statement in statements]


def _execute(backend: Any, write: Write) -> dict[str, Any]:
    from moto.dynamodb.models.dynamo_type import DynamoType

    table = backend.get_table(write.table)
    found = table.get_item(DynamoType(write.item[table.hash_key_attr]))
    before = None if found is None else found.to_json()["Attributes"]
    if write.stored is None:
        if before is not None:
            return _error(write.table, "DuplicateItem", "Duplicate primary key exists in table")
    elif before is None or any(before.get(name) != value for name, value in write.stored.items()):
        return _error(write.table, "ConditionalCheckFailed", "The conditional request failed")
    after = {**(before or {}), **write.changed}
    table.put_item({name: value for name, value in after.items() if name not in write.removed})
    return {"TableName": write.table}


def _error(table: str, code: str, message: str) -> dict[str, Any]:
    return {"TableName": table, "Error": {"Code": code, "Message": message}}
