"""Public cases of browsers' clients: inputs and expected reports, in one form for both sets."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from publicsuffixlist import PublicSuffixList

from kanon.reports.clients.attribution import Attribution, add_source, add_trigger
from kanon.reports.clients.browser_nulls import browser_reports
from kanon.reports.clients.event_json import PATH, reports_due
from kanon.reports.clients.registration import Rules, source, trigger
from kanon.reports.clients.report import DAY, HOUR, SECOND
from tests.unit.reports.clients.numbering import number_of

FOLDER = Path(__file__).resolve().parents[5] / "shared" / "vectors" / "reports" / "clients"
AGGREGATE_PATH = "/.well-known/attribution-reporting/report-aggregate-attribution"
WEB = Attribution("web")


@dataclass(frozen=True)
class Step:
    """One registration."""

    time: int
    origin: str
    destinations: frozenset[str]
    kind: str
    """Of a source; empty for a trigger."""
    fields: dict[str, Any]
    draws: Any = None

    @property
    def is_source(self):
        return bool(self.kind)


def load(path):
    """Read a case; some hold comments and trailing commas."""
    text = path.read_text()
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        text = re.sub(r"(^|\s)//.*$", "", text, flags=re.MULTILINE)
        return json.loads(re.sub(r",(\s*[}\]])", r"\1", text))


def several(value):
    return frozenset(value if isinstance(value, list) else [] if value is None else [value])


def steps_of_interop(case):
    for entry in case["input"]["sources"]:
        yield Step(
            int(entry["timestamp"]),
            entry["enrollment_id"].rstrip("/"),
            several(entry["web_destination"]),
            entry["source_type"].lower(),
            entry,
        )
    for entry in case["input"]["triggers"]:
        destinations = several(entry["attribution_destination"])
        yield Step(int(entry["timestamp"]), entry["enrollment_id"].rstrip("/"), destinations, "", entry)


def steps_of_e2e(case):
    given = case["input"]
    for name in ("sources", "triggers", "registrations", "web_sources", "web_triggers"):
        for entry in given.get(name, []):
            request = entry["registration_request"]
            for response in entry["responses"]:
                headers, url = response["response"], response["url"]
                origin = re.match(r"https://[^/]+", url)[0]
                time = int(entry["timestamp"])
                if fields := headers.get("Attribution-Reporting-Register-Source"):
                    destinations = several(fields.get("destination")) | several(fields.get("web_destination"))
                    destinations = frozenset(map(site, destinations))
                    draws = response.get("randomized_response")
                    yield Step(time, origin, destinations, request["source_type"], fields, draws)
                if fields := headers.get("Attribution-Reporting-Register-Trigger"):
                    place = site(request.get("destination_origin") or f"android-app://{request['registrant']}")
                    # These clients tell the source's day unless a trigger asks them not to.
                    fields = {"aggregatable_source_registration_time": "include"} | fields
                    yield Step(time, origin, frozenset({place}), "", fields)


SUFFIXES = PublicSuffixList()


def site(destination):
    """Web destinations are sites; apps keep their names."""
    scheme, _, host = destination.partition("://")
    return f"https://{SUFFIXES.privatesuffix(host)}" if scheme == "https" else destination


class Run:
    """All reports of a case under the policy ``web``.

    Attributes:
        ours: one aggregatable report for every trigger that asks for one.
        browsers: aggregatable reports as browsers send them, null ones with the given rates.
        events: event-level reports.
        device: the sources afterwards.
    """

    def __init__(self, steps, rules, null_rates=(Fraction(0), Fraction(0))):
        self.ours, self.browsers, self.device = [], [], ()
        for step in sorted(steps, key=lambda step: (step.time, not step.is_source)):
            if step.is_source:
                self._add_source(step, rules)
            else:
                self._add_trigger(step, null_rates)
        self.events = reports_due(self.device, -1, 10**15)

    def _add_source(self, step, rules):
        made = source(
            step.fields,
            time=step.time,
            kind=step.kind,
            reporting_origin=step.origin,
            destinations=step.destinations,
            rules=rules,
        )
        self.device = add_source(WEB, self.device, made, draws(step, made))

    def _add_trigger(self, step, null_rates):
        (destination,) = step.destinations
        made = trigger(step.fields, time=step.time, reporting_origin=step.origin, destination=destination)
        attributed = add_trigger(WEB, self.device, made, delay=HOUR)
        self.device = attributed.device
        self.ours += [attributed.report] if attributed.report is not None else []
        self.browsers += browser_reports(attributed, made, lambda bits: 0, null_rates)


def draws(step, made):
    """Random bits that keep the truth, or that draw the fake reports of a case."""
    if step.draws is None:
        return lambda bits: 0
    spec = made.events
    counts = [[0] * len(own.ends) for _, own in spec.rows]
    for fake in step.draws:
        counts[spec.row_of(fake["trigger_data"])][fake["report_window_index"]] += 1
    number = number_of(spec.outputs, tuple(map(tuple, counts)))
    return lambda bits: (1 << 256) - 1 if bits == 256 else number


def event_facts(reports):
    """What is compared of event-level reports of ours."""
    return Counter((sent.time, sent.reporting_origin + PATH, json.dumps(sent.body, sort_keys=True)) for sent in reports)


IGNORED = {"source_debug_key", "trigger_debug_key", "trigger_debug_keys"}


def expected_events(results):
    """The same facts of the expected reports, debug keys apart."""
    found = []
    for result in results:
        body = {name: value for name, value in result["payload"].items() if name not in IGNORED}
        if isinstance(bucket := body.get("trigger_summary_bucket"), str):
            body["trigger_summary_bucket"] = json.loads(bucket)
        found.append((int(result["report_time"]), result["report_url"], json.dumps(body, sort_keys=True)))
    return Counter(found)


def aggregatable_facts(reports):
    """What is compared of aggregatable reports; a null report is the pair (0, 0)."""
    return Counter(
        (
            report.scheduled,
            report.reporting_origin + AGGREGATE_PATH,
            report.destination,
            None if report.source_registration is None else report.source_registration // SECOND,
            tuple((pair.bucket, pair.value) for pair in report.contributions) or ((0, 0),),
            report.context_id,
        )
        for report in reports
    )


def expected_aggregatable(results, read_key):
    """The same facts of the expected reports. A source day of "0" means that it is not told."""
    found = []
    for result in results:
        payload = result["payload"]
        shared = payload.get("shared_info", payload)
        pairs = tuple((read_key(pair["key"]), int(pair["value"])) for pair in payload["histograms"])
        day = int(shared.get("source_registration_time", 0))
        destination = shared["attribution_destination"]
        facts = (day or None, pairs, payload.get("trigger_context_id"))
        found.append((int(result["report_time"]), result["report_url"], destination, *facts))
    return Counter(found)


INTEROP = Rules(least_window=DAY, event_delay=HOUR)
E2E = Rules(least_window=HOUR, event_delay=0)
