"""The demo of reports on a small log: its checks, and that they can fail."""

import csv
from dataclasses import replace
from fractions import Fraction

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.demo import reported_log
from kanon.demo.logs import generated_log
from kanon.demo.reported_log import Files, ReportedLog
from kanon.reports.job import PrivacyParameters

BOTH = PrivacyParameters("declared", Fraction(1)), PrivacyParameters("discover", Fraction(1), Fraction(1, 10**5))


@pytest.fixture(scope="module", autouse=True)
def one_process():
    """Starting more takes longer than what they do here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reported_log, "PROCESSES", 1)
        yield


@pytest.fixture(scope="module")
def reported():
    return ReportedLog(generated_log(3, days=9, joins=900, sets=20), 24)


@pytest.fixture(scope="module")
def summaries(reported, tmp_path_factory):
    files = Files(reported, tmp_path_factory.mktemp("demo"), X25519PrivateKey.generate())
    files.write(list(reported.encrypted(reported_log.ORIGIN, files.keys)))
    return [files.aggregated(parameters) for parameters in BOTH]


def test_every_number_of_the_demo_is_checked(summaries, reported):
    for summary in summaries:
        summary.check(reported)
    assert len(summaries[0].metrics) == len(reported.exact) + reported_log.UNUSED
    assert 0 < len(summaries[1].metrics) < len(reported.exact)
    assert {summary.accepted for summary in summaries} == {len(reported.log.joins)}


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (0, lambda metrics: {key: metric + 5_000_000 for key, metric in metrics.items()}, "too far"),
        (1, lambda metrics: {key: metric + 5_000_000 for key, metric in metrics.items()}, "too far"),
        (1, lambda metrics: metrics | {b"x" * 16: 0}, "too far"),
        (0, lambda metrics: dict(list(metrics.items())[1:]), "declared key"),
        (1, lambda metrics: dict(sorted(metrics.items(), key=lambda one: one[1])[:-1]), "threshold"),
    ],
)
def test_a_wrong_number_a_missing_key_and_an_unknown_key_are_noticed(summaries, reported, number, change, message):
    summary = summaries[number]
    with pytest.raises(AssertionError, match=message):
        replace(summary, metrics=change(summary.metrics)).check(reported)


def test_a_key_below_the_threshold_is_noticed(summaries, reported):
    rare = min(reported.exact, key=lambda key: reported.exact[key])
    assert rare not in summaries[1].metrics
    with pytest.raises(AssertionError, match="threshold"):
        replace(summaries[1], metrics=summaries[1].metrics | {rare: reported.exact[rare]}).check(reported)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("change", [{"seen": -1}, {"faults": 1}])
def test_a_report_that_was_lost_or_is_in_error_is_noticed(summaries, reported, number, change):
    summary = summaries[number]
    moved = {name: getattr(summary, name) + by for name, by in change.items()}
    with pytest.raises(AssertionError, match="do not add up"):
        replace(summary, **moved).check(reported)


def test_the_command_draws_a_picture_and_prints_window_and_guarantee(reported, tmp_path):
    with (tmp_path / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", "set", "client"])
        rows.writerows((join.time, join.set, join.client) for join in reported.log.joins)
    arguments = ["--log", tmp_path / "log.csv", "--window-hours", "6", "--plot", tmp_path / "p.png"]
    told = CliRunner().invoke(app, ["reports", "demo", *map(str, arguments)])
    assert told.exit_code == 0, told.output
    assert "one client in one window of 6 h" in told.output
    assert "e^epsilon, epsilon = 2" in told.output
    assert "fixed before and independent of the log" in told.output
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    assert CliRunner().invoke(app, ["reports", "demo", "--epsilon", "0"]).exit_code == 2
