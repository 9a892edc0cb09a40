"""The epoch ties the keys to a budget table. An empty or restored table would refill budgets.

A random text is in table Budgets and in the key ring, and the ring has the table's id. A table that was created again
has another text. One that was restored has the same text and another id. Neither is used: no key is published and no
job commits, until an operator begins a new epoch. That ends all keys. So no report of the old epoch can be opened, and
none is charged to a table that may lack earlier spending.
"""

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kanon.dynamo.tables import table_ids
from kanon.dynamo.transactions import all_or_none
from kanon.reports.errors import JobError
from kanon.reports.storage.budgets import Budgets
from kanon.reports.storage.key_ring import KeyRing, Keys

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

REPLACED = "PRIVACY_BUDGET_ERROR"
REPLACED_MESSAGE = (
    "the budget table is not the one on which the keys were issued: issue new keys, see the operator's guide"
)
NO_KEYS_MESSAGE = "the stack has no keys yet: wait five minutes, then create a new job"


def _new_epoch() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Epoch:
    """The epoch of a deployment.

    Attributes:
        client: a DynamoDB client.
        ring: the key ring.
        budgets: the budgets.
    """

    client: "DynamoDBClient"
    ring: KeyRing
    budgets: Budgets

    def table_id(self) -> str:
        """The id of table Budgets as it is now."""
        return table_ids(self.client, {"Budgets": self.budgets.table})["Budgets"]

    def is_of(self, keys: Keys) -> bool:
        """Whether these keys were issued for table Budgets as it is now."""
        return keys.table_id == self.table_id() and keys.epoch == self.budgets.epoch()

    def begin(self) -> None:
        """Write the first ring of a deployment, unless another worker was first.

        A table with an epoch keeps it. The ring of that epoch was lost, and with it all its keys, so their reports
        cannot be charged again.
        """
        table_id, found = self.table_id(), self.budgets.epoch()
        epoch = _new_epoch() if found is None else found
        of_table = self.budgets.begin(epoch) if found is None else self.budgets.same_epoch(epoch)
        all_or_none(self.client, [of_table, self.ring.changing(None, Keys(epoch, table_id))])

    def renew(self, seen: Keys) -> bool:
        """Begin a new epoch on the table as it is now: every key has ended, and none is published.

        Returns:
            Whether the new epoch began; False if the ring or the table has changed since it was read.
        """
        table_id, found = self.table_id(), self.budgets.epoch()
        epoch = _new_epoch()
        to = Keys(epoch, table_id, seen.all_ended().keys)
        return all_or_none(self.client, [self.budgets.begin(epoch, found), self.ring.changing(seen, to)]) is None

    def in_force(self) -> Keys:
        """The ring, after a comparison with table Budgets as it is now.

        Raises:
            JobError: there is no ring yet, or the table was replaced.
        """
        keys = self.ring.read()
        if keys is None:
            raise JobError("INTERNAL_ERROR", NO_KEYS_MESSAGE)
        if not self.is_of(keys):
            raise JobError(REPLACED, REPLACED_MESSAGE)
        return keys
