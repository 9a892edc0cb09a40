"""The accounts of a directory in a file of their own."""

from pathlib import Path

from kanon.counted import Counted, counting_all
from kanon.credentials.enrolling import AccountRow
from kanon.disk import transaction

SCHEMA = """
PRAGMA secure_delete = ON;
CREATE TABLE IF NOT EXISTS accounts (
    account BLOB PRIMARY KEY, commitment BLOB NOT NULL, last_week INTEGER NOT NULL, deleted INTEGER NOT NULL,
    recovery BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_week ON accounts (last_week);
"""


class AccountsFile(Counted):
    """The accounts of a directory; see :class:`kanon.credentials.enrolling.Accounts`. A free row is deleted."""

    OLDER = "a person could enrol twice", "nobody enrols until no earlier join counts"

    def __init__(self, path: Path) -> None:
        super().__init__(path, SCHEMA + counting_all("accounts"))

    def record(self, account: bytes, row: AccountRow, free_through: int) -> None:
        """Put a row, unless the account has another commitment, was deleted, or has a later row."""
        with transaction(self.database):
            self.database.execute("DELETE FROM accounts WHERE last_week <= ?", (free_through,))
            self.database.execute(
                "INSERT INTO accounts VALUES (?, ?, ?, 0, ?) ON CONFLICT (account) DO UPDATE"
                " SET last_week = excluded.last_week,"
                " recovery = CASE excluded.recovery WHEN x'' THEN recovery ELSE excluded.recovery END"
                " WHERE commitment = excluded.commitment AND NOT deleted AND last_week <= excluded.last_week",
                (account, row.commitment, row.last_week, row.recovery),
            )
        self.remember()

    def read(self, account: bytes) -> AccountRow | None:
        """The row of an account."""
        found = self.database.execute(
            "SELECT commitment, last_week, deleted, recovery FROM accounts WHERE account = ?", (account,)
        ).fetchone()
        return None if found is None else AccountRow(found[0], found[1], bool(found[2]), found[3])

    def delete(self, account: bytes) -> None:
        """Mark the row of an account as deleted."""
        self.database.execute("UPDATE accounts SET deleted = 1, recovery = x'' WHERE account = ?", (account,))
        self.remember()
