"""Rotation of the keys that reports are encrypted to.

A new key follows every 7 days. It is published for 14 days, opens reports for 120, and is destroyed a day later, when
the last job that may use it has ended. Then its reports can never be read again.

Each run repeats: read the ring, do the next due step. Every step may be repeated, so the next run continues one that
stopped anywhere:

    id pending in the ring  ->  private key in Secrets Manager  ->  public key in the ring, from now on published
    key ended               ->  secret deleted                  ->  key removed from the ring

The epoch ties the keys to a budget table. An empty or restored table would refill budgets.

A random text is in table Budgets and in the key ring, and the ring has the table's id. A table that was created again
has another text. One that was restored has the same text and another id. Neither is used: no key is published and no
job commits, until an operator begins a new epoch. That ends all keys. So no report of the old epoch can be opened, and
none is charged to a table that may lack earlier spending.

The ring also has the id of table ReportJobs. A restored one brings back jobs that have ended, and their secrets. So no
job is planned or commits on another table, until an operator accepts it.
"""

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from uuid import uuid4

from kanon.dynamo.tables import table_ids
from kanon.dynamo.transactions import all_or_none
from kanon.reports.errors import REPLACED, JobError
from kanon.reports.storage.budgets import Budgets
from kanon.reports.storage.key_ring import Key, KeyPairs, KeyRing, RingStore, StoredRing

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


REPLACED_MESSAGE = (
    "the budget table is not the one on which the keys were issued: issue new keys, see the operator's guide"
)
JOBS_REPLACED_MESSAGE = (
    "the table of jobs is not the one that the stack began with: an operator must accept it, see the operator's guide"
)
SPENT_MESSAGE = (
    "this job has spent its budget before: its row was put back from a copy. Nothing more was spent or released"
)
NO_KEYS_MESSAGE = "the stack has no keys yet: wait five minutes, then create a new job"


def new_epoch() -> str:
    """A random text for an epoch."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Epoch:
    """The epoch of a deployment: of its ring, its budgets and its table ReportJobs."""

    client: "DynamoDBClient"
    ring: KeyRing
    budgets: Budgets
    jobs_table: str

    def table_id(self) -> str:
        """The id of table Budgets as it is now."""
        return table_ids(self.client, {"Budgets": self.budgets.table})["Budgets"]

    def jobs_id(self) -> str:
        """The id of table ReportJobs as it is now."""
        return table_ids(self.client, {"ReportJobs": self.jobs_table})["ReportJobs"]

    def is_of(self, keys: StoredRing) -> bool:
        """Whether these keys were issued for table Budgets as it is now."""
        return keys.table_id == self.table_id() and keys.epoch == self.budgets.epoch()

    def has_jobs_of(self, keys: StoredRing) -> bool:
        """Whether table ReportJobs is the one that the ring names, if it names one yet."""
        return keys.jobs_id in (None, self.jobs_id())

    def begin(self) -> None:
        """Write the first ring of a deployment, unless another worker was first.

        A table with an epoch keeps it. The ring of that epoch was lost, and with it all its keys, so their reports
        cannot be charged again.
        """
        table_id, found = self.table_id(), self.budgets.epoch()
        epoch = new_epoch() if found is None else found
        of_table = self.budgets.begin(epoch) if found is None else self.budgets.same_epoch(epoch)
        all_or_none(
            self.client, [of_table, self.ring.changing(None, StoredRing(epoch, table_id, jobs_id=self.jobs_id()))]
        )

    def renew(self, seen: StoredRing) -> bool:
        """Begin a new epoch on the table as it is now: every key has ended, and none is published.

        Returns:
            Whether the new epoch began; False if the ring or the table has changed since it was read.
        """
        table_id, found = self.table_id(), self.budgets.epoch()
        epoch = new_epoch()
        to = StoredRing(epoch, table_id, seen.all_ended().keys, jobs_id=seen.jobs_id)
        return all_or_none(self.client, [self.budgets.begin(epoch, found), self.ring.changing(seen, to)]) is None

    def accept_jobs(self, seen: StoredRing) -> bool:
        """Let the ring name table ReportJobs as it is now; False if the ring has changed since it was read."""
        return self.ring.change(seen, replace(seen, jobs_id=self.jobs_id()))

    def in_force(self) -> StoredRing:
        """The ring, after a comparison with the tables as they are now.

        Raises:
            JobError: there is no ring yet, or a table was replaced.
        """
        keys = self.ring.read()
        if keys is None:
            raise JobError("INTERNAL_ERROR", NO_KEYS_MESSAGE)
        if not self.is_of(keys):
            raise JobError(REPLACED, REPLACED_MESSAGE)
        if not self.has_jobs_of(keys):
            raise JobError(REPLACED, JOBS_REPLACED_MESSAGE)
        return keys


class KeysEpoch(Protocol):
    """What the rotation needs of an epoch, wherever it is. :class:`Epoch` says what each method promises."""

    @property
    def ring(self) -> RingStore:
        """The key ring."""

    def is_of(self, keys: StoredRing) -> bool:
        """Whether these keys were issued for the budgets as they are now."""

    def begin(self) -> None:
        """Write the first ring."""

    def accept_jobs(self, seen: StoredRing) -> bool:
        """Let the ring name the jobs as they are now."""


OfKeys = TypeVar("OfKeys", bound=KeysEpoch)

MOST_STEPS = 300


@dataclass(frozen=True)
class Rotation(Generic[OfKeys]):
    """Rotation with its tables and private keys."""

    epoch: OfKeys
    private: KeyPairs

    def run(self, now: float) -> StoredRing:
        """Do all steps that are due at ``now`` (Unix s).

        Returns:
            The ring when nothing is due any more.

        Raises:
            RuntimeError: other workers kept changing the ring.
        """
        for _ in range(MOST_STEPS):
            keys = self.epoch.ring.read()
            if keys is None:
                self.epoch.begin()
            elif not (self.destroy_one(keys, now) or self._step(keys, now)):
                return keys
        raise RuntimeError("other workers kept changing the key ring: the next run continues")

    def destroy_one(self, keys: StoredRing, now: float) -> bool:
        """Destroy a key that has ended; False if none has."""
        for key in keys.ended(now):
            self.private.destroy(key.id)
            return self._change(keys, keys.without(key))
        return False

    def _step(self, keys: StoredRing, now: float) -> bool:
        """Do the next due step; False if there is none. If the ring has changed meanwhile, nothing is done."""
        withdrawn = not self.epoch.is_of(keys)
        if withdrawn != keys.withdrawn:
            return self._change(keys, replace(keys, withdrawn=withdrawn))
        if keys.jobs_id is None:
            self.epoch.accept_jobs(keys)  # the first run after an update
            return True
        if withdrawn:
            return False
        if keys.pending is not None:
            public = self.private.make(keys.pending)
            return self._change(keys, keys.with_key(Key.made(keys.pending, public, now)))
        if keys.is_new_key_due(now):
            return self._change(keys, replace(keys, pending=str(uuid4())))
        return False

    def _change(self, seen: StoredRing, to: StoredRing) -> bool:
        """Change the ring, unless another worker was first. Read the ring again in both cases."""
        self.epoch.ring.change(seen, to)
        return True
