"""The PartiQL statements of ``kanon.dynamo.statements``, read back."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_INSERT = re.compile(r"INSERT INTO \"([^\"]+)\" VALUE \{(.+)\}")
_UPDATE = re.compile(r'UPDATE "([^"]+)" ((?:(?:SET "\w+"=\?|REMOVE "\w+") )+)WHERE (.+)')


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
