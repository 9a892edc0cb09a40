"""The demo of reports on a small log: its checks, and that they can fail."""

import csv
from dataclasses import replace
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from kanon.cli import reports_demo
from kanon.cli.main import app
from kanon.local.logs import generated_log
from kanon.reports.parameters import Parameters

BOTH = Parameters("declared", Fraction(1)), Parameters("discover", Fraction(1), Fraction(1, 10**5))
VALUE = 32_768


@pytest.fixture(scope="module", autouse=True)
def one_process():
    """Starting more takes longer than what they do here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reports_demo, "PROCESSES", 1)
        yield


@pytest.fixture(scope="module")
def log():
    return generated_log(3, days=9, joins=900, sets=20)


@pytest.fixture(scope="module")
def exact(log):
    return reports_demo.exact_sums(log, 24, 2, VALUE)


@pytest.fixture(scope="module")
def summaries(log, exact, tmp_path_factory):
    return reports_demo.aggregated(log, exact, 24, VALUE, BOTH, tmp_path_factory.mktemp("demo"))


def test_every_number_of_the_demo_is_checked(summaries, exact):
    for summary in summaries:
        reports_demo.check(summary, exact)
    assert len(summaries[0].metrics) == len(exact) + reports_demo.UNUSED
    assert 0 < len(summaries[1].metrics) < len(exact)


def moved(summary, by):
    [partition] = summary.outcome.partitions
    noise = partition.noise + by
    return replace(summary, outcome=replace(summary.outcome, partitions=(replace(partition, noise=noise),)))


@pytest.mark.parametrize("number", [0, 1])
def test_a_wrong_number_is_noticed(summaries, exact, number):
    with pytest.raises(AssertionError):
        reports_demo.check(moved(summaries[number], 5_000_000), exact)


@pytest.mark.parametrize("number", [0, 1])
def test_a_report_that_was_lost_is_noticed(summaries, exact, number):
    key = max(exact, key=lambda each: exact[each])
    with pytest.raises(AssertionError, match="do not add up"):
        reports_demo.check(summaries[number], exact | {key: exact[key] + VALUE})


def test_a_missing_declared_key_and_a_key_below_the_threshold_are_found(summaries, exact):
    declared, discover = summaries
    with pytest.raises(AssertionError, match="declared key"):
        reports_demo.check(declared, exact | {b"x" * 16: 0})
    lower = replace(discover.outcome.partitions[0], threshold=0)
    shown = replace(discover, outcome=replace(discover.outcome, partitions=(lower,)))
    with pytest.raises(AssertionError, match="threshold"):
        reports_demo.check(shown, exact)


def test_the_command_draws_a_picture_and_prints_window_and_guarantee(log, tmp_path):
    with (tmp_path / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", "set", "client"])
        rows.writerows((join.time, join.set, join.client) for join in log.joins)
    arguments = ["--log", tmp_path / "log.csv", "--window-hours", "6", "--plot", tmp_path / "p.png"]
    told = CliRunner().invoke(app, ["reports", "demo", *map(str, arguments)])
    assert told.exit_code == 0, told.output
    assert "one client in one window of 6 h" in told.output
    assert "e^epsilon, epsilon = 2" in told.output
    assert "fixed before and independent of the log" in told.output
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    assert CliRunner().invoke(app, ["reports", "demo", "--epsilon", "0"]).exit_code == 2
