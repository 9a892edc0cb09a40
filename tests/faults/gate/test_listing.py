"""A list is what queries answer at its step, value by value, whatever happens before it is published."""

import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.errors import ConfigurationError
from kanon.gate import listing, sealing
from kanon.gate import lists as gate_lists
from kanon.gate.listing import Listing, VisibleSlots
from kanon.gate.lists import ListEntry, ReadableList
from kanon.gate.publishing import clock_step
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.lists import ListObjects, ListTable
from kanon.operate.unlisting import Unlisting, end_lists
from tests.faults.fault_injector import ProcessDied
from tests.integration.gate.published import Published, compared, key_of, set_of
from tests.integration.gate.tables import Running, fresh
from tests.integration.gate.test_evaluation import PERIOD, START, closing

DAYS = 2 * 24
"""Steps. ``make faults`` compares a month."""


@pytest.fixture
def published(moto: Running) -> Published:
    return made(moto, Layouts((Layout(2, 0, 1),)))


def made(moto: Running, layouts: Layouts) -> Published:
    tables = fresh(moto)
    tables.layouts = layouts
    return Published(tables)


def test_every_list_of_two_days_is_what_queries_answer_at_its_step(published: Published) -> None:
    run = compared(published, range(START, START + DAYS))
    assert run.found == []
    assert run.true > 2 * DAYS
    assert run.alone > 0
    assert run.equal_to_queries > DAYS
    assert DAYS // 8 < run.late < DAYS
    assert run.waiting < DAYS // 8


def test_lists_go_on_when_the_slots_change(moto: Running) -> None:
    change = START + 20
    published = made(moto, Layouts((Layout(2, 0, 1), Layout(4, change, 1))))
    run = compared(published, range(START, START + 40), change=change)
    assert run.found == []
    assert run.true > 40
    assert published.objects("opened/") == [f"opened/{change}/{slot}" for slot in range(4)]


ORIGINAL = {name: getattr(Listing, name) for name in ("_visible", "_object", "_publish", "_since")}


def _clock(self: Listing, now: float) -> VisibleSlots | None:
    seen = ORIGINAL["_visible"](self, now)
    return seen and seen._replace(step=clock_step(now, self.period, self.publish_delay))


def _first_slot(self: Listing, now: float) -> VisibleSlots | None:
    seen = ORIGINAL["_visible"](self, now)
    step = seen and seen.horizons[0].at(now)
    return seen if seen is None or step is None else seen._replace(step=max(step, seen.step))


def _newest_object(self: Listing, place: Place, visible: VisibleSlots) -> str | None:
    horizon = visible.horizons[place.slot]
    return horizon.shows or ORIGINAL["_object"](self, place, visible)


def _older_object(self: Listing, place: Place, visible: VisibleSlots) -> str | None:
    horizon = visible.horizons[place.slot]
    return horizon.earliest_shows or horizon.earlier_shows or ORIGINAL["_object"](self, place, visible)


def _suppressed(self: Listing, *given: Any, **more: Any) -> None:
    self.statuses.suppressed = frozenset()
    ORIGINAL["_publish"](self, *given, **more)


def _carried(lister: Listing) -> Listing:
    read = lister.listed_sets

    def rotated(shows: str) -> Any:
        sets = list(read(shows) or ())
        sealed = [each.sealed for each in sets]
        return iter(each._replace(sealed=other) for each, other in zip(sets, [*sealed[1:], *sealed[:1]], strict=True))

    return replace(lister, listed_sets=rotated)


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the step of the clock": lambda patch: (
        patch.setattr(Listing, "_visible", _clock),
        patch.setattr(Listing, "_object", _newest_object),
    )[0],
    "the list taken before the last slot's horizon": lambda patch: (
        patch.setattr(Listing, "_visible", _first_slot),
        patch.setattr(Listing, "_object", _newest_object),
    )[0],
    "a slot's older object": lambda patch: patch.setattr(Listing, "_object", _older_object),
    "a suppressed value": lambda patch: patch.setattr(Listing, "_publish", _suppressed),
    "a value carried from another set": lambda patch: patch.setattr(
        Published, "lister", lambda self, _original=Published.lister: _carried(_original(self))
    ),
    "a value of a set below the threshold": lambda patch: patch.setattr(Listing, "_since", lambda *given: given[-1]),
    "a list without its pointer": lambda patch: patch.setattr(ListTable, "publish", lambda *_: True),
    "a list that is published too late": lambda patch: patch.setattr(
        ListTable, "publish", lambda self, name, before, *rest: len(before) < 2 and PUBLISH(self, name, before, *rest)
    ),
}
PUBLISH = ListTable.publish


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_seen(published: Published, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    PLANTED[mistake](monkeypatch)
    assert compared(published, range(START, START + 50)).found


LAST = START + 6


def evaluated(published: Published, last: int = LAST, listed: int = LAST - 1) -> None:
    """Evaluate all steps, and publish each list up to that of ``listed``."""
    for slot in (0, 1):
        published.start(slot)
    for step in range(START, last + 1):
        published.join_step(step)
        for slot in (0, 1):
            published.run(closing(step), slot)
        if step <= listed:
            published.publish(published.visible(step))


def seen(published: Published) -> dict[str, Any]:
    """The newest lists as readers see them."""
    return {name: published.newest(name) for name in ("one-sided", "crossing")}


def history(published: Published) -> dict[str, list[ListEntry]]:
    """The history: what it says, by the name of the object."""
    objects = published.lister().objects
    return {
        key: sorted(objects.history(key.split("/")[1], int(key.split("=")[2].partition("/")[0])))
        for key in published.objects("lists/")
    }


def dying(published: Published, at: int, *, before: bool) -> list[str]:
    """Let the lister die at a call, before it arrives or after. Returns the calls; 0 for no death."""
    clients = published.tables.running.objects(), published.tables.other_client()
    whole = published.s3, published.dynamodb
    published.s3, published.dynamodb = clients
    try:
        return ending(clients, at, before=before, command=lambda: published.publish(published.visible(LAST)))
    finally:
        published.s3, published.dynamodb = whole


@pytest.mark.parametrize("before", [True, False])
def test_a_lister_that_dies_at_any_call_is_made_up_for_by_the_next(moto: Running, before: bool) -> None:
    whole = made(moto, Layouts((Layout(2, 0, 1),)))
    evaluated(whole)
    calls = dying(whole, 0, before=before)
    after, files = seen(whole), history(whole)
    assert {found.step for found, _ in after.values()} == {LAST}
    assert len(files) == 2 * (LAST - START + 1)
    assert len(calls) > 30
    published = made(moto, Layouts((Layout(2, 0, 1),)))
    evaluated(published)
    for at in range(1, len(calls) + 1):
        earlier = seen(published)
        if at > 1:  # the world of one step before: its last lists were never published
            forget_last(published)
            earlier = seen(published)
        dying(published, at, before=before)
        between = seen(published)
        for name in after:  # a whole list, the one before or the new one
            assert between[name] in (earlier[name], after[name]), f"call {at} of {calls}"
        published.publish(published.visible(LAST))
        assert seen(published) == after, f"call {at} of {calls}"
        assert history(published) == files, f"call {at} of {calls}"


def forget_last(published: Published) -> None:
    """Take the last lists back, with their history and the values that were opened."""
    lister = published.lister()
    for name in ("one-sided", "crossing"):
        newest, *before = lister.table.pointer(name)
        assert newest.step == LAST
        assert lister.table.change(name, (newest, *before), before)
        for key in published.objects(f"lists/{name}/"):
            if f"step={LAST}/" in key:
                published.tables.s3.delete_object(Bucket=published.bucket, Key=key)
    lister.objects.forget_opened(None)


def test_two_listers_at_once_publish_one_list(published: Published) -> None:
    evaluated(published)
    now, original = published.visible(LAST), ListTable.publish
    refused = []

    def second(self: ListTable, *given: Any) -> bool:
        """Another lister is faster, whenever this one publishes."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ListTable, "publish", original)
            published.publish(now)
        refused.append(not original(self, *given))
        return not refused[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ListTable, "publish", second)
        published.publish(now)
    assert refused == [True, True]
    found = seen(published)
    assert {each[0].step for each in found.values()} == {LAST}
    runs = {name: published.lists.newest(name) for name in found}
    published.publish(now)
    assert {name: published.lists.newest(name) for name in found} == runs  # it is published once
    assert seen(published) == found


def test_a_list_stays_though_the_answer_to_its_publication_is_lost(published: Published) -> None:
    """All attempts of the client end with an internal error, and the transaction was written."""
    evaluated(published)
    client = published.dynamodb
    original, lost = client.transact_write_items, []

    def write(**given: Any) -> Any:
        answer = original(**given)
        if lost:
            return answer
        lost.append(given)
        raise ClientError({"Error": {"Code": "InternalServerError"}}, "TransactWriteItems")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "transact_write_items", write)
        published.publish(published.visible(LAST))
    assert len(lost) == 1
    found, histories = seen(published), history(published)
    assert {newest.step for newest, _ in found.values()} == {LAST}
    for name, (_, rows) in found.items():
        (written,) = (rows for key, rows in histories.items() if f"/{name}/" in key and f"step={LAST}/" in key)
        assert sorted(written) == sorted(row for _, row in rows)


def test_a_late_lister_never_moves_a_pointer_backwards(published: Published) -> None:
    evaluated(published)
    late = published.lister()
    table = late.table
    before = table.pointer("one-sided")
    published.publish(published.visible(LAST))
    assert not table.publish("one-sided", before, ReadableList(LAST - 1, 0, 0, "late"), "")
    late.run(published.visible(LAST - 1))
    assert {found.step for found, _ in seen(published).values()} == {LAST}


def test_what_is_unlisted_while_a_list_is_made_is_not_in_it(published: Published) -> None:
    evaluated(published)
    now, original = published.visible(LAST), ListTable.publish
    wanted = published.answer("one-sided", now)[1]
    value = min(wanted)

    def unlisted(self: ListTable, *given: Any) -> bool:
        if not published.objects("unlisted/"):
            published.lister().objects.unlist(key_of("one-sided", value))
            self.renew_stamp()
        return original(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ListTable, "publish", unlisted)
        published.publish(now)
    newest = published.newest("one-sided")
    assert newest is not None
    assert {row.value for _, row in newest[1]} == wanted - {value}
    assert {row.value for row in published.lister().objects.history("one-sided", LAST)} == wanted - {value}


def unlist(published: Published, value: str) -> int:
    lister = published.lister()
    return Unlisting(lister.table, lister.objects, "one-sided", lambda text: key_of("one-sided", text)).unlist(value)


@pytest.mark.parametrize("call", ["put", "put_history"])
def test_of_two_that_unlist_at_once_neither_brings_back_a_value(
    published: Published, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    evaluated(published)
    published.publish(published.visible(LAST))
    first, second, *_ = sorted(published.answer("one-sided", published.visible(LAST))[1])
    original = getattr(ListObjects, call)

    def late(*given: Any) -> Any:
        """The other command is done between a read of this one and its write."""
        if getattr(given[2], "step", given[2]) == LAST:
            monkeypatch.setattr(ListObjects, call, original)
            unlist(published, second)
        return original(*given)

    monkeypatch.setattr(ListObjects, call, late)
    unlist(published, first)
    newest = published.newest("one-sided")
    assert newest is not None
    assert not {first, second} & {row.value for _, row in newest[1]}
    assert not {first, second} & of_history(published)


class Late(NamedTuple):
    """A lister that stops after it has written a history of what it had read before a value was unlisted."""

    others: Callable[[Published], Any]
    """What another lister does, between what the late one has read and what it writes."""
    written: bool
    """Whether what the late one has read may be there when it stops."""


AT_THE_SAME_TIME = {
    "nobody": Late(lambda _: None, written=True),
    "a run that publishes the next list": Late(lambda p: p.publish(p.visible(LAST + 1)), written=False),
    "two runs, until the list is gone": Late(
        lambda p: (p.publish(p.visible(LAST + 1)), p.publish(p.visible(LAST + 2))), written=False
    ),
}


@pytest.mark.parametrize("order", ["others, then unlisted", "unlisted, then others"])
@pytest.mark.parametrize("others", AT_THE_SAME_TIME)
def test_a_lister_that_stops_after_a_late_history_leaves_no_unlisted_value(
    published: Published, monkeypatch: pytest.MonkeyPatch, others: str, order: str
) -> None:
    """Between `put_history` with an old stamp and the look whether that is still the stamp."""
    late, steps = AT_THE_SAME_TIME[others], [lambda: unlist(published, value), lambda: late.others(published)]
    evaluated(published, LAST + 2, listed=LAST - 1)
    value = min(published.answer("one-sided", published.visible(LAST))[1])
    original = ListObjects.put_history

    def stopping(self: ListObjects, type_name: str, step: int, values: Any, *given: Any) -> bool:
        if (type_name, step) != ("one-sided", LAST):
            return original(self, type_name, step, values, *given)
        monkeypatch.setattr(ListObjects, "put_history", original)
        read = list(values)
        for each in steps if order.startswith("unlisted") else reversed(steps):
            each()
        original(self, type_name, step, read, *given)
        raise ProcessDied

    monkeypatch.setattr(ListObjects, "put_history", stopping)
    with pytest.raises(ProcessDied):
        published.publish(published.visible(LAST))
    assert (value in of_history(published)) is late.written
    published.publish(published.visible(LAST + 2))
    assert of_history(published)
    assert value not in of_history(published)


def of_history(published: Published) -> set[str]:
    """The values of one type that its history has."""
    files = history(published).items()
    return {row.value for key, rows in files if key.startswith("lists/one-sided/") for row in rows}


def test_what_a_stopped_command_left_goes_with_the_next_value(published: Published) -> None:
    evaluated(published)
    published.publish(published.visible(LAST))
    first, second, *_ = sorted(published.answer("one-sided", published.visible(LAST))[1])
    published.lister().objects.unlist(key_of("one-sided", first))  # and no more
    unlist(published, second)
    assert of_history(published)
    assert not {first, second} & of_history(published)


def test_lists_stop_if_the_bucket_has_lost_what_was_unlisted(published: Published) -> None:
    evaluated(published)
    unlist(published, min(published.answer("one-sided", published.visible(LAST))[1]))
    (key,) = published.objects("unlisted/")
    published.tables.s3.delete_object(Bucket=published.bucket, Key=key)
    with pytest.raises(ConfigurationError, match="unlist them again"):
        published.publish(published.visible(LAST))


def test_a_value_is_opened_once_and_only_the_new_ones(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    opens: list[bytes] = []
    original = sealing.opened

    def opened_once(sealed: bytes, key: Any, name: bytes) -> bytes:
        opens.append(name)
        return original(sealed, key, name)

    monkeypatch.setattr(listing, "opened", opened_once)
    evaluated(published)
    true = [len(each[1]) for each in seen(published).values() if each]
    assert sum(true) <= len(opens) < 2 * 2 * 10  # a value that turned false is opened again
    count = len(opens)
    published.publish(published.visible(LAST - 1))
    assert len(opens) == count


@pytest.mark.parametrize("damage", [b"", b"x", b"damaged" * 100])
def test_opened_values_that_are_damaged_are_opened_again(published: Published, damage: bytes) -> None:
    evaluated(published)
    for slot in (0, 1):
        published.tables.s3.put_object(Bucket=published.bucket, Key=f"opened/0/{slot}", Body=damage)
    published.publish(published.visible(LAST))
    for name, newest in seen(published).items():
        assert {row.value for _, row in newest[1]} == published.answer(name, published.visible(LAST))[1] != set()


def test_a_value_that_does_not_open_is_reported_and_stops_nothing(published: Published) -> None:
    evaluated(published)
    now = published.visible(LAST)
    others = replace(published.lister(), key=X25519PrivateKey.from_private_bytes(bytes(31) + b"x"))
    published.lister().objects.forget_opened(None)
    outcome = others.run(now)
    assert outcome.unopened
    newest = published.newest("one-sided")
    assert newest is not None
    assert (newest[0].step, newest[1]) == (LAST, [])


def test_a_list_waits_for_an_incomplete_slot(published: Published) -> None:
    evaluated(published)
    before = seen(published)
    incomplete = replace(published.lister(), listed_sets=lambda _: None)
    outcome = incomplete.run(published.visible(LAST))
    assert (outcome.waiting, outcome.behind) == (True, 1)
    assert seen(published) == before


def test_the_review_holds_a_value_back(published: Published) -> None:
    published.review = 2
    evaluated(published)
    published.publish(published.visible(LAST))
    rows = [row for each in seen(published).values() if each for _, row in each[1]]
    assert rows
    assert all(row.since <= LAST - 2 for row in rows)
    assert any(
        published.answer(name, published.visible(LAST))[1] - {row.value for _, row in each[1]}
        for name, each in seen(published).items()
        if each
    )


def test_what_is_suppressed_within_its_review_is_in_no_list_and_no_history(published: Published) -> None:
    published.review = 2
    for slot in (0, 1):
        published.start(slot)
    value, others = "=1+1", set[str]()
    for step in range(START, LAST + 1):
        published.join_values("crossing", value, range(12), step)  # it would stay true
        published.join_step(step)
        for slot in (0, 1):
            published.run(closing(step), slot)
        published.publish(published.visible(step))
        if step == START:
            assert value in published.answer("crossing", published.visible(step))[1]  # true, and in review
            published.tables.statuses.suppress(key_of("crossing", value))
        newest = published.newest("crossing")
        assert newest is not None
        assert newest[0].step == step
        others |= {row.value for _, row in newest[1]}
    assert others
    assert value not in others
    assert {row.value for key, rows in history(published).items() if "/crossing/" in key for row in rows} == others


def test_large_lists_are_divided_and_read_in_pages(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "most_hashes", lambda _: 2)
    monkeypatch.setattr(gate_lists, "ROWS_A_GROUP", 2)
    evaluated(published)
    published.publish(published.visible(LAST))
    found = published.lists.newest("one-sided")
    assert found is not None
    assert found.bits > 0
    rows, after = [], b""
    while some := published.lists.page("one-sided", found, after, 1):
        rows += some
        after = some[-1][0]
    newest = published.newest("one-sided")
    assert newest is not None
    assert rows == newest[1]
    assert {row.value for _, row in rows} == published.answer("one-sided", published.visible(LAST))[1]


@pytest.mark.parametrize("before", [True, False])
def test_the_lists_of_a_retired_type_end_though_the_command_stops_at_any_call(
    published: Published, before: bool
) -> None:
    evaluated(published)
    files = history(published)
    client = published.tables.running.objects(), published.tables.other_client()
    late, at = published.lister(), 0
    stack = SimpleNamespace(
        client=lambda name: client[name == "dynamodb"],
        list_bucket=published.bucket,
        query=SimpleNamespace(control_table=published.tables.names["Control"], period=PERIOD),
    )
    while True:
        at += 1
        calls = ending(client, at, before=before, command=lambda: end_lists(stack, "one-sided"))  # type: ignore[arg-type]
        if len(calls) < at:
            break
        if published.objects("current/one-sided/"):  # the pointer goes first
            assert published.newest("one-sided") is None or len(calls) == 1
    assert at > 2
    assert published.newest("one-sided") is None
    assert published.objects("current/one-sided/") == []
    assert history(published) == files  # for its days
    late.run(published.visible(LAST))  # it began before the type was taken out
    assert published.newest("one-sided") is None
    assert published.objects("current/one-sided/") == []
    assert published.newest("crossing") is not None
    assert not end_lists(stack, "one-sided")  # type: ignore[arg-type]


def ending(clients: Sequence[Any], at: int, *, before: bool, command: Callable[[], Any]) -> list[str]:
    """Let a command die at a call, before it arrives or after. Returns the calls."""
    calls: list[str] = []

    def died(model: Any, **_: Any) -> None:
        calls.append(model.name)
        if len(calls) == at:
            raise ProcessDied

    event = "before-call" if before else "after-call"
    for client in clients:
        client.meta.events.register_last(event, died, unique_id="ending")
    try:
        command()
    except ProcessDied:
        assert at
    finally:
        for client in clients:
            client.meta.events.unregister(event, unique_id="ending")
    return calls


def test_lists_of_a_hundred_types_need_no_more_open_files_than_that_of_one() -> None:
    types = [f"type {number}" for number in range(100)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = os.open(os.devnull, os.O_RDONLY)
    os.close(opened)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 4, limits[1]))
    try:
        with listing.Spool(types) as spool:
            for number in range(25_000):  # more than wait in memory
                spool.add(listing.ListableValue(types[number % 100], f"value {number}", number))
            found = {name: list(spool.rows(name)) for name in types}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for at, name in enumerate(types):
        rows = [(set_of(f"value {n}"), ListEntry(f"value {n}", n)) for n in range(at, 25_000, 100)]
        assert found[name] == sorted(rows)
        assert sorted(spool.digests[name]) == [digest for digest, _ in found[name]]


def test_only_the_last_two_lists_are_kept(published: Published) -> None:
    evaluated(published)
    published.publish(published.visible(LAST))
    steps = {int(key.split("/")[2].partition("-")[0]) for key in published.objects("current/")}
    assert steps == {LAST - 1, LAST}
