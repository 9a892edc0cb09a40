"""The monitor finds planted leaks of every value in every form, and every planted call beyond a role."""

import base64
import dataclasses
import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import pytest
from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.metrics import MetricUnit

from kanon import aws
from kanon.errors import ConfigurationError, KanonError, TooFarBehindError
from kanon.gate import join_routes, query_routes, sealing
from kanon.gate.evaluation import Evaluation
from kanon.gate.joining import Join, Joining
from kanon.gate.models import HashesAnswer, JoinAnswer
from kanon.gate.querying import Querying
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.step_log import StepLog
from kanon.http import edge
from kanon.http.answers import error_answer
from kanon.http.bodies import RequestError
from kanon.local import Stack
from tests.monitor import allowed_output
from tests.monitor.allowed_reports import wrong_reports_answer
from tests.monitor.monitor import Monitor
from tests.monitor.permissions import Call, allowed
from tests.monitor.private import Private

SET_ID = b"a set id nobody may see"
SET = base64.urlsafe_b64encode(SET_ID).decode().rstrip("=")
CLIENT = "a client nobody may see"
PERIOD = 3600
Plant = Callable[[pytest.MonkeyPatch], None]
PLANTS: dict[str, tuple[Plant, str]] = {}

pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")


def plant(found: str) -> Callable[[Plant], Plant]:
    """Enter a leak into the list, with the problem that the monitor must report."""

    def enter(leak: Plant) -> Plant:
        PLANTS[leak.__name__.replace("_", " ")] = (leak, found)
        return leak

    return enter


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, does: Callable[..., None]) -> None:
    """Let a method do something else first."""
    real = getattr(owner, name)

    def method(*args: Any, **more: Any) -> Any:
        does(*args, **more)
        return real(*args, **more)

    monkeypatch.setattr(owner, name, method)


def log(message: str, **fields: Any) -> None:
    Logger(service="join").warning(message, **fields)


@plant("as its message")
def a_set_id_in_base64_in_a_log_line(monkeypatch: pytest.MonkeyPatch) -> None:
    before(
        monkeypatch, Joining, "join", lambda self, join, now: log(f"joined {base64.b64encode(join.set_id).decode()}")
    )


@plant("private: ")
def a_set_id_as_a_field_of_a_log_line(monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, Joining, "join", lambda self, join, now: log("call failed", reason=join.set_id.decode()))


@plant("private: ")
def a_client_in_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, Joining, "join", lambda self, join, now: log("call failed", reason=join.client.decode()))


@plant("private: ")
def a_token_in_hex_in_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(self: StepLog, row: Any) -> None:
        log("call failed", reason=f"token {row.token.to_bytes(4, 'big').hex()} is there")

    before(monkeypatch, StepLog, "put", put)


@plant("a log line has a field 'token'")
def a_token_in_a_field_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, StepLog, "put", lambda self, row: log("call failed", token=hex(row.token)))


@plant("printed")
def a_line_beside_the_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, Joining, "join", lambda self, join, now: print("joining", len(join.client)))


@plant("a log line has a field 'stack_trace'")
def a_trace_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace(self: Joining, join: Join, now: float) -> None:
        try:
            raise ValueError(join.client)
        except ValueError:
            Logger(service="join").exception("call failed")

    before(monkeypatch, Joining, "join", trace)


@plant("evaluate has a metric 'PartsPut'")
def a_count_in_a_metric_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(*_: Any) -> None:
        Metrics().add_metric("PartsPut", MetricUnit.Count, 1)

    before(monkeypatch, PartObjects, "put", put)


@plant("PublishLag takes the values")
def a_count_in_the_metric_of_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Evaluation.run
    monkeypatch.setattr(Evaluation, "run", lambda *given: dataclasses.replace(run(*given), late=17))


@plant("metrics have the dimensions")
def a_set_as_a_dimension_of_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, Joining, "join", lambda self, join, now: Metrics().add_dimension("set", SET))


@plant("a number that could be a count")
def a_count_in_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> None:
        raise TooFarBehindError("the set has 57 members by now")

    before(monkeypatch, Evaluation, "run", run)


@plant("private: ")
def a_noise_key_in_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Evaluation, *_: Any) -> None:
        raise ConfigurationError(f"cannot use {self.noise_keys.entries[0][1].secret.hex()}")

    before(monkeypatch, Evaluation, "run", run)


@plant("private: ")
def a_pepper_in_an_error_that_leaves_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    def sqs() -> None:
        values = aws.secrets_manager()
        names = (secret["ARN"] for secret in values.list_secrets()["SecretList"])
        raise KanonError(" ".join(values.get_secret_value(SecretId=name)["SecretString"] for name in names))

    before(monkeypatch, aws, "sqs", sqs)


@plant("an answer has the header X-Key")
def a_key_in_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    real = edge.json_answer
    monkeypatch.setattr(join_routes, "json_answer", lambda body, headers=None: real(body, {"X-Key": "abc"}))


@plant("a join is answered")
def a_join_that_tells_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Telling(JoinAnswer):
        joined: int = 12

    monkeypatch.setattr(join_routes, "JoinAnswer", Telling)
    # The declared model of an answer drops every other field.
    monkeypatch.setitem(join_routes.JoinRoutes.join.__annotations__, "return", Response[Telling])


@plant("which was not asked")
def a_set_that_nobody_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    def telling(**told: Any) -> HashesAnswer:
        return HashesAnswer(**{**told, "hashes": ["c29tZWJvZHkgZWxzZXM"]})

    monkeypatch.setattr(query_routes, "HashesAnswer", telling)


@plant("a number that could be a count")
def a_count_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(self: Querying, *_: Any) -> None:
        raise RequestError(error_answer(503, "the set has 57 joins, ask later"))

    before(monkeypatch, Querying, "query", query)


@plant("private: ")
def a_set_id_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(self: Querying, sets: Any, now: float) -> None:
        raise RequestError(error_answer(503, f"cannot read {sets[0][1].hex()}"))

    before(monkeypatch, Querying, "query", query)


@plant("the role of join refuses dynamodb:Query on arn")
def a_join_that_reads_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(self: StepLog, row: Any) -> None:
        self.page(b"a partition", b"a", b"b")

    before(monkeypatch, StepLog, "put", put)


@plant("the role of query refuses dynamodb:UpdateItem on arn")
def a_query_that_writes_a_mark_of_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(self: Querying, *_: Any) -> None:
        statuses: Any = self.statuses
        name = statuses.table._table.replace("Statuses", "Control")
        statuses.table._client.update_item(TableName=name, Key={"name": {"S": "slot#0"}})

    before(monkeypatch, Querying, "query", query)


@plant("the role of query refuses s3:GetObject on arn")
def a_query_that_reads_states(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(self: Querying, *_: Any) -> None:
        statuses: Any = self.statuses
        statuses.fetch("0/0/490000-1-0.part")

    before(monkeypatch, Querying, "query", query)


def flow(stack: Stack) -> None:
    """A join, its evaluation, and a query; then what comes of a schedule that goes off again."""
    stack.request("POST", f"/v1/types/fledge/sets/{SET}:join", {"client": CLIENT})
    stack.advance(3 * PERIOD)
    stack.request("POST", "/v1:query", {"setsForType": [{"type": "fledge", "hashes": [SET]}]})


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_leak_or_call_is_found(name: str, new_stack: Callable[..., Stack], monkeypatch: Any) -> None:
    leak, found = PLANTS[name]
    leak(monkeypatch)
    stack = new_stack()
    flow(stack)
    problems = Monitor.of(stack).look()
    assert [problem for problem in problems if found in problem], problems


def test_without_a_planted_leak_nothing_is_found(stack: Stack) -> None:
    flow(stack)
    monitor = Monitor.of(stack)
    assert monitor.look() == []
    assert {call.function for call in monitor.calls} == {"join", "evaluate", "query"}


VALUE = "a value nobody may see"


def a_value_in_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, Joining, "join", lambda self, join, now: log("call failed", reason=join.value.decode()))


def a_value_that_is_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "seal", lambda value, key, set_key: b"\0" + value)


def a_value_in_an_object_of_states(monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, PartObjects, "put", lambda self, *_: self._put(VALUE, VALUE.encode()))


def a_join_that_reads_the_key_of_the_lister(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(*_: Any) -> None:
        secrets = aws.secrets_manager()
        for page in secrets.get_paginator("list_secrets").paginate():  # with those of other tests
            for each in page["SecretList"]:
                if each["Name"].endswith("/lister-key"):
                    secrets.get_secret_value(SecretId=each["ARN"])

    before(monkeypatch, StepLog, "put", put)


@pytest.mark.parametrize(
    ("leak", "found"),
    [
        (a_value_in_a_reason, "private: "),
        (a_value_that_is_not_sealed, "join writes a value of a listed type in clear text with PutItem"),
        (a_value_in_an_object_of_states, "evaluate writes a value of a listed type in clear text with PutObject"),
        (a_join_that_reads_the_key_of_the_lister, "the role of join refuses secretsmanager:GetSecretValue on arn"),
    ],
)
def test_a_value_in_clear_text_and_a_use_of_its_key_are_found(
    leak: Plant, found: str, new_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    leak(monkeypatch)
    problems = of_a_listed_type(new_stack)
    assert [problem for problem in problems if found in problem], problems


def test_without_a_planted_leak_nothing_is_found_of_a_listed_type(new_stack: Callable[..., Stack]) -> None:
    assert of_a_listed_type(new_stack) == []


def of_a_listed_type(new_stack: Callable[..., Stack]) -> list[str]:
    """The problems after a join of a listed type and its evaluation."""
    types = {"terms": {"k": 50, "window": 24, "profile": "crossing", "listed": True}}
    stack = new_stack({"Types": json.dumps(types)})
    name = base64.urlsafe_b64encode(sha256(VALUE.encode()).digest()).decode().rstrip("=")
    stack.request("POST", f"/v1/types/terms/sets/{name}:join", {"client": CLIENT, "value": VALUE})
    stack.advance(3 * PERIOD)
    return Monitor.of(stack).look()


def test_a_message_that_names_more_than_a_slot_is_found(stack: Stack) -> None:
    monitor = Monitor.of(stack)
    url = stack.template.resolve({"Ref": "Queue"})
    for body in ({"slot": 0, "hop": 1}, {"slot": 0, "hop": 1, "set": SET}, {"slot": 0, "hop": "57"}):
        monitor.called(
            "evaluate", "sqs", "SendMessageBatch", {"QueueUrl": url, "Entries": [{"MessageBody": json.dumps(body)}]}
        )
    assert [problem[:20] for problem in monitor.look()] == ["a message to the que"] * 2


KEY = bytes(range(200, 232))


@pytest.mark.parametrize(
    "shown",
    [
        KEY.hex(),
        KEY.hex().upper(),
        KEY.hex()[:20],
        base64.b64encode(KEY).decode(),
        base64.urlsafe_b64encode(KEY).decode(),
        base64.b64encode(b"x" + KEY).decode(),
        base64.b64encode(b"xy" + KEY + b"z").decode(),
        base64.b64encode(b"xyz" + KEY).decode(),
        repr(KEY),
        str(bytearray(KEY)),
        "".join(f"%{byte:02X}" for byte in KEY),
    ],
)
def test_a_private_value_is_found_in_every_form(shown: str) -> None:
    private = Private()
    private.add(KEY)
    private.say("nothing is in this text")
    private.say(f"something is in <{shown}>")
    assert private.told() == [f"something is in <{shown}>"]
    assert private.told() == []


def test_a_client_named_like_a_field_of_the_api_is_not_a_leak() -> None:
    private = Private()
    private.add("client", "shortClientIdentifier")
    private.say("give exactly one of client and shortClientIdentifier")
    assert private.told() == []


@pytest.mark.parametrize("text", ["57", "57 members", "the count is 57", "members: 57", "step 472000: 57 joined"])
def test_a_number_that_could_be_a_count_is_found(text: str) -> None:
    assert list(allowed_output.wrong_text(text)) != []


@pytest.mark.parametrize(
    "text",
    ["step 472000 may have lost rows", "there are 4 slots, and the message names slot 7", "at line 1 column 57"],
)
def test_a_number_is_allowed_after_a_word_that_names_it(text: str) -> None:
    assert list(allowed_output.wrong_text(text)) == []


# Reports


@pytest.fixture(scope="module")
def reports() -> Iterator[Monitor]:
    """The watch of a stack with reports, whose functions do not run."""
    with Stack({"Reports": "ON"}, start=1_700_000_000.0) as stack:
        yield Monitor.of(stack)


def bucket(monitor: Monitor, logical_id: str) -> str:
    (name,) = [name for name in monitor.resources.arns if name.endswith(f"-{logical_id.lower()}")]
    return name


@pytest.mark.parametrize(
    ("function", "operation", "params", "refused"),
    [
        ("store", "PutObject", {"Key": "reports/kanon/a.avro"}, None),
        ("store", "GetObject", {"Key": "reports/kanon/a.avro"}, "the role of store refuses s3:GetObject on arn:aws:s3"),
        ("collect", "PutObject", {"Key": "reports/kanon/a.avro"}, "the role of collect refuses s3:PutObject"),
        ("jobs", "DeleteObjects", {"Delete": {"Objects": [{"Key": "a"}]}}, "the role of jobs refuses s3:DeleteObject"),
        ("store", "ListObjectsV2", {"Prefix": "reports/"}, "the role of store refuses s3:ListBucket"),
    ],
)
def test_a_call_on_objects_beyond_a_role_is_found(
    function: str, operation: str, params: dict[str, Any], refused: str | None, reports: Monitor
) -> None:
    reports.called(function, "s3", operation, {"Bucket": bucket(reports, "ReportsBucket"), **params})
    problems = reports.look()
    assert [refused in problem for problem in problems] == ([] if refused is None else [True]), problems


@pytest.fixture(scope="module")
def with_lists() -> Iterator[Monitor]:
    """The watch of a stack with reports and lists, whose functions do not run."""
    types = {"terms": {"k": 50, "window": 24, "profile": "crossing", "listed": True}}
    with Stack({"Reports": "ON", "Types": json.dumps(types)}, start=1_700_000_000.0) as stack:
        yield Monitor.of(stack)


@pytest.mark.parametrize(
    ("function", "name", "allowed"),
    [
        ("jobs", "list#terms", True),
        ("jobs", "lists", False),
        ("jobs", "slot#0", False),
        ("aggregate", "list#terms", False),
        ("released", "list#terms", True),
        ("released", "reports#keys", False),
        ("list", "slot#0", True),
        ("list", "reports#keys", False),
    ],
)
def test_a_read_of_control_beyond_the_keys_of_a_role_is_found(
    function: str, name: str, allowed: bool, with_lists: Monitor
) -> None:
    assert reads_control(with_lists, function, name) == ([] if allowed else [f"the role of {function} refuses"])


@pytest.mark.parametrize(("kind", "covered"), [("StringLike", True), ("StringEquals", False)])
def test_a_star_is_a_pattern_only_in_a_condition_that_has_patterns(kind: str, covered: bool) -> None:
    condition = {f"ForAllValues:{kind}": {"dynamodb:LeadingKeys": ["list#*"]}}
    actions = ["dynamodb:PutItem", "dynamodb:GetItem"]
    statement = {"Effect": "Allow", "Action": actions, "Resource": "arn", "Condition": condition}
    _, permission = allowed({"Policies": [{"PolicyDocument": {"Statement": [statement]}}]})
    assert permission.covers(Call("jobs", "dynamodb:GetItem", "arn", "list#terms")) is covered
    assert permission.covers(Call("jobs", "dynamodb:GetItem", "arn", "list#*"))


def test_without_a_lister_jobs_may_read_no_list(reports: Monitor) -> None:
    assert reads_control(reports, "jobs", "list#terms") == ["the role of jobs refuses"]


def reads_control(monitor: Monitor, function: str, name: str) -> list[str]:
    """How the problems begin after a read of this item."""
    (table,) = [arn for arn in monitor.resources.arns if arn.endswith("-Control")]
    monitor.called(function, "dynamodb", "GetItem", {"TableName": table, "Key": {"name": {"S": name}}})
    return [problem.partition(" dynamodb:")[0] for problem in monitor.look()]


@pytest.mark.parametrize(
    ("name", "allowed"), [("current/terms/1-a/all", True), ("lists/terms/x", False), ("opened/0/1", False)]
)
def test_aggregate_reads_the_newest_lists_alone(name: str, allowed: bool, with_lists: Monitor) -> None:
    place = bucket(with_lists, "ListBucket")
    with_lists.called("aggregate", "s3", "GetObject", {"Bucket": place, "Key": name})
    found = with_lists.look()
    assert not found if allowed else ["refuses s3:GetObject" in problem for problem in found] == [True]


@pytest.mark.parametrize(("function", "kind"), [("query", "Put"), ("jobs", "Update"), ("collect", "ConditionCheck")])
def test_a_write_of_a_transaction_beyond_a_role_is_found(function: str, kind: str, reports: Monitor) -> None:
    (table,) = [name for name in reports.resources.arns if name.endswith("-Budgets")]
    part = {"TableName": table, "Key": {"row": {"B": b"r"}, "part": {"S": "left"}}}
    reports.called(function, "dynamodb", "TransactWriteItems", {"TransactItems": [{kind: part}]})
    (problem,) = reports.look()
    assert f"the role of {function} refuses dynamodb:" in problem


@pytest.mark.parametrize(
    ("queue", "message", "wrong"),
    [
        ("Stages", {"job": "j"}, False),
        ("Stages", {"job": "j", "part": 3}, False),
        ("Stages", {"job": "j", "sum": 3}, True),
        ("Maps", {"job": "j", "stage": "map", "shard": 3}, False),
        ("Maps", {"job": "j", "stage": "map", "shard": 3_000}, True),
        ("Queue", {"job": "j"}, True),
        ("Arrivals", {"kind": "event", "body": "{}", "received": 1}, False),
        ("Arrivals", {"kind": "event", "body": "{}", "received": 1, "debug_cleartext_payload": "a"}, True),
    ],
)
def test_a_message_of_reports_has_the_fields_of_its_queue(queue: str, message: Any, wrong: bool) -> None:
    assert bool(list(allowed_output.wrong_message(queue, json.dumps(message)))) is wrong


@pytest.mark.parametrize(
    ("path", "status", "answer", "wrong"),
    [
        ("/v1/reports", 200, {}, False),
        ("/v1/reports", 200, {"queued": 57}, True),
        ("/.well-known/aggregation-service/v1/public-keys", 200, {"keys": [{"id": "a", "key": "A" * 43 + "="}]}, False),
        ("/.well-known/aggregation-service/v1/public-keys", 200, {"keys": [{"id": "a", "key": "A" * 64}]}, True),
        ("/v1alpha/createJob", 202, {}, False),
        ("/v1alpha/createJob", 202, {"reports": 57}, True),
        ("/v1/budget", 200, {"day": "2026-01-31", "hours": [], "jobs": [], "delta_cap": "1e-7"}, True),
        ("/v1alpha/getJob", 404, {"error": {"code": 5, "message": "no job", "status": "A", "details": []}}, False),
        ("/v1alpha/getJob", 404, {"error": {"code": 5, "message": "57 jobs", "status": "A", "details": []}}, True),
    ],
)
def test_an_answer_of_reports_has_the_fields_of_its_path(path: str, status: int, answer: Any, wrong: bool) -> None:
    assert bool(list(wrong_reports_answer(path, status, json.dumps(answer)))) is wrong


REPORT = {
    "shared_info": json.dumps({"report_id": "12345678-report-id", "reporting_origin": "https://reporter-nobody.test"}),
    "aggregation_service_payloads": [{"payload": "cGF5bG9hZA==", "key_id": "1"}],
}


@pytest.mark.parametrize("told", ["12345678-report-id", "https://reporter-nobody.test", "cGF5bG9hZA=="])
def test_the_fields_of_a_report_are_private(told: str, reports: Monitor) -> None:
    reports.asked({"rawPath": "/v1/reports", "body": json.dumps(REPORT)})
    reports.private.say(f"a report of {told} came")
    assert reports.private.told()


def test_objects_and_new_secrets_are_private(reports: Monitor) -> None:
    reports.called(
        "store", "s3", "PutObject", {"Bucket": bucket(reports, "ReportsBucket"), "Key": "reports/x/0f1e2d3c"}
    )
    reports.called("rotate", "secretsmanager", "CreateSecret", {"Name": "n", "SecretString": '{"private":"s3cr3tkey"}'})
    for told in ("0f1e2d3c", "s3cr3tkey"):
        reports.private.say(f"this is {told}")
        assert reports.private.told()
    reports.look()


def test_the_gateway_may_invoke_two_functions_and_read_its_secrets(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack({"Gateway": "ON"})
    monitor = Monitor.of(stack)
    for name in ("join", "query"):
        monitor.called("gateway", "lambda", "Invoke", {"FunctionName": stack.functions[name].alias})
    for name in ("GatewayKey", "RelaySecret"):
        secret = stack.template.nested["AnonymousStack"].resolve({"Ref": name})
        monitor.called("gateway", "secretsmanager", "GetSecretValue", {"SecretId": secret})
    assert monitor.look() == []
    monitor.called("gateway", "lambda", "Invoke", {"FunctionName": stack.functions["sweep"].alias})
    monitor.called("gateway", "lambda", "GetFunction", {"FunctionName": stack.functions["join"].alias})
    monitor.called("gateway", "dynamodb", "GetItem", {"TableName": stack.storage.tables["Control"], "Key": {}})
    for name in ("SetPepper", "ClientKey"):
        secret = stack.template.resolve({"Ref": name})
        monitor.called("gateway", "secretsmanager", "GetSecretValue", {"SecretId": secret})
    assert len(monitor.look()) == 5


@pytest.mark.parametrize(
    ("path", "size", "headers", "wrong"),
    [
        ("/v1/proxy/keys", 41, {"Content-Type": "application/ohttp-keys", "Cache-Control": "public, max-age=9"}, False),
        ("/v1/proxy/keys", 42, {"Content-Type": "application/ohttp-keys", "Cache-Control": "public, max-age=9"}, True),
        ("/v1/gateway", 1072, {"Content-Type": "message/ohttp-res", "Cache-Control": "no-store"}, False),
        ("/v1/gateway", 1073, {"Content-Type": "message/ohttp-res", "Cache-Control": "no-store"}, True),
        ("/v1/gateway", 560, {"Content-Type": "message/ohttp-res", "Cache-Control": "no-store"}, True),
        ("/v1/gateway", 1072, {"Content-Type": "message/ohttp-res", "Cache-Control": "public"}, True),
        ("/v1/gateway", 1072, {"Content-Type": "message/ohttp-res", "Cache-Control": "no-store", "X": "y"}, True),
    ],
)
def test_an_outer_answer_of_another_form_is_found(path: str, size: int, headers: dict[str, str], wrong: bool) -> None:
    body = base64.b64encode(bytes(size)).decode()
    result = {"statusCode": 200, "headers": headers, "body": body, "isBase64Encoded": True}
    assert bool(list(allowed_output.wrong_relayed_answer(path, result))) is wrong
