"""The mistakes of the service, each planted once: its check must pass without the mistake and fail with it.

| trap | mistake |
|---|---|
| 11 | a budget is taken without a condition on what is left |
| 12 | delta is not charged |
| 13 | a result is visible before the commit; budget is spent before the result is staged |
| 15 | a hold does not check that its job is still committing |
| 16 | a part that was returned is returned again |
| 17 | a row of budget may expire while reports of its day are still accepted |
| 18 | age is measured by the clock of a worker |
| 22 | clear text of a debug report is stored |
| 23 | a key is destroyed while its reports are still accepted; a key is published before it can be opened |
| 31 | a job is acknowledged before its row is stored |
| 32 | an output that exists is overwritten |
| 33 | a report of version 2.0 is counted as one bad report, and the job goes on |

``tests/unit/reports/test_traps.py`` has the others.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kanon.dynamo.transactions import all_or_none
from kanon.reports import collecting, shared_info
from kanon.reports import job as job_module
from kanon.reports.errors import Counter, ReportRefusedError
from kanon.reports.job import Amount
from kanon.reports.service.job_routes import create
from kanon.reports.service.rotation import Rotation
from kanon.reports.service.stages import Stages
from kanon.reports.shared_info import DAY, MAX_AGE, MAX_AHEAD, Rules, source_of, units
from kanon.reports.storage import budgets as budgets_module
from kanon.reports.storage import key_ring
from kanon.reports.storage.budgets import ROWS_A_CHUNK, Budgets, Charge, CommitOutcome, charges
from kanon.reports.storage.key_ring import Key, StoredRing
from kanon.reports.storage.objects import Objects
from kanon.reports.storage.report_jobs import SECONDS_TO_COMMIT, ReportJobs, StageMessage, State
from tests.integration.reports.aggregation import OUTPUT, WORK, Aggregation
from tests.integration.reports.issuing import issuing
from tests.integration.reports.tables import CAP, CLAIM, unit
from tests.integration.reports.test_collect import CLEAR, body
from tests.unit.reports import made

Patch = pytest.MonkeyPatch
TENTH = Amount(1, CAP.delta // 10)
HALF = Amount(CAP.epsilon // 2, 0)


def wins(service: Aggregation, jobs: int, amount: Amount) -> int:
    """The number of jobs that commit over one unit."""
    outcomes = [
        service.tables.committing().commit(service.tables.job(f"job {n}"), charges([unit()]), amount, CLAIM)
        for n in range(jobs)
    ]
    return outcomes.count(CommitOutcome.COMMITTED)


def admits_what_epsilon_allows(service: Aggregation) -> None:
    assert wins(service, 3, HALF) == 2


def plant_no_condition(patch: Patch, _: Aggregation) -> None:
    original = Budgets.take

    def take(self: Budgets, *arguments: Any) -> list[dict[str, Any]]:
        update, put = original(self, *arguments)
        always = {"ConditionExpression": "attribute_exists(e05) OR attribute_not_exists(e05)"}
        return [{"Update": {**update["Update"], **always}}, put]

    patch.setattr(Budgets, "take", take)


def admits_what_delta_allows(service: Aggregation) -> None:
    assert wins(service, 11, TENTH) == 10


def plant_no_delta(patch: Patch, _: Aggregation) -> None:
    original = Budgets.take

    def take(self: Budgets, charge: Charge, job: str, amount: Amount, claim: str) -> list[dict[str, Any]]:
        return original(self, charge, job, replace(amount, delta=0), claim)

    patch.setattr(Budgets, "take", take)


def put_inputs(service: Aggregation, *reports: Any) -> None:
    service.put_reports("in/a.avro", [*reports])
    service.put_domain("domain/keys.avro", 1, 2)


def spends_when_the_result_is_staged_and_shows_it_afterwards(service: Aggregation) -> None:
    put_inputs(service, made.report([(1, 5)]))
    service.create("job")
    (charged,) = charges(unit_of_report())
    while (row := service.row("job")).state is not State.FINISHED:
        spent = bool(service.tables.budgets.left([charged.row])[charged.row])
        staged = any("/staged/" in name for name in service.names(WORK))
        assert spent == (row.state is State.COMMITTED)
        assert staged or not spent
        assert service.names(OUTPUT) == ["domain/keys.avro"]
        if service.queue and not isinstance(message := service.queue.popleft(), StageMessage):
            service.queue += service.shards.run(message)
        else:
            service.queue += service.stages.run(StageMessage(job="job"), lambda: False)
    assert len(service.names(OUTPUT)) == 2


def unit_of_report() -> Any:
    return units([source_of(shared_info.parse(made.report([(1, 5)]).shared_info))], [0])


def plant_early_result(patch: Patch, _: Aggregation) -> None:
    original = Stages._part

    def visible(self: Stages, row: Any, plan: Any, part: int) -> str:
        name = original(self, row, plan, part)
        self.bucket(OUTPUT).put_new("out/summary-1-of-1.avro", self.work.read(name))
        return name

    patch.setattr(Stages, "_part", visible)


def plant_early_spending(patch: Patch, service: Aggregation) -> None:
    original = Stages._match

    def spending(self: Stages, row: Any) -> Any:
        tables = service.tables
        for charge in charges(unit_of_report()):
            assert all_or_none(tables.client, tables.budgets.take(charge, row.job, TENTH, CLAIM)) is None
        return original(self, row)

    patch.setattr(Stages, "_match", spending)


def takes_nothing_back_that_an_abort_returned(service: Aggregation) -> None:
    tables, (charge,) = service.tables, charges([unit()])
    job = tables.job("a", State.ABORTING)
    hold = [tables.jobs.still(job, State.COMMITTING, tables.now), *tables.budgets.take(charge, job, HALF, CLAIM)]
    all_or_none(tables.client, hold)
    assert tables.spent(unit()) == Amount(0, 0)


def plant_hold_without_check(patch: Patch, _: Aggregation) -> None:
    original = ReportJobs.still

    def still(self: ReportJobs, job: str, *_: Any) -> dict[str, Any]:
        check = original(self, job, State.ABORTING)["ConditionCheck"]
        return {"ConditionCheck": check}

    patch.setattr(ReportJobs, "still", still)


def returns_a_part_once(service: Aggregation) -> None:
    tables, wanted = service.tables, charges(map(unit, range(ROWS_A_CHUNK + 1)))
    held = wanted[:ROWS_A_CHUNK]
    job = tables.job("a")
    other = tables.job("b")
    assert tables.committing().commit(other, wanted, HALF, CLAIM) is CommitOutcome.COMMITTED
    hold = [write for charge in held for write in tables.budgets.take(charge, job, TENTH, CLAIM)]
    assert all_or_none(tables.client, hold) is None
    row = tables.jobs.read(job)
    assert row is not None
    assert tables.jobs.move(row, State.ABORTING, tables.now)
    for _ in range(2):
        assert tables.committing().abort(job, wanted, TENTH, CLAIM) is None
    assert {tables.spent(unit(number)) for number in range(len(wanted))} == {HALF}


def plant_refund_without_condition(patch: Patch, _: Aggregation) -> None:
    original = Budgets.give_back

    def give_back(self: Budgets, *arguments: Any) -> list[dict[str, Any]]:
        update, delete = original(self, *arguments)
        bare = {name: delete["Delete"][name] for name in ("TableName", "Key")}
        return [update, {"Delete": bare}]

    patch.setattr(Budgets, "give_back", give_back)


def keeps_a_row_until_the_last_job_over_its_day_has_ended(_: Aggregation) -> None:
    (charge,) = charges([unit(hour=23)])
    end_of_day = (charge.day + 1) * DAY
    assert charge.expires > end_of_day + MAX_AGE + SECONDS_TO_COMMIT


def plant_short_life_of_rows(patch: Patch, _: Aggregation) -> None:
    patch.setattr(budgets_module, "REPORT_AGE", MAX_AGE - 8 * DAY)


def measures_age_from_when_the_job_was_received(service: Aggregation) -> None:
    put_inputs(service, made.report([(1, 5)], scheduled_report_time=made.NOW - MAX_AGE))
    service.create("job")
    service.tables.now += 3600
    service.run()
    assert service.code("job") == "SUCCESS"


def plant_clock(patch: Patch, service: Aggregation) -> None:
    patch.setattr(job_module, "Rules", lambda _, *fields: Rules(int(service.tables.now), *fields))


def queues_no_clear_text(_: Aggregation) -> None:
    message = collecting.report_message(
        collecting.ReportBody.model_validate(body()), "attribution-reporting", lambda _: True, lambda _: True, made.NOW
    )
    assert CLEAR not in message.text()


def plant_clear_text(patch: Patch, _: Aggregation) -> None:
    class Talkative(collecting.ReportMessage):
        clear: str

    patch.setattr(collecting, "ReportMessage", lambda **fields: Talkative(**fields, clear=CLEAR))


def destroys_a_key_after_the_last_job_that_needs_it(_: Aggregation) -> None:
    key = Key.made("id", "", made.NOW)
    assert key.opens_until >= key.published_until + MAX_AHEAD + MAX_AGE + 7 * DAY


def plant_short_life_of_keys(patch: Patch, _: Aggregation) -> None:
    patch.setattr(key_ring, "OPENS", 100 * DAY)


def publishes_no_key_that_cannot_be_opened(service: Aggregation) -> None:
    deployment = issuing(service.running)

    def crash(_: str) -> str:
        raise ConnectionError

    rotation = Rotation(deployment.epoch(), SimpleNamespace(make=crash))  # type: ignore[arg-type]
    with pytest.raises(ConnectionError):
        rotation.run(deployment.now)
    assert deployment.ring().published(deployment.now) == ()


def plant_early_publication(patch: Patch, _: Aggregation) -> None:
    original = Rotation._step

    def publishing(self: Rotation, keys: StoredRing, now: float) -> bool:
        if keys.pending is None:
            return original(self, keys, now)
        changed = self._change(keys, keys.with_key(Key.made(keys.pending, "", now)))
        self.private.make(keys.pending)
        return changed

    patch.setattr(Rotation, "_step", publishing)


def acknowledges_a_job_that_is_stored(service: Aggregation) -> None:
    assert create(service.tables.jobs, "job", {}, service.tables.now)
    assert service.tables.jobs.read("job") is not None


def plant_early_acknowledgement(patch: Patch, _: Aggregation) -> None:
    patch.setattr(ReportJobs, "create", lambda *_: True)


def overwrites_no_output(service: Aggregation) -> None:
    put_inputs(service, made.report([(1, 5)]))
    service.bucket(OUTPUT).put_new("out/summary-1-of-1.avro", b"mine")
    service.create("job")
    service.run()
    assert service.bucket(OUTPUT).read("out/summary-1-of-1.avro") == b"mine"
    assert service.row("job").values["code"] == "RESULT_WRITE_ERROR"


def plant_overwriting(patch: Patch, _: Aggregation) -> None:
    patch.setattr(
        Objects, "put_new", lambda self, key, body: self._client.put_object(Bucket=self.bucket, Key=key, Body=body)
    )


def ends_the_job_at_a_report_of_version_2(service: Aggregation) -> None:
    put_inputs(service, *(made.report([(1, 5)], n) for n in range(20)), made.report([(1, 5)], 20, version="2.0"))
    service.create("job")
    service.run()
    assert service.code("job") == "UNSUPPORTED_REPORT_VERSION"
    (charged,) = charges(unit_of_report())
    assert service.tables.budgets.left([charged.row]) == {charged.row: {}}


def plant_lenient_version(patch: Patch, _: Aggregation) -> None:
    def lenient(fields: Any) -> str:
        if fields["version"] == "2.0":
            raise ReportRefusedError(Counter.UNSUPPORTED_SHAREDINFO_VERSION)
        return str(fields["version"])

    patch.setattr(shared_info, "_version", lenient)


Check = Callable[[Aggregation], None]
TRAPS: list[tuple[int, Check, Callable[[Patch, Aggregation], None]]] = [
    (11, admits_what_epsilon_allows, plant_no_condition),
    (12, admits_what_delta_allows, plant_no_delta),
    (13, spends_when_the_result_is_staged_and_shows_it_afterwards, plant_early_result),
    (13, spends_when_the_result_is_staged_and_shows_it_afterwards, plant_early_spending),
    (15, takes_nothing_back_that_an_abort_returned, plant_hold_without_check),
    (16, returns_a_part_once, plant_refund_without_condition),
    (17, keeps_a_row_until_the_last_job_over_its_day_has_ended, plant_short_life_of_rows),
    (18, measures_age_from_when_the_job_was_received, plant_clock),
    (22, queues_no_clear_text, plant_clear_text),
    (23, destroys_a_key_after_the_last_job_that_needs_it, plant_short_life_of_keys),
    (23, publishes_no_key_that_cannot_be_opened, plant_early_publication),
    (31, acknowledges_a_job_that_is_stored, plant_early_acknowledgement),
    (32, overwrites_no_output, plant_overwriting),
    (33, ends_the_job_at_a_report_of_version_2, plant_lenient_version),
]
named = [f"{number}-{plant.__name__}" for number, _, plant in TRAPS]


@pytest.mark.parametrize("check", dict.fromkeys(check for _, check, _ in TRAPS), ids=lambda check: check.__name__)
def test_the_rule_holds(check: Check, service: Aggregation) -> None:
    check(service)


@pytest.mark.parametrize(("number", "check", "plant"), TRAPS, ids=named)
def test_the_mistake_is_caught(
    number: int, check: Check, plant: Callable[[Patch, Aggregation], None], service: Aggregation, monkeypatch: Patch
) -> None:
    plant(monkeypatch, service)
    with pytest.raises(AssertionError):
        check(service)
