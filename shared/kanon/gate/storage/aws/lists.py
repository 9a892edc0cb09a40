"""Lists on AWS: a pointer of each type in Control, and the objects of the bucket of lists.

The item ``list#<type>`` of Control names the last lists of a type. The item ``lists`` has the set keys of the values
that an operator unlisted, and their *stamp*, which is new with every change. A list is published by a write of the
pointer that is conditional on the pointer and the stamp that were read. So it never goes back, of two listers one
publishes, and no list has a value that was unlisted before.

| object | content |
|---|---|
| ``current/<type>/<step>-<run>/<prefix>`` | the values of a list whose hashes have a prefix, one a line, by hash |
| ``lists/<type>/date=<day>/step=<step>/values.parquet`` | history; its metadata has the stamp |
| ``opened/<layout>/<slot>`` | values that the lister has opened, by set key; only it may read them |

The run is random: no list is written into the objects of another one.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

from kanon.dynamo.batches import chunks
from kanon.dynamo.tables import KeyedTable, attribute
from kanon.dynamo.transactions import all_or_none
from kanon.errors import ConfigurationError
from kanon.gate.lists import KEPT, Found, Listed, place_of_step, read_parquet, write_parquet
from kanon.gate.mechanism.tape import SET_KEY_BYTES
from kanon.gate.ranges import ListStep, encode, name_of, number_of
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.true_objects import ABSENT

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CURRENT, HISTORY, OPENED = "current/", "lists/", "opened/"
DELETES_A_CALL = 1000
MOST_UNLISTED = 10_000
"""The set keys in one item of at most 400 KB."""
_UNLISTED, _POINTER = "lists", "list#"
_LENGTH_BYTES = 2
_DIGEST_BYTES = 32


class ListTable(KeyedTable):
    """The pointers of lists, and what was unlisted, in Control."""

    key_name = "name"
    key_type = "S"

    def pointer(self, type_name: str) -> tuple[Found, ...]:
        """The last lists of a type, newest first, strongly consistent."""
        lists = self._item(_POINTER + type_name).get("lists", {"L": []})["L"]
        return tuple(_found(each["L"]) for each in lists)

    def unlisted(self) -> tuple[str, frozenset[bytes]]:
        """The stamp of what was unlisted, and the set keys; "" if nothing ever was."""
        item = self._item(_UNLISTED)
        keys = item.get("keys_of_sets", {"B": b""})["B"]
        every = range(0, len(keys), SET_KEY_BYTES)
        return item.get("stamp", {"S": ""})["S"], frozenset(keys[at : at + SET_KEY_BYTES] for at in every)

    def publish(self, type_name: str, before: Sequence[Found], new: Found, stamp: str) -> bool:
        """Let readers see a list; False if the pointer or the stamp is another one by now."""
        check: dict[str, Any] = {
            "TableName": self._table,
            "Key": {self.key_name: {self.key_type: _UNLISTED}},
            "ConditionExpression": "attribute_not_exists(stamp)",
        }
        if stamp:
            check |= {"ConditionExpression": "stamp = :stamp", "ExpressionAttributeValues": {":stamp": {"S": stamp}}}
        update = self._move(type_name, before, (new, *before)[:KEPT])
        return all_or_none(self._client, [{"ConditionCheck": check}, {"Update": update}]) is None

    def recount(self, type_name: str, before: Sequence[Found], after: Sequence[Found]) -> bool:
        """Change the numbers of values in the pointer; False if it is another one by now."""
        return all_or_none(self._client, [{"Update": self._move(type_name, before, after)}]) is None

    def _move(self, type_name: str, before: Sequence[Found], after: Sequence[Found]) -> dict[str, Any]:
        condition, values = "attribute_not_exists(lists)", {":after": _stored(after)}
        if before:
            condition, values = "lists = :before", {**values, ":before": _stored(before)}
        return {
            "TableName": self._table,
            "Key": {self.key_name: {self.key_type: _POINTER + type_name}},
            "UpdateExpression": "SET lists = :after",
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
        }

    def unlist(self, set_key: bytes) -> None:
        """Let no list that is published from now on have the value of a set. For a command.

        Raises:
            ConfigurationError: too many values are unlisted.
        """
        while True:
            stamp, keys = self.unlisted()
            if set_key in keys:
                return
            if len(keys) >= MOST_UNLISTED:
                raise ConfigurationError(
                    f"{MOST_UNLISTED} values are unlisted, and that is the most: suppress this one with `kanon operate"
                    f" suppress`"
                )
            condition, values = "attribute_not_exists(stamp)", {
                ":keys": {"B": b"".join(sorted({*keys, set_key}))},
                ":new": {"S": uuid4().hex},
            }  # fmt: skip
            if stamp:
                condition, values = "stamp = :stamp", {**values, ":stamp": {"S": stamp}}
            self._update(_UNLISTED, "SET keys_of_sets = :keys, stamp = :new", condition, values)


def _stored(lists: Sequence[Found]) -> dict[str, Any]:
    return {"L": [{"L": [attribute(value) for value in each]} for each in lists]}


def _found(stored: Sequence[dict[str, Any]]) -> Found:
    step, bits, values, run = stored
    return Found(int(step["N"]), int(bits["N"]), int(values["N"]), run["S"])


@dataclass(frozen=True)
class ListObjects:
    """The bucket of lists."""

    client: "S3Client"
    bucket: str
    period: int

    # Lists

    def put(self, type_name: str, found: Found, name: str, values: Iterable[Listed]) -> None:
        """Store the values with a prefix, sorted by hash."""
        content = "".join(f"{json.dumps(each)}\n" for each in values)
        self._put(f"{_folder(type_name, found)}{name}", content.encode())

    def values(self, type_name: str, found: Found, name: str) -> list[tuple[bytes, Listed]] | None:
        """The values with a prefix and their hashes, sorted by hash; None if the list is gone."""
        content = self._get(f"{_folder(type_name, found)}{name}")
        if content is None:
            return None
        rows = (Listed(*json.loads(line)) for line in content.splitlines())
        return [(sha256(row.value.encode()).digest(), row) for row in rows]

    def keep(self, type_name: str, lists: Sequence[Found]) -> None:
        """Delete the lists of a type that are not newer than these and not among them."""
        newest = max(each.step for each in lists)
        kept = {_folder(type_name, each) for each in lists}
        self._delete(
            key
            for key in self._keys(f"{CURRENT}{type_name}/")
            if _step_of(key) <= newest and not any(key.startswith(folder) for folder in kept)
        )

    # History

    def stamp_of_history(self, type_name: str, step: int) -> str | None:
        """The stamp with which the history of a step was written; None if there is none."""
        try:
            answer = self.client.head_object(Bucket=self.bucket, Key=self._place(type_name, step))
        except self.client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in ABSENT:
                raise
            return None
        return answer["Metadata"].get("stamp", "")

    def put_history(self, type_name: str, step: int, values: Iterable[Listed], stamp: str) -> None:
        """Store the list of a step as Parquet, whole. One that exists is replaced."""
        with TemporaryFile() as file:
            write_parquet(file, values)
            file.seek(0)
            self._put(self._place(type_name, step), file, Metadata={"stamp": stamp})

    def steps_of_history(self, type_name: str) -> list[int]:
        """The steps whose lists the history has."""
        keys = self._keys(f"{HISTORY}{type_name}/")
        return sorted(int(key.split("/step=")[1].partition("/")[0]) for key in keys)

    def history(self, type_name: str, step: int) -> list[Listed]:
        """The list of a step."""
        content = self._get(self._place(type_name, step))
        if content is None:
            return []
        with TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            return read_parquet(file)

    def _place(self, type_name: str, step: int) -> str:
        return f"{HISTORY}{type_name}/{place_of_step(step, self.period)}"

    # Opened values

    def opened(self, place: Place) -> Iterator[tuple[bytes, bytes]]:
        """The values of a slot that were opened, by set key, sorted. None of them if the object is damaged."""
        content = self._get(f"{OPENED}{place.layout}/{place.slot}") or b""
        body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        return _pairs(body) if sha256(body).digest() == digest else iter(())

    def put_opened(self, place: Place, values: IO[bytes]) -> None:
        """Store the opened values of a slot: what :func:`pair` has made, in the order of set keys."""
        digest = sha256()
        values.seek(0)
        while some := values.read(1 << 20):
            digest.update(some)
        values.write(digest.digest())
        values.seek(0)
        self._put(f"{OPENED}{place.layout}/{place.slot}", values)

    def forget_opened(self, layout: int | None) -> None:
        """Delete the opened values of all layouts but this one; None: of all."""
        self._delete(key for key in self._keys(OPENED) if key.split("/")[1] != str(layout))

    def _put(self, key: str, body: Any, **more: Any) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=body, **more)

    def _get(self, key: str) -> bytes | None:
        try:
            return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        except self.client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in ABSENT:
                raise
            return None

    def _keys(self, prefix: str) -> Iterator[str]:
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
            yield from (item["Key"] for item in page.get("Contents", ()))

    def _delete(self, keys: Iterable[str]) -> None:
        for some in chunks(keys, DELETES_A_CALL):
            objects = [{"Key": key} for key in some]
            answer = self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True})  # type: ignore[typeddict-item]
            if answer.get("Errors"):
                raise RuntimeError("objects of old lists were not deleted; the next run does it")


def pair(set_key: bytes, value: bytes) -> bytes:
    """A set key and its value, as the object of opened values has them."""
    return set_key + len(value).to_bytes(_LENGTH_BYTES, "big") + value


def _pairs(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(body):
        start = at + SET_KEY_BYTES + _LENGTH_BYTES
        end = start + int.from_bytes(body[start - _LENGTH_BYTES : start], "big")
        yield body[at : at + SET_KEY_BYTES], body[start:end]
        at = end


def _folder(type_name: str, found: Found) -> str:
    return f"{CURRENT}{type_name}/{found.step}-{found.run}/"


def _step_of(key: str) -> int:
    return int(key.split("/")[2].partition("-")[0])


@dataclass(frozen=True)
class PublishedLists:
    """The lists that readers see (:class:`kanon.gate.lists.Lists`)."""

    table: ListTable
    objects: ListObjects

    def newest(self, type_name: str) -> Found | None:
        """The newest list of a type."""
        return self.of_step(type_name, None)

    def of_step(self, type_name: str, step: int | None) -> Found | None:
        """The list of a step; None for the newest one."""
        return next((each for each in self.table.pointer(type_name) if step in (None, each.step)), None)

    def page(self, type_name: str, found: Found, after: bytes, most: int) -> Sequence[tuple[bytes, Listed]] | None:
        """Values behind the hash ``after`` with their hashes, in the order of hashes; None if the list is gone."""
        rows: list[tuple[bytes, Listed]] = []
        first = int.from_bytes(after, "big") >> 256 - found.bits
        for number in range(first, 1 << found.bits):
            some = self.objects.values(type_name, found, name_of(number, found.bits))
            if some is None:
                return None
            rows += (row for row in some if row[0] > after)
            if len(rows) >= most:
                break
        return rows[:most]

    def range_file(self, of: ListStep, found: Found, name: str) -> bytes | None:
        """A range file; None if the list has none of this name."""
        if number_of(name, found.bits) is None:
            return None
        rows = self.objects.values(of.type_name, found, name)
        return None if rows is None else encode(of, found.bits, [digest for digest, _ in rows])
