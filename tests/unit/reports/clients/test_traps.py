"""The mistakes of clients, each planted: its check must pass without the mistake and fail with it.

| trap | mistake |
|---|---|
| 7 | padding that is not the pair (0, 0), so that a null report counts |
| 27 | randomised response that draws again for every window, leaves the truth out, or forgets silent sources |
| 28 | a source that takes a report which no longer fits its bound |
| 29 | a client that sends nothing when it is out of budget |
| 30 | messages that name a key or a client |
"""

from dataclasses import replace

import pytest

from kanon.reports.clients import devices, encrypt, events, simulation
from kanon.reports.clients.devices import Attribution, KeyPiece, Source, Trigger, Windows
from kanon.reports.clients.encrypt import ClientReport
from kanon.reports.clients.events import DatumSpec, EventSpec
from kanon.reports.payload import Cleartext, Contribution, EncryptionKey, decode, open_sealed
from tests.unit.reports import made

SPEC = EventSpec((DatumSpec((100, 200), (1, 2)),) * 2, 3)
ORIGIN, SHOP = "https://report.test", "https://shop.test"


class Bits:
    """Random bits that replace the truth by the outputs of these numbers, one draw after the other."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def __call__(self, bits):
        return (1 << 256) - 1 if bits == 256 else self.numbers.pop(0)


# Each check is a function without arguments; each plant takes a monkeypatch.


def one_draw_fixes_all_windows(folder):
    for number in range(27):
        source = events.register(SPEC, random_bits=Bits(number, *range(27)))
        assert [source.told, source.told] == [SPEC.unrank(number)] * 2


def plant_a_draw_for_every_window(patch):
    def drawn_again(self):
        return events.Response(self.spec, events.EPSILON).decide(self.bits)

    patch.setattr(events.Events, "bits", Bits(*range(1, 55)), raising=False)
    patch.setattr(events.Events, "told", property(drawn_again))


def every_output_may_be_drawn_the_truth_too(folder):
    drawn = [events.Response(SPEC, events.EPSILON).decide(Bits(number)) for number in range(27)]
    assert drawn == [SPEC.unrank(number) for number in range(27)]


def plant_the_truth_left_out(patch):
    def without_silence(self, random_bits):
        random_bits(256)
        return self.outputs.unrank(1 + random_bits(5) % (self.outputs.count - 1))

    patch.setattr(events.Response, "decide", without_silence)


def a_silent_source_tells_what_was_drawn(folder):
    source = Source(0, ORIGIN, frozenset({SHOP}), events=SPEC)
    for number in range(27):
        device = devices.add_source(Attribution(), (), source, Bits(number))
        assert device[0].events.told == SPEC.unrank(number)


def plant_silent_sources_forgotten(patch):
    told = events.Events.told.fget

    def of_those_with_triggers(self):
        return told(self) if self.finished else self.truth

    patch.setattr(events.Events, "told", property(of_those_with_triggers))


def carried(*values):
    """Values of the reports of triggers, and the newest source's part, with two sources and the bound 10."""
    device = ()
    for time in (0, 1):
        source = Source(time, ORIGIN, frozenset({SHOP}), {"a": time})
        device = devices.add_source(Attribution(), device, source)
    reports = []
    for value in values:
        trigger = Trigger(2, ORIGIN, SHOP, (KeyPiece(0, frozenset("a")),), {"a": value})
        device, report, _ = devices.add_trigger(Attribution(10), device, trigger, 0)
        reports.append(report)
    return [None if report is None else sum(pair.value for pair in report.contributions) for report in reports]


def a_source_carries_at_most_its_bound(folder):
    assert carried(11, 8, 8, 8) == [0, 8, 8, 0]


def plant_a_budget_that_is_not_kept(patch):
    charge = devices._charge

    def forgetful(parameters, registered, trigger):
        found = charge(parameters, registered, trigger)
        return found and replace(found, used=0)

    patch.setattr(devices, "_charge", forgetful)


def every_trigger_and_every_event_has_a_report(folder):
    assert carried(10, 10, 10) == [10, 10, 0]
    made_of_events = devices.contributions(Windows(ORIGIN, contribution_bound=10), [("a", 0, 1, 10), ("a", 1, 1, 1)])
    assert len([report for report in made_of_events if report is not None]) == 2


def plant_silence_of_sources(patch):
    full = devices._report
    patch.setattr(devices, "_report", lambda trigger, pairs, delay: full(trigger, pairs, delay) if pairs else None)


def plant_silence_of_windows(patch):
    contribute = devices.contribute

    def silent(*arguments):
        device, report = contribute(*arguments)
        return device, None if report.is_null else report

    patch.setattr(devices, "contribute", silent)


def a_null_report_adds_nothing(folder):
    null = ClientReport((), 0, ORIGIN, "kanon")
    encrypted = encrypt.encrypt(null, [EncryptionKey(made.KEY_ID, made.KEY.public_key())])
    payload = decode(open_sealed(encrypted.payload, made.KEY, encrypted.shared_info))
    assert payload == Cleartext("histogram", (Contribution(0, 0),) * 20)


def plant_padding_with_values(patch):
    encode = encrypt.encode
    patch.setattr(encrypt, "encode", lambda pairs, layout: encode(pairs or [Contribution(0, 1)], layout))


def messages_name_no_key_and_no_client(folder):
    table = folder / "events.csv"
    table.write_text("time,client,key\n1,secret-client,a key of more than 16 bytes\n")
    with pytest.raises(simulation.EventsError) as found:
        simulation.read_events(table, simulation.WINDOW_COLUMNS)
    assert "secret" not in str(found.value)
    assert "more than" not in str(found.value)


def plant_messages_with_the_line(patch):
    read = simulation._event

    def telling(row, path, line, attribution):
        try:
            return read(row, path, line, attribution)
        except simulation.EventsError as error:
            raise simulation.EventsError(f"{error}: {row}") from error

    patch.setattr(simulation, "_event", telling)


TRAPS = [
    (7, a_null_report_adds_nothing, plant_padding_with_values),
    (27, one_draw_fixes_all_windows, plant_a_draw_for_every_window),
    (27, every_output_may_be_drawn_the_truth_too, plant_the_truth_left_out),
    (27, a_silent_source_tells_what_was_drawn, plant_silent_sources_forgotten),
    (28, a_source_carries_at_most_its_bound, plant_a_budget_that_is_not_kept),
    (29, every_trigger_and_every_event_has_a_report, plant_silence_of_sources),
    (29, every_trigger_and_every_event_has_a_report, plant_silence_of_windows),
    (30, messages_name_no_key_and_no_client, plant_messages_with_the_line),
]
NAMES = [f"{number}-{plant.__name__.removeprefix('plant_')}" for number, _, plant in TRAPS]


@pytest.mark.parametrize(("number", "check", "plant"), TRAPS, ids=NAMES)
def test_the_rule_holds(number, check, plant, tmp_path):
    check(tmp_path)


@pytest.mark.parametrize(("number", "check", "plant"), TRAPS, ids=NAMES)
def test_the_mistake_is_caught(number, check, plant, tmp_path, monkeypatch):
    plant(monkeypatch)
    # Not any exception: a TypeError would be a broken plant.
    with pytest.raises(AssertionError):
        check(tmp_path)
