"""A single join on one machine relative to a bare insert that is as durable, by the clock: both wait for the disk.

The design (segments.md) asks for at most 1.5. A join adds two HMACs; of joins that arrive at one time, one
stores all that wait, with one wait for the disk.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import Comparison, Form, Side, Took, Turn
from bench.stack import fledge
from kanon.disk import connect
from kanon.gate.joining import Join, Joining
from kanon.gate.storage.disk.log import SCHEMA, DiskLog, entry_of
from kanon.keys import Secret

PERIOD, NOW = 3600, 1_800_000_000.0
INSIDE, AGAINST = "names, token, the log", "INSERT of the same bytes into the same table of SQLite, committed alone"


def rows(form: Form) -> Iterator[Comparison]:
    """Of one client after the other, and of eight at a time."""
    turns = form.size(25, 1)
    for clients in (1, 8):
        arguments = (clients, form.size(400, 16))
        name = f"a single join on disk, {clients} at a time"
        yield Comparison(name, INSIDE, AGAINST, "join", Side(joins, arguments), Side(inserts, arguments), turns, 1.5)


@contextmanager
def joins(clients: int, count: int) -> Iterator[Callable[[], Turn]]:
    """Joins of new sets; a client sends the next one when the one before is acknowledged."""
    pepper, client_key = (Secret.derived(name, "a benchmark") for name in ("pepper", "client"))
    with TemporaryDirectory() as directory:
        log = DiskLog(Path(directory) / "log", {"fledge": 1}, None)
        joining = Joining({"fledge": fledge()}, pepper, client_key, log, PERIOD, PERIOD)
        with _turns(clients, count, lambda n: joining.join(Join("fledge", b"%d" % n, "client", b"me"), NOW)) as turn:
            yield turn
        log.stop()


@contextmanager
def inserts(clients: int, count: int) -> Iterator[Callable[[], Turn]]:
    """Inserts with the same settings; a client sends the next one when the one before is committed."""
    with TemporaryDirectory() as directory:
        database = connect(Path(directory) / "joins.db")  # for all threads; it does one statement after the other
        database.execute(SCHEMA)

        def insert(number: int) -> None:
            key = sha256(b"%d" % number).digest()
            database.execute("INSERT OR IGNORE INTO joins VALUES (?)", (entry_of(key, 1, 1),))

        with _turns(clients, count, insert) as turn:
            yield turn
        database.close()


@contextmanager
def _turns(clients: int, count: int, do: Callable[[int], None]) -> Iterator[Callable[[], Turn]]:
    """Turns of ``count`` units, which the clients share; none is done twice."""
    numbers = itertools.count()
    with ThreadPoolExecutor(clients) as pool:

        def client(units: int) -> None:
            for _ in range(units):
                do(next(numbers))

        def work() -> Took:
            began = time.monotonic()
            list(pool.map(client, [count // clients] * clients))
            return Took(time.monotonic() - began)

        yield lambda: Turn(count, work)
