"""The keys of reports: the public ones in one item of Control, the private ones in Secrets Manager.

A key is first *pending*: only its id is in the ring, and its private key is written to Secrets Manager under that id.
Then it is published. So after a crash every private key has an id in the ring, and every published key has a private
one. Every write names the revision that it replaces, so one of two workers must read again.

Secrets keep old versions for a while. So each private key has its own secret and is destroyed with it.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kanon.dynamo.batches import Item
from kanon.dynamo.conditions import unless_refused
from kanon.dynamo.tables import KeyedTable, bound, item_of
from kanon.reports.shared_info import DAY

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from mypy_boto3_secretsmanager import SecretsManagerClient


NAME = "reports#keys"
NEW_EVERY, PUBLISHED, OPENS = 7 * DAY, 14 * DAY, 120 * DAY
"""Seconds between new keys, of publication of a key, and in which it opens reports."""
ONE_JOB = DAY
"""Seconds until a key is destroyed after it has ceased to open reports: all jobs that may use it have ended."""

SETTLES, READ_EVERY = 10, 5
"""Seconds before a new key is given to clients, and between two reads of the ring for ids that nobody knows. The first
is longer, so that no collector refuses a report to a new key."""

IF_NONE = "attribute_not_exists(#name)"
IF_UNCHANGED = "revision = :seen"


@dataclass(frozen=True)
class Key:
    """A key pair by its public half.

    Attributes:
        id: a UUID.
        public: 32 bytes in base64.
        created: when it was published first, unix seconds.
        published_until: when clients may no longer encrypt to it, unix seconds.
        opens_until: when jobs may no longer open its reports, unix seconds.
    """

    id: str
    public: str
    created: int
    published_until: int
    opens_until: int

    @classmethod
    def made(cls, key_id: str, public: str, now: float) -> "Key":
        """A key that is published from ``now`` on."""
        created = int(now)
        return cls(key_id, public, created, created + PUBLISHED, created + OPENS)


@dataclass(frozen=True)
class StoredRing:
    """The ring as it is stored.

    Attributes:
        epoch: names the budgets that these keys were issued for; table Budgets has the same text.
        table_id: the id of that table.
        keys: by their age, oldest first.
        pending: the id of a key that is being made.
        withdrawn: whether the budget table was replaced, so that no key may be published.
        jobs_id: the id of table ReportJobs; None in a ring of an earlier version.
        revision: counts the writes of the ring.
    """

    epoch: str
    table_id: str
    keys: tuple[Key, ...] = ()
    pending: str | None = None
    withdrawn: bool = False
    jobs_id: str | None = None
    revision: int = 0

    def published(self, now: float) -> tuple[Key, ...]:
        """The keys that clients may encrypt to, oldest first."""
        return () if self.withdrawn else tuple(key for key in self.keys if now < key.published_until)

    def served(self, now: float) -> tuple[Key, ...]:
        """The published keys that every collector knows by now."""
        return tuple(key for key in self.published(now) if now >= key.created + SETTLES)

    def opening(self, now: float) -> tuple[Key, ...]:
        """The keys that open the reports of a job that begins now."""
        return tuple(key for key in self.keys if now < key.opens_until)

    def ended(self, now: float) -> tuple[Key, ...]:
        """The keys that no job needs any more, whose private keys must be destroyed."""
        return tuple(key for key in self.keys if now >= key.opens_until + ONE_JOB)

    def is_new_key_due(self, now: float) -> bool:
        """Whether the newest key is old enough for another one."""
        return all(now >= key.created + NEW_EVERY for key in self.keys)

    def with_key(self, key: Key) -> "StoredRing":
        """The ring with a new key, which is no longer pending."""
        return replace(self, keys=(*self.keys, key), pending=None)

    def all_ended(self) -> "StoredRing":
        """The ring with every key at its end, also a pending one, which may have a private key already."""
        pending = () if self.pending is None else (Key(self.pending, "", 0, 0, 0),)
        ended = (replace(key, published_until=0, opens_until=0) for key in self.keys)
        return replace(self, keys=(*ended, *pending), pending=None)

    def without(self, key: Key) -> "StoredRing":
        """The ring without a key."""
        return replace(self, keys=tuple(one for one in self.keys if one.id != key.id))


class RingStore(Protocol):
    """Where a ring is. :class:`KeyRing` says what each method promises."""

    def read(self) -> StoredRing | None:
        """The ring."""

    def change(self, seen: StoredRing, to: StoredRing) -> bool:
        """Replace the ring."""


class KeyPairs(Protocol):
    """Where private keys are. :class:`PrivateKeys` says what each method promises."""

    def make(self, key_id: str) -> str:
        """Write a new private key under an id. Returns the public key, base64."""

    def destroy(self, key_id: str) -> None:
        """Delete a key."""


class KeyRing(KeyedTable):
    """The ring of a deployment."""

    key_name, key_type = "name", "S"

    def read(self) -> StoredRing | None:
        """The ring, strongly consistent; None before the first rotation."""
        item = self._item(NAME)
        return _keys(item) if item else None

    def change(self, seen: StoredRing, to: StoredRing) -> bool:
        """Replace the ring; False if it has changed since it was read."""
        return unless_refused(self._client.put_item, **self._put(seen, to)) is not None

    def changing(self, seen: StoredRing | None, to: StoredRing) -> dict[str, Any]:
        """The same as a write of a transaction; ``seen`` is None if there is no ring."""
        return {"Put": self._put(seen, to)}

    def _put(self, seen: StoredRing | None, to: StoredRing) -> dict[str, Any]:
        item = _item_of(replace(to, revision=seen.revision + 1 if seen else 1))
        put: dict[str, Any] = {"TableName": self._table, "Item": item}
        if seen is None:
            return {**put, "ConditionExpression": IF_NONE, "ExpressionAttributeNames": {"#name": "name"}}
        return {**put, "ConditionExpression": IF_UNCHANGED, "ExpressionAttributeValues": bound(seen=seen.revision)}


class KnownKeys:
    """The ids of the keys that a ring holds. A key stays known until the process ends.

    Anybody may ask for any id, so an unknown one leads to a read at most every few seconds.
    """

    def __init__(self, ring: RingStore) -> None:
        self._ring = ring
        self._ids: frozenset[str] = frozenset()
        self._read_at = float("-inf")

    def has(self, key_id: str, now: float) -> bool:
        """Whether there was a key of this id, as is known at ``now`` (Unix s)."""
        if key_id not in self._ids and not 0 <= now - self._read_at < READ_EVERY:
            keys = self._ring.read()
            self._ids |= {key.id for key in keys.keys} if keys else set()
            self._read_at = now
        return key_id in self._ids


def _item_of(keys: StoredRing) -> Item:
    fields = asdict(keys)
    revision, jobs_id = fields.pop("revision"), fields.pop("jobs_id")
    # An attribute of its own, because an earlier version cannot read a ring with another field.
    own = {"jobs_id": jobs_id} if jobs_id else {}
    return item_of(name=NAME, ring=json.dumps(fields, sort_keys=True), revision=revision, **own)


def _keys(item: Item) -> StoredRing:
    fields = json.loads(item["ring"]["S"])
    keys = tuple(Key(**key) for key in fields.pop("keys"))
    jobs_id = item.get("jobs_id", {}).get("S")
    return StoredRing(**fields, keys=keys, jobs_id=jobs_id, revision=int(item["revision"]["N"]))


class PrivateKeys:
    """The private keys of a deployment. Keys that were read stay in memory only."""

    def __init__(self, client: "SecretsManagerClient", prefix: str, kms_key: str = "") -> None:
        self._client = client
        self._prefix = prefix
        self._kms_key = kms_key
        self._kept: dict[str, X25519PrivateKey] = {}

    def make(self, key_id: str) -> str:
        """Write a new private key under an id, unless it has one. Returns the public key, base64.

        Raises:
            RuntimeError: the secret of an earlier attempt is being deleted.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        private = X25519PrivateKey.generate()
        try:
            self._client.create_secret(
                Name=self._name(key_id),
                Description="kanon: a private key of reports",
                KmsKeyId=self._kms_key,
                SecretString=base64.b64encode(private.private_bytes_raw()).decode(),
            )
        except self._client.exceptions.ResourceExistsException:
            earlier = self._read(key_id)
            if earlier is None:
                raise RuntimeError("the secret of a new key is marked for deletion: restore it first") from None
            private = earlier
        return base64.b64encode(private.public_key().public_bytes_raw()).decode()

    def existing(self, ids: Sequence[str]) -> "dict[str, X25519PrivateKey]":
        """The private keys with these ids that still exist. Other keys are dropped from memory."""
        found = {key_id: self._kept.get(key_id) or self._read(key_id) for key_id in ids}
        self._kept = {key_id: key for key_id, key in found.items() if key is not None}
        return dict(self._kept)

    def destroy(self, key_id: str) -> None:
        """Delete the secret of a key immediately. It may be called again.

        There is no recovery window: within one, a role that may restore secrets could still open every report of the
        key.
        """
        try:
            self._client.delete_secret(SecretId=self._name(key_id), ForceDeleteWithoutRecovery=True)
        except self._client.exceptions.ResourceNotFoundException:
            return

    def _read(self, key_id: str) -> "X25519PrivateKey | None":
        """The private key; None if its secret was deleted, or is marked for deletion."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        gone = self._client.exceptions.ResourceNotFoundException, self._client.exceptions.InvalidRequestException
        try:
            text = self._client.get_secret_value(SecretId=self._name(key_id))["SecretString"]
        except gone:
            return None
        return X25519PrivateKey.from_private_bytes(base64.b64decode(text, validate=True))

    def _name(self, key_id: str) -> str:
        return f"{self._prefix}{key_id}"

    def __repr__(self) -> str:
        return f"PrivateKeys({len(self._kept)} kept)"
