"""``kanon operate new-report-keys`` and ``accept-report-jobs``: output, question, and a crash at any call."""

import os
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kanon import clock
from kanon.cli.main import app
from kanon.errors import KanonError
from kanon.operate.report_tables import current_keys, renew_keys
from kanon.reports.errors import JobError
from kanon.reports.job import Amount
from kanon.reports.service.rotation import Epoch
from kanon.reports.settings import RotateSettings
from kanon.reports.storage.budgets import Budgets
from kanon.reports.storage.key_ring import KeyRing
from kanon.reports.storage.report_jobs import ReportJobs, State
from tests.faults.reports.failing_calls import KINDS, Fault, KilledError
from tests.integration.gate.tables import Running
from tests.integration.reports.issuing import Issuing, issuing
from tests.integration.reports.tables import NOW
from tests.table_ids import give_ids

ALL = bool(os.environ.get("FAULTS"))
"""All calls; otherwise one of four for each kind of fault, so that every call fails in one way."""


@dataclass
class Stack:
    """The part of a running stack that the command needs."""

    issued: Issuing
    fault: Fault | None = None

    def client(self, service: str) -> Any:
        client = self.issued.running.session.client(service)
        if self.fault is not None:
            self.fault.watch(client)
        return client

    def now(self) -> float:
        return clock.now()

    @property
    def reports(self) -> SimpleNamespace:
        """The part of ``RunningReports`` that the command uses."""
        settings = RotateSettings(
            deployment="test",
            control_table=self.issued.control,
            budgets_table=self.issued.table,
            report_jobs_table=self.issued.jobs_table,
            report_key_prefix=self.issued.prefix,
            kms_key="alias/test",
        )
        client = self.client("dynamodb")
        budgets = Budgets(client, settings.budgets_table, Amount(0, 0))
        epoch = Epoch(client, KeyRing(client, settings.control_table), budgets, settings.report_jobs_table)
        jobs = ReportJobs(client, settings.report_jobs_table)
        return SimpleNamespace(
            client=self.client, rotate=settings, epoch=epoch, key_ring=epoch.ring, report_jobs=jobs
        )  # fmt: skip


@pytest.fixture
def issued(engine: Running, monkeypatch: pytest.MonkeyPatch) -> Issuing:
    monkeypatch.setattr(clock, "sleep", lambda _: None)
    monkeypatch.setattr(clock, "now", lambda: NOW)
    give_ids(monkeypatch)
    return issuing(engine)


def operate(
    issued: Issuing,
    monkeypatch: pytest.MonkeyPatch,
    *arguments: str,
    answer: str = "",
    command: str = "new-report-keys",
) -> tuple[int, str]:
    monkeypatch.setattr("kanon.cli.stacks.find", lambda *_: Stack(issued))
    result = CliRunner().invoke(app, ["operate", command, *arguments], input=answer, env={"COLUMNS": "250"})
    return result.exit_code, result.output


def test_the_command_ends_all_keys_and_the_next_rotation_issues_a_new_one(
    issued: Issuing, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued.run()
    issued.now += 7 * 86_400
    old = issued.run()
    assert len(old.keys) == len(issued.secrets()) == 2
    issued.replace_budgets(epoch=old.epoch)
    code, said = operate(issued, monkeypatch, answer="y\n")
    assert code == 0
    assert "is not the one that the keys" in said
    assert issued.ring().keys == ()
    assert issued.secrets() == set()
    assert len(issued.run().published(issued.now)) == 1
    assert issued.fits()


def test_the_command_asks_and_changes_nothing_without_consent(issued: Issuing, monkeypatch: pytest.MonkeyPatch) -> None:
    old = issued.run()
    code, said = operate(issued, monkeypatch, answer="n\n")
    assert code == 1
    assert "was not replaced" in said
    assert issued.run() == old


def test_a_stack_without_keys_refuses_in_one_line(issued: Issuing, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = operate(issued, monkeypatch, "--yes")
    assert code == 2
    assert "has no keys yet" in said


def test_a_ring_that_has_changed_since_it_was_read_is_left_alone(issued: Issuing) -> None:
    seen = issued.run()
    issued.now += 7 * 86_400
    after = issued.run()
    with pytest.raises(KanonError, match="run the command again"):
        renew_keys(Stack(issued), seen, NOW)  # type: ignore[arg-type]
    assert issued.ring() == after


def test_a_replaced_table_of_jobs_is_accepted_once_its_jobs_have_ended(
    issued: Issuing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(answer: str = "y\n") -> tuple[int, str]:
        return operate(issued, monkeypatch, answer=answer, command="accept-report-jobs")

    before = issued.run()
    code, said = accept()
    assert (code, "was not replaced" in said) == (2, True)
    issued.replace(issued.jobs_table)
    jobs: Any = ReportJobs(issued.running.client(), issued.jobs_table)
    jobs.create("restored", {}, NOW, bytes(32))
    with pytest.raises(JobError, match="must accept it"):
        issued.epoch().in_force()
    for state in (State.RECEIVED, State.COMMITTING, State.ABORTING):
        assert jobs.move(jobs.read("restored"), state, NOW)
        code, said = accept()
        assert (code, "1 jobs of the replaced table have not ended" in said) == (2, True), state
    assert jobs.move(jobs.read("restored"), State.FINISHED, NOW, code="PRIVACY_BUDGET_ERROR")
    assert accept("n\n")[0] == 1
    with pytest.raises(JobError, match="must accept it"):
        issued.epoch().in_force()
    assert accept()[0] == 0
    assert issued.epoch().in_force().keys == before.keys


def test_the_first_rotation_after_an_update_records_the_table_of_jobs(issued: Issuing) -> None:
    keys = issued.run()
    ring = issued.epoch().ring
    assert ring.change(keys, replace(keys, jobs_id=None))  # as an earlier version writes it
    assert issued.epoch().in_force().jobs_id is None
    assert issued.run().jobs_id == keys.jobs_id is not None
    assert "jobs_id" not in issued.running.client().scan(TableName=issued.control)["Items"][0]["ring"]["S"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_at_any_call_leaves_a_stack_that_the_next_rotation_completes(
    engine: Running, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(clock, "sleep", lambda _: None)
    at, met = 0 if ALL else KINDS.index(kind), True
    while met:
        other = issuing(engine)
        old = other.run()
        fault = Fault(at, kind)
        try:
            stack: Any = Stack(other, fault)
            renew_keys(stack, current_keys(stack)[0], NOW)
        except (Exception, KilledError):
            pass
        keys = other.run()
        assert other.fits()
        assert keys.epoch == other.epoch().budgets.epoch()
        assert len(keys.published(NOW)) == 1
        renewed = keys.epoch != old.epoch
        kept = {key.id for key in old.keys} <= {key.id for key in keys.keys}
        assert kept is not renewed, f"call {at}"
        at, met = at + (1 if ALL else len(KINDS)), fault.calls > at
    assert renewed
    assert at > 8
