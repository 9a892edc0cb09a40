"""Every interleaving of a few requests of one account: no two m1 of it ever count in one window.

Requests run over the real file of accounts, in two steps: record, then read and let the credential leave. Between them
others run, processes stop, the account is deleted, and days pass. A credential that has left is used at once, and for
the last time when its week and the day after it end. A join counts for a window.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kanon.clock import AFTER, BEFORE, DAY, MONDAY, WEEK, end_of_week, week_of
from kanon.credentials import enrolling
from kanon.credentials.enrolling import AccountRow, covers
from kanon.gate.storage.disk.accounts import AccountsFile

ACCOUNT = b"account"
WINDOW = 3 * DAY
START = MONDAY + 2000 * WEEK
DAYS = range(0, 31, 2)
REQUESTS = 3
PEOPLE = (b"m1", b"another m1")


class InMemory(AccountsFile):
    """Nothing of it outlives the process, so nobody can put an older one in its place."""

    def remember(self) -> None:
        """Nothing."""


class Waiting(NamedTuple):
    """A request that has recorded its row, and has not read it yet."""

    commitment: bytes
    week: int


class Use(NamedTuple):
    """The credential of one m1 and week: when it first leaves, and when it ends."""

    commitment: bytes
    first: int
    last: int


class State(NamedTuple):
    """The row of the account, and what has happened."""

    day: int
    row: AccountRow | None
    asked: int
    waiting: tuple[Waiting, ...]
    uses: tuple[Use, ...]
    deletions: int


class Violation(NamedTuple):
    one: Use
    other: Use


class World:
    """The file of accounts, as a function from rows to rows."""

    def __init__(self) -> None:
        self.file = InMemory(Path(":memory:"))

    def put(self, row: AccountRow | None) -> None:
        self.file.database.execute("DELETE FROM accounts")
        if row is not None:
            values = (ACCOUNT, row.commitment, row.last_week, row.deleted, row.recovery)
            self.file.database.execute("INSERT INTO accounts VALUES (?, ?, ?, ?, ?)", values)

    def recorded(self, row: AccountRow | None, asked: AccountRow, now: int) -> AccountRow | None:
        self.put(row)
        self.file.record(ACCOUNT, asked, enrolling.free_through(now, WINDOW))
        return self.file.read(ACCOUNT)

    def deleted(self, row: AccountRow | None) -> AccountRow | None:
        self.put(row)
        self.file.delete(ACCOUNT)
        return self.file.read(ACCOUNT)

    def leaves(self, row: AccountRow | None, asked: AccountRow) -> bool:
        return covers(row, asked)

    def next(self, state: State) -> Iterator[State]:
        now = START + state.day * DAY
        later = next((day for day in DAYS if day > state.day), None)
        if later is not None:
            yield state._replace(day=later)
        if state.row is not None and state.deletions < 1:
            yield state._replace(row=self.deleted(state.row), deletions=state.deletions + 1)
        if state.asked < REQUESTS:
            for commitment in PEOPLE:
                asked = AccountRow(commitment, week_of(now), deleted=False, recovery=b"")
                row = self.recorded(state.row, asked, now)
                waiting = tuple(sorted((*state.waiting, Waiting(commitment, asked.last_week))))
                yield state._replace(row=row, asked=state.asked + 1, waiting=waiting)
        for place, each in enumerate(state.waiting):
            others = (*state.waiting[:place], *state.waiting[place + 1 :])
            yield state._replace(waiting=others)  # its process stopped
            if self.leaves(state.row, AccountRow(each.commitment, each.week, deleted=False, recovery=b"")):
                yield state._replace(waiting=others, uses=_used(state.uses, each, now))

    def explore(self) -> tuple[int, Violation | None]:
        """The number of states, and the first one in which two m1 count in one window."""
        first = State(0, None, 0, (), (), 0)
        seen, open_ = {first}, [first]
        while open_:
            state = open_.pop()
            if found := _violation(state.uses):
                return len(seen), found
            for new in self.next(state):
                if new not in seen:
                    seen.add(new)
                    open_.append(new)
        return len(seen), None


def _used(uses: tuple[Use, ...], each: Waiting, now: int) -> tuple[Use, ...]:
    """A credential that leaves when its week is over is of no use any more."""
    last = end_of_week(each.week) + AFTER
    first = max(now, end_of_week(each.week - 1) - BEFORE)
    if first >= last:
        return uses
    if any((use.commitment, use.last) == (each.commitment, last) for use in uses):
        return uses  # it has left before
    return tuple(sorted((*uses, Use(each.commitment, first, last))))


def _violation(uses: tuple[Use, ...]) -> Violation | None:
    """Two credentials of two m1 of which some window has joins of both."""
    for one in uses:
        for other in uses:
            if one.commitment < other.commitment and max(one.first, other.first) < min(one.last, other.last) + WINDOW:
                return Violation(one, other)
    return None


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.file.close()


def test_no_account_has_two_m1_in_one_window(world: World) -> None:
    states, violation = world.explore()
    assert violation is None
    assert states > 10_000


def test_an_account_gets_another_m1_in_time(world: World) -> None:
    """Otherwise the model shows nothing."""
    now = END + AFTER + WINDOW + enrolling.LATE
    first = AccountRow(PEOPLE[0], week_of(START), deleted=False, recovery=b"blob")
    other = AccountRow(PEOPLE[1], week_of(now), deleted=False, recovery=b"")
    for deleted in (False, True):
        row = first._replace(deleted=deleted)
        assert world.recorded(row, other, now - 1) == row
        assert world.recorded(row, other, now) == other


END = end_of_week(week_of(START))


def _forget_after(now: float, longest: int) -> int:
    return week_of(now - longest) - 1


def _forget_window(now: float, longest: int) -> int:
    del longest
    return week_of(now - AFTER) - 1


def _forget_row(now: float, longest: int) -> int:
    return week_of(now - AFTER - longest)


@pytest.mark.parametrize("planted", [_forget_after, _forget_window, _forget_row])
def test_a_row_that_is_free_too_early_is_found(world: World, monkeypatch: pytest.MonkeyPatch, planted: Any) -> None:
    monkeypatch.setattr(enrolling, "free_through", planted)
    assert world.explore()[1] is not None


class WithoutReading(World):
    """Lets the credential of the request leave, whatever is recorded."""

    def leaves(self, row: AccountRow | None, asked: AccountRow) -> bool:
        return True


class WithoutTombstones(World):
    """Removes the row of a deleted account."""

    def deleted(self, row: AccountRow | None) -> AccountRow | None:
        return None


class WithoutWeeks(World):
    """Does not record that a later week was signed."""

    def recorded(self, row: AccountRow | None, asked: AccountRow, now: int) -> AccountRow | None:
        new = super().recorded(row, asked, now)
        same = row is not None and new is not None and row.commitment == new.commitment
        return row if same else new

    def leaves(self, row: AccountRow | None, asked: AccountRow) -> bool:
        return row is not None and row.commitment == asked.commitment


class WithoutConditions(World):
    """Records whatever comes last, and reads it before."""

    def recorded(self, row: AccountRow | None, asked: AccountRow, now: int) -> AccountRow | None:
        return asked


@pytest.mark.parametrize("planted", [WithoutReading, WithoutTombstones, WithoutWeeks, WithoutConditions])
def test_each_planted_mistake_of_the_protocol_is_found(planted: type[World]) -> None:
    made = planted()
    try:
        assert made.explore()[1] is not None
    finally:
        made.file.close()
