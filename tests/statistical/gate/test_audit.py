"""The audit of the running service, its report, and its exit code."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import kanon.gate.deciding
import kanon.gate.merging
import kanon.gate.querying
from kanon.audit import service
from kanon.audit.goodness import FitResult
from kanon.audit.mechanism import AFTER_CROSSINGS, AUDITED, Fit, judge
from kanon.audit.service import audit_service, groups
from kanon.cli.main import app
from tests.statistical.gate.mutants import PROBED, STATISTICAL

SEED = 20_260_301
ONE_TYPE = {"two-sided": AUDITED["two-sided"]}
SHORT_WINDOW = {"two-sided": replace(AUDITED["two-sided"], window=8)}
"""A third of the steps; `make audit` takes the whole window."""


def mutant(name):
    (found,) = (m for m in (*STATISTICAL, *PROBED) if m.name == name)
    return found


@contextmanager
def in_service(name):
    """The whole service decides and answers with a mutant."""
    with mutant(name).planted("vectorised") as code, pytest.MonkeyPatch.context() as patch:
        patch.setattr(kanon.gate.merging, "evaluate_columns", code.vectorised.evaluate_columns)
        patch.setattr(kanon.gate.deciding, "Tapes", code.tape.Tapes)
        patch.setattr(kanon.gate.querying, "is_above", code.above_threshold.is_above)
        patch.setattr(kanon.gate.querying, "Searches", code.searches.Searches)
        yield


def rejected(types, trials):
    """The names of the checks that reject the service."""
    return {check.name for check in judge(*audit_service(types, trials, SEED)).checks if not check.passed}


def test_the_running_service_obeys_the_exact_law():
    report = judge(*audit_service(SHORT_WINDOW, 20, SEED))
    assert report.passed, [check for check in report.checks if not check.passed]
    assert {check.path for check in report.checks} == {"service"}
    assert sum(check.name.startswith("probe") for check in report.checks) == 12


class _MadeError(Exception):
    """A stack was made: its parameters are valid."""


def test_the_services_of_the_default_audit_have_room_for_its_types(monkeypatch):
    real = service.Stack

    def made(*given, **named):
        real(*given, **named)
        raise _MadeError

    monkeypatch.setattr(service, "Stack", made)
    found = groups(AUDITED | AFTER_CROSSINGS)
    assert [sorted(types) for types in found] == [["one-sided", "two-sided"], ["crossing"]]
    for types in found:
        with pytest.raises(_MadeError):
            audit_service(types, 20, SEED)


@pytest.mark.audit
@pytest.mark.parametrize("name", ["the same nu at every step", "wrong sign of the comparison", "window longer by one"])
def test_a_service_that_decides_wrongly_is_rejected(name):
    with in_service(name):
        assert rejected(ONE_TYPE, 60)


@pytest.mark.audit
def test_a_service_that_answers_wrongly_is_rejected():
    with in_service("no latch"):
        assert rejected(ONE_TYPE, 4) >= {"true stays true"}


OVER_HTTP = [
    "the clock step instead of the visible step",
    "the next search one step too early",
    "the next search one step too late",
    "a status one step too long",
    "a status one step too short",
    "the joins of the last step of an epoch count again",
    "all joins of the window count at the beginning of an epoch",
    "an epoch begins one step too late",
]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.audit] if name != OVER_HTTP[0] else []) for name in OVER_HTTP]
)
def test_a_service_with_a_wrong_restart_after_the_crossing_is_rejected(name):
    with in_service(name):
        assert rejected(AFTER_CROSSINGS, 4)


@pytest.mark.parametrize(
    "name",
    [
        "the noise key of the step instead of the search",
        pytest.param("after a crossing the threshold noise of the search before", marks=pytest.mark.audit),
        pytest.param("a tape for each epoch instead of each search", marks=pytest.mark.audit),
    ],
)
def test_a_service_with_the_noise_of_another_search_is_rejected_without_statistics(name):
    """A few sets show it: each one has only one right answer under these noise keys."""
    with in_service(name):
        assert rejected(AFTER_CROSSINGS, 8) >= {"the definition under the same noise keys"}


def test_a_service_that_restarts_after_the_crossing_obeys_the_exact_law():
    report = judge(*audit_service(AFTER_CROSSINGS, 8, SEED))
    assert report.passed, [check for check in report.checks if not check.passed]
    assert sum(check.name.startswith(("probe", "an outage")) for check in report.checks) == 10


def run(*arguments):
    return CliRunner().invoke(app, ["audit", "--service-trials", "0", "--trials", "200", "--seed", "1", *arguments])


def test_the_report_names_tests_numbers_of_sets_and_results():
    result = run("--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["verdict"] == "passed"
    assert report["seed"] == 1
    assert report["alpha"] == 1e-6
    first = report["checks"][0]
    assert first.keys() >= {"name", "path", "trials", "statistic", "threshold", "pValue", "verdict"}
    assert first["trials"] == 200
    assert first["pValue"] >= first["threshold"]
    assert {check["path"] for check in report["checks"]} == {"vectorised", "plain", "table"}


def test_a_custom_type_can_be_audited():
    law = {"shape": "one-sided", "epsilon": "1", "truncation": 4}
    result = run("--type", json.dumps({"k": 12, "window": 6, "laws": {"threshold": law, "query": law}}))
    assert result.exit_code == 0, result.output
    assert "passed" in result.stdout


def test_an_invalid_type_is_refused_with_the_reason():
    result = run("--type", '{"k": 12}')
    assert result.exit_code == 2
    assert "window" in result.output


def test_a_rejection_ends_with_exit_code_1(monkeypatch):
    wrong = mutant("wrong sign of the comparison")
    with wrong.planted("vectorised") as code:
        monkeypatch.setattr("kanon.gate.mechanism.vectorised.evaluate_all", code.vectorised.evaluate_all)
        told, reported = run(), run("--json")
    assert told.exit_code == reported.exit_code == 1
    assert "REJECTED" in told.stdout
    assert json.loads(reported.stdout)["verdict"] == "rejected"


def test_the_false_alarm_rate_of_all_checks_together_is_as_stated():
    fits = [Fit("a", "b", "plain", FitResult(100, 10.0, p, 5)) for p in (2e-7, 3e-7, 0.5, 1.0)]
    report = judge(fits)
    assert report.alpha_each * len(fits) <= report.alpha
    assert [check.passed for check in report.checks] == [False, True, True, True]
