"""Lists on AWS: a pointer of each type in Control, and the objects of the bucket of lists.

The item ``list#<type>`` of Control names the last lists of a type; it names none when the type is retired. Which
values an operator unlisted is in the bucket, one object each, so a restored Control does not bring them back. The item
``lists`` has their *stamp*, which is new with every change. A list is published by a write of the pointer that is
conditional on the pointer and the stamp that were read. So it never goes back, of two listers one publishes, and no
list has a value that was unlisted before.

| object | content |
|---|---|
| ``current/<type>/<step>-<run>/<prefix>`` | the values of a list whose hashes have a prefix, one a line, by hash |
| ``lists/<type>/date=<day>/step=<step>/values.parquet`` | history; its metadata has the stamp |
| ``opened/<layout>/<slot>`` | values that the lister has opened, by set key; only it may read them |
| ``unlisted/<set key>`` | nothing: the name says that the value of the set is in no list |

The run is random: no list is written into the objects of another one.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from kanon.dynamo.batches import chunks
from kanon.dynamo.tables import KeyedTable, bound
from kanon.dynamo.transactions import all_or_none
from kanon.errors import Error, ThrottledError
from kanon.gate.lists import KEPT, ListEntry, ReadableList, place_of_step, read_parquet, write_parquet
from kanon.gate.mechanism.tape import SET_KEY_BYTES, check_set_key
from kanon.gate.ranges import ListStep, encode, name_of, number_of
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.true_objects import ABSENT

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CURRENT, HISTORY, OPENED, UNLISTED = "current/", "lists/", "opened/", "unlisted/"
DELETES_A_CALL = 1000
REFUSED = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_STAMP, _POINTER = "lists", "list#"
_LENGTH_BYTES = 2
_DIGEST_BYTES = 32


class ListTable(KeyedTable):
    """The pointers of lists, and what was unlisted, in Control."""

    key_name = "name"
    key_type = "S"

    def pointer(self, type_name: str) -> tuple[ReadableList, ...]:
        """The last lists of a type, newest first, strongly consistent."""
        lists = self._item(_POINTER + type_name).get("lists", {"L": []})["L"]
        return tuple(_found(each["L"]) for each in lists)

    def newest(self, type_name: str) -> ReadableList | None:
        """The newest list of a type."""
        return next(iter(self.pointer(type_name)), None)

    def stamp(self) -> str:
        """The stamp of what was unlisted; "" if nothing ever was, as far as this table knows."""
        return str(self._item(_STAMP).get("stamp", {"S": ""})["S"])

    def renew_stamp(self) -> None:
        """Let no list be published that was made before something was unlisted. For a command."""
        self._set(_STAMP, "SET stamp = :new", new=uuid4().hex)

    def publish(self, type_name: str, before: Sequence[ReadableList], new: ReadableList, stamp: str) -> bool:
        """Let readers see a list; False if the pointer or the stamp is another one by now."""
        check: dict[str, Any] = {
            "TableName": self._table,
            "Key": self._key(_STAMP),
            "ConditionExpression": "attribute_not_exists(stamp)",
        }
        if stamp:
            check |= {"ConditionExpression": "stamp = :stamp", "ExpressionAttributeValues": bound(stamp=stamp)}
        update = self._move(type_name, before, (new, *before)[:KEPT])
        refused = all_or_none(self._client, [{"ConditionCheck": check}, update])
        return refused is None or any(each.run == new.run for each in self.pointer(type_name))  # its answer was lost

    def change(self, type_name: str, before: Sequence[ReadableList], after: Sequence[ReadableList]) -> bool:
        """Change the pointer in its place; False if it is another one by now. For a command."""
        return all_or_none(self._client, [self._move(type_name, before, after)]) is None

    def end(self, type_name: str) -> None:
        """Let nobody read a list of a type any more, for good: a lister that is late publishes none. For a command."""
        self._set(_POINTER + type_name, "SET lists = :none", none=())

    def _move(self, type_name: str, before: Sequence[ReadableList], after: Sequence[ReadableList]) -> dict[str, Any]:
        condition, values = "attribute_not_exists(lists)", bound(after=list(after))
        if before:
            condition, values = "lists = :before", values | bound(before=list(before))
        return self._part(_POINTER + type_name, "SET lists = :after", condition, values)


def _found(stored: Sequence[dict[str, Any]]) -> ReadableList:
    step, bits, values, run = stored
    return ReadableList(int(step["N"]), int(bits["N"]), int(values["N"]), run["S"])


class ListGoneError(Error):
    """A list was deleted while it was read."""


class WrittenHistory(NamedTuple):
    """What was written of a history: the tag of its bytes, and the stamp of what was unlisted then."""

    tag: str
    stamp: str


@dataclass(frozen=True)
class ListObjects:
    """The bucket of lists."""

    client: "S3Client"
    bucket: str
    period: int

    # Lists

    def put(
        self, type_name: str, found: ReadableList, name: str, values: Iterable[ListEntry], before: str | None = None
    ) -> bool:
        """Store the values with a prefix, sorted by hash; False if those of the tag ``before`` are there no more."""
        content = "".join(f"{json.dumps(each)}\n" for each in values)
        key, condition = f"{_folder(type_name, found)}{name}", {} if before is None else {"IfMatch": before}
        return self._put(key, content.encode(), **condition)

    def tag(self, type_name: str, found: ReadableList, name: str) -> str | None:
        """The tag of the values with a prefix; None if the list is gone."""
        head = self._head(f"{_folder(type_name, found)}{name}")
        return None if head is None else head["ETag"]

    def values(self, type_name: str, found: ReadableList, name: str) -> list[tuple[bytes, ListEntry]] | None:
        """The values with a prefix and their hashes, sorted by hash; None if the list is gone."""
        content = self._get(f"{_folder(type_name, found)}{name}")
        if content is None:
            return None
        rows = (ListEntry(*json.loads(line)) for line in content.splitlines())
        return [(sha256(row.value.encode()).digest(), row) for row in rows]

    def rows(self, type_name: str, found: ReadableList) -> Iterator[tuple[bytes, ListEntry]]:
        """All values of a list and their hashes, sorted by hash.

        Raises:
            ListGoneError: the list was deleted.
        """
        for number in range(1 << found.bits):
            some = self.values(type_name, found, name_of(number, found.bits))
            if some is None:
                raise ListGoneError
            yield from some

    def keep(self, type_name: str, lists: Sequence[ReadableList]) -> None:
        """Delete the lists of a type that are not newer than these and not among them."""
        newest = max(each.step for each in lists)
        kept = {_folder(type_name, each) for each in lists}
        self._delete(
            key
            for key in self._keys(f"{CURRENT}{type_name}/")
            if _step_of(key) <= newest and not any(key.startswith(folder) for folder in kept)
        )

    def forget(self, type_name: str, found: ReadableList | None = None) -> bool:
        """Delete a list that nobody can read; None: all lists of a type, not their history. Whether there was any."""
        keys = list(self._keys(f"{CURRENT}{type_name}/" if found is None else _folder(type_name, found)))
        self._delete(keys)
        return bool(keys)

    # Unlisted values

    def unlist(self, set_key: bytes) -> None:
        """Let no list that begins from now on have the value of a set. For a command."""
        check_set_key(set_key)
        self._put(f"{UNLISTED}{set_key.hex()}", b"")

    def unlisted(self) -> frozenset[bytes]:
        """The set keys of the values that were unlisted."""
        return frozenset(bytes.fromhex(key.removeprefix(UNLISTED)) for key in self._keys(UNLISTED))

    # History

    def written_history(self, type_name: str, step: int) -> WrittenHistory | None:
        """What was written of the history of a step; None if there is nothing."""
        head = self._head(self._place(type_name, step))
        return None if head is None else WrittenHistory(head["ETag"], head["Metadata"].get("stamp", ""))

    def put_history(
        self, type_name: str, step: int, values: Iterable[ListEntry], stamp: str, before: WrittenHistory | None
    ) -> bool:
        """Store the list of a step as Parquet, whole, in the place of ``before``; False if something else is there."""
        condition = {"IfNoneMatch": "*"} if before is None else {"IfMatch": before.tag}
        with TemporaryFile() as file:
            write_parquet(file, values)
            file.seek(0)
            return self._put(self._place(type_name, step), file, Metadata={"stamp": stamp}, **condition)

    def steps_of_history(self, type_name: str) -> list[int]:
        """The steps whose lists the history has."""
        keys = self._keys(f"{HISTORY}{type_name}/")
        return sorted(int(key.split("/step=")[1].partition("/")[0]) for key in keys)

    def history(self, type_name: str, step: int) -> list[ListEntry]:
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

    def _put(self, key: str, body: Any, **more: Any) -> bool:
        """Store an object; False if its condition failed."""
        try:
            self.client.put_object(Bucket=self.bucket, Key=key, Body=body, **more)
        except self.client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in REFUSED | ABSENT:
                raise
            return False
        return True

    def _head(self, key: str) -> Any:
        try:
            return self.client.head_object(Bucket=self.bucket, Key=key)
        except self.client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in ABSENT:
                raise
            return None

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
                raise ThrottledError("objects of old lists were not deleted; the next run does it")


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


def _folder(type_name: str, found: ReadableList) -> str:
    return f"{CURRENT}{type_name}/{found.step}-{found.run}/"


def _step_of(key: str) -> int:
    return int(key.split("/")[2].partition("-")[0])


@dataclass(frozen=True)
class PublishedLists:
    """The lists that readers see (:class:`kanon.gate.lists.Lists`)."""

    table: ListTable
    objects: ListObjects

    def newest(self, type_name: str) -> ReadableList | None:
        """The newest list of a type."""
        return self.of_step(type_name, None)

    def of_step(self, type_name: str, step: int | None) -> ReadableList | None:
        """The list of a step; None for the newest one."""
        return next((each for each in self.table.pointer(type_name) if step in (None, each.step)), None)

    def page(
        self, type_name: str, found: ReadableList, after: bytes, most: int
    ) -> Sequence[tuple[bytes, ListEntry]] | None:
        """Values behind the hash ``after`` with their hashes, in the order of hashes; None if the list is gone."""
        rows: list[tuple[bytes, ListEntry]] = []
        first = int.from_bytes(after, "big") >> 256 - found.bits
        for number in range(first, 1 << found.bits):
            some = self.objects.values(type_name, found, name_of(number, found.bits))
            if some is None:
                return None
            rows += (row for row in some if row[0] > after)
            if len(rows) >= most:
                break
        return rows[:most]

    def range_file(self, of: ListStep, found: ReadableList, name: str) -> bytes | None:
        """A range file; None if the list has none of this name."""
        if number_of(name, found.bits) is None:
            return None
        rows = self.objects.values(of.type_name, found, name)
        return None if rows is None else encode(of, found.bits, [digest for digest, _ in rows])
