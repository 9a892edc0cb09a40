"""Attribution (P, Algorithm 2): policies, filters and the bound of every source."""

from collections import defaultdict
from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.reports.clients.attribution import (
    Amount,
    Attribution,
    Deduplication,
    EventData,
    KeyPiece,
    NamedBudget,
    Source,
    Trigger,
    Values,
    add_source,
    add_trigger,
)
from kanon.reports.clients.browser_nulls import browser_reports
from kanon.reports.clients.encrypt import encrypt
from kanon.reports.clients.events import EventSpec, EventTrigger, TriggerSpec, default_spec
from kanon.reports.clients.filters import Filters, FilterSet
from kanon.reports.clients.report import DAY, HOUR
from kanon.reports.keys import PublicKey
from kanon.reports.payload import Contribution

PUBLIC = PublicKey("key", X25519PrivateKey.generate().public_key())
ORIGIN, OTHER, SHOP = "https://report.test", "https://other.test", "https://shop.test"
PAPER = Attribution("paper", contribution_bound=10)
WEB = Attribution("web", contribution_bound=10)
both = pytest.mark.parametrize("attribution", [PAPER, WEB], ids=["paper", "web"])


def source(time=0, **fields):
    return Source(time, ORIGIN, frozenset({SHOP}), **({"keys": {"a": 0x100}} | fields))


def trigger(value=1, time=1, piece=0, **fields):
    defaults = {"pieces": (KeyPiece(piece, frozenset("a")),), "values": (Values({"a": Amount(value)}),)}
    return Trigger(**({"time": time, "reporting_origin": ORIGIN, "destination": SHOP} | defaults | fields))


def run(attribution, sources, *triggers):
    """Register the sources, then run the triggers: the values reported, and the positions of their sources."""
    device = ()
    for one in sources:
        device = add_source(attribution, device, one, lambda bits: 0)
    outcomes = []
    for one in triggers:
        outcomes.append(add_trigger(attribution, device, one, 0))
        device = outcomes[-1].device
    return [sum(pair.value for pair in outcome.report.contributions) for outcome in outcomes], outcomes


def only(**values):
    return Filters((FilterSet({name: frozenset(options) for name, options in values.items()}),))


def never(**values):
    return Filters((), only(**values).required)


@both
def test_the_key_combines_the_pieces_of_source_and_trigger_by_or(attribution):
    pieces = (KeyPiece(0x001, frozenset("a")), KeyPiece(0x020, frozenset("ab")), KeyPiece(0xF00, frozenset("b")))
    _, (outcome,) = run(attribution, [source()], trigger(3, pieces=pieces))

    assert outcome.report.contributions == (Contribution(0x121, 3, 0),)


@both
def test_a_source_without_budget_sends_a_null_report(attribution):
    reported, outcomes = run(attribution, [source()], *[trigger(value) for value in (6, 5, 4, 1)])

    assert reported == [6, 0, 4, 0]
    assert len({(o.report.scheduled, o.report.destination, o.report.reporting_origin) for o in outcomes}) == 1


@both
def test_a_trigger_without_a_matching_source_has_a_null_report(attribution):
    strangers = [
        trigger(reporting_origin=OTHER),
        trigger(destination=OTHER),
        trigger(time=30 * DAY),
        replace(trigger(), time=-1),
    ]
    for stranger in strangers:
        reported, (outcome,) = run(attribution, [source()], stranger)
        assert reported == [0]
        assert outcome.source is None


@both
def test_a_trigger_that_asks_for_no_report_never_gets_a_report(attribution):
    silent = trigger(pieces=(), values=())
    device = add_source(attribution, (), source())

    assert add_trigger(attribution, (), silent).report is None
    assert add_trigger(attribution, device, silent).report is None


def test_the_papers_policy_takes_the_newest_source_and_falls_through_to_one_with_budget():
    sources = [source(0, keys={"a": 1}), source(1, keys={"a": 2})]
    reported, outcomes = run(PAPER, sources, *[trigger(value) for value in (8, 8, 2, 3)])

    assert reported == [8, 8, 2, 0]
    assert [outcome.source for outcome in outcomes] == [1, 0, 1, None]


def test_the_policy_of_browsers_does_not_fall_through():
    sources = [source(0, keys={"a": 1}), source(1, keys={"a": 2})]
    reported, outcomes = run(WEB, sources, *[trigger(value) for value in (11, 8, 8)])

    assert reported == [0, 8, 0]
    assert [outcome.source for outcome in outcomes] == [1, 1, 1]
    assert [stored.active for stored in outcomes[0].device] == [True, True]
    assert [stored.active for stored in outcomes[1].device] == [False, True]


def test_the_policy_of_browsers_goes_by_priority_and_then_by_recency():
    sources = [source(0, priority=5), source(1, priority=5), source(2, priority=4)]

    assert run(WEB, sources, trigger())[1][0].source == 1
    assert run(WEB, [source(0), source(0)], trigger())[1][0].source == 1


def test_filters_are_checked_after_the_source_is_chosen():
    sources = [source(0), source(1, filter_data={"product": frozenset({"1"})})]

    assert run(WEB, sources, trigger(filters=only(product="2")))[0] == [0]
    assert run(PAPER, sources, trigger(filters=only(product="2")))[0] == [1]


@both
@pytest.mark.parametrize(
    ("filters", "value"),
    [
        (only(product="1"), 1),
        (only(product="2"), 0),
        (only(colour="2"), 1),
        (never(product="1"), 0),
        (never(product="2"), 1),
        (only(source_type=["event"]), 0),
        (only(source_type=["navigation"]), 1),
        (Filters((FilterSet(lookback=1),)), 1),
        (Filters((FilterSet(lookback=0),)), 0),
        (Filters((), (FilterSet(lookback=0),)), 1),
        (Filters((), (FilterSet(lookback=1),)), 0),
        (Filters((*only(product="2").required, *only(product="1").required)), 1),
        (only(product=[]), 0),
        (only(empty=[]), 1),
        (only(empty="1"), 0),
    ],
)
def test_filters_match_as_browsers_match_them(attribution, filters, value):
    data = {"product": frozenset({"1"}), "empty": frozenset()}

    assert run(attribution, [source(filter_data=data)], trigger(filters=filters))[0] == [value]


@both
def test_the_first_matching_list_of_values_is_used(attribution):
    lists = (Values({"a": Amount(1)}, only(p="2")), Values({"a": Amount(2, 7)}, only(p="1")), Values({"a": Amount(3)}))
    _, (outcome,) = run(attribution, [source(filter_data={"p": frozenset("1")})], trigger(values=lists))

    assert outcome.report.contributions == (Contribution(0x100, 2, 7),)


@both
def test_a_deduplication_key_counts_once_a_source(attribution):
    key = (Deduplication(7),)
    sources = [source()]

    assert run(attribution, sources, *[trigger(1, deduplication=key)] * 2)[0] == [1, 0]
    assert run(attribution, sources, *[trigger(1, deduplication=(Deduplication(None),))] * 2)[0] == [1, 1]
    # A report that was null does not use the key up.
    assert run(attribution, sources, trigger(11, deduplication=key), trigger(1, deduplication=key))[0] == [0, 1]


@both
def test_a_trigger_is_bounded_by_its_named_budget_and_by_the_whole_budget(attribution):
    named = source(named_budgets={"x": 3, "y": 9})
    taken = [("x", 2), ("x", 2), ("x", 1), ("y", 7), ("y", 1), (None, 0), ("unknown", 1)]
    triggers = [trigger(value, named_budgets=(NamedBudget(name),)) for name, value in taken]

    assert run(attribution, [named], *triggers)[0] == [2, 0, 1, 7, 0, 0, 0]


@both
def test_the_report_window_includes_its_end_and_the_expiry_excludes_it(attribution):
    short = source(window=5, expiry=8)

    assert run(attribution, [short], trigger(time=5), trigger(time=6), trigger(time=8))[0] == [1, 0, 0]


@both
def test_the_sparsity_bound_counts_reports_with_a_value(attribution):
    bounded = replace(attribution, sparsity=2)

    assert run(bounded, [source()], *[trigger(value) for value in (0, 1, 0, 1, 1)])[0] == [0, 1, 0, 1, 0]


@both
def test_the_day_of_the_source_is_reported_only_if_the_trigger_asks_for_it(attribution):
    start = 3 * DAY + 5
    _, (silent, told) = run(
        attribution, [source(start)], trigger(time=5 * DAY), trigger(11, time=5 * DAY, tells_source_day=True)
    )

    assert silent.report.source_registration is None
    assert told.report.is_null
    assert told.report.source_registration in {3 * DAY, 5 * DAY}


@both
def test_what_a_report_shows_in_clear_does_not_depend_on_any_contribution(attribution):
    """Every choice of values for three triggers, and whether the source of each still has budget or is active."""
    sources = [
        source(0, priority=1, keys={"a": 1, "b": 2}),
        replace(source(1 * DAY, window=3 * DAY), destinations=frozenset({SHOP, OTHER})),
        source(2 * DAY, priority=2, expiry=2 * DAY, named_budgets={"n": 3}),
    ]
    shown = set()
    for values in product((0, 1, 5, 10, 11), repeat=3):
        triggers = [
            trigger(
                value, 3 * DAY + n * DAY, destination=place, tells_source_day=True, deduplication=(Deduplication(1),)
            )
            for n, (value, place) in enumerate(zip(values, (SHOP, OTHER, SHOP), strict=True))
        ]
        _, outcomes = run(attribution, sources, *triggers)
        shown.add(tuple(in_clear(outcome.report) for outcome in outcomes))
    assert len(shown) == 1


def in_clear(report):
    """The bytes and the time that others see, and the length of the sealed part."""
    sealed = encrypt(report, [PUBLIC], choose=lambda keys: keys[0], new_id=lambda: UUID(int=0))
    return report.scheduled, report.context_id, sealed.shared_info, sealed.key_id, len(sealed.payload)


@both
def test_a_context_id_is_sent_along_without_delay_and_others_wait(attribution):
    device = add_source(attribution, (), source())

    assert add_trigger(attribution, device, trigger(time=7, context_id="x"), HOUR).report.scheduled == 7
    assert add_trigger(attribution, device, trigger(time=7), HOUR).report.scheduled == 7 + HOUR


def test_a_finished_source_is_inactive_for_event_level_reports_of_the_papers_policy():
    spec = EventSpec((TriggerSpec((0,), (100,), (1,)),), 1)
    sources = [source(0, events=spec), source(1, events=spec)]
    event = (EventData(EventTrigger(0)),)
    _, outcomes = run(PAPER, sources, *[trigger(time=5, events=event)] * 2)

    assert [stored.events.truth for stored in outcomes[-1].device] == [((1,),), ((1,),)]


def test_a_source_with_too_much_information_gain_is_not_registered():
    event = source(kind="event", events=default_spec("navigation", 30 * DAY))

    assert add_source(WEB, (), event) == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: source(keys={"a": 2**128}), "128 bits"),
        (lambda: source(keys={str(n): n for n in range(21)}), "at most 20 keys"),
        (lambda: Attribution("newest"), "`paper` or `web`"),
        (lambda: Attribution(contribution_bound=0), "at least 1"),
        (lambda: run(WEB, [source()], trigger(-1)), "from 0"),
    ],
)
def test_an_invalid_source_or_trigger_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_random_null_reports_follow_browsers_and_are_made_only_on_request():
    _, (outcome,) = run(WEB, [], trigger())
    day = trigger(time=40 * DAY, tells_source_day=True)
    _, (told,) = run(WEB, [source(39 * DAY)], day)

    assert browser_reports(outcome, trigger(), lambda bits: 2**64 // 20 + 1) == []
    assert len(browser_reports(outcome, trigger(), lambda bits: 2**64 // 20)) == 1
    assert browser_reports(told, day, lambda bits: 2**63) == [told.report]
    assert len(browser_reports(told, day, lambda bits: 0)) == 31


history = st.lists(
    st.one_of(
        st.tuples(st.just("source"), st.integers(0, 3), st.sets(st.sampled_from([SHOP, OTHER]), min_size=1)),
        st.tuples(st.just("trigger"), st.integers(0, 12), st.sampled_from([SHOP, OTHER])),
    ),
    max_size=30,
)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.sampled_from([PAPER, WEB]), history)
def test_no_source_ever_carries_more_than_its_bound_and_every_trigger_has_a_report(attribution, steps):
    device, carried = (), defaultdict(int)
    for time, (what, number, place) in enumerate(steps):
        if what == "source":
            device = add_source(attribution, device, Source(time, ORIGIN, frozenset(place), {"a": 1}, priority=number))
        else:
            device, report, owner = add_trigger(attribution, device, trigger(number, time, destination=place))
            assert report is not None
            carried[owner] += sum(pair.value for pair in report.contributions)

    assert carried.pop(None, 0) == 0
    assert all(value <= 10 for value in carried.values())
    assert all(device[owner].used == value for owner, value in carried.items())
