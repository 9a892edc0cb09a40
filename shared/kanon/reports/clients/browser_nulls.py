"""Reports as browsers send them: a report with values for an attributed trigger, and random null reports.

**Outside the guarantee R3.** The number of reports then reveals, up to the rates, whether a trigger was attributed. Use
it only to compare with browsers: the clients of this package send one report for every trigger.
"""

from dataclasses import replace
from fractions import Fraction

from kanon.reports.clients.attribution import Attributed, Trigger
from kanon.reports.clients.report import DAY, Report
from kanon.reports.clients.response import RandomBits

RATES = (Fraction(5, 100), Fraction(8, 1000))
"""Chromium's probabilities of a null report: without, and with the day of the source (for each of 31 days)."""


def browser_reports(
    attributed: Attributed, trigger: Trigger, random_bits: RandomBits, rates: tuple[Fraction, Fraction] = RATES
) -> list[Report]:
    """The reports that a browser sends for a trigger.

    Args:
        attributed: the outcome of the trigger.
        trigger: the trigger.
        random_bits: source of randomness.
        rates: probability of a null report for a trigger whose reports show no day, and for each of 31 days if they do.
    """
    rate, day_rate = rates
    report = attributed.report
    if report is None:
        return []
    sent = [] if report.is_null else [report]
    if trigger.context_id is not None:
        return [report]
    if not trigger.tells_source_day:
        return sent or ([report] if _happens(rate, random_bits) else [])
    days = (trigger.time // DAY * DAY - n * DAY for n in range(31))
    null = replace(report, contributions=())
    others = [day for day in days if not sent or day != report.source_registration]
    return sent + [replace(null, source_registration=day) for day in others if _happens(day_rate, random_bits)]


def _happens(rate: Fraction, random_bits: RandomBits) -> bool:
    return random_bits(64) < rate * (1 << 64)
