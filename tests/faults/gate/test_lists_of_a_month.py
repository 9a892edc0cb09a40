"""Every list of a month and ten thousand values is what queries answer at its step, on AWS and on one machine.

Values come and go, slots are late and change, sets are suppressed, listers die, the service restarts.
``make faults`` runs four days of it, and the month with ``FAULTS=every``. Ten days with few values, which are also
compared with the naive algorithm, are in ``test_listing.py`` and ``test_lists.py``.
"""

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kanon.disk
from kanon.gate.joining import Join
from kanon.gate.lists import Lists
from kanon.gate.mechanism.steps import end_of
from kanon.gate.names import set_key
from kanon.gate.publishing import Horizon
from kanon.gate.querying import Querying
from kanon.gate.sealing import seal
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.lists import ListObjects, ListTable
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.step_log import Row
from kanon.serving import lists as disk_lists
from kanon.serving.lists import Lister
from tests.faults.fault_injector import ProcessDied
from tests.faults.gate.test_queries_from_memory import Rows
from tests.integration.gate.published import KEY, Published, key_of
from tests.integration.gate.tables import Running, fresh
from tests.integration.gate.test_evaluation import START, closing
from tests.integration.serving import listing as on_disk

pytestmark = pytest.mark.skipif("FAULTS" not in os.environ, reason="minutes: make faults")

STEPS, VALUES = 720 if os.environ.get("FAULTS") == "every" else 96, 10_000
TEXTS = [f"value {number}" for number in range(VALUES)]
SETS = {text: sha256(text.encode()).digest() for text in TEXTS}
PAGE = 1000


class Joined(NamedTuple):
    """A value that some clients join at a step."""

    text: str
    clients: frozenset[int]


def joined_at(step: int) -> Iterator[Joined]:
    """Thirty values are popular for some hours, and come back in the next week; others have one client now and then."""
    rng = random.Random(step)
    for offset in range(30):
        text = TEXTS[(step // 4 * 30 % (VALUES * 3 // 4) + offset) % VALUES]
        yield Joined(text, frozenset(rng.randrange(12) for _ in range(rng.choice((0, 2, 4, 6)))))
    for _ in range(20):
        yield Joined(rng.choice(TEXTS), frozenset([rng.randrange(12)]))


def listed(lists: Lists, name: str) -> tuple[int | None, set[str]]:
    """The step and the values of the newest list, read in pages."""
    found = lists.newest(name)
    if found is None:
        return None, set()
    values, after = set[str](), b""
    while rows := lists.page(name, found, after, PAGE):
        values |= {row.value for _, row in rows}
        after = rows[-1][0]
    assert len(values) == found.values
    return found.step, values


def asked(querying: Querying, name: str, now: float) -> tuple[int | None, set[str]]:
    """The step of the answers, and the values that they call shared."""
    found = querying.query([(name, set_id) for set_id in SETS.values()], now)
    return found.step, {text for text, above in zip(SETS, found.above, strict=True) if above}


class InTime(NamedTuple):
    """The statuses as if every slot showed a step: what a list of this step must be, however late a slot is."""

    statuses: Statuses
    step: int

    def read(self, keys: Any, slots: Any) -> Any:
        crossings, horizons = self.statuses.read(keys, slots)
        return crossings, dict.fromkeys(horizons, Horizon(self.step, 0))


class Count:
    """What was compared, and what differed."""

    def __init__(self) -> None:
        self.lists = self.late = self.values = self.changes = self.died = 0
        self.found: list[str] = []
        self._before: set[str] = set()

    def compare(self, step: int, values: set[str], wanted: set[str], *, late: bool) -> None:
        """Compare a list with the answers of its step; ``late``: it is an earlier one."""
        if values != wanted:
            self.found.append(
                f"{step}: {len(values - wanted)} values are not shared, {len(wanted - values)} are missing"
            )
        self.lists += 1
        self.late += late
        self.values += len(values)
        self.changes += len(values ^ self._before)
        self._before = values

    def check(self) -> None:
        """That nothing differed, and that enough was compared."""
        assert self.found == []
        assert self.lists > STEPS // 2
        assert self.late >= STEPS // 40
        assert self.values > 10 * self.lists
        assert self.changes > 4 * self.lists
        assert self.died >= STEPS // 40


def month_on_aws(p: Published) -> Count:
    """Two slots, then four; each is late now and then, as the lister is, which dies at one of its writes."""
    rng, count, hidden, change = random.Random(7), Count(), set[bytes](), START + STEPS // 2
    rows, sealed = Rows(p.tables), dict[bytes, bytes]()
    wanted_of = dict[int, set[str]]()
    statuses = type(p.tables.statuses)(rows, p.tables.names["Statuses"])  # type: ignore[arg-type]
    querying = replace(p.querying, statuses=statuses)
    slots = range(2)
    for slot in slots:
        p.start(slot)
    for step in range(START, START + STEPS):
        expires = end_of(step, p.querying.period) + p.schedule.outage_allowance
        joins: list[list[Row]] = [[] for _ in range(4)]  # one item of each slot
        for text, clients in joined_at(step):
            key = key_of("crossing", text)
            if key not in sealed:
                sealed[key] = seal(text.encode(), KEY.public_key(), key)
            rows_of = [Row(step, key, token, "crossing", expires, sealed[key]) for token in sorted(clients)]
            joins[p.tables.layouts.at(step).slot_of(key)] += rows_of
        assert all(p.tables.log.put_groups([group for group in joins if group]))
        slots = range(4) if step == change else slots
        hour = (step - START) % 8
        for slot in slots:
            due = rng.random() < 0.9 or hour == 3
            if step in (START, change) or step + 1 == change or (due and (hour, slot) != (4, 0)):
                p.run(closing(step), slot)
        if hour == 3:
            continue  # the lister comes an hour later, when a slot is late: it lists this step
        now = p.visible(step)
        if rng.random() < 0.1:
            with pytest.MonkeyPatch.context() as patch, suppress(ProcessDied):
                dying(patch, rng.randrange(1, 7))
                p.publish(now)
            count.died += 1
        outcome = p.publish(now)
        rows.refresh()
        at, values = listed(p.lists, "crossing")
        seen, wanted = asked(querying, "crossing", now)
        if at is not None and at not in wanted_of:  # a list is compared when it is new
            of_step = replace(querying, statuses=InTime(statuses, at), _tick=0)
            wanted_of[at] = wanted if at == seen == step else asked(of_step, "crossing", p.visible(at))[1]
            count.compare(at, values, wanted_of[at], late=at < step)
        if at is not None and values != wanted_of[at]:
            count.found.append(f"{step}: the list of step {at} has changed")
        if not outcome.waiting and at != p.lists.newest("one-sided").step:  # type: ignore[union-attr]
            count.found.append(f"{step}: the lists are of different steps")
        if rng.random() < 0.2 and wanted:  # from the next list on
            key = key_of("crossing", rng.choice(sorted(wanted)))
            p.tables.statuses.suppress(key)
            hidden.add(key)
        elif hidden and rng.random() < 0.1:
            p.tables.statuses.show(hidden.pop())
        if step % 24 == 0:
            p.sweep(closing(step))
    return count


def dying(patch: pytest.MonkeyPatch, at: int) -> None:
    """Let the lister die at one of its writes."""
    calls = iter(range(1, 1 << 30))

    def at_times(original: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            if next(calls) == at:
                raise ProcessDied
            return original(*given, **more)

        return call

    for of, name in ((ListObjects, "_put"), (ListTable, "publish"), (ListObjects, "keep")):
        patch.setattr(of, name, at_times(getattr(of, name)))


def test_every_list_of_a_month_on_aws_is_what_queries_answer(moto: Running) -> None:
    tables = fresh(moto)
    tables.layouts = Layouts((Layout(2, 0, 1), Layout(4, START + STEPS // 2, 1)))
    count = month_on_aws(Published(tables))
    count.check()
    assert count.late >= STEPS // 16


def month_on_disk(path: Path) -> Count:
    """The service restarts, is late, and the lister dies before or after it has written history."""
    rng, count, first = random.Random(7), Count(), on_disk.FIRST
    directory, last, hidden = on_disk.opened(path, first * on_disk.PERIOD), first, set[bytes]()
    lister, suppressed = Lister(directory), first
    for step in range(first, first + STEPS):
        joins = [
            Join("crossing", SETS[text], "client", b"%d" % client, text.encode())
            for text, clients in joined_at(step)
            for client in sorted(clients)
        ]
        assert directory.joining.join_all(joins, step * on_disk.PERIOD + 7) == [True] * len(joins)
        if rng.random() < 0.1:
            directory.close()
            directory = on_disk.opened(path, on_disk.closed(step))
            lister = Lister(directory)
        if rng.random() < 0.9 or step - last > 2:
            directory.evaluate(on_disk.closed(step))
            directory.segments.keep(on_disk.closed(step))
            last = step
        now = on_disk.visible(directory, step)
        if rng.random() < 0.1:
            with pytest.MonkeyPatch.context() as patch, suppress(ProcessDied):
                patch.setattr(disk_lists, "write_history", died(rng.random() < 0.5))
                lister.publish(now)
            count.died += 1
        lister.publish(now)
        at, values = listed(lister.file, "crossing")
        seen, wanted = asked(directory.querying, "crossing", now)
        if at != seen:
            count.found.append(f"{step}: the list is of step {at}, answers of {seen}")
        elif at is not None and at > suppressed:  # what is suppressed leaves the next list
            count.compare(at, values, wanted, late=at < step)
        if rng.random() < 0.2 and wanted and last == step:
            key = on_disk_key(directory, rng.choice(sorted(wanted)))
            directory.control.suppress(key)
            hidden.add(key)
            suppressed = step
        elif hidden and rng.random() < 0.1 and last == step:
            directory.control.show(hidden.pop())
            suppressed = step
    directory.close()
    return count


def died(after: bool) -> Any:
    """A history whose writer dies before or after it."""
    original = disk_lists.write_history

    def call(*given: Any) -> None:
        if after:
            original(*given)
        raise ProcessDied

    return call


def on_disk_key(directory: Any, text: str) -> bytes:
    return set_key(directory.joining.pepper, "crossing", SETS[text])


def test_every_list_of_a_month_on_one_machine_is_what_queries_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kanon.disk, "SYNCHRONOUS", "OFF")
    count = month_on_disk(tmp_path / "d")
    count.check()
