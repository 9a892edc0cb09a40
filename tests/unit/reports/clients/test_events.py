"""Event-level reports of one source (P, Algorithm 4)."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.noise.exact import exp_bounds
from kanon.reports.clients.devices import Attribution, Source, Trigger, add_source, add_trigger
from kanon.reports.clients.events import (
    LAST_VALUE,
    DatumSpec,
    Events,
    EventSpec,
    EventTrigger,
    Output,
    record,
    register,
)
from tests.oracles.reports import algorithm_9

PAPER = EventSpec((DatumSpec((100, 200), (1, 2)),) * 2, 3)
"""The paper's example: two data, two windows, two buckets each, three reports; 27 outputs."""
ORIGIN, SHOP = "https://report.test", "https://shop.test"


@dataclass(frozen=True)
class EventReport:
    """An event-level report, apart from the fields of its source.

    Attributes:
        trigger_data: the datum.
        bucket: the first and last sum of the report's summary bucket.
        age: its send time, in milliseconds after the registration.
    """

    trigger_data: int
    bucket: tuple[int, int]
    age: int


def reports(source: Events, after: int, until: int) -> list[EventReport]:
    """The reports of a source with a send age in ``(after, until]``."""
    return [report for report in reports_of(source.spec, source.told) if after < report.age <= until]


def reports_of(spec: EventSpec, output: Output) -> list[EventReport]:
    """The reports of an output, by send time, then by datum and bucket."""
    found = []
    for (datum, own), counts in zip(enumerate(spec.data), output, strict=True):
        buckets = [
            (first, last - 1) for first, last in zip(own.buckets, (*own.buckets[1:], LAST_VALUE + 1), strict=True)
        ]
        for end, count in zip(own.ends, counts, strict=True):
            found += [EventReport(datum, bucket, end) for bucket in buckets[:count]]
            buckets = buckets[count:]
    return sorted(found, key=lambda report: (report.age, report.trigger_data, report.bucket))


def number_of(outputs: EventSpec, output: Output) -> int:
    """The number of an output, as the inverse of ``EventSpec.unrank``."""
    number = bisect_left(range(outputs.count), output, key=outputs.unrank)
    assert outputs.unrank(number) == output
    return number


def after(spec, *triggers):
    """The source after triggers (age, data, [value])."""
    events = register(spec, random_bits=keep)
    for age, *fields in triggers:
        events = record(events, EventTrigger(*fields), age)
    return events


def keep(bits):
    return 0


def replace_by(spec, output):
    number = number_of(spec, output)
    return lambda bits: (1 << 256) - 1 if bits == 256 else number


def test_the_papers_example_counts_reports_by_datum_and_window():
    events = after(PAPER, (10, 0), (20, 1), (150, 0), (160, 1))

    assert PAPER.count == 27
    assert events.truth == ((1, 1), (1, 0))
    assert reports(events, 0, 100) == [EventReport(0, (1, 1), 100), EventReport(1, (1, 1), 100)]
    assert reports(events, 100, 200) == [EventReport(0, (2, 2**32 - 1), 200)]


def test_a_finished_source_has_all_its_reports():
    assert not after(PAPER, (10, 0), (20, 1)).finished
    assert after(PAPER, (10, 0), (20, 1), (150, 0)).finished


def test_a_window_includes_its_end_and_a_trigger_after_all_windows_changes_nothing():
    spec = EventSpec((DatumSpec((100, 200), (1, 2)),), 2)

    assert after(spec, (0, 0), (100, 0)).truth == ((2, 0),)
    assert after(spec, (101, 0), (200, 0)).truth == ((0, 2),)
    assert after(spec, (201, 0)) == after(spec)
    assert after(spec, (10, 7)) == after(spec), "a datum that the source does not have"


def test_values_add_up_across_windows_and_one_trigger_may_reach_several_buckets():
    spec = EventSpec((DatumSpec((100, 200), (10, 20, 100)),), 3)

    assert after(spec, (10, 0, 9), (150, 0, 1)).truth == ((0, 1),)
    assert after(spec, (10, 0, 25)).truth == ((2, 0),)
    assert [r.bucket for r in reports(after(spec, (10, 0, 100)), 0, 200)] == [(10, 19), (20, 99), (100, 2**32 - 1)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DatumSpec((), (1,)), "one after the other"),
        (lambda: DatumSpec((200, 100), (1,)), "one after the other"),
        (lambda: DatumSpec((0, 100), (1,)), "one after the other"),
        (lambda: DatumSpec((100,), (2, 2)), "must increase"),
        (lambda: DatumSpec((100,), (0, 2)), "must increase"),
        (lambda: DatumSpec((100,), ()), "must increase"),
        (lambda: EventTrigger(0, value=0), "from 1"),
    ],
)
def test_an_invalid_specification_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- randomised response: decided once, for every source ---


def test_the_draw_is_made_at_registration_and_never_again():
    drawn = []

    def bits(count):
        drawn.append(count)
        return 0

    events = register(PAPER, random_bits=bits)
    for age in (10, 110):
        events = record(events, EventTrigger(0), age)
    _ = reports(events, 0, 100), reports(events, 100, 200)

    assert drawn == [256]


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1), Fraction(7), None], ids=str)
def test_a_source_keeps_its_truth_at_the_rate_of_its_epsilon(epsilon):
    """With probability ``(e^eps - 1) / (e^eps + 26)``, to the last of the 2^256 words; browsers have 14."""
    low, high = exp_bounds(14 if epsilon is None else epsilon, 600)
    first_replaced = (low - 1) * 2**256 // (low + 26)
    assert first_replaced == (high - 1) * 2**256 // (high + 26)
    client = Attribution() if epsilon is None else Attribution(epsilon=epsilon)

    def replaced(word):
        (stored,) = add_source(client, (), source(0), lambda bits: word if bits == 256 else 3)
        return stored.events.replaced

    assert replaced(first_replaced - 1) is None
    assert replaced(first_replaced) == PAPER.unrank(3)


def test_a_source_without_triggers_reports_its_drawn_output():
    output = ((0, 1), (2, 0))
    device = add_source(Attribution(), (), source(0), replace_by(PAPER, output))

    told = [(report.age, report.trigger_data) for report in reports(device[0].events, 0, 1000)]
    assert told == [(100, 1), (100, 1), (200, 0)]


def test_a_replaced_truth_is_replaced_in_all_windows():
    events = register(PAPER, random_bits=replace_by(PAPER, ((0, 0), (0, 0))))
    for age in (10, 20, 110):
        events = record(events, EventTrigger(0), age)

    assert events.truth == ((2, 0), (0, 0))
    assert reports(events, 0, 1000) == []


def test_every_output_including_the_true_one_may_replace_the_truth():
    scripts = [lambda bits, n=n: n if bits == 5 else 2**256 - 1 for n in range(27)]
    drawn = {register(PAPER, random_bits=script).replaced for script in scripts}

    assert drawn == {PAPER.unrank(n) for n in range(27)}


def source(time, campaign=SHOP, spec=PAPER):
    return Source(time, ORIGIN, frozenset({campaign}), events=spec)


# --- against the oracle, on random histories ---

specs = st.lists(
    st.tuples(
        st.lists(st.integers(1, 60), min_size=1, max_size=3, unique=True).map(sorted),
        st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).map(sorted),
    ),
    min_size=1,
    max_size=3,
)
events = st.lists(
    st.tuples(st.integers(0, 8), st.sampled_from("st"), st.sampled_from("ab"), st.integers(0, 3), st.integers(1, 7)),
    min_size=1,
    max_size=25,
)


@pytest.mark.slow
@settings(derandomize=True, max_examples=300, deadline=None)
@given(specs, st.integers(1, 5), events, st.sets(st.integers(0, 5)), st.integers(0, 10**6))
def test_attribution_and_reports_equal_algorithm_9(windows, most, history, replaced, seed):
    """Sources, triggers and questions in one stream; the coins of some sources replace their truth."""
    specification = [(d, ends, buckets) for d, (ends, buckets) in enumerate(windows)]
    spec = EventSpec(tuple(DatumSpec(tuple(e), tuple(b)) for _, e, b in specification), most)
    paper = Attribution()
    member = spec.unrank(seed % spec.count)
    steps, device, told, time = [], (), [], 0
    for wait, what, campaign, datum, value in history:
        time += wait
        if what == "s":
            steps.append(("source", time, campaign))
            random_bits = replace_by(spec, member) if len(device) in replaced else keep
            made = source(time, f"https://{campaign}.test", spec)
            device = add_source(paper, device, made, random_bits)
        else:
            steps.append(("trigger", time, campaign, datum, value))
            made = Trigger(time, ORIGIN, f"https://{campaign}.test", event=EventTrigger(datum, value))
            device = add_trigger(paper, device, made).device
        steps.append(("tell", time - 1))
        told.append(emitted(device, time - 1))
    steps.append(("tell", time + 100))
    told.append(emitted(device, time + 100))

    assert told == algorithm_9(steps, specification, most, lambda x: member if x in replaced else None)


def emitted(device, until):
    found = Counter()
    for x, stored in enumerate(device):
        ends = [spec.ends for spec in stored.events.spec.data]
        for report in reports(stored.events, -1, until - stored.source.time):
            found[x, report.trigger_data, ends[report.trigger_data].index(report.age)] += 1
    return sorted((*place, count) for place, count in found.items())


triggers = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 3), st.integers(1, 9)), max_size=12).map(sorted)


@pytest.mark.slow
@settings(derandomize=True, max_examples=300, deadline=None)
@given(specs, st.integers(1, 5), triggers)
def test_the_truth_is_an_output_and_sent_reports_never_change(windows, most, history):
    spec = EventSpec(tuple(DatumSpec(tuple(e), tuple(b)) for e, b in windows), most)
    events = after(spec)
    for age, data, value in history:
        told = reports(events, -1, age - 1)
        events = record(events, EventTrigger(data, value), age)
        assert reports(events, -1, age - 1) == told
        assert spec.unrank(number_of(spec, events.truth)) == events.truth
