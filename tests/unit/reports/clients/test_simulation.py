"""Tables of events, and `kanon reports simulate`."""

import json
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.reports.clients.devices import DELAY, Attribution
from kanon.reports.clients.simulation import (
    ATTRIBUTION_COLUMNS,
    WINDOW_COLUMNS,
    Event,
    EventsError,
    ResponseParameters,
    document,
    from_attribution,
    random_delay,
    read_events,
    read_responses,
    responses,
)

HEADER = "time,client,key,value\n"
SHOP = "https://shop.test"


def table(tmp_path, text):
    path = tmp_path / "events.csv"
    path.write_text(text)
    return path


def test_times_keys_and_values_are_read_exactly(tmp_path):
    rows = "1.5,a,key1,7\n2026-01-01T00:00:00.25+01:00,b,0x10,\n1E+1,c,340282366920938463463374607431768211455,0\n"
    events = read_events(table(tmp_path, HEADER + rows), WINDOW_COLUMNS)

    assert events == [
        Event(1_500, "a", 0x6B657931, 7),
        Event(10_000, "c", 2**128 - 1, 0),
        Event(1_767_222_000_250, "b", 16, 1),
    ]


def test_columns_of_attribution_are_ignored_for_windows(tmp_path):
    text = "time,client,key,event,destination\n1,a,1,click,\n"

    assert read_events(table(tmp_path, text), WINDOW_COLUMNS) == [Event(1_000, "a", 1)]


def test_events_are_sorted_by_time_and_keep_their_order_within_it(tmp_path):
    events = read_events(table(tmp_path, HEADER + "2,a,1,\n1,b,1,\n2,c,1,\n1,d,1,\n"), WINDOW_COLUMNS)

    assert [event.client for event in events] == ["b", "d", "a", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,client\n", "lacks the columns key"),
        ("", "lacks the columns client, key, time"),
        (HEADER + "soon,a,1,1\n", "line 2: a time is"),
        (HEADER + "-1,a,1,1\n", "line 2"),
        (HEADER + "NaN,a,1,1\n", "line 2"),
        (HEADER + "1e999999,a,1,1\n", "line 2"),
        (HEADER + "253402300800,a,1,1\n", "line 2"),
        (HEADER + "1,a,,1\n", "line 2"),
        (HEADER + "1,a,seventeen bytes ab,1\n", "line 2"),
        (HEADER + f"1,a,{2**128},1\n", "line 2"),
        (HEADER + "1,a,1,-1\n", "line 2"),
        (HEADER + f"1,a,1,{2**32}\n", "line 2"),
        (HEADER + "1,a,1,1.5\n", "line 2"),
        (HEADER + "1\n", "line 2"),
    ],
)
def test_an_invalid_table_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(EventsError, match=message) as found:
        read_events(table(tmp_path, text), WINDOW_COLUMNS)

    assert "seventeen" not in str(found.value)


@pytest.mark.parametrize("row", ["1,a,1,view,https://shop.test", "1,a,1,source,"])
def test_an_event_of_attribution_needs_its_kind_and_its_destination(tmp_path, row):
    with pytest.raises(EventsError, match="line 2: `event` is source or trigger"):
        read_events(table(tmp_path, "time,client,key,event,destination\n" + row + "\n"), ATTRIBUTION_COLUMNS)


def test_a_folder_is_refused_as_a_table(tmp_path):
    with pytest.raises(EventsError, match="cannot be read"):
        read_events(tmp_path, WINDOW_COLUMNS)


def test_sources_and_triggers_of_one_client_are_attributed():
    events = [
        Event(0, "a", 0x100, 1, "source", SHOP),
        Event(1, "b", 0x7, 5, "trigger", SHOP),
        Event(1, "a", 0x7, 5, "trigger", SHOP),
    ]
    unmatched, matched = from_attribution(events, Attribution(), "https://report.test", lambda: 9)

    assert unmatched.is_null
    assert [(pair.bucket, pair.value) for pair in matched.contributions] == [(0x107, 5)]
    assert unmatched.scheduled == matched.scheduled == 10


def test_delays_stay_within_ten_minutes():
    assert DELAY == 600_000
    assert all(0 <= random_delay() <= DELAY for _ in range(100))


class Desk:
    """The command line in a folder with keys."""

    def __init__(self, folder):
        self.folder = folder
        self.run("keys", "--private", folder / "private.json", "--public", folder / "public.json")

    def run(self, *arguments, code=0):
        ran = CliRunner().invoke(app, ["reports", *map(str, arguments)])
        assert ran.exit_code == code, ran.output
        return " ".join(ran.output.replace("│", " ").split())

    def simulate(self, text, *options, code=0):
        given = ("--keys", self.folder / "public.json", "--out", self.folder / "reports.avro")
        return self.run("simulate", table(self.folder, text), *given, *options, code=code)

    def sums(self):
        """The exact sums of the reports, through a whole job without noise."""
        here = self.folder
        keys = ("--keys", here / "private.json", "--any-age")
        self.run("aggregate", here / "reports.avro", "--discover", *keys, "--debug", "--out", here / "out.avro")
        (debug,) = here.glob("*debug*")
        lines = [
            json.loads(line)
            for line in CliRunner().invoke(app, ["reports", "decode", str(debug)]).output.split("\n")
            if line
        ]
        return {int(line["bucket"], 16): line["unnoised_metric"] for line in lines}


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_a_table_becomes_reports_that_a_job_adds_up(desk):
    said = desk.simulate(HEADER + "0,a,1,60000\n1,a,1,6000\n2,a,2,5536\n2,b,1,7\n600,a,1,6000\n")

    assert "5 events, 5 reports, 1 of them null." in said
    assert "one client in one window of 600 seconds" in said
    assert desk.sums() == {1: 66_007, 2: 5_536}


def test_the_length_of_a_window_and_the_bound_are_parameters(desk):
    said = desk.simulate(HEADER + "0,a,1,5\n1,a,1,6\n", "--window-seconds", 1, "--bound", 5)

    assert "2 events, 2 reports, 1 of them null." in said
    assert "carry at most 5 in all" in said


def test_a_trigger_falls_through_to_a_source_with_budget(desk):
    text = "time,client,key,value,event,destination\n"
    text += f"0,a,1,,source,{SHOP}\n1,a,2,,source,{SHOP}\n"
    text += f"2,a,0,60000,trigger,{SHOP}\n3,a,0,60000,trigger,{SHOP}\n"

    said = desk.simulate(text, "--client", "attribution")
    assert "4 events, 2 reports, 0 of them null." in said
    assert "one source" in said
    assert desk.sums() == {1: 60_000, 2: 60_000}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--client", "browser"), "--client must be windows or attribution"),
        (("--client", "attribution"), "lacks the columns destination, event"),
        (("--keys", "nowhere.json"), "make keys with `kanon reports keys`"),
        (("--window-seconds", 0), "--window-seconds"),
        (("--bound", 65_537), "--bound"),
        (("--out", "/proc/x/reports.avro"), "cannot be written"),
    ],
)
def test_a_wrong_option_gets_one_line_that_says_what_to_change(desk, options, message):
    assert message in desk.simulate(HEADER + "0,a,1,5\n", *options, code=2)


def test_no_file_is_overwritten(desk):
    desk.simulate(HEADER + "0,a,1,5\n")

    assert "exists already" in desk.simulate(HEADER + "0,a,1,5\n", code=2)


# --- Algorithm 4: kanon reports respond, kanon reports estimate ---

EVENTS = "time,client,event,destination,key\n" + "".join(
    f"{n},{client},{event},{SHOP},{key}\n"
    for n, (client, event, key) in enumerate(
        [("a", "source", 0), ("a", "trigger", 1), ("a", "trigger", 1), ("b", "source", 0), ("b", "trigger", 0)]
    )
)
REPORTING = ResponseParameters(Fraction(1), 2, (2, 100), 3)


def responses_of(tmp_path, bits, text=EVENTS, reporting=REPORTING):
    return responses(read_events(table(tmp_path, text), ATTRIBUTION_COLUMNS), reporting, bits)


def test_every_source_has_one_response_which_is_its_truth_or_a_drawn_output(tmp_path):
    assert responses_of(tmp_path, lambda bits: 0) == [((0, 0), (2, 0)), ((1, 0), (0, 0))]
    drawn = responses_of(tmp_path, lambda bits: (1 << 256) - 1 if bits == 256 else 7)
    assert drawn == [REPORTING.spec.unrank(7)] * 2
    alone = EVENTS.splitlines()[0] + f"\n1,c,source,{SHOP},0\n"
    assert len(responses_of(tmp_path, lambda bits: 0, alone)) == 1, "a source without triggers responds too"


def test_the_key_of_a_trigger_must_be_a_datum(tmp_path):
    with pytest.raises(EventsError, match="from 0 to 0"):
        responses_of(tmp_path, lambda bits: 0, reporting=ResponseParameters(Fraction(1), 1, (2,), 1))


def test_a_file_of_responses_is_read_as_it_was_written():
    told = [((0, 0), (2, 0)), ((1, 0), (0, 1))]

    assert read_responses(document(REPORTING, told).decode()) == (REPORTING, told)
    assert read_responses(document(REPORTING, []).decode()) == (REPORTING, [])


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"responses": [[[0, 0], [2, 2]]]},
        {"responses": [[[0, 0]]]},
        {"responses": [[[0, 0], [True, 0]]]},
        {"responses": [[[0, 0], [-1, 0]]]},
        {"responses": 7},
        {"epsilon": "15"},
        {"epsilon": 1},
        {"data": 33},
        {"data": "2"},
        {"windows": [100, 2]},
        {"windows": []},
        {"reports": 0},
    ],
    ids=str,
)
def test_a_file_that_is_not_one_of_responses_is_refused(change):
    fields = json.loads(document(REPORTING, [((0, 0), (2, 0))]))

    with pytest.raises(EventsError):
        read_responses(json.dumps(fields | change))
    with pytest.raises(EventsError):
        read_responses(json.dumps({name: fields[name] for name in fields if name not in change} or "x")[:-1])


def test_the_commands_write_responses_and_estimate_the_truth_from_them(tmp_path, desk):
    events, told = table(tmp_path, EVENTS), tmp_path / "responses.json"
    options = ("--epsilon", 14, "--data", 2, "--ends", "2,100", "--most", 3, "--out", told)
    said = desk.run("respond", events, *options)
    assert "2 sources, one response each" in said
    assert "14-DP" in said
    assert "each run draws again, and the epsilons add up" in said
    reporting, responded = read_responses(told.read_text())
    assert reporting == ResponseParameters(Fraction(14), 2, (2, 100), 3)

    before = told.read_bytes()
    assert "a second draw costs epsilon again" in desk.run("respond", events, *options, code=2)
    assert told.read_bytes() == before
    desk.run("respond", events, *options, "--force")
    told.write_text(document(reporting, responded).decode())
    assert "exists already" in desk.run("respond", events, *options, code=2)

    found = json.loads(CliRunner().invoke(app, ["reports", "estimate", str(told), "--json"]).output)
    exact = [one for row in reporting.response.estimates(responded) for one in row]
    assert found["sources"] == 2
    assert [one["reports"] for one in found["estimates"]] == [float(one.reports) for one in exact]
    assert [one["standardError"] for one in found["estimates"]] == [one.standard_error for one in exact]
    assert "standard error" in desk.run("estimate", told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("respond", "EVENTS", "--ends", "soon"), "whole seconds"),
        (("respond", "EVENTS", "--ends", "5,3"), "one after the other"),
        (("respond", "EVENTS", "--epsilon", "15"), "at most 14"),
        (("respond", "EVENTS", "--data", "1"), "from 0 to 0"),
        (("estimate", "EVENTS"), "not a file of responses"),
        (("estimate", "/nowhere"), "cannot be read"),
    ],
)
def test_a_wrong_parameter_of_responses_gets_one_line(tmp_path, desk, options, message):
    events = str(table(tmp_path, EVENTS))
    assert message in desk.run(*[events if option == "EVENTS" else option for option in options], code=2)
