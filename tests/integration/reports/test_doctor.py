"""The findings of `kanon doctor` for reports: every defect is planted once, and nothing else is reported."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest

from kanon.dynamo.tables import table_ids
from kanon.dynamo.transactions import all_or_none
from kanon.findings import Finding, Section, Verdict
from kanon.operate import reports as module
from kanon.operate.doctor import unusable
from kanon.operate.reports import examine_reports
from kanon.operate.running_reports import QUEUES, SCHEDULES, ReportSettingsError, RunningReports
from kanon.reports.settings import RecordedSettings
from kanon.reports.storage.budgets import CommitOutcome, charges
from kanon.reports.storage.key_ring import NEW_EVERY, OPENS, PUBLISHED, Key, KeyRing, StoredRing
from kanon.reports.storage.report_jobs import State
from tests.integration.gate.tables import Running
from tests.integration.reports.tables import CLAIM, EPOCH, NOW, ReportTables, create_control, fresh_tables, unit
from tests.integration.reports.test_committing import TEN
from tests.unit.reports.test_settings import ENVIRONMENTS

HOUR = 3600
PROTECTED = "deletion of report tables"
EVERY_FIVE_MINUTES: dict[str, Any] = {
    "ScheduleExpression": "rate(5 minutes)",
    "FlexibleTimeWindow": {"Mode": "OFF"},
    "Target": {
        "Arn": "arn:aws:lambda:us-east-1:123456789012:function:f",
        "RoleArn": "arn:aws:iam::123456789012:role/r",
    },
}
WORKERS = ("jobs", "decrypt", "aggregate")


@dataclass
class Deployed:
    """Reports of a deployment, with nothing wrong."""

    engine: Running
    tables: ReportTables
    reports: RunningReports

    @property
    def ring(self) -> KeyRing:
        return self.reports.key_ring

    def keys(self, *ages: float, **changes: Any) -> None:
        """Let the ring hold keys of these ages, s."""
        made = [Key.made(f"key {number}", "public", NOW - age) for number, age in enumerate(ages)]
        ids = table_ids(self.tables.client, self.tables.names)
        ring = StoredRing(
            EPOCH, ids["Budgets"], tuple(sorted(made, key=lambda key: key.created)), jobs_id=ids["ReportJobs"]
        )
        seen = self.ring.read()
        self.tables.client.transact_write_items(TransactItems=[self.ring.changing(seen, replace(ring, **changes))])

    def findings(self, later: float = 0.0) -> dict[str, Finding]:
        return {finding.check: finding for finding in examine_reports(self.reports, NOW + later)}

    def wrong(self, later: float = 0.0) -> dict[str, tuple[Verdict, Section | None]]:
        found = self.findings(later).values()
        return {finding.check: (finding.verdict, finding.section) for finding in found if finding.wrong}

    def hold(self, job: str, *numbers: int) -> None:
        """Let a job that is committing hold rows of budget."""
        for charge in charges(map(unit, numbers)):
            writes = self.tables.budgets.take(charge, job, TEN, CLAIM)
            assert all_or_none(self.tables.client, [self.tables.jobs.still(job, State.COMMITTING), *writes]) is None

    def move(self, job: str, to: State, **values: Any) -> None:
        row = self.tables.jobs.read(job)
        assert row is not None
        assert self.tables.jobs.move(row, to, NOW, **values)


@pytest.fixture
def deployed(engine: Running) -> Deployed:
    tables, sqs = fresh_tables(engine), engine.session.client("sqs")
    prefix = tables.names["Budgets"].rpartition("-")[0]
    create_control(tables.client, f"{prefix}-Control")
    for name in ("ReportJobs", "Budgets"):
        tables.client.update_table(TableName=tables.names[name], DeletionProtectionEnabled=True)
    environment = {name: value for each in ENVIRONMENTS.values() for name, value in each.items()} | {
        "KANON_CONTROL_TABLE": f"{prefix}-Control",
        "KANON_REPORT_JOBS_TABLE": tables.names["ReportJobs"],
        "KANON_BUDGETS_TABLE": tables.names["Budgets"],
    }
    functions = ("collect", "jobs", "decrypt", "aggregate", "rotate")
    urls = {queue: sqs.create_queue(QueueName=f"{prefix}-{queue}")["QueueUrl"] for queue in QUEUES}
    schedules = {schedule: f"{prefix}-{schedule}" for schedule in SCHEDULES.values()}
    for name in schedules.values():
        engine.session.client("scheduler").create_schedule(Name=name, **EVERY_FIVE_MINUTES)
    reports = RunningReports.of(dict.fromkeys(functions, environment), urls, schedules, engine.session.client)
    made = Deployed(engine, tables, reports)
    made.keys(8 * 86_400, 86_400)
    return made


def test_nothing_is_wrong_with_reports_in_use(deployed: Deployed) -> None:
    deployed.hold(deployed.tables.job("committing"), 1)
    committed = deployed.tables.job("committed")
    assert deployed.tables.committing().commit(committed, charges([unit(2)]), TEN, CLAIM) is CommitOutcome.COMMITTED
    deployed.tables.job("new", State.MAPPING)
    found = deployed.findings()
    assert deployed.wrong() == {}
    assert {check for check, finding in found.items() if finding.verdict is not Verdict.OK} == {"report fingerprints"}
    assert found["report jobs"].seen == "3 not finished, none for more than 12 hours"
    assert found["budget holds"].seen == "every row belongs to one of 2 jobs that may hold it"


def test_nothing_is_wrong_before_the_first_key(deployed: Deployed) -> None:
    deployed.tables.client.delete_item(
        TableName=deployed.reports.aggregate.control_table, Key={"name": {"S": "reports#keys"}}
    )
    assert deployed.wrong() == {}
    assert deployed.findings()["report keys"].verdict is Verdict.NOT_SEEN


def test_the_doctor_changes_nothing(deployed: Deployed) -> None:
    deployed.hold(deployed.tables.job("a"), 1)
    calls: set[str] = set()
    deployed.engine.session.events.register("before-parameter-build", lambda model, **_: calls.add(model.name))
    deployed.findings()
    looks = {
        "GetItem",
        "Query",
        "Scan",
        "DescribeTable",
        "DescribeContinuousBackups",
        "GetQueueAttributes",
        "GetSchedule",
    }
    assert calls <= looks


def test_a_job_that_is_stuck_is_named_with_its_state(deployed: Deployed) -> None:
    deployed.tables.job("monday [a]", State.MAPPING)
    deployed.tables.job("tuesday", State.REDUCING)
    assert deployed.wrong(12 * HOUR - 1) == {}
    assert deployed.wrong(12 * HOUR) == {"report jobs": (Verdict.WARN, Section.STUCK_JOBS)}
    seen = deployed.findings(12 * HOUR)["report jobs"].seen
    assert seen == "monday [a], tuesday not finished after 12 hours (MAPPING 1, REDUCING 1)"


def test_many_stuck_jobs_are_counted_and_five_of_them_named(deployed: Deployed) -> None:
    for number in range(7):
        deployed.tables.job(f"job {number}", State.MAPPING)
    assert "job 4 and 2 more not finished" in deployed.findings(13 * HOUR)["report jobs"].seen


def test_a_job_with_an_unwritten_result_is_not_stuck(deployed: Deployed) -> None:
    job = deployed.tables.job("a")
    assert deployed.tables.committing().commit(job, charges([unit()]), TEN, CLAIM) is CommitOutcome.COMMITTED
    deployed.move(job, State.COMMITTED, code="RESULT_WRITE_ERROR")
    assert deployed.wrong(20 * HOUR) == {"publications": (Verdict.WARN, Section.PUBLICATION_FAILED)}
    assert deployed.findings()["publications"].seen == "a: the result is final and could not be written"


@pytest.mark.parametrize("queue", QUEUES)
def test_a_dead_letter_of_each_queue_is_reported(deployed: Deployed, queue: str) -> None:
    url = deployed.reports.dead_letters[queue]
    deployed.engine.session.client("sqs").send_message(QueueUrl=url, MessageBody="{}")
    assert deployed.wrong() == {f"dead letters of {queue}": (Verdict.WARN, Section.REPORT_DEAD_LETTERS)}


def test_a_new_key_that_is_late_is_reported_before_the_last_one_ends(deployed: Deployed) -> None:
    deployed.keys(0)
    late = NEW_EVERY + module.LATE
    assert deployed.wrong(late) == {}
    assert deployed.wrong(late + 1) == {"report keys": (Verdict.WARN, Section.KEYS_MISSING)}
    assert deployed.wrong(PUBLISHED - 1) == {"report keys": (Verdict.WARN, Section.KEYS_MISSING)}


def test_a_ring_without_a_published_key_is_a_failure(deployed: Deployed) -> None:
    deployed.keys(OPENS - HOUR)
    assert deployed.wrong() == {"report keys": (Verdict.FAIL, Section.KEYS_MISSING)}


@pytest.mark.parametrize("change", [{"table_id": "another"}, {"epoch": "another"}])
def test_a_budget_table_that_was_replaced_is_reported(deployed: Deployed, change: dict[str, str]) -> None:
    deployed.keys(0, **change)
    assert deployed.wrong() == {"budget table": (Verdict.FAIL, Section.BUDGET_TABLE_REPLACED)}


def test_a_job_table_that_was_replaced_is_reported(deployed: Deployed) -> None:
    deployed.keys(0, jobs_id="another")
    assert deployed.wrong() == {"job table": (Verdict.FAIL, Section.JOB_TABLE_LOST)}
    deployed.keys(0, jobs_id=None)
    assert deployed.findings()["job table"].verdict is Verdict.NOT_SEEN


def test_withdrawn_keys_are_reported_until_there_are_new_ones(deployed: Deployed) -> None:
    deployed.keys(0, withdrawn=True)
    assert set(deployed.wrong()) == {"budget table", "report keys"}


def test_budget_held_by_a_job_that_will_not_commit_is_reported(deployed: Deployed) -> None:
    job = deployed.tables.job("a")
    deployed.hold(job, 1, 2)
    deployed.hold(deployed.tables.job("b"), 3)
    deployed.move(job, State.ABORTING)
    assert deployed.wrong() == {}
    deployed.move(job, State.FINISHED)  # a defect: it has returned nothing
    assert deployed.wrong() == {"budget holds": (Verdict.FAIL, Section.HELD_BUDGET)}
    assert deployed.findings()["budget holds"].seen == "2 rows hold budget of 1 jobs that will not commit"


def test_budget_returned_during_the_check_is_not_reported(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    job = deployed.tables.job("a")
    deployed.hold(job, 1)
    found = list(deployed.tables.budgets.holders())
    monkeypatch.setattr(type(deployed.tables.budgets), "holders", lambda _: iter(found))
    deployed.move(job, State.ABORTING)
    (charge,) = charges([unit(1)])
    assert all_or_none(deployed.tables.client, deployed.tables.budgets.give_back(charge, job, TEN, CLAIM)) is None
    deployed.move(job, State.FINISHED)
    assert deployed.wrong() == {}


@pytest.mark.parametrize(("function", "section"), [("aggregate", Section.STUCK_JOBS), ("rotate", Section.KEYS_MISSING)])
def test_a_schedule_that_is_off_is_reported(deployed: Deployed, function: str, section: Section) -> None:
    name = deployed.reports.schedules[SCHEDULES[function]]
    scheduler = deployed.engine.session.client("scheduler")
    scheduler.update_schedule(Name=name, State="DISABLED", **EVERY_FIVE_MINUTES)
    assert deployed.wrong() == {f"schedule of {function}": (Verdict.FAIL, section)}
    assert deployed.findings()[f"schedule of {function}"].seen == "disabled"


@pytest.mark.parametrize("table", ["ReportJobs", "Budgets"])
def test_a_table_without_deletion_protection_is_reported(deployed: Deployed, table: str) -> None:
    deployed.tables.client.update_table(TableName=deployed.tables.names[table], DeletionProtectionEnabled=False)
    assert deployed.wrong() == {PROTECTED: (Verdict.WARN, None)}
    assert deployed.findings()[PROTECTED].seen == f"{table}: not protected"


@pytest.mark.parametrize("table", ["ReportJobs", "Budgets"])
def test_a_table_with_backups_is_reported(deployed: Deployed, table: str) -> None:
    deployed.tables.client.update_continuous_backups(
        TableName=deployed.tables.names[table],
        PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True},
    )
    assert deployed.wrong() == {"copies of report tables": (Verdict.FAIL, Section.REPORT_TABLE_COPIES)}
    assert deployed.findings()["copies of report tables"].seen == f"{table}: has point-in-time recovery"


def test_a_table_with_a_stream_is_reported(deployed: Deployed) -> None:
    deployed.tables.client.update_table(
        TableName=deployed.tables.names["ReportJobs"],
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
    )
    assert deployed.findings()["copies of report tables"].seen == "ReportJobs: has a stream"


def test_functions_with_inconsistent_environments_are_reported(deployed: Deployed) -> None:
    other = deployed.reports.jobs.model_copy(update={"deployment": "another"})
    deployed.reports = replace(deployed.reports, jobs=other)
    assert deployed.wrong() == {"report functions": (Verdict.FAIL, Section.REPORT_FUNCTION_ERRORS)}
    assert "deployment" in deployed.findings()["report functions"].seen


def test_functions_of_an_older_version_are_reported_with_what_to_do(deployed: Deployed) -> None:
    older = {name: {"KANON_DEPLOYMENT": "test"} for name in ("collect", "jobs", "decrypt", "aggregate", "rotate")}
    with pytest.raises(ReportSettingsError) as error:
        RunningReports.of(older, {}, {}, deployed.engine.session.client)
    finding = unusable(error.value)
    assert (finding.check, finding.verdict) == ("report functions", Verdict.FAIL)
    assert "for a stack of an older version deploy this one" in finding.advice


def test_a_changed_cap_is_reported(deployed: Deployed) -> None:
    for function, settings in (("jobs", deployed.reports.jobs), ("aggregate", deployed.reports.aggregate)):
        RecordedSettings(deployed.tables.client, settings.control_table).compare(function, settings)
    assert deployed.findings()["report fingerprints"].seen == "unchanged since they first started: jobs, aggregate"
    lower = {name: getattr(deployed.reports, name).model_copy(update={"epsilon_cap": Fraction(10)}) for name in WORKERS}
    deployed.reports = replace(deployed.reports, **lower)
    assert deployed.wrong() == {"report fingerprints": (Verdict.FAIL, Section.REPORT_FUNCTION_ERRORS)}
    seen = "changed since the functions first started: epsilon-cap"
    assert deployed.findings()["report fingerprints"].seen == seen


def test_an_unreadable_part_is_reported_as_unknown_and_not_as_wrong(deployed: Deployed) -> None:
    deployed.engine.session.client("sqs").delete_queue(QueueUrl=deployed.reports.dead_letters["Maps"])
    tables = deployed.reports.aggregate.model_copy(update={"control_table": "none"})
    schedules = {"SweepSchedule": "none", "RotateSchedule": None}
    deployed.reports = replace(deployed.reports, aggregate=tables, schedules=schedules)
    found = deployed.findings()
    unseen = {check for check, finding in found.items() if finding.verdict is Verdict.NOT_SEEN}
    assert unseen == {
        "dead letters of Maps",
        "report fingerprints",
        "report keys",
        "budget table",
        "job table",
        *(f"schedule of {one}" for one in SCHEDULES),
    }
    assert set(deployed.wrong()) == {"report functions"}


def test_no_finding_shows_an_origin_or_the_key_of_a_unit(deployed: Deployed) -> None:
    deployed.hold(deployed.tables.job("a"), 1, 2)
    deployed.move("a", State.ABORTING)
    deployed.move("a", State.FINISHED)
    found = deployed.findings()
    assert found["budget holds"].verdict is Verdict.FAIL
    text = " ".join(f"{finding.seen} {finding.advice}" for finding in found.values())
    assert not any(word in text for word in (unit(1).origin, unit(1).key, unit(1).row.hex(), EPOCH))
