"""The demo of reports on a small log: its checks, and that they can fail."""

import csv
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.demo import reported_log
from kanon.demo.logs import generated_log
from kanon.demo.released_log import ReleasedLog
from kanon.demo.reported_log import Files, ReportedLog, Summary
from kanon.gate.mechanism.bounds import guarantee
from kanon.noise.words import NoiseKey
from kanon.reports import avro
from kanon.reports.aggregate import NoiseSecrets
from kanon.reports.job import PrivacyParameters

BOTH = PrivacyParameters("declared", Fraction(1)), PrivacyParameters("discover", Fraction(1), Fraction(1, 10**5))


@pytest.fixture(scope="module", autouse=True)
def one_process_and_one_noise():
    """Starting more processes takes longer than what they do here; and a rare key would pass its threshold at times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reported_log, "PROCESSES", 1)
        patch.setattr(NoiseSecrets, "draw", lambda: NoiseSecrets(NoiseKey("fixed", bytes(32)), bytes(32)))
        yield


@pytest.fixture(scope="module")
def reported():
    return ReportedLog(generated_log(3, days=9, joins=900, sets=20))


@pytest.fixture(scope="module")
def summaries(reported, tmp_path_factory):
    files = Files(reported, tmp_path_factory.mktemp("demo"), X25519PrivateKey.generate())
    files.write(list(reported.encrypted(reported_log.ORIGIN, files.keys)))
    return [files.aggregated(parameters) for parameters in BOTH]


def logged(folder, reported):
    """The file of a log."""
    with (folder / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", "set", "client"])
        rows.writerows((join.time, join.set, join.client) for join in reported.log.joins)
    return folder / "log.csv"


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
        (0, lambda metrics: dict(list(metrics.items())[1:]), "the keys are not the declared ones"),
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
    arguments = ["--log", logged(tmp_path, reported), "--plot", tmp_path / "p.png"]
    told = CliRunner().invoke(app, ["reports", "demo", *map(str, arguments)])
    assert told.exit_code == 0, told.output
    assert "one client in one window of 24 h" in told.output
    assert "e^epsilon, epsilon = 2" in told.output
    assert "fixed before and independent of the log" in told.output
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    assert CliRunner().invoke(app, ["reports", "demo", "--epsilon", "0"]).exit_code == 2


# Released keys


@pytest.fixture(scope="module")
def released():
    """A log of which some sets are shared by 50 clients."""
    return ReleasedLog(ReportedLog(generated_log(3, days=9, joins=3_000, sets=20)), 1)


def test_the_gate_releases_about_the_sets_that_its_crowd_shares(released):
    k, parameters = released.type_.parameters.k, released.type_.parameters
    true = set(avro.listed(released.released))
    assert {key for key, clients in released.clients.items() if clients >= parameters.surely_true_from} <= true
    assert all(released.clients[key] >= parameters.never_true_below for key in true)
    assert 0 < len(true) < 20
    assert released.released.tolist() == sorted(released.released.tolist())
    counted = Counter((client, step) for step, _, client in released.joins)
    assert max(counted.values()) <= reported_log.JOINS
    assert all(step % 24 == 0 for step, _, _ in released.joins)
    assert k == 50


def test_the_three_jobs_have_one_guarantee_the_gate_included(released):
    declared, discover, kanon = released.parameters(Fraction(1))
    join = guarantee(released.type_.parameters).watched
    assert declared.epsilon == discover.epsilon == kanon.epsilon + 2 * join.epsilon == 7
    assert 2 * join.delta - Fraction(1, 10**15) < discover.delta <= 2 * join.delta


def test_a_summary_with_other_keys_than_the_released_ones_is_noticed(released):
    reported = replace(released.reported, released=released.released)
    metrics = dict.fromkeys(avro.listed(released.released), 0) | {
        key: reported.exact.get(key, 0) for key in avro.listed(released.released)
    }
    parameters = PrivacyParameters("kanon", Fraction(1))
    reported.check(metrics, parameters)
    for wrong in (dict(list(metrics.items())[1:]), metrics | {next(iter(reported.unused)): 0}):
        with pytest.raises(AssertionError, match="the keys are not the kanon ones"):
            reported.check(wrong, parameters)


def test_the_table_counts_shared_sets_the_others_and_the_error(released):
    reported = released.reported
    exact = {key: total + reported_log.VALUE for key, total in reported.exact.items()}
    parameters = released.parameters(Fraction(1))
    shared = sum(clients >= 50 for clients in released.clients.values())
    everything, nothing = (Summary(parameters[0], metrics, 0, 0, 0) for metrics in (exact, {}))
    head, first, second = released.compared([everything, nothing])
    assert f"of {shared} shared by 50" in head
    assert first.split() == ["declared", str(shared), str(20 - shared), "1.00", "joins"]
    assert second.split() == ["declared", "0", "0", "-"]


def test_the_command_compares_three_kinds_of_keys(released, tmp_path):
    arguments = ["--log", logged(tmp_path, released.reported), "--mode", "kanon", "--plot", tmp_path / "p.png"]
    told = CliRunner().invoke(app, ["reports", "demo", *map(str, arguments)])
    assert told.exit_code == 0, told.output
    assert f"{len(released.released)} keys are released by the gate" in told.output
    assert "epsilon 21 = 15 + 2 x 3" in told.output
    assert [line.split()[0] for line in told.output.splitlines() if line.endswith(" joins")][-3:] == [
        "declared", "discover", "kanon"
    ]  # fmt: skip
    (tmp_path / "few.csv").write_text("time,set,client\n2026-01-01,a,b\n")
    few = CliRunner().invoke(app, ["reports", "demo", "--log", str(tmp_path / "few.csv"), "--mode", "kanon"])
    assert "give one in which 50 clients share a set" in few.output
    assert "must be kanon" in CliRunner().invoke(app, ["reports", "demo", "--mode", "declared"]).output
