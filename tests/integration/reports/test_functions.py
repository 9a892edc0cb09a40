"""The private functions of reports: from the first key to a published summary, and failures."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kanon import clock
from kanon.local.functions import Environment, FunctionError
from kanon.reports.clients.encrypt import ClientReport, encrypt
from kanon.reports.payload import Contribution, public_keys
from kanon.reports.storage.key_ring import DAY
from kanon.reports.storage.objects import Objects
from kanon.reports.storage.report_jobs import State
from tests.integration.gate.tables import Running, running
from tests.integration.reports.functions import Functions, functions
from tests.moto_engine import ENGINES
from tests.table_ids import give_ids
from tests.unit.reports import made


@pytest.fixture(scope="module", params=sorted(ENGINES))
def each_engine(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as engine:
        yield engine


@pytest.fixture
def stack(engine: Running, monkeypatch: pytest.MonkeyPatch) -> Functions:
    return deployed_on(engine, monkeypatch)


def deployed_on(engine: Running, monkeypatch: pytest.MonkeyPatch) -> Functions:
    """A new deployment, whose clock and waits are those of the test."""
    give_ids(monkeypatch)
    deployed = functions(engine)
    monkeypatch.setattr(clock, "now", lambda: deployed.service.tables.now)
    monkeypatch.setattr(clock, "sleep", lambda _: None)
    return deployed


def collected(stack: Functions, count: int = 20, name: str = "in/a.avro") -> None:
    """Put reports that clients encrypted to a published key."""
    now = stack.service.tables.now
    published = [{"id": key.id, "key": key.public} for key in stack.keys.ring().published(now)]
    keys = public_keys(json.dumps({"keys": published}))
    reports = [
        encrypt(
            ClientReport(
                (Contribution(n % 5 + 1, 60_000),),
                int(now - 3600) * 1000,
                made.ORIGIN,
                "attribution-reporting",
                "https://shop.test",
            ),
            keys,
        )
        for n in range(count)
    ]
    stack.service.put_reports(name, reports)


def ready(stack: Functions) -> None:
    """Keys, reports and a domain."""
    stack.schedule("rotate")
    collected(stack)
    stack.service.put_domain("domain/keys.avro", *range(1, 9))


def code(stack: Functions, job: str) -> str:
    return stack.service.code(job)


def test_encrypted_reports_become_a_published_summary(stack: Functions) -> None:
    ready(stack)
    stack.create("job")
    assert stack.run() == 0
    assert code(stack, "job") == "SUCCESS"
    assert stack.service.row("job").values["counters"]["accepted"] == 20
    for key, value in stack.service.summary().items():  # the noise's standard deviation is 9,268: seldom below 1e-8
        assert abs(value - (240_000 if key <= 5 else 0)) < 170_000
    assert stack.metrics()["JobsFinished"] == 1
    assert "JobsRefused" not in stack.metrics()


def test_logs_hold_no_name_id_origin_key_or_sum(stack: Functions) -> None:
    ready(stack)
    stack.create("a secret name")
    stack.warm["aggregate"].invoke({"Records": [{"messageId": "m", "body": '{"job": "a secret name", "part": "x"}'}]})
    stack.service.s3.delete_object(Bucket=f"{stack.name}-reports", Key="in/a.avro")
    stack.run()
    assert code(stack, "a secret name") == "INPUT_DATA_READ_FAILED"
    said = stack.logs.getvalue()
    assert "part: int_type" in said
    texts = ("a secret name", "in/a", "domain/", made.ORIGIN, stack.name, "shop.test", *stack.keys.texts())
    assert not [text for text in texts if text in said]


def test_an_error_is_logged_by_its_kind_and_the_state_of_the_job(
    stack: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready(stack)
    stack.create("a secret name")

    def fails(*_: Any) -> Any:
        raise ValueError("a secret name of an object")

    monkeypatch.setattr(Objects, "listed", fails)
    assert stack.run() == 1
    said = stack.logs.getvalue()
    assert '"stage":"RECEIVED","kind":"ValueError"' in said
    assert "secret name" not in said


def test_a_job_without_keys_fails_at_its_plan(stack: Functions) -> None:
    stack.service.put_reports("in/a.avro", [made.report([(1, 1)], 1)])
    stack.service.put_domain("domain/keys.avro", 1)
    stack.create("job")
    stack.run()
    assert code(stack, "job") == "INTERNAL_ERROR"
    assert "no keys yet" in stack.service.row("job").values["message"]


def test_reports_of_a_destroyed_key_are_in_error(stack: Functions) -> None:
    ready(stack)
    (key,) = stack.keys.ring().keys
    stack.keys.private().destroy(key.id)
    stack.create("job")
    stack.run()
    row = stack.service.row("job")
    assert row.values["code"] == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
    assert "DECRYPTION_KEY_NOT_FOUND 20" in row.values["message"]


def test_a_key_that_was_issued_after_the_cold_start_is_read_when_a_plan_names_it(stack: Functions) -> None:
    ready(stack)
    stack.create("first", job_parameters__debug_privacy_epsilon="1")
    stack.run()
    stack.service.tables.now += 15 * DAY
    stack.schedule("rotate")
    collected(stack, 20, "later/a.avro")
    stack.create("second", input_data_blob_prefix="later/", output_data_blob_prefix="out/second.avro")
    stack.run()
    assert [code(stack, job) for job in ("first", "second")] == ["SUCCESS", "SUCCESS"]
    assert stack.service.row("second").values["counters"]["accepted"] == 20


@pytest.mark.parametrize("restored", [False, True], ids=["created again", "restored"])
@pytest.mark.parametrize("when", ["before the plan", "before the commit"])
def test_another_table_of_budgets_is_refused_while_the_function_is_warm(
    each_engine: Running, monkeypatch: pytest.MonkeyPatch, restored: bool, when: str
) -> None:
    stack = deployed_on(each_engine, monkeypatch)
    ready(stack)
    stack.create("job")
    epoch = stack.keys.ring().epoch
    if when == "before the commit":
        until(stack, "job", State.MAPPING)
        assert stack.service.row("job").state is State.MAPPING
    stack.keys.replace_budgets(epoch=epoch if restored else None)
    stack.run()
    row = stack.service.row("job")
    assert (row.state, row.values["code"]) == (State.FINISHED, "PRIVACY_BUDGET_ERROR")
    assert stack.metrics()["BudgetTableReplaced"] == 1
    assert not [name for name in stack.service.names("summaries") if name.startswith("out/")]
    assert not row.committed


def until(stack: Functions, job: str, state: State) -> None:
    """Take a job into a state, by messages to ``aggregate`` alone."""
    while stack.service.row(job).state is not state:
        for message in stack.received("Stages"):
            stack.warm["aggregate"].invoke({"Records": [message]})


def test_a_worker_that_was_paused_for_30_days_commits_nothing(stack: Functions) -> None:
    ready(stack)
    stack.create("job")
    until(stack, "job", State.MAPPING)
    stack.service.tables.now += 30 * DAY
    stack.schedule("aggregate")
    assert stack.run() == 0
    row = stack.service.row("job")
    assert (row.values["code"], row.committed, row.secret) == ("RETRIES_EXHAUSTED", False, None)


def test_a_job_whose_shards_are_lost_ends_after_a_day(stack: Functions) -> None:
    ready(stack)
    stack.create("job")
    until(stack, "job", State.MAPPING)
    stack.received("Maps")
    stack.service.tables.now += DAY
    stack.schedule("aggregate")
    assert stack.run() == 0
    assert code(stack, "job") == "RETRIES_EXHAUSTED"


def test_a_shard_that_is_recorded_is_not_mapped_again(stack: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    ready(stack)
    stack.create("job")
    until(stack, "job", State.MAPPING)
    (message,) = stack.received("Maps")
    stack.warm["decrypt"].invoke({"Records": [message]})
    monkeypatch.delattr("kanon.reports.service.shards.map_reports")
    assert stack.warm["decrypt"].invoke({"Records": [message]}) == {"batchItemFailures": []}
    assert stack.run() == 0
    assert code(stack, "job") == "SUCCESS"


def test_a_summary_that_cannot_be_published_for_30_days_is_given_up(stack: Functions) -> None:
    ready(stack)
    stack.service.s3.put_object(Bucket=f"{stack.name}-summaries", Key="out/summary-1-of-1.avro", Body=b"another")
    stack.create("job")
    stack.run()
    row = stack.service.row("job")
    assert (row.state, row.values["code"]) == (State.COMMITTED, "RESULT_WRITE_ERROR")
    stack.service.tables.now += 30 * DAY
    stack.schedule("aggregate")
    stack.run()
    assert code(stack, "job") == "RESULT_WRITE_ERROR"
    assert stack.service.names("work") == []
    assert stack.metrics()["JobsRefused"] == 1
    assert stack.metrics()["PublicationsFailed"] == 1


def test_the_sweep_resumes_a_job_whose_message_was_lost_and_no_moving_job(stack: Functions) -> None:
    ready(stack)
    stack.create("job")
    stack.received("Stages")
    stack.schedule("aggregate")
    assert stack.run() == 0
    assert stack.service.row("job").state is State.RECEIVED, "it has moved a moment ago"
    stack.service.tables.now += 300
    stack.schedule("aggregate")
    stack.run()
    assert code(stack, "job") == "SUCCESS"
    assert stack.metrics()["StuckJobs"] == 0


def test_the_sweep_counts_jobs_that_are_not_finished_after_twelve_hours(stack: Functions) -> None:
    ready(stack)
    stack.create("job")
    stack.received("Stages")
    stack.service.tables.now += 12 * 3600
    stack.schedule("aggregate")
    assert stack.metrics()["StuckJobs"] == 1


def test_a_job_that_cannot_be_resumed_stops_no_other_job(stack: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    ready(stack)
    for job in ("broken", "whole"):
        stack.create(job, output_data_blob_prefix=f"out/{job}.avro")
    until(stack, "broken", State.MAPPING)
    stack.received("Maps")
    stack.service.tables.now += 300
    plan = stack.service.row("broken").values["plan"]
    stack.service.s3.delete_object(Bucket=f"{stack.name}-work", Key=plan)
    with pytest.raises(FunctionError, match="KanonError: jobs could not be resumed"):
        stack.schedule("aggregate")
    stack.run()
    assert code(stack, "whole") == "SUCCESS"


def test_a_run_short_of_time_continues_in_another_message(stack: Functions) -> None:
    ready(stack)
    stack.create("job")
    runs = 0
    while messages := [*stack.received("Maps"), *stack.received("Stages")]:
        for message in messages:
            function = "decrypt" if "shard" in message["body"] else "aggregate"
            stack.warm[function].invoke({"Records": [message]}, timeout=299)
            runs += 1
    assert code(stack, "job") == "SUCCESS"
    assert runs == 8, "plan, map, and one for each state from MAPPING to FINISHED"


@pytest.mark.parametrize("function", ["decrypt", "aggregate"])
def test_a_changed_cap_is_refused(stack: Functions, function: str) -> None:
    ready(stack)
    stack.create("job")
    assert stack.run() == 0
    changed: Environment = stack.cold_start(function, EPSILON_CAP="63")
    body = {"decrypt": '{"job": "job", "stage": "map", "shard": 0}', "aggregate": '{"job": "job"}'}[function]
    answer = changed.invoke({"Records": [{"messageId": "m", "body": body}]})
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m"}]}
    assert "FingerprintMismatchError" in stack.logs.getvalue()
    assert "EpsilonCap" in stack.logs.getvalue()


def test_messages_that_a_queue_refuses_are_an_error(stack: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    ready(stack)
    stack.create("job")
    from moto.sqs.responses import SQSResponse

    def refusing(_: Any) -> Any:
        return json.dumps({"Successful": [], "Failed": [{"Id": "0", "Code": "InternalError", "SenderFault": False}]})

    monkeypatch.setattr(SQSResponse, "send_message_batch", refusing)
    assert stack.run() == 1
    assert stack.service.row("job").state is State.MAPPING


def test_rotation_reports_that_no_key_is_published(stack: Functions) -> None:
    stack.schedule("rotate")
    assert stack.metrics()["KeysMissing"] == 0
    stack.keys.replace_budgets(epoch=None)
    stack.schedule("rotate")
    assert stack.metrics()["KeysMissing"] == stack.metrics()["BudgetTableReplaced"] == 1
