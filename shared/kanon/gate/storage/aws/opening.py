"""Whether the rows of all accounts of a stack are there, so that accounts may enrol.

The item ``credentials`` of Control names the table of accounts by its id, which no other table has: a table that was
made again, or from a backup, lacks rows, so nobody enrols until an operator says so. Nobody enrols then either, until
no join of a row that may be missing counts.
"""

from kanon.dynamo.tables import KeyedTable, bound, described, ids_of, restored
from kanon.errors import ConfigurationError

ITEM = "credentials"
NAMED_BY = "accounts"
"""The fingerprint of the issuer that says who gives accounts their names."""


class Opening(KeyedTable):
    """When accounts may enrol. Reads and writes one item of Control."""

    key_name = "name"
    key_type = "S"

    def closed_until(self, accounts: str) -> float:
        """The Unix time before which nobody enrols. The first call records the table of accounts, given by its name.

        Raises:
            ConfigurationError: the table is not the one that was recorded, or was made from a backup.
        """
        known = self.recorded(accounts)
        if known is None:
            own = ids_of(described(self._client, {accounts: accounts}))[accounts]
            self._update(ITEM, "SET accounts = :own", "attribute_not_exists(accounts)", bound(own=own))
            known = self.recorded(accounts)
        return known or 0.0

    def recorded(self, accounts: str) -> float | None:
        """As :meth:`closed_until`, but None if no table is recorded: this writes nothing."""
        item, tables = self._item(ITEM), described(self._client, {accounts: accounts})
        if not item and not restored(tables):
            return None
        if not item or item["accounts"]["S"] != ids_of(tables)[accounts]:
            raise ConfigurationError(
                "the table of accounts was made again or from a backup: one person could enrol twice. Run"
                " `kanon operate new-accounts`: then nobody can enrol until no earlier join counts"
            )
        return float(item["closed_until"]["N"]) if "closed_until" in item else 0.0

    def begin_again(self, accounts: str, until: int) -> None:
        """Take the table of accounts as it is, and let nobody enrol before a Unix time. For an operator's command."""
        own = ids_of(described(self._client, {accounts: accounts}))[accounts]
        self._set(ITEM, "SET accounts = :own, closed_until = :until", own=own, until=until)
