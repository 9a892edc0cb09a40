"""Workers that run at once, in simulated time, on a DynamoDB that cancels overlapping transactions. No engine does.

A transaction occupies each of its items while it runs, also those that it only checks. Any other transaction or write
that names one of them meanwhile is refused. Source: Amazon DynamoDB Developer Guide, "Transaction conflict handling".
The conditions of writes are not looked at: they all hold.

One thread runs at a time, and durations come from a seed: each run is the same.
"""

import heapq
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Never

from botocore.exceptions import ClientError

SECONDS_A_CALL = 0.005
SECONDS_A_TRANSACTION = 0.01, 0.04
KEYS = ("row", "part", "job")
"""The key attributes of the tables of reports."""


class Contention:
    """A DynamoDB client in simulated time.

    Attributes:
        now: seconds.
        written: how many transactions were written.
        cancelled: how often each item was occupied.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.written = 0
        self.cancelled: Counter[Any] = Counter()
        self._random = random.Random(1)
        self._busy: set[Any] = set()
        self._waiting: list[tuple[float, int, threading.Semaphore]] = []
        self._numbers = itertools.count()
        self._stopped = threading.Semaphore(0)

    def run(self, workers: Sequence[Callable[[], None]]) -> None:
        """Run all workers to their end."""
        errors: list[BaseException] = []

        def begin(work: Callable[[], None]) -> None:
            try:
                self.sleep(0)
                work()
            except BaseException as error:
                errors.append(error)
            finally:
                self._stopped.release()

        for work in workers:
            threading.Thread(target=begin, args=(work,), daemon=True).start()
            self._stopped.acquire()
        while self._waiting and not errors:
            self.now, _, turn = heapq.heappop(self._waiting)
            turn.release()
            self._stopped.acquire()
        if errors:
            raise errors[0]

    def sleep(self, seconds: float) -> None:
        """Let others run for so long."""
        turn = threading.Semaphore(0)
        heapq.heappush(self._waiting, (self.now + seconds, next(self._numbers), turn))
        self._stopped.release()
        turn.acquire()

    # As the client names them.

    def transact_write_items(self, TransactItems: Sequence[Any]) -> dict[str, Any]:  # noqa: N803
        named = [_key(write) for one in TransactItems for write in one.values()]
        met = [key in self._busy for key in named]
        if any(met):
            self.cancelled.update(key for key, busy in zip(named, met, strict=True) if busy)
            reasons = [{"Code": "TransactionConflict" if busy else "None"} for busy in met]
            _refuse("TransactionCanceledException", CancellationReasons=reasons)
        self._busy.update(named)
        self.sleep(self._random.uniform(*SECONDS_A_TRANSACTION))
        self._busy.difference_update(named)
        self.written += 1
        return {}

    def put_item(self, **write: Any) -> dict[str, Any]:
        self.sleep(SECONDS_A_CALL)
        if _key(write) in self._busy:
            _refuse("TransactionConflictException")
        return {}


def _key(write: dict[str, Any]) -> tuple[str, ...]:
    item = write.get("Key") or write["Item"]
    return write["TableName"], *(str(item[name]) for name in KEYS if name in item)


def _refuse(code: str, **more: Any) -> Never:
    raise ClientError({"Error": {"Code": code, "Message": "an item is in another transaction"}, **more}, "a write")  # type: ignore[typeddict-item]
