"""The accounts of a directory and of a stack obey one contract: what a request changes, and what it then reads.

The model of all interleavings (tests/proofs/credentials) runs over the file. It holds for the table, because each call
of both turns every row into the same one, and because what runs between the two writes of a request in the table could
have run before or after it.
"""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kanon.credentials.enrolling import AccountRow
from kanon.errors import ConfigurationError
from kanon.gate.storage.aws import accounts as aws_accounts
from kanon.gate.storage.aws.accounts import Accounts
from kanon.gate.storage.aws.opening import Opening
from kanon.gate.storage.disk.accounts import AccountsFile
from tests.moto_engine import Moto
from tests.table_ids import give_ids

ACCOUNT, OTHER = b"\x01" * 32, b"\x02" * 32
ONE, TWO = b"\x02" + b"1" * 32, b"\x03" + b"2" * 32
KEYS = {"accounts": ("account", "B"), "control": ("name", "S")}
STATES = product((1, 2), (False, True), (b"", b"old"))
ROWS: list[AccountRow | None] = [None, *(AccountRow(ONE, week, deleted, blob) for week, deleted, blob in STATES)]
ASKED = [AccountRow(who, week, False, blob) for who, week, blob in product((ONE, TWO), (1, 2), (b"", b"new"))]  # noqa: FBT003
FREE = (0, 1, 2)
CALLS = list(product(ROWS, ASKED, FREE))
Call = Callable[[Any], None]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """DynamoDB on an emulator. Stacks join over the other one, too (test_on_aws.py)."""
    engine = Moto()
    engine.start()
    made = engine.session().client("dynamodb")
    for table in KEYS:
        create(made, table)
    yield made
    engine.stop()


def create(client: Any, table: str) -> None:
    name, kind = KEYS["control" if table == "control" else "accounts"]
    client.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": name, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind}],
        BillingMode="PAY_PER_REQUEST",
    )


@pytest.fixture
def file(tmp_path: Path) -> Iterator[AccountsFile]:
    made = AccountsFile(tmp_path / "accounts.db")
    yield made
    made.close()


def in_file(file: AccountsFile, row: AccountRow | None) -> AccountsFile:
    file.database.execute("DELETE FROM accounts")
    if row is not None:
        file.database.execute("INSERT INTO accounts VALUES (?, ?, ?, ?, ?)", (ACCOUNT, *row))
    return file


def in_table(client: Any, row: AccountRow | None) -> Accounts:
    client.delete_item(TableName="accounts", Key={"account": {"B": ACCOUNT}})
    if row is not None:
        client.put_item(TableName="accounts", Item=aws_accounts._item(ACCOUNT, row))
    return Accounts(client, "accounts")


def unlike(client: Any, file: AccountsFile, calls: list[tuple[AccountRow | None, AccountRow, int]]) -> Iterator[Any]:
    """The calls after which table and file differ, and None for each after which the row is another one."""
    for row, asked, free in calls:
        here, there = in_file(file, row), in_table(client, row)
        here.record(ACCOUNT, asked, free)
        there.record(ACCOUNT, asked, free)
        left = here.read(ACCOUNT)
        if there.read(ACCOUNT) != left:
            yield row, asked, free
        elif left != row:
            yield None


def test_every_call_changes_every_row_as_in_a_directory(client: Any, file: AccountsFile) -> None:
    found = list(unlike(client, file, CALLS))
    assert [one for one in found if one] == []
    assert len(found) > len(CALLS) // 4  # otherwise this shows nothing
    for row in ROWS:
        here, there = in_file(file, row), in_table(client, row)
        here.delete(ACCOUNT)
        there.delete(ACCOUNT)
        assert there.read(ACCOUNT) == here.read(ACCOUNT)
        assert there.read(OTHER) is None


BETWEEN: dict[str, Call] = {
    "another request of the person": lambda table: table.record(
        ACCOUNT, AccountRow(ONE, 3, deleted=False, recovery=b"b"), 0
    ),
    "a request of another m1": lambda table: table.record(ACCOUNT, AccountRow(TWO, 3, deleted=False, recovery=b"b"), 2),
    "a deletion": lambda table: table.delete(ACCOUNT),
    "forgetting": lambda table: table.forget(2, lambda: True),
}


class Interrupted(Accounts):
    """Lets something run between the two writes of a request."""

    between: Call

    def _update(self, *given: Any, **more: Any) -> Any:
        between, self.between = self.between, lambda _: None
        between(Accounts(self._client, self._table))
        return super()._update(*given, **more)


def outcomes(
    client: Any, row: AccountRow | None, asked: AccountRow, free: int, between: Call
) -> list[AccountRow | None]:
    """What is left if something runs before the request, and if it runs after it."""
    found = []
    for before in (True, False):
        table = in_table(client, row)
        steps: list[Call] = [between, lambda table: table.record(ACCOUNT, asked, free)]
        for step in steps if before else reversed(steps):
            step(table)
        found.append(table.read(ACCOUNT))
    return found


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_what_runs_between_two_writes_could_have_run_before_or_after(client: Any, between: Call) -> None:
    tried = 0
    for row, asked, free in product(ROWS, (ASKED[3], ASKED[6]), (0, 2)):
        in_table(client, row)
        table = Interrupted(client, "accounts")
        table.between = between
        table.record(ACCOUNT, asked, free)
        if table.between is not between:  # the first write was not enough
            tried += 1
            left = table.read(ACCOUNT)
            assert left in outcomes(client, row, asked, free, between), (row, asked, free)
    assert tried > len(ROWS)


@pytest.mark.parametrize(
    ("name", "weaker"),
    [
        ("IF_SAME", "last_week <= :week AND :commitment = :commitment AND :no = :no"),
        ("IF_SAME", "commitment = :commitment AND last_week <= :week AND :no = :no"),
        ("IF_SAME", "commitment = :commitment AND deleted = :no AND :week = :week"),
        ("IF_FREE", "attribute_not_exists(account) AND :free = :free"),
        ("IF_FREE", "attribute_not_exists(account) OR last_week < :free"),
    ],
)
def test_each_planted_condition_is_found(
    client: Any, file: AccountsFile, monkeypatch: pytest.MonkeyPatch, name: str, weaker: str
) -> None:
    monkeypatch.setattr(aws_accounts, name, weaker)
    assert any(unlike(client, file, CALLS))


def test_free_rows_are_forgotten_and_others_stay(client: Any) -> None:
    table = in_table(client, None)
    for number in range(30):
        table.record(bytes([number]) * 32, AccountRow(ONE, number % 3, deleted=False, recovery=b"blob"), -1)
    table.forget(1, iter([True, True, False]).__next__)  # no time for the third one
    assert sum(table.read(bytes([number]) * 32) is None for number in range(30)) == 2
    table.forget(1, lambda: True)
    assert [number for number in range(30) if table.read(bytes([number]) * 32)] == list(range(2, 30, 3))


def test_a_row_that_is_renewed_while_others_are_forgotten_stays(client: Any) -> None:
    table = in_table(client, AccountRow(ONE, 1, deleted=False, recovery=b""))

    def renewed() -> bool:
        table.record(ACCOUNT, AccountRow(ONE, 5, deleted=False, recovery=b""), 0)
        return True

    table.forget(1, renewed)
    assert table.read(ACCOUNT) == AccountRow(ONE, 5, deleted=False, recovery=b"")


@pytest.fixture
def opening(client: Any, monkeypatch: pytest.MonkeyPatch) -> Opening:
    give_ids(monkeypatch)
    client.delete_item(TableName="control", Key={"name": {"S": "credentials"}})
    return Opening(client, "control")


def test_a_table_of_accounts_in_the_place_of_another_one_is_noticed(client: Any, opening: Opening) -> None:
    assert opening.recorded("accounts") is None
    assert opening.closed_until("accounts") == 0
    assert opening.recorded("accounts") == 0
    client.delete_table(TableName="accounts")
    create(client, "accounts")  # as after a restore under the old name, or a stack that was switched off and on
    with pytest.raises(ConfigurationError, match=r"made again or from a backup.*kanon operate new-accounts"):
        opening.closed_until("accounts")
    opening.begin_again("accounts", 1_800_000_000)
    assert opening.closed_until("accounts") == 1_800_000_000


def test_a_first_table_that_was_made_from_a_backup_is_refused(
    client: Any, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = client.describe_table
    as_restored = {"RestoreSummary": {"RestoreInProgress": False}}
    monkeypatch.setattr(client, "describe_table", lambda **of: {"Table": own(**of)["Table"] | as_restored})
    with pytest.raises(ConfigurationError, match="from a backup"):
        opening.closed_until("accounts")
