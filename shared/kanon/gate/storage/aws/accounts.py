"""The accounts of a stack in their table. Only the issuer deletes rows: how long one is needed depends on the types."""

from collections.abc import Callable

from kanon.credentials.enrolling import AccountRow
from kanon.dynamo.batches import Item
from kanon.dynamo.conditions import unless_refused
from kanon.dynamo.tables import KeyedTable, bound, item_of

IF_FREE = "attribute_not_exists(account) OR last_week <= :free"
IF_SAME = "commitment = :commitment AND deleted = :no AND last_week <= :week"


class Accounts(KeyedTable):
    """The rows of accounts; see :class:`kanon.credentials.enrolling.Accounts`.

    Two writes, each conditional: a new row, or a later week in one that is there. Of two requests that begin at once
    with two commitments, the second one changes nothing, and reads the commitment of the first one.
    """

    key_name = "account"
    key_type = "B"

    def record(self, account: bytes, row: AccountRow, free_through: int) -> None:
        """Put a row, unless the account has another commitment, was deleted, or has a later row."""
        put = unless_refused(
            self._client.put_item,
            TableName=self._table,
            Item=_item(account, row),
            ConditionExpression=IF_FREE,
            ExpressionAttributeValues=bound(free=free_through),
        )
        if put is not None:
            return
        values = bound(commitment=row.commitment, no=False, week=row.last_week)
        update = "SET last_week = :week"
        if row.recovery:
            update += ", recovery = :recovery"
            values |= bound(recovery=row.recovery)
        self._update(account, update, IF_SAME, values)

    def read(self, account: bytes) -> AccountRow | None:
        """The row of an account, strongly consistent."""
        item = self._item(account)
        return _row(item) if item else None

    def delete(self, account: bytes) -> None:
        """Mark the row of an account as deleted."""
        self._update(account, "SET deleted = :yes REMOVE recovery", "attribute_exists(account)", bound(yes=True))

    def forget(self, free_through: int, has_time: Callable[[], bool]) -> None:
        """Delete the free rows while there is time. A row that has got a later week meanwhile stays."""
        values = bound(free=free_through)
        condition = "last_week <= :free"
        for item in self._scan(
            FilterExpression=condition, ExpressionAttributeValues=values, ProjectionExpression=self.key_name
        ):
            if not has_time():
                return
            unless_refused(
                self._client.delete_item,
                TableName=self._table,
                Key=item,
                ConditionExpression=condition,
                ExpressionAttributeValues=values,
            )


def _item(account: bytes, row: AccountRow) -> Item:
    item = item_of(account=account, commitment=row.commitment, last_week=row.last_week, deleted=row.deleted)
    return item | item_of(recovery=row.recovery) if row.recovery else item


def _row(item: Item) -> AccountRow:
    recovery = item.get("recovery", {"B": b""})["B"]
    return AccountRow(
        bytes(item["commitment"]["B"]), int(item["last_week"]["N"]), item["deleted"]["BOOL"], bytes(recovery)
    )
