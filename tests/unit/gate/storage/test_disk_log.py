"""The log on disk: joins that arrive while others are written are stored together, and none waits for ever."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kanon.errors import ThrottledError
from kanon.gate.storage.aws.step_log import Row
from kanon.gate.storage.disk import log as log_module
from kanon.gate.storage.disk.log import DiskLog
from tests.unit.examples import set_key

STEP, CLIENTS = 7, 6


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DiskLog]:
    log = DiskLog(tmp_path / "log", {"fledge": 1}, None)
    yield log
    log.stop()


def row(token: int, type_name: str = "fledge") -> Row:
    return Row(STEP, set_key(1), token, type_name, 0)


class Gate:
    """Lets the first write wait until the joins of all other clients are queued."""

    def __init__(self, log: DiskLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes: list[int] = []
        self.began, self.queued = threading.Event(), threading.Semaphore(0)
        insert, queue = log._insert, log._queued

        def inserted(step: int, entries: Any, sealed: Any) -> None:
            rows = list(entries)
            self.writes.append(len(rows))
            if len(self.writes) == 1:
                self.began.set()
                for _ in range(CLIENTS):
                    assert self.queued.acquire(timeout=30)
            insert(step, rows, sealed)

        def queued(rows: Any) -> Any:
            group = queue(rows)
            if self.began.is_set():
                self.queued.release()
            return group

        monkeypatch.setattr(log, "_insert", inserted)
        monkeypatch.setattr(log, "_queued", queued)

    def put(self, log: DiskLog, first: Row, others: list[Row]) -> list[Any]:
        """The results of all; the first one writes while the others come."""
        with ThreadPoolExecutor(1 + CLIENTS) as pool:
            results = [pool.submit(log.put_groups, [[first]])]
            assert self.began.wait(30)
            results += [pool.submit(log.put_groups, [[other]]) for other in others]
            return [result.exception() or result.result() for result in results]


def test_joins_that_wait_are_stored_in_one_transaction(log: DiskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(log, monkeypatch)
    assert gate.put(log, row(0), [row(1 + n) for n in range(CLIENTS)]) == [[True]] * (1 + CLIENTS)
    assert gate.writes == [1, CLIENTS]
    assert log.count(STEP) == 1 + CLIENTS


def test_an_error_of_one_join_leaves_no_other_waiting(log: DiskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Gate(log, monkeypatch).put(log, row(0), [row(1 + n, "fledge" if n else "no") for n in range(CLIENTS)])
    assert results[0] == [True]
    assert [result for result in results[1:] if isinstance(result, KeyError)]
    assert [result for result in results[1:] if not isinstance(result, KeyError)] == [[False]] * (CLIENTS - 1)
    log.put(row(9))
    assert log.count(STEP) == 2


def test_more_joins_than_may_wait_are_refused(log: DiskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MOST_WAITING", 2)
    assert log.put_groups([[row(1)], [row(2), row(3)], [row(4)]]) == [True, False, True]
    assert log.put_groups([[row(5)], [row(6)]]) == [True, True]
    assert log.count(STEP) == 4


def test_a_log_that_has_stopped_stores_nothing(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "log", {"fledge": 1}, None)
    log.put(row(1))
    log.stop()
    with pytest.raises(ThrottledError):
        log.put(row(2))
    assert log.count(STEP) == 1
