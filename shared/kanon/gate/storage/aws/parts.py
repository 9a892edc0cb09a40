"""The bucket of states: parts, the lists of them, and the true sets. An object is written once, under its own name.

``1234/5/480000-17-3.part``: layout, slot, step, run and number. Every lease has another run, so no name is written
twice, and the sweeper knows whose work an object is. The name of a list ends with the digest of its content, and so do
those of what was read of a step (``.read``) and of true sets, which begin with ``true/``. That of the listed sets
beside them ends with ``.listed``.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256
from itertools import chain, count
from typing import TYPE_CHECKING, Any, NamedTuple

from kanon.dynamo.batches import chunks
from kanon.errors import ThrottledError, UndecodableMembersError
from kanon.gate import listed_sets
from kanon.gate.listed_sets import ListedSet, name_beside
from kanon.gate.parts import PADDING, Part, decode, encode
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.true_objects import ABSENT, read_listed, read_true, run_of
from kanon.gate.storage.protocols import Piece
from kanon.gate.true_sets import PREFIX, TrueSets, name_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

DELETES_A_CALL = 1000
REMEDY = "`kanon operate replay` computes the states again"
"""Names of objects are not told: a log would show how many there are."""


class PartList(NamedTuple):
    """The parts of a slot after a step.

    Attributes:
        step: the step.
        pieces: the parts in the order of their keys.
        end: the first key that is not decided yet, in hexadecimal; None if all are: then this is a manifest.
        last: the number of parts of the range that was decided last.
    """

    step: int
    pieces: tuple[Piece, ...]
    end: str | None = None
    last: int = 0


class PartObjects:
    """The objects of a slot."""

    def __init__(self, client: "S3Client", bucket: str, place: Place, key: str | None = None) -> None:
        """``key``: the KMS key of Statuses, for what ``query`` reads; None: that of the bucket."""
        self._client, self._bucket, self._folder = client, bucket, place.folder
        self._true_key: Any = {}
        if key is not None:
            self._true_key = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key, "BucketKeyEnabled": True}
        self._numbers = count()

    def put(self, part: Part, step: int, run: int, first: str) -> Piece:
        """Store a part after ``step``; ``first`` is the smallest key of its range, in hexadecimal."""
        content, digest = encode(part, step)
        name = f"{self._name(step, run)}.part"
        self._put(name, content)
        return Piece(first, name, digest, part.earliest)

    def read(self, piece: Piece) -> Part:
        """A part, of this slot or of another one.

        Raises:
            UndecodableMembersError: it is missing or damaged.
        """
        return decode(self._read(piece.name, piece.digest), checked=True)

    def put_list(self, listed: PartList, run: int) -> str:
        """Store a list of parts. Returns its name."""
        return self._put_text(json.dumps(listed._asdict()).encode(), listed.step, run, "list")

    def list_of(self, name: str) -> PartList:
        """A list of parts, of this slot or of another one.

        Raises:
            UndecodableMembersError: it is missing or damaged.
        """
        found = json.loads(self.read_of(name))
        return PartList(found["step"], tuple(Piece(*each) for each in found["pieces"]), found["end"], found["last"])

    def put_read(self, content: bytes, step: int, run: int) -> str:
        """Store what was read of a step, with spaces at its end. Returns its name."""
        return self._put_text(content, step, run, "read")

    def read_of(self, name: str) -> bytes:
        """What was read of a step.

        Raises:
            UndecodableMembersError: it is missing or damaged.
        """
        return self._read(name, name.rpartition(".")[0].rpartition("-")[2])

    def put_true(self, content: bytes, step: int, run: int) -> str:
        """Store the object of the sets that are true at a step, encrypted for ``query``. Returns its name."""
        name = name_of(self._name(step, run), content)
        self._put(name, content, **self._true_key)
        return name

    def true_sets(self, name: str) -> TrueSets:
        """An object of true sets.

        Raises:
            UndecodableMembersError: it is missing or damaged.
        """
        return read_true(self._client, self._bucket, name)

    def put_listed(self, shows: str, sets: Iterable[ListedSet] | None) -> None:
        """Store the listed sets beside the object ``shows``, for the lister alone; None: they are not all known."""
        self._put(name_beside(shows), listed_sets.encode(shows, sets))

    def listed_sets(self, shows: str) -> Iterator[ListedSet] | None:
        """The listed sets beside the object ``shows``, sorted; None if it does not have all of them.

        Raises:
            UndecodableMembersError: it is missing or damaged.
        """
        return read_listed(self._client, self._bucket, shows)

    def has(self, name: str) -> bool:
        """Whether an object is there."""
        try:
            self._client.head_object(Bucket=self._bucket, Key=name)
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in ABSENT:
                raise
            return False
        return True

    def sweep(self, named: Collection[str], run: int) -> None:
        """Delete the objects of runs before ``run`` except these."""
        unnamed = (key for key in self.names() if key not in named and run_of(key) < run)
        for keys in chunks(unnamed, DELETES_A_CALL):
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
            )
            if answer.get("Errors"):
                raise ThrottledError(f"{len(answer['Errors'])} objects were not deleted; repeat it")

    def _name(self, step: int, run: int) -> str:
        return f"{self._folder}{step}-{run}-{next(self._numbers)}"

    def _put_text(self, content: bytes, step: int, run: int, ending: str) -> str:
        content += b" " * (-len(content) % PADDING)
        name = f"{self._name(step, run)}-{sha256(content).hexdigest()}.{ending}"
        self._put(name, content)
        return name

    def _put(self, name: str, content: bytes, **encryption: Any) -> None:
        self._client.put_object(Bucket=self._bucket, Key=name, Body=content, **encryption)

    def _read(self, name: str, digest: str) -> bytes:
        try:
            content = self._client.get_object(Bucket=self._bucket, Key=name)["Body"].read()
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in ABSENT:
                raise
            raise UndecodableMembersError(f"an object of the bucket of states is missing: {REMEDY}") from None
        if sha256(content).hexdigest() != digest:
            raise UndecodableMembersError(f"an object of the bucket of states is not as it was written: {REMEDY}")
        return content

    def any(self) -> bool:
        """Whether there are any parts or lists."""
        return next(self._names(self._folder), None) is not None

    def names(self) -> Iterator[str]:
        """The names of all objects."""
        return chain(self._names(self._folder), self._names(PREFIX + self._folder))

    def _names(self, prefix: str) -> Iterator[str]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix):
            yield from (item["Key"] for item in page.get("Contents", ()))
