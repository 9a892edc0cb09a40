"""``kanon reports demo-service`` against a whole stack over HTTP: its output, and that its checks can fail."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from typing import Any

import pytest
from matplotlib.patches import Rectangle

from kanon.cli import reports_demo_service as demo
from kanon.demo.budgets import BudgetsAfterJobs, figure_of
from kanon.demo.logs import generated_log
from kanon.demo.reported_log import ReportedLog
from kanon.local import Stack
from kanon.reports.avro import Report
from kanon.reports.job import PrivacyParameters

CAP = Fraction(64), Fraction(1, 10**7)
LEFT = Fraction(56), CAP[1] - Fraction(1, 10**8)
OLDER_LEFT = Fraction(60), CAP[1]
DECLARED = PrivacyParameters("declared", Fraction(4))


@dataclass(frozen=True)
class Ran:
    """A service on which a demo has run, and the sent reports."""

    service: demo.RunningService
    reported: ReportedLog
    sealed: list[Report]
    output: str
    budgets: BudgetsAfterJobs

    def job(self, name: str) -> dict[str, Any]:
        return self.service.call("GET", f"/v1alpha/getJob?job_request_id={self.service.run}-{name}")


@pytest.fixture(scope="module")
def ran() -> Iterator[Ran]:
    with Stack({"Reports": "ON"}, start=1_800_000_000.0) as stack, closing(stack.serve()) as server:
        buckets = stack.storage.buckets
        service = demo.RunningService(
            server.url,
            None,
            stack.session.client("s3"),
            buckets["ReportsBucket"],
            buckets["SummariesBucket"],
            CAP,
            "demo-of-the-test",
            stack.advance,
            stack.clock.now,
        )
        sent: list[Report] = []
        said: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            send = demo.send
            patch.setattr(demo, "send", lambda service, sealed: (sent.extend(sealed), send(service, sealed)))
            patch.setattr(demo.typer, "echo", lambda text, **_: said.append(text))
            taken = demo.recent(generated_log(3, days=9, joins=90, sets=20), stack.clock.now(), 60)
            budgets = demo.run(service, taken)
        yield Ran(service, taken, sent, "\n".join(said), budgets)
        assert stack.failures == []


def test_the_demo_checks_two_summaries_and_a_refusal(ran: Ran) -> None:
    assert f"{len(ran.sealed)} reports are sent" in ran.output
    assert "every number checked against its exact sum" in ran.output
    assert "epsilon 60 is more than the 56 left of each newer unit" in ran.output
    assert "in 5 of 9 hours, epsilon 56 and delta 0.00000009 are left; in the others epsilon 60," in ran.output


def test_the_demo_notices_a_wrong_number_and_a_missing_key(ran: Ran) -> None:
    metrics = demo.summary(ran.service, ran.job("declared"))
    key = next(iter(metrics))
    with pytest.raises(AssertionError, match="too far"):
        ran.reported.check(metrics | {key: metrics[key] + 5_000_000}, DECLARED)
    with pytest.raises(AssertionError, match="not the declared ones"):
        ran.reported.check({other: metrics[other] for other in metrics if other != key}, DECLARED)


def test_the_demo_notices_budget_that_was_spent_twice_or_not_at_all(ran: Ran) -> None:
    older, newer = ran.reported.hours, ran.reported.newer.hours
    expected = dict.fromkeys(older, OLDER_LEFT) | dict.fromkeys(newer, LEFT)
    demo.check_spent(ran.service, ran.budgets.answers, expected)
    one = min(newer)
    for left in (CAP, OLDER_LEFT, (LEFT[0] - 4, LEFT[1]), (LEFT[0], LEFT[1] - Fraction(1, 10**8))):
        with pytest.raises(AssertionError, match="spent"):
            demo.check_spent(ran.service, ran.budgets.answers, expected | {one: left})
    del expected[min(older)]
    with pytest.raises(AssertionError, match="spent"):
        demo.check_spent(ran.service, ran.budgets.answers, expected)


def test_the_bars_of_the_picture_are_what_the_ledger_says(ran: Ran) -> None:
    heights, tops = defaultdict[str, dict[float, float]](dict), defaultdict[float, float](float)
    panel = figure_of(ran.budgets).axes[0]
    for bars in panel.containers[:-1]:
        for bar in bars:
            hour = hour_of(bar)
            assert bar.get_y() == tops[hour]
            heights[bars.get_label()][hour] = bar.get_height()
            tops[hour] += bar.get_height()
    older, newer = ran.reported.hours, ran.reported.newer.hours
    run = ran.service.run
    assert heights == {f"{run}-declared": dict.fromkeys(older, 4.0), f"{run}-discover": dict.fromkeys(newer, 4.0)}
    for answer in demo.budgets_of(ran.service, ran.sealed):
        begin = int(datetime.fromisoformat(f"{answer['day']}T00Z").timestamp()) // 3600
        for hour in answer["hours"]:
            assert 64 - float(hour["epsilon_left"]) == tops[begin + hour["hour"]]
    refused = panel.containers[-1]
    assert refused.get_label() == f"{run}-refused: asked for, and refused"
    assert {hour_of(bar): bar.get_y() for bar in refused} == {hour: tops[hour] for hour in older}
    assert {bar.get_height() for bar in refused} == {60.0}
    (cap,) = panel.get_lines()
    assert set(cap.get_ydata()) == {64.0}


def hour_of(bar: Rectangle) -> int:
    """The hour since 1970 of a bar; matplotlib counts days."""
    return round((bar.get_x() + bar.get_width() / 2) * 24)


def test_the_demo_notices_a_job_that_should_have_been_refused(ran: Ran) -> None:
    with pytest.raises(AssertionError, match="ended with SUCCESS"):
        demo.check_refused(ran.service, ran.job("declared"), LEFT, len(ran.sealed))
    with pytest.raises(AssertionError, match="what is left"):
        demo.check_refused(ran.service, ran.job("refused"), CAP, len(ran.sealed))


def test_the_demo_ends_with_a_reason_after_a_timeout(ran: Ran) -> None:
    with pytest.raises(demo.DemoError, match="waiting for nothing: not within 3 s"):
        ran.service.until("waiting for nothing", 3, lambda: False)
    with pytest.raises(AssertionError, match="PRIVACY_BUDGET_EXHAUSTED"):
        demo.summary(ran.service, ran.job("refused"))


def test_the_demo_moves_a_log_by_whole_windows() -> None:
    log = generated_log(3, days=9, joins=300, sets=20)
    moved = demo.recent(log, 1_800_000_000.0, 100).log
    assert len(moved.joins) <= 100
    assert moved.joins[-1].time < 1_800_000_000 // 86_400 * 86_400
    assert (moved.joins[0].time - log.joins[0].time) % 86_400 == 0
    whole = replace(log, joins=log.joins[-1:])
    assert len(demo.recent(whole, 1_800_000_000.0, 100).log.joins) == 1
