"""A deployment with listed types on simulated time, with real sealed values, and what its lists must be."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.gate.listing import Listing, ListOutcome
from kanon.gate.lists import ListEntry, ReadableList
from kanon.gate.mechanism.steps import end_of
from kanon.gate.names import set_key
from kanon.gate.publishing import clock_step
from kanon.gate.querying import Answer, Querying
from kanon.gate.sealing import seal
from kanon.gate.storage.aws.lists import ListObjects, ListTable, PublishedLists
from kanon.gate.storage.aws.step_log import Row
from kanon.gate.storage.aws.true_objects import read_listed
from kanon.keys import Secret
from tests.integration.gate.test_evaluation import PERIOD, TYPES, Scenario, closing

LISTED = {name: replace(type_, listed=name != "small") for name, type_ in TYPES.items()}
"""Two of the three types are listed."""
VALUES = ["a", "=1+1", "<img src=x onerror=alert(1)>", "\x1b[2J", "ünï", "x" * 512, "\u202egnp", ",\"'\n", "b", "c"]
PEPPER = Secret.derived("set-pepper", "of tests of lists")
KEY = X25519PrivateKey.from_private_bytes(Secret.derived("lister-key", "of tests of lists").key)


def set_of(value: str) -> bytes:
    return sha256(value.encode()).digest()


def key_of(name: str, value: str) -> bytes:
    return set_key(PEPPER, name, set_of(value))


@dataclass
class Published(Scenario):
    """A scenario whose joins carry sealed values, with a lister and with queries."""

    value_of: dict[bytes, str] = field(default_factory=dict)
    joined: set[tuple[int, str, str]] = field(default_factory=set)
    review: int = 0
    bucket: str = ""

    def __post_init__(self) -> None:
        self.types = dict(LISTED)
        super().__post_init__()
        self.bucket = f"{self.tables.bucket}-lists"
        self.tables.s3.create_bucket(Bucket=self.bucket)
        self.querying = Querying(
            self.types, PEPPER, self.tables.statuses, PERIOD, self.tables.layouts, self.schedule.publish_delay, None
        )
        self.s3, self.dynamodb = self.tables.s3, self.tables.client

    def join_values(self, type_name: str, value: str, tokens: Sequence[int], step: int) -> None:
        """Joins of one set, each with a ciphertext of its own."""
        key = key_of(type_name, value)
        listed, expires = self.types[type_name].listed, end_of(step, PERIOD) + self.schedule.outage_allowance
        rows = [
            Row(step, key, token, type_name, expires, seal(value.encode(), KEY.public_key(), key) if listed else b"")
            for token in tokens
        ]
        assert all(self.tables.log.put_groups([[row] for row in rows]))
        self.type_of[key], self.value_of[key] = type_name, value
        for token in tokens:
            self.naive[type_name].join(key, token, step)

    def join_step(self, step: int) -> None:
        """Popular values come and go; many steps have no join at all."""
        rng = random.Random(step)
        if rng.random() < 0.3:
            return
        for name in self.types:
            for n, value in enumerate(VALUES):
                tokens = [rng.randrange(12) for _ in range(rng.choice((0, 0, 1, 3)))]
                if tokens and (step // 7 + n) % 3:
                    self.join_values(name, value, tokens, step)
                    self.joined.add((step, name, value))

    def visible(self, step: int) -> float:
        """A moment at which a step is visible, if it was evaluated in time, and the next one is not."""
        return float(self.schedule.tick_of(step) + 1)

    def lister(self, **other: Any) -> Listing:
        """A lister with the clients of this scenario."""
        control = type(self.tables.control)(self.dynamodb, self.tables.names["Control"])
        made = Listing(
            types={name: type_ for name, type_ in self.types.items() if type_.listed},
            layouts=self.tables.layouts,
            period=PERIOD,
            publish_delay=self.schedule.publish_delay,
            review=self.review,
            control=control,
            statuses=type(self.tables.statuses)(self.dynamodb, self.tables.names["Statuses"]),
            listed_sets=lambda shows: read_listed(self.s3, self.tables.bucket, shows),
            table=ListTable(self.dynamodb, self.tables.names["Control"]),
            objects=ListObjects(self.s3, self.bucket, PERIOD),
            key=KEY,
        )
        return replace(made, **other)

    def publish(self, now: float) -> ListOutcome:
        return self.lister().run(now)

    @property
    def lists(self) -> PublishedLists:
        lister = self.lister()
        return PublishedLists(lister.table, lister.objects)

    def objects(self, prefix: str = "") -> list[str]:
        """The names of the objects in the bucket of lists."""
        pages = self.tables.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def newest(self, name: str) -> tuple[ReadableList, list[tuple[bytes, ListEntry]]] | None:
        """The newest list as readers see it: whole, sorted, without its run."""
        found = self.lists.newest(name)
        if found is None:
            return None
        rows = self.lists.page(name, found, b"", 1000)
        assert rows is not None
        assert found.values == len(rows)
        assert [sha for sha, _ in rows] == sorted(set_of(row.value) for _, row in rows)
        return found._replace(run=""), list(rows)

    def answer(self, name: str, now: float) -> tuple[Answer, set[str]]:
        """What queries answer at ``now``, and the values that they call shared."""
        found = self.querying.query([(name, set_of(value)) for value in VALUES], now)
        return found, {value for value, above in zip(VALUES, found.above, strict=True) if above}


@dataclass
class Compared:
    """Where lists differ from what they must be, and how many values they had; ``alone`` turned true without a join."""

    published: Published
    found: list[str] = field(default_factory=list)
    true: int = 0
    alone: int = 0
    late: int = 0
    waiting: int = 0
    equal_to_queries: int = 0
    expected: dict[int, dict[bytes, bool]] = field(default_factory=dict)
    hidden: dict[int, frozenset[bytes]] = field(default_factory=dict)

    def look(self, now: float, least: int, hidden: frozenset[bytes]) -> None:
        """Publish at ``now``; compare each list with the naive algorithm at its step, and with queries.

        ``least``: the step that all slots have evaluated. ``hidden``: the suppressed sets, which count from the next
        list on.
        """
        p = self.published
        outcome = p.publish(now)
        hidden = self.hidden.setdefault(least, hidden)
        clock = clock_step(now, PERIOD, p.schedule.publish_delay)
        if outcome.unopened:
            self.found.append("a value does not open")
        for name in ("one-sided", "crossing"):
            newest, (_, true) = p.newest(name), p.answer(name, now)
            step = newest and newest[0].step
            if step != least and not (outcome.waiting and step is not None and step < least):
                self.found.append(f"{clock} {name}: the list is of {step}, not {least}")
            if newest is None or step != least:
                self.waiting += 1
                continue
            values, shown = {row.value for _, row in newest[1]}, self.expected[least]
            wanted = {p.value_of[key] for key in shown if shown[key] and p.type_of[key] == name and key not in hidden}
            if values != wanted:
                self.found.append(f"{step} {name}: the values are others than those of the algorithm")
            if step == clock:
                self.equal_to_queries += 1
                if values != true:
                    self.found.append(f"{step} {name}: the values are others than those of queries")
            else:
                self.late += 1
            self.true += len(values)
            new = [row.value for _, row in newest[1] if row.since == step]
            self.alone += sum((step, name, value) not in p.joined for value in new)


def compared(p: Published, steps: range, slots: Sequence[int] = (0, 1), change: int | None = None) -> Compared:
    """A time with suppressions, late slots and repeated runs, until a list is wrong.

    From ``change`` on there are twice as many slots.
    """
    rng, run, hidden = random.Random(5), Compared(p), frozenset[bytes]()
    for slot in slots:
        p.start(slot)
    done = dict.fromkeys(slots, steps[0])
    for step in steps:
        p.join_step(step)
        run.expected[step] = p.expected(step)
        if step == change:
            slots = range(2 * len(slots))
            done = dict.fromkeys(slots, step)
        for slot in slots:
            if step in (steps[0], change) or step + 1 == change or rng.random() < 0.85:
                p.run(closing(step), slot)
                done[slot] = p.mark(slot) or 0  # one that was very late catches up in parts
        run.look(p.visible(step), min(done.values()), hidden)
        if run.found:
            break
        if rng.random() < 0.1:
            key = key_of(rng.choice(("one-sided", "crossing")), rng.choice(VALUES))
            if key in hidden:
                p.tables.statuses.show(key)
            else:
                p.tables.statuses.suppress(key)
            hidden ^= {key}
        if step % 24 == 0:
            p.sweep(closing(step))
    return run
