"""Sends from a thread of its own, so that the program never waits for the service."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from kanon.client import waiting
from kanon.client.answers import Join
from kanon.client.calls import JOINS_A_CALL
from kanon.client.client import Client
from kanon.client.errors import (
    ApiError,
    KeyChangedError,
    NoAnswerError,
    PartlyRefusedError,
    RefusedError,
    UnknownTypeError,
)
from kanon.client.values import SetId, Value, bucket_of, value_id

if TYPE_CHECKING:
    from kanon.reports.clients.encrypt import Outgoing

OTHER = "other"
"""What stands for a value that is not known to be shared."""
CAPACITY = 10_000
STEP = 3600.0
AT_EXIT = 5.0
LAST_PAUSE = 0.5
LATE = 1.0
"""Seconds after its time at which a join that waits for a random time is not sent any more, but at another time."""
MOST_IN_A_ROW = 2
"""Attempts that fail in a row before the others wait: one alone may be at fault itself."""
TOLD_EVERY = 60.0
"""Seconds between two reports of what was dropped: a typo in a type must not fill a log."""

DropReason = Literal["full", "closed", "late", "refused", "unknown type", "failed", "exit"]
"""Why something was dropped: the queue was full, or closed; it could not be sent in time; the service refused it; it
has no such type; the client refused it, or an auth function raised; the queue was closed while it waited, as at the end
of the program."""
Dropped = Callable[[DropReason, int], None]

_LOG = logging.getLogger("kanon.client")


def log_dropped(reason: DropReason, count: int) -> None:
    """Write a warning that names no value."""
    _LOG.warning("%d dropped: %s", count, reason)


@dataclass(eq=False)
class _Item:
    """A join, a question, or a contribution, which is encrypted at its first attempt and keeps its bytes.

    It is sent at ``due`` at the earliest, and for ``keep`` seconds from ``since``. One that ``waits`` is prepared then,
    and sent at a random time later.
    """

    since: float
    due: float
    waits: bool = False
    join: Join | None = None
    question: tuple[str, SetId] | None = None
    contribution: tuple[Value, int] | None = None
    sealed: Outgoing | None = None


@dataclass
class _Failed:
    """What has to be tried again, and when at the earliest."""

    items: list[_Item] = field(default_factory=list)
    retry_after: int | None = None
    in_a_row: int = 0


class Background:
    """Joins, questions and contributions that are sent later. No call waits, and none raises for a failed request.

    What cannot be sent is tried again with growing pauses, and dropped when it is older than ``keep``. At the end of
    the program it has ``at_exit`` seconds. A forked process begins with an empty queue, because its parent sends the
    rest; in a process of ``multiprocessing`` call ``close`` at its end.

    Through a relay, or with a credential, a burst of joins would show that they have one sender. So each is sent by
    itself, at a random time within ``spread``, and at another one after a failure. The end of the program drops those
    whose time has not come. Each question is sent by itself, at once.

    Args:
        client: a client; with ``auth`` and no relay joins are sent in batches.
        capacity: the most that waits; more is dropped.
        keep: seconds.
        dropped: called in the thread with a reason and a number, at most once a minute; without it a warning is logged.
        at_exit: seconds.
        spread: seconds; by default an hour for a client with a relay or a credential, and none for others.

    >>> with Client(service) as client, Background(client) as background:
    ...     background.join("fledge", "a shared value", "client-2")
    True
    >>> background.dropped.total()
    0
    """

    def __init__(
        self,
        client: Client,
        *,
        capacity: int = CAPACITY,
        keep: float = STEP,
        dropped: Dropped = log_dropped,
        at_exit: float = AT_EXIT,
        spread: float | None = None,
    ) -> None:
        self._spread = spread if spread is not None else STEP if client.hides else 0.0
        if capacity < 1 or not (keep >= 0 and at_exit >= 0 and self._spread >= 0):
            raise ValueError("capacity must be at least 1; keep, at_exit and spread are seconds: give 0 or more")
        self.client = client
        self.dropped: Counter[DropReason] = Counter()
        """How many were dropped, by reason."""
        self._capacity, self._keep, self._report, self._at_exit = capacity, keep, dropped, at_exit
        self.begin()
        _ALL.add(self)

    def begin(self) -> None:
        """Begin with an empty queue and without a thread, as in a forked process."""
        self._changed = threading.Condition()
        self._items: deque[_Item] = deque()
        self._asked: set[tuple[str, SetId]] = set()
        self._thread: threading.Thread | None = None
        self._closed, self._told = False, float("-inf")
        self._untold: Counter[DropReason] = Counter()
        self.dropped.clear()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Of the caller

    def join(self, type_: str, value: Value, client: str | int | None = None) -> bool:
        """Join the set of a value later, as one client or with the credential. False: it is dropped.

        Raises:
            ValueError: the value has no UTF-8, or there is neither a client nor a credential.
            TypeError: the value is neither text nor bytes.
        """
        if client is None and not self.client.hides:
            raise ValueError("give a client: only one with a credential joins without")
        value_id(value)  # raises for what is none; a listed type needs the value itself
        return self._put(_now(waits=self._spread > 0, join=Join(type_, value, client)))

    def ask(self, type_: str, value: Value) -> bool:
        """Let ``client.known`` know a value soon. False: it is dropped.

        Raises:
            ValueError: the value has no UTF-8.
            TypeError: the value is neither text nor bytes.
        """
        question = type_, value_id(value)
        return question in self._asked or self._put(_now(question=question))

    def shown(self, type_: str, text: str) -> str:
        """The text if its value is known to be shared, and ``other`` if not; then its question follows.

        It never waits and never raises: what is no text, or has no UTF-8, is ``other``.
        """
        try:
            known = self.client.known(type_, text)
            if known is None:
                self.ask(type_, text)
        except (ValueError, TypeError):
            return OTHER
        return text if known else OTHER

    def contribute(self, value: Value, amount: int) -> bool:
        """Add to the sum of a value later. False: it is dropped.

        Raises:
            ValueError: a value without UTF-8, or an amount that is not from 0 to 4294967295.
        """
        bucket_of(value)
        if not 0 <= amount < 2**32:
            raise ValueError("a value must be from 0 to 4294967295")
        self.client.check_reports()
        return self._put(_now(contribution=(value, amount)))

    def _put(self, item: _Item) -> bool:
        with self._changed:
            if self._closed or len(self._items) >= self._capacity:
                self._drop("closed" if self._closed else "full", 1)
                return False
            self._items.append(item)
            if item.question is not None:
                self._asked.add(item.question)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="kanon-client", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def flush(self, seconds: float) -> bool:
        """Wait until everything is sent or dropped, at most so long. Returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._items, seconds)

    def close(self, seconds: float | None = None) -> None:
        """Send what waits, for at most so many seconds, then drop the rest. Later calls drop what they are given."""
        end = time.monotonic() + (self._at_exit if seconds is None else seconds)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with self._changed:
            self._changed.wait_for(lambda: not self._due(), max(0.0, end - time.monotonic()))
            left = len(self._items)
            self._items.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, end - time.monotonic()))
        self._drop("exit", left)
        self._tell(0)

    # Of the thread

    def _work(self) -> None:
        failed = 0
        while some := self._next():
            again = self._send(some)
            kept = [item for item in again.items if time.monotonic() - item.since < self._keep]
            self._drop("late", len(again.items) - len(kept))
            self._finish(some, kept)
            self._tell(TOLD_EVERY)
            failed = failed + 1 if kept else 0
            if failed:
                self._pause(waiting.wait(failed, waiting.chance(), again.retry_after))

    def _next(self) -> list[_Item]:
        """The next items whose time has come; none when closed and there are none."""
        while True:
            with self._changed:
                self._draw_again()
                if (some := self._due()) or self._closed:
                    return some
                first = min((item.due for item in self._items), default=None)
                waits = [TOLD_EVERY] if self._untold else []
                waits += [] if first is None else [max(0.0, first - time.monotonic())]
                self._changed.wait(min(waits, default=None))
            self._tell(TOLD_EVERY)

    def _due(self) -> list[_Item]:
        now = time.monotonic()
        return list(islice((item for item in self._items if item.due <= now), JOINS_A_CALL))

    def _draw_again(self) -> None:
        """Give joins that could not be sent at their time another one, or drop them: a queue would be a burst."""
        now = time.monotonic()
        for item in list(self._items) if self._spread else ():
            if item.join is not None and not item.waits and item.due < now - LATE:
                item.due = self._drawn(now)
                if now - item.since >= self._keep:
                    self._items.remove(item)
                    self._drop("late", 1)

    def _drawn(self, now: float) -> float:
        """A time at which a join is sent."""
        return now + self._spread * waiting.chance()

    def _pause(self, seconds: float) -> None:
        """Wait, but not long at the end."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed, seconds if not self._closed else 0):
                return
            self._changed.wait_for(lambda: not self._items, min(seconds, LAST_PAUSE))

    def _finish(self, sent: Sequence[_Item], kept: Sequence[_Item]) -> None:
        """Take away what is sent or dropped."""
        with self._changed:
            if not self._items:  # closed meanwhile
                return
            done = {id(item) for item in sent} - {id(item) for item in kept}
            self._items = deque(item for item in self._items if id(item) not in done)
            self._asked -= {item.question for item in sent if item.question is not None}
            self._asked |= {item.question for item in kept if item.question is not None}
            self._changed.notify_all()

    def _send(self, some: Sequence[_Item]) -> _Failed:
        """Send items; returns those to send again."""
        joins: dict[str, list[_Item]] = defaultdict(list)
        questions: dict[str, list[_Item]] = defaultdict(list)
        contributions: list[list[_Item]] = []
        for item in some:
            if item.join is not None:
                joins[item.join.type].append(item)
            elif item.question is not None:
                questions[item.question[0]].append(item)
            else:
                contributions.append([item])
        failed = _Failed()
        for group in joins.values():
            for part in [group] if self._in_batches else _singly(group):
                self._attempt(part, self._prepare if part[0].waits else self._join, failed)
        for group in questions.values():
            for part in _singly(group) if self.client.hides else [group]:  # a query links the sets in it
                self._attempt(part, self._ask, failed)
        for one in contributions:
            self._attempt(one, self._contribute, failed)
        return failed

    def _attempt(self, items: Sequence[_Item], send: Callable[[Sequence[_Item]], None], failed: _Failed) -> None:
        if failed.in_a_row == MOST_IN_A_ROW:
            failed.items += items
            return
        before = len(failed.items)
        try:
            send(items)
        except PartlyRefusedError as error:
            for place, refused in error.refused.items():
                self._sort([items[place]], refused, failed)
        except Exception as error:  # noqa: BLE001, an auth function may raise anything, and the thread must go on
            self._sort(items, error, failed)
        failed.in_a_row = failed.in_a_row + 1 if len(failed.items) > before else 0

    def _sort(self, items: Sequence[_Item], error: Exception, failed: _Failed) -> None:
        """Keep what may succeed later, drop the rest."""
        if isinstance(error, NoAnswerError | KeyChangedError):
            failed.items += self._again(items, prepared=isinstance(error, NoAnswerError))
        elif isinstance(error, RefusedError) and error.code in waiting.REPEATED:
            failed.items += self._again(items, prepared=True)
            failed.retry_after = max(failed.retry_after or 0, error.retry_after or 0)
        elif isinstance(error, UnknownTypeError):
            self._drop("unknown type", len(items))
        else:
            self._drop("refused" if isinstance(error, ApiError) else "failed", len(items))

    @property
    def _in_batches(self) -> bool:
        return self.client.authenticated and not self.client.hides and not self._spread

    def _again(self, items: Sequence[_Item], *, prepared: bool) -> Sequence[_Item]:
        """Give joins another time. After a changed key all of them have to be prepared again."""
        with self._changed:
            for item in items:
                if self._spread and item.join is not None and not item.waits:
                    item.due = self._drawn(time.monotonic())
            for item in self._items if not prepared else ():
                item.waits = item.join is not None
        return items

    def _join(self, items: Sequence[_Item]) -> None:
        joins = [item.join for item in items if item.join is not None]
        if self._in_batches:
            self.client.join_many(joins)
        elif self._spread:
            self.client.join_prepared(*joins[0])
        else:
            self.client.join(*joins[0], delay=0)

    def _prepare(self, items: Sequence[_Item]) -> None:
        """Ask for what a join needs, and send it later, when nothing else is asked for."""
        join = items[0].join
        assert join is not None
        self.client.prepare(join.type)
        with self._changed:
            if self._items:  # not closed meanwhile
                due = self._drawn(time.monotonic())
                self._items.append(_Item(due, due, join=join))

    def _ask(self, items: Sequence[_Item]) -> None:
        questions = [item.question for item in items if item.question is not None]
        self.client.is_shared(questions[0][0], [id_ for _, id_ in questions])

    def _contribute(self, items: Sequence[_Item]) -> None:
        (item,) = items
        if item.sealed is None and item.contribution is not None:
            item.sealed, _ = self.client.seal(*item.contribution)
        assert item.sealed is not None
        self.client.send(item.sealed)

    def _drop(self, reason: DropReason, count: int) -> None:
        if count:
            with self._changed:
                self.dropped[reason] += count
                self._untold[reason] += count

    def _tell(self, every: float) -> None:
        """Report what was dropped, if the last report is so many seconds ago."""
        with self._changed:
            if not self._untold or time.monotonic() - self._told < every:
                return
            untold, self._untold, self._told = self._untold, Counter(), time.monotonic()
        for reason, count in untold.items():
            try:
                self._report(reason, count)
            except Exception as error:  # noqa: BLE001, the thread must go on
                _LOG.warning("the function for what is dropped raised %s", type(error).__name__)


def _now(**what: Any) -> _Item:
    now = time.monotonic()
    return _Item(now, now, **what)


def _singly(items: Sequence[_Item]) -> list[list[_Item]]:
    return [[item] for item in items]


_ALL: WeakSet[Background] = WeakSet()


def _each(do: Callable[[Background], None]) -> None:
    for one in list(_ALL):
        do(one)


atexit.register(_each, Background.close)
os.register_at_fork(after_in_child=partial(_each, Background.begin))
