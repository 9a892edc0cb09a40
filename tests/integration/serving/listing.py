"""A deployment with listed types on simulated time, and what its lists must be: what queries answer."""

import json
import random
from collections.abc import Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path

from kanon.gate.joining import Join
from kanon.serving.directory import Directory, Given, open_directory
from kanon.serving.lists import Lister
from tests.integration.serving.own_joins import LAWS, PERIOD

TYPES = {
    "grid": {"k": 4, "window": 6, "laws": LAWS, "listed": True},
    "crossing": {"k": 4, "window": 5, "laws": LAWS, "restart": "crossing", "hold": 5, "epoch": 40, "listed": True},
    "plain": {"k": 4, "window": 6, "laws": LAWS},
}
FIRST = 1_000_000  # a step
VALUES = ["a", "=1+1", "<img src=x onerror=alert(1)>", "\x1b[2J", "ünï", "x" * 512, "\u202egnp", ",\"'\n", "b", "c"]
LISTED = ("grid", "crossing")


def opened(path: Path, now: float, types: dict = TYPES, *, of: str = "listing") -> Directory:
    return open_directory(path, Given(PERIOD, json.dumps(types), partial(secret, of)), now)


def secret(of: str, name: str) -> str:
    """A secret of a deployment that is the same in every run, and so the noise."""
    return sha256(f"{of} {name}".encode()).hexdigest()


def set_of(value: str) -> bytes:
    return sha256(value.encode()).digest()


def closed(step: int) -> float:
    """When a step is closed."""
    return (step + 1) * PERIOD + 2


def visible(directory: Directory, step: int) -> float:
    """A moment at which a step is visible, if it was evaluated in time, and the next one is not."""
    return float(directory.segments.schedule.tick_of(step) + 1)


def joins_at(step: int) -> list[Join]:
    """Popular values come and go; many steps have no join at all."""
    rng = random.Random(step)
    if rng.random() < 0.3:
        return []
    return [
        Join(name, set_of(value), "client", str(rng.randrange(9)).encode(), value.encode() if name in LISTED else None)
        for name in TYPES
        for n, value in enumerate(VALUES)
        for _ in range(rng.choice((0, 0, 1, 2)))
        if (step // 7 + n) % 3
    ]


def join(directory: Directory, step: int) -> None:
    joins = joins_at(step)
    assert directory.joining.join_all(joins, step * PERIOD + 7) == [True] * len(joins)


def go_on(lister: Lister, steps: Iterable[int]) -> None:
    """Join, evaluate and publish in each of these steps."""
    for step in steps:
        join(lister.directory, step)
        lister.directory.evaluate(closed(step))
        lister.publish(visible(lister.directory, step))


def answers(directory: Directory, name: str, now: float) -> tuple[int | None, set[str]]:
    """The step of the answers at ``now``, and the values that they call shared."""
    found = directory.querying.query([(name, set_of(value)) for value in VALUES], now)
    return found.step, {value for value, above in zip(VALUES, found.above, strict=True) if above}


def values(lister: Lister, name: str) -> set[str]:
    """The values of the newest list."""
    found = lister.file.newest(name)
    assert found is not None
    rows = lister.file.page(name, found, b"", 1000)
    assert rows is not None
    assert found.values == len(rows)
    assert [sha for sha, _ in rows] == sorted(set_of(listed.value) for _, listed in rows)
    return {listed.value for _, listed in rows}
