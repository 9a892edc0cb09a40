"""Attribution (P, Algorithm 2): the choice of a source, and the bound of every source."""

from collections import defaultdict
from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.reports.clients.devices import Attribution, KeyPiece, Source, Trigger, add_source, add_trigger
from kanon.reports.clients.encrypt import DAY, encrypt
from kanon.reports.clients.events import DatumSpec, EventSpec, EventTrigger
from kanon.reports.payload import Contribution, EncryptionKey

PUBLIC = EncryptionKey("key", X25519PrivateKey.generate().public_key())
ORIGIN, OTHER, SHOP = "https://report.test", "https://other.test", "https://shop.test"
ATTRIBUTION = Attribution(contribution_bound=10)


def source(time=0, **fields):
    return Source(time, ORIGIN, frozenset({SHOP}), **({"keys": {"a": 0x100}} | fields))


def trigger(value=1, time=1, piece=0, **fields):
    defaults = {"pieces": (KeyPiece(piece, frozenset("a")),), "amounts": {"a": value}}
    return Trigger(**({"time": time, "reporting_origin": ORIGIN, "destination": SHOP} | defaults | fields))


def run(sources, *triggers, attribution=ATTRIBUTION):
    """Register the sources, then run the triggers: the values reported, and the positions of their sources."""
    device = ()
    for one in sources:
        device = add_source(attribution, device, one, lambda bits: 0)
    outcomes = []
    for one in triggers:
        outcomes.append(add_trigger(attribution, device, one, 0))
        device = outcomes[-1].device
    return [sum(pair.value for pair in outcome.report.contributions) for outcome in outcomes], outcomes


def test_the_key_combines_the_pieces_of_source_and_trigger_by_or():
    pieces = (KeyPiece(0x001, frozenset("a")), KeyPiece(0x020, frozenset("ab")), KeyPiece(0xF00, frozenset("b")))
    _, (outcome,) = run([source()], trigger(3, pieces=pieces))

    assert outcome.report.contributions == (Contribution(0x121, 3, 0),)


def test_a_source_without_budget_sends_a_null_report():
    reported, outcomes = run([source()], *[trigger(value) for value in (6, 5, 4, 1)])

    assert reported == [6, 0, 4, 0]
    assert len({(o.report.scheduled, o.report.destination, o.report.reporting_origin) for o in outcomes}) == 1


def test_a_trigger_without_a_matching_source_has_a_null_report():
    strangers = [
        trigger(reporting_origin=OTHER),
        trigger(destination=OTHER),
        trigger(time=30 * DAY),
        replace(trigger(), time=-1),
    ]
    for stranger in strangers:
        reported, (outcome,) = run([source()], stranger)
        assert reported == [0]
        assert outcome.source is None


def test_a_trigger_that_asks_for_no_report_never_gets_a_report():
    silent = trigger(pieces=(), amounts={})
    device = add_source(ATTRIBUTION, (), source())

    assert add_trigger(ATTRIBUTION, (), silent).report is None
    assert add_trigger(ATTRIBUTION, device, silent).report is None


def test_a_trigger_takes_the_newest_source_and_falls_through_to_one_with_budget():
    sources = [source(0, keys={"a": 1}), source(1, keys={"a": 2})]
    reported, outcomes = run(sources, *[trigger(value) for value in (8, 8, 2, 3)])

    assert reported == [8, 8, 2, 0]
    assert [outcome.source for outcome in outcomes] == [1, 0, 1, None]


def test_no_trigger_matches_from_the_expiry_on():
    assert run([source(expiry=8)], trigger(time=7), trigger(time=8))[0] == [1, 0]


def test_the_sparsity_bound_counts_reports_with_a_value():
    bounded = replace(ATTRIBUTION, sparsity=2)

    values = (0, 1, 0, 1, 1)
    assert run([source()], *[trigger(value) for value in values], attribution=bounded)[0] == [0, 1, 0, 1, 0]


def test_what_a_report_shows_in_clear_does_not_depend_on_any_contribution():
    """Every choice of values for three triggers, and whether the source of each still has budget."""
    sources = [
        source(0, keys={"a": 1, "b": 2}),
        replace(source(1 * DAY), destinations=frozenset({SHOP, OTHER})),
        source(2 * DAY, expiry=2 * DAY),
    ]
    shown = set()
    for values in product((0, 1, 5, 10, 11), repeat=3):
        triggers = [
            trigger(value, 3 * DAY + n * DAY, destination=place)
            for n, (value, place) in enumerate(zip(values, (SHOP, OTHER, SHOP), strict=True))
        ]
        _, outcomes = run(sources, *triggers)
        shown.add(tuple(in_clear(outcome.report) for outcome in outcomes))
    assert len(shown) == 1


def in_clear(report):
    """The bytes and the time that others see, and the length of the sealed part."""
    sealed = encrypt(report, [PUBLIC], choose=lambda keys: keys[0], new_id=lambda: UUID(int=0))
    return report.scheduled, sealed.shared_info, sealed.key_id, len(sealed.payload)


def test_a_finished_source_leaves_event_level_reports_to_the_next():
    spec = EventSpec((DatumSpec((100,), (1,)),), 1)
    sources = [source(0, events=spec), source(1, events=spec)]
    _, outcomes = run(sources, *[trigger(time=5, event=EventTrigger(0))] * 2)

    assert [stored.events.truth for stored in outcomes[-1].device] == [((1,),), ((1,),)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: source(keys={"a": 2**128}), "128 bits"),
        (lambda: source(keys={str(n): n for n in range(21)}), "at most 20 keys"),
        (lambda: Attribution(contribution_bound=0), "at least 1"),
        (lambda: run([source()], trigger(-1)), "from 0"),
    ],
)
def test_an_invalid_source_or_trigger_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


history = st.lists(
    st.one_of(
        st.tuples(st.just("source"), st.integers(0, 3), st.sets(st.sampled_from([SHOP, OTHER]), min_size=1)),
        st.tuples(st.just("trigger"), st.integers(0, 12), st.sampled_from([SHOP, OTHER])),
    ),
    max_size=30,
)


@pytest.mark.slow
@settings(derandomize=True, max_examples=200, deadline=None)
@given(history)
def test_no_source_ever_carries_more_than_its_bound_and_every_trigger_has_a_report(steps):
    device, carried = (), defaultdict(int)
    for time, (what, number, place) in enumerate(steps):
        if what == "source":
            device = add_source(ATTRIBUTION, device, Source(time, ORIGIN, frozenset(place), {"a": 1}))
        else:
            device, report, owner = add_trigger(ATTRIBUTION, device, trigger(number, time, destination=place))
            assert report is not None
            carried[owner] += sum(pair.value for pair in report.contributions)

    assert carried.pop(None, 0) == 0
    assert all(value <= 10 for value in carried.values())
    assert all(device[owner].used == value for owner, value in carried.items())
