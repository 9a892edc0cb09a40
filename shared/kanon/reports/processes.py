"""Maps the files of a local job, in this process or in several.

A process that maps files imports this module, and nothing of the other stages: its start costs a tenth of a second.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from kanon.reports.avro import read_reports
from kanon.reports.mapping import Mapped, Selection, map_reports
from kanon.reports.shared_info import Rules

if TYPE_CHECKING:
    from kanon.reports.storage.report_jobs import MapMessage, StageMessage

Mapper = Callable[["MapMessage", Sequence[Path], Rules, Selection, Collection[bytes]], Mapped | None]
"""Maps files, without the reports that have some ids. None if it has begun: call it again with the message."""
Each = Callable[
    [Callable[["MapMessage"], "list[StageMessage]"], Iterable["MapMessage"]], Iterable["list[StageMessage]"]
]
"""``map``, or what does the same with several processes."""


@contextmanager
def mapper_of(
    keys: Mapping[str, X25519PrivateKey], only: NDArray[np.bytes_] | None, processes: int
) -> Iterator[tuple[Mapper, Each]]:
    """A mapper that keeps the sums of some keys only (None for all), and a way to call it for many shards at once.

    The calling thread starts all processes: in another one Ctrl-C would not end the wait for one that
    dies as it starts.
    """
    if processes < 2:
        yield lambda _, *work: _map_files(*work, only=only), map
        return
    raw = {name: key.private_bytes_raw() for name, key in keys.items()}
    begun: dict[MapMessage, Future[Mapped]] = {}
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (raw, only)) as pool:

        def mapper(
            message: "MapMessage", paths: Sequence[Path], rules: Rules, selection: Selection, skip: Collection[bytes]
        ) -> Mapped | None:
            if message in begun:
                return begun.pop(message).result()
            begun[message] = pool.submit(_map_in_process, paths, replace(rules, keys={}), selection, skip)
            return None

        def each(
            run: Callable[["MapMessage"], "list[StageMessage]"], messages: Iterable["MapMessage"]
        ) -> Iterator["list[StageMessage]"]:
            ahead = deque["MapMessage"]()
            for message in messages:
                run(message)
                ahead.append(message)
                if len(ahead) > 2 * processes:
                    yield run(ahead.popleft())
            yield from map(run, ahead)

        try:
            yield mapper, each
        finally:
            pool.shutdown(cancel_futures=True)


_of_process: list[tuple[Mapping[str, X25519PrivateKey], NDArray[np.bytes_] | None]] = []
"""The keys and the declared keys of a worker process: it gets them once, and key objects do not pickle."""


def _begin(raw: Mapping[str, bytes], only: NDArray[np.bytes_] | None) -> None:
    keys = {name: X25519PrivateKey.from_private_bytes(key) for name, key in raw.items()}
    _of_process.append((keys, only))


def _map_in_process(paths: Sequence[Path], rules: Rules, selection: Selection, skip: Collection[bytes]) -> Mapped:
    keys, only = _of_process[0]
    return _map_files(paths, replace(rules, keys=keys), selection, skip, only=only)


def _map_files(
    paths: Sequence[Path],
    rules: Rules,
    selection: Selection,
    skip: Collection[bytes],
    *,
    only: NDArray[np.bytes_] | None,
) -> Mapped:
    return map_reports(chain.from_iterable(map(read_reports, paths)), rules, replace(selection, keys=only), skip)
