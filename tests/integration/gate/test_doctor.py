"""`kanon doctor`: its findings, its advice, and that it shows no secret."""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from threading import Thread

import boto3
import pytest
from botocore.exceptions import ClientError
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.dynamo.tables import described
from kanon.dynamo.transactions import all_or_none
from kanon.findings import Section, Verdict, moment
from kanon.gate.storage.aws.control import Control, Place
from kanon.local import Stack
from kanon.local.source import ROOT
from kanon.operate import doctor as module
from kanon.operate.doctor import slots_text
from kanon.operate.running_reports import FUNCTIONS, QUEUES
from kanon.operate.stacks import StackError, deployed_stack, described_stack, local_stack
from tests.conftest import START
from tests.e2e.gate.backups import objects, put_back, put_object, rows, runbook_commands
from tests.infrastructure.test_documents import anchors
from tests.integration.gate.doctor_view import doctor, findings, operate, seen, wrong
from tests.snapshot import Snapshot

HOUR = 3600
NUMBERS = count()
JOIN = "/v1/types/fledge/sets/YWJj:join"


def used(stack: Stack) -> Stack:
    """The stack after a few hours in use."""
    assert stack.request("POST", JOIN, {"client": "a"}).status == 200
    stack.advance(3 * HOUR)
    assert stack.request("GET", "/v1/types/fledge/sets/YWJj").status == 200
    return stack


@pytest.fixture(scope="module")
def used_stack() -> Iterator[Snapshot[None]]:
    with Stack(start=START) as stack:
        yield Snapshot(used(stack), None)


@pytest.fixture
def stack(used_stack: Snapshot[None]) -> Stack:
    """A stack after a few hours in use. Tables, secrets, messages, time and variables are put back; nothing else is."""
    used_stack.restore()
    return used_stack.stack


@pytest.fixture
def own_stack(new_stack: Callable[..., Stack]) -> Stack:
    """Such a stack for one test, which may delete anything."""
    return used(new_stack(name=f"own-{next(NUMBERS)}"))


def control(stack: Stack) -> Control:
    return seen(stack).control


def put_mark_back(stack: Stack, steps: int, slot: int = 0) -> None:
    """As if evaluation had stood still for some steps."""
    through = control(stack).row(Place(0, slot)).evaluated_through
    assert through is not None
    stack.session.client("dynamodb").update_item(
        TableName=stack.storage.tables["Control"],
        Key={"name": {"S": f"slot#0#{slot}"}},
        UpdateExpression="SET evaluated_through = :step",
        ExpressionAttributeValues={":step": {"N": str(through - steps)}},
    )


def deploy(stack: Stack, **variables: str) -> None:
    """Give every function other variables, as a deployment does."""
    for name, function in stack.functions.items():
        function.environment.update(variables)  # type: ignore[attr-defined]
        stack.restart(name)


# Stacks without problems


def test_nothing_is_wrong_with_a_stack_in_use(new_stack: Callable[..., Stack]) -> None:
    stack = used(new_stack({"Slots": "8"}))
    assert wrong(stack) == {}
    found = findings(stack)
    assert found["evaluation"][0].seen.startswith("slots 0-7: evaluated through step")
    assert [f.verdict for f in found["fingerprints of join"]] == [Verdict.OK]
    assert "client-key" in found["fingerprints of join"][0].seen


def test_nothing_is_wrong_at_any_moment_of_an_hour(stack: Stack) -> None:
    for _ in range(24):
        stack.advance(151)
        assert wrong(stack) == {}


def test_nothing_is_wrong_with_a_stack_nobody_has_used_yet(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    assert wrong(stack) == {}
    assert {f.verdict for f in findings(stack)["fingerprints of evaluate"]} == {Verdict.NOT_SEEN}


def test_a_stack_that_never_evaluates_is_late_after_its_first_tick(
    new_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = new_stack()
    monkeypatch.setattr("kanon.operate.doctor.created", lambda _: float(START))
    tick = (START // 3600 + 1) * 3600 + 1800
    stack.clock.set(tick - 1)
    assert wrong(stack) == {}
    stack.clock.set(tick)
    assert wrong(stack)["evaluation"] == (Verdict.WARN, "evaluationlate")


def test_the_doctor_changes_nothing_and_reads_no_secret_without_an_option(own_stack: Stack) -> None:
    calls: list[str] = []
    own_stack.session.events.register("before-parameter-build", lambda model, **_: calls.append(model.name))
    found = findings(own_stack, secrets=False)
    tables = {"GetItem", "Scan", "BatchGetItem", "DescribeTable"}  # no UpdateItem
    bucket = {"HeadBucket", "GetPublicAccessBlock", "ListObjectsV2", "HeadObject", "GetObject"}
    assert set(calls) == tables | bucket | {"GetQueueAttributes"}
    assert [f.verdict for f in found["keys of join"]] == [Verdict.NOT_SEEN]
    findings(own_stack, secrets=True)
    assert set(calls) == tables | bucket | {"GetQueueAttributes", "GetSecretValue"}


def test_the_doctor_shows_no_secret_no_fingerprint_and_no_set(stack: Stack) -> None:
    deploy(stack, KANON_TYPES='{"fledge":{"k":51,"window":720,"profile":"published"}}')
    _, table = doctor(stack, "--secrets")
    _, text = doctor(stack, "--secrets", "--json")
    recorded = {value for owner in ("join", "query", "evaluate") for value in control(stack).recorded(owner).values()}
    hidden = {value.split()[0] for value in recorded if len(value) > 20 and not value.startswith("arn:")}
    hidden |= {*stack.storage.secrets.values(), *json.loads(stack.storage.secrets["NoiseKey"]).values(), "YWJj"}
    assert len(hidden) >= 7
    assert not [value for value in hidden if value in table or value in text]


# As a command


def test_the_command_prints_a_table_and_ends_with_status_0_without_problems(stack: Stack) -> None:
    code, output = doctor(stack, "--secrets")
    assert code == 0, output
    assert re.search(r"evaluation +│ OK +│ slot 0: evaluated through step \d+, on time", output)
    assert re.search(r"schedule +│ OK +│ enabled", output)
    assert re.search(r"fingerprints of query +│ OK +│ .*set-pepper", output)


def test_the_command_ends_with_1_and_says_what_to_do_if_something_is_wrong(stack: Stack) -> None:
    put_mark_back(stack, 2)
    code, output = doctor(stack)
    assert code == 1
    assert re.search(r"evaluation +│ WARN +│ slot 0: evaluated through step \d+ \(to .* UTC\), 2 behind", output)
    assert "docs/guides/operate.md#evaluationlate" in output
    code, output = doctor(stack, "--json")
    assert code == 1
    (bad,) = (f for f in json.loads(output)["findings"] if f["verdict"] == "WARN")
    assert (bad["check"], bad["page"]) == ("evaluation", "docs/guides/operate.md#evaluationlate")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["retire", "fledge"], "it is still configured: first deploy"),
        (["retire", "unknown"], "no such type was ever joined or evaluated"),
        (["skip"], "evaluation catches up by itself and loses nothing"),
        (["destroy-noise-key", "1"], "noise key 1 is configured: first remove it from NoiseKeys and deploy"),
        (["destroy-noise-key", "9"], "no version of the secret holds noise key 9: nothing was changed"),
    ],
)
def test_an_impossible_change_ends_with_status_2_before_the_question(
    stack: Stack, arguments: list[str], problem: str
) -> None:
    code, output = operate(stack, *arguments)
    assert (code, problem in " ".join(output.replace("│", " ").split())) == (2, True), output
    assert "[y/N]" not in output


@pytest.mark.parametrize("command", [("doctor",), ("operate", "skip")], ids=" ".join)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--url", "http://example.org/"], "give the URL of a stack on this machine"),
        (["--url", "file:///etc/passwd"], "give the URL of a stack on this machine"),
        (["--stack", "kanon", "--url", "http://127.0.0.1:8000"], "give --stack or --url, not both"),
        (["--region", "eu-west-1"], "--region and --aws-profile are for a deployed stack: name it with --stack"),
        (["--aws-profile", "a"], "--region and --aws-profile are for a deployed stack: name it with --stack"),
    ],
)
def test_options_that_do_not_name_one_stack_are_refused(
    command: tuple[str, ...], arguments: list[str], problem: str
) -> None:
    result = CliRunner().invoke(app, [*command, *arguments], env={"COLUMNS": "250"})
    assert (result.exit_code, problem in " ".join(result.output.replace("│", " ").split())) == (2, True), result.output


def test_a_missing_stack_is_reported(stack: Stack) -> None:
    with pytest.raises(StackError, match=r"^stack other cannot be read: DescribeStacks answered ValidationError$"):
        deployed_stack("other", stack.session)


@pytest.mark.parametrize(
    ("shell", "arguments", "said"),
    [
        ({}, [], "stack other cannot be read: no region is set: give --region"),
        ({}, ["--region", "eu-west-1"], "no credentials were found: sign in, or give --aws-profile"),
        ({}, ["--aws-profile", "mine"], "the AWS configuration has no such profile"),
        (
            {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            ["--region", "eu-west-1"],
            "AWS could not be reached",
        ),
    ],
    ids=["region", "credentials", "profile", "network"],
)
def test_missing_credentials_or_region_are_reported(
    monkeypatch: pytest.MonkeyPatch, shell: dict[str, str], arguments: list[str], said: str
) -> None:
    nowhere = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    outside = {name for name in os.environ if name.startswith("AWS_")}
    alone = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1", **nowhere, **shell}
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    for name in outside - alone.keys():
        monkeypatch.delenv(name)
    result = CliRunner(env=alone).invoke(app, ["doctor", "--stack", "other", *arguments])
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
    assert "permissions" not in result.stderr


def test_a_stack_of_another_project_is_reported(own_stack: Stack) -> None:
    template = {"Resources": {"Q": {"Type": "AWS::SQS::Queue"}}}
    own_stack.session.client("cloudformation").create_stack(StackName="foreign", TemplateBody=json.dumps(template))
    with pytest.raises(StackError, match=r"^stack foreign has no 'JoinFunction': is it a stack of kanon\?$"):
        deployed_stack("foreign", own_stack.session)


def test_a_served_stack_with_unreachable_tables_is_reported(stack: Stack) -> None:
    server = stack.serve()
    try:
        with pytest.raises(StackError, match="is not a local stack: start one with `kanon serve`"):
            local_stack(server.url)
    finally:
        server.close()


@pytest.mark.parametrize("answer", [b"{}", b"[1]", b'{"name": "kanon"}'])
def test_a_server_of_another_project_is_reported(answer: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(StackError, match=r"http://127\.0\.0\.1:\d+ is not a local stack"):
            local_stack(f"http://127.0.0.1:{server.server_port}")
        thread.join()


def test_an_address_without_a_server_is_reported() -> None:
    with pytest.raises(StackError, match=r"no local stack answers at http://127\.0\.0\.1:9 \(.+\): start one with"):
        local_stack("http://127.0.0.1:9")


def test_an_environment_that_a_function_refuses_is_reported(stack: Stack) -> None:
    deploy(stack, KANON_SLOTS="3")
    code, output = doctor(stack)
    assert code == 1
    assert re.search(r"environment +│ FAIL +│ KANON_SLOTS: .*power of two", output)


def test_an_environment_that_a_function_of_reports_refuses_names_the_section_to_read(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = stack.describe()
    described["functions"] |= {function: {} for function in FUNCTIONS}
    described["queues"] = {f"{queue}Dead": "url" for queue in QUEUES}
    monkeypatch.setattr("kanon.cli.doctor.find", lambda *_: described_stack(described, stack.session, None))
    result = CliRunner().invoke(app, ["doctor", "--json"])
    (finding,) = json.loads(result.output)["findings"]
    assert (result.exit_code, finding["check"], finding["verdict"]) == (1, "report functions", "FAIL")
    assert "KANON_DEPLOYMENT: Field required" in finding["seen"]
    assert finding["page"] == "docs/guides/operate.md#reportfunctionerrors"


# Problems


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("KANON_TYPES", '{"fledge":{"k":51,"window":720,"profile":"published"}}', "type fledge"),
        ("KANON_PERIOD", "1800", "type fledge"),
        ("KANON_SLOTS", "2", "slots"),
        ("KANON_DEPLOYMENT", "another", "deployment"),
    ],
)
def test_a_forbidden_change_is_reported_for_each_function_that_refuses_it(
    stack: Stack, variable: str, value: str, named: str
) -> None:
    deploy(stack, **{variable: value})
    for owner in ("join", "query", "evaluate"):
        (finding,) = (f for f in findings(stack)[f"fingerprints of {owner}"] if f.wrong)
        assert (finding.verdict, finding.seen) == (Verdict.FAIL, f"changed since it first started: {named}")


def test_functions_with_inconsistent_environments_are_reported(stack: Stack) -> None:
    stack.functions["query"].environment.update(KANON_SLOTS="2")  # type: ignore[attr-defined]
    (finding,) = findings(stack)["environment"]
    assert (finding.verdict, finding.seen) == (Verdict.FAIL, "the functions have inconsistent environments: slots")


@pytest.mark.parametrize(
    ("secret", "variable", "failing"),
    [
        ("SetPepper", "KANON_SET_PEPPER_SECRET", {"fingerprints of join", "fingerprints of query"}),
        ("ClientKey", "KANON_CLIENT_KEY_SECRET", {"fingerprints of join"}),
        ("NoiseKey", "KANON_NOISE_KEY_SECRET", {"noise keys"}),
    ],
)
def test_a_changed_key_is_reported_if_the_doctor_may_read_secrets(
    stack: Stack, secret: str, variable: str, failing: set[str]
) -> None:
    arn = next(f.environment[variable] for f in stack.functions.values() if variable in f.environment)
    value = json.dumps({"1": "another"}) if secret == "NoiseKey" else "another"
    stack.session.client("secretsmanager").put_secret_value(SecretId=arn, SecretString=value)
    assert set(wrong(stack)) == failing
    assert wrong(stack, secrets=False) == {}


def test_secrets_that_the_doctor_may_not_read_are_reported_as_unknown(own_stack: Stack) -> None:
    arn = own_stack.functions["join"].environment["KANON_CLIENT_KEY_SECRET"]
    own_stack.session.client("secretsmanager").delete_secret(SecretId=arn)
    (finding,) = findings(own_stack)["keys of join"]
    assert (finding.verdict, finding.seen[:24]) == (Verdict.NOT_SEEN, "GetSecretValue answered ")
    assert wrong(own_stack) == {}


def test_a_slot_past_its_tick_is_late_and_one_before_it_is_not(stack: Stack) -> None:
    start = stack.clock.now() // HOUR * HOUR
    stack.clock.set(start + HOUR + 1799)  # nothing is evaluated, but the tick has not come
    assert wrong(stack) == {}
    stack.clock.set(start + HOUR + 1800)
    assert wrong(stack) == {"evaluation": (Verdict.WARN, "evaluationlate")}


def test_a_slot_that_is_too_far_behind_is_reported_with_the_advice_to_skip_steps(
    new_stack: Callable[..., Stack],
) -> None:
    stack = used(new_stack({"OutageAllowance": str(7 * 86_400)}))
    mark = control(stack).row(Place(0, 0)).evaluated_through
    assert mark is not None
    last_moment = (mark + 2) * HOUR + 6 * 86_400
    stack.clock.set(last_moment - 1)
    (finding,) = findings(stack)["evaluation"]
    assert (finding.verdict, finding.section) == (Verdict.WARN, "evaluationlate")
    assert moment(last_moment) in finding.advice
    stack.clock.set(last_moment)
    (finding,) = findings(stack)["evaluation"]
    assert (finding.verdict, finding.section) == (Verdict.FAIL, "giving-up-steps")
    assert "kanon operate skip" in finding.advice


def test_a_lease_that_is_too_long_is_reported_and_an_expired_one_is_not(stack: Stack) -> None:
    now = stack.clock.now()
    control(stack).lease(Place(0, 0), "worker", now, now + 150)
    assert findings(stack)["leases"][0].seen == "slot 0 held by a worker"
    stack.clock.set(now + 151)
    assert findings(stack)["leases"][0].seen.startswith("slot 0 left by an interrupted worker")
    row = control(stack).lease(Place(0, 0), "began after the command", now + 151 + 59, now + 151 + 59 + 150)
    assert row is not None
    assert "leases" not in wrong(stack)
    control(stack).release(Place(0, 0), row.run)
    assert wrong(stack) == {}
    control(stack).lease(Place(0, 0), "clock ahead", now + 151, now + 9000)
    assert wrong(stack) == {"leases": (Verdict.WARN, "a-lease-is-held-for-too-long")}


def test_a_slot_beyond_the_configured_number_is_reported(stack: Stack) -> None:
    control(stack).lease(Place(0, 1), "worker", 0, 1)
    assert wrong(stack) == {"slots": (Verdict.FAIL, "evaluationstopped")}


def test_a_horizon_far_in_the_future_is_reported(stack: Stack) -> None:
    step = int(stack.clock.now()) // HOUR
    moves = seen(stack).statuses.horizon_moves(0, step, int(stack.clock.now()) + 10 * HOUR, None)
    assert all_or_none(stack.session.client("dynamodb"), moves[:1]) is None
    assert wrong(stack)["answers"] == (Verdict.WARN, "publishlate")


def test_missing_states_and_a_missing_bucket_are_reported(own_stack: Stack) -> None:
    manifest = control(own_stack).row(Place(0, 0)).manifest
    assert manifest is not None
    put_object(own_stack, manifest, None)
    assert wrong(own_stack) == {"states": (Verdict.FAIL, Section.STATES)}
    for name in objects(own_stack):
        put_object(own_stack, name, None)
    own_stack.session.client("s3").delete_bucket(Bucket=own_stack.storage.buckets["StatesBucket"])
    assert wrong(own_stack)["bucket"] == (Verdict.FAIL, Section.STATES)


def test_a_missing_part_is_reported(own_stack: Stack) -> None:
    (name,) = [name for name in objects(own_stack) if name.endswith(".part")]
    put_object(own_stack, name, None)
    assert wrong(own_stack) == {"states": (Verdict.FAIL, Section.STATES)}


@pytest.mark.parametrize("being_made", [False, True])
def test_missing_true_sets_are_a_warning_until_they_are_made_again(own_stack: Stack, *, being_made: bool) -> None:
    shown = control(own_stack).row(Place(0, 0)).shown
    assert shown is not None
    if being_made:
        own_stack.session.client("dynamodb").update_item(
            TableName=own_stack.storage.tables["Control"],
            Key={"name": {"S": "slot#0#0"}},
            UpdateExpression="SET remaking = :made REMOVE shown",
            ExpressionAttributeValues={":made": {"L": [{"S": "0/0/list"}, {"S": "80"}, {"S": shown}]}},
        )
    else:
        put_object(own_stack, shown, None)
    first, second = findings(own_stack)["states"]
    assert (first.verdict, second.verdict) == (Verdict.OK, Verdict.WARN)
    assert second.seen == "slot 0: the true sets are missing, and queries ask the table"
    assert own_stack.request("POST", JOIN, {"client": "b"}).status == 200
    own_stack.advance(HOUR)
    assert wrong(own_stack) == {}
    assert control(own_stack).row(Place(0, 0)).shown not in (None, shown)


def test_a_bucket_that_is_not_private_is_reported(own_stack: Stack) -> None:
    client, bucket = own_stack.session.client("s3"), own_stack.storage.buckets["StatesBucket"]
    assert findings(own_stack)["bucket"][0].seen == "private"
    client.delete_public_access_block(Bucket=bucket)
    assert wrong(own_stack) == {"bucket": (Verdict.FAIL, Section.STATES)}


@pytest.mark.parametrize(
    ("table", "seen_"),
    [
        ("Control", "Control is older than the states"),
        ("Statuses", "Statuses are older than Control"),
    ],
)
def test_tables_of_another_time_are_reported(own_stack: Stack, table: str, seen_: str) -> None:
    stack, backup = own_stack, {table: rows(own_stack, table)}
    assert stack.request("POST", JOIN, {"client": "b"}).status == 200
    stack.advance(HOUR)
    put_back(stack, backup, (table,))
    assert wrong(stack)["tables"] == (Verdict.FAIL, Section.MIXTURE)
    assert findings(stack)["tables"][0].seen == f"slot 0: {seen_}"


@pytest.mark.parametrize("without", ["nothing", "objects", "horizons"])
def test_an_emptied_control_is_reported(own_stack: Stack, without: str) -> None:
    put_back(own_stack, {"Control": []}, ("Control",))
    if without == "objects":
        for name in objects(own_stack):
            put_object(own_stack, name, None)
    elif without == "horizons":
        put_back(own_stack, {"Statuses": []}, ("Statuses",))
    (finding,) = findings(own_stack)["tables"]
    assert (finding.verdict, finding.section) == (Verdict.FAIL, Section.MIXTURE)
    assert finding.seen == "slot 0: Control has lost the rows, because it was emptied, restored or created again"
    assert finding.advice == "begin a new log generation: kanon operate new-generation"


def test_dead_letters_and_a_growing_queue_are_reported(stack: Stack) -> None:
    queue = stack.session.client("sqs")
    for _ in range(2):
        queue.send_message(QueueUrl=seen(stack).evaluate.queue_url, MessageBody="{}")
    assert wrong(stack) == {}
    queue.send_message(QueueUrl=seen(stack).evaluate.queue_url, MessageBody="{}")
    queue.send_message(QueueUrl=seen(stack).dead_letters_url, MessageBody="{}")
    assert wrong(stack) == {
        "queue": (Verdict.WARN, "publishlate"),
        "dead letters": (Verdict.WARN, "deadletterswaiting"),
    }


def test_a_disabled_schedule_is_reported(own_stack: Stack) -> None:
    assert doctor(own_stack)[0] == 0
    name = f"{own_stack.template.stack_name}-schedule"
    scheduler = own_stack.session.client("scheduler")
    known = scheduler.get_schedule(Name=name)
    changed = {k: known[k] for k in ("ScheduleExpression", "FlexibleTimeWindow", "Target")}
    scheduler.update_schedule(Name=name, State="DISABLED", **changed)
    code, output = doctor(own_stack)
    assert code == 1
    assert re.search(r"schedule +│ FAIL +│ disabled", output)


def test_queues_and_a_schedule_that_the_doctor_may_not_read_are_reported_as_unknown(own_stack: Stack) -> None:
    doctor(own_stack)
    own_stack.session.client("scheduler").delete_schedule(Name=f"{own_stack.template.stack_name}-schedule")
    queue = own_stack.session.client("sqs")
    queue.delete_queue(QueueUrl=seen(own_stack).dead_letters_url)
    code, output = doctor(own_stack)
    assert code == 0
    assert re.search(r"schedule +│ not seen", output)
    assert re.search(r"dead letters +│ not seen", output)


@pytest.mark.parametrize(
    ("slots", "text"), [([3], "slot 3"), ([0, 1, 2, 5], "slots 0-2, 5"), (list(range(256)), "slots 0-255")]
)
def test_consecutive_slots_are_shown_as_ranges(slots: list[int], text: str) -> None:
    assert slots_text(slots) == text


# Its links


def test_every_section_that_the_doctor_names_exists_in_the_operating_page() -> None:
    assert {*Section, "kanon-doctor"} <= anchors(ROOT / "docs" / "guides" / "operate.md")


# The key of the tables


@pytest.fixture
def key(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    """A key in moto's KMS, which the tables name."""
    key: str = stack.session.client("kms").create_key()["KeyMetadata"]["KeyId"]
    monkeypatch.setattr(
        module, "described", lambda client, tables: {
            name: {**each, "SSEDescription": {"KMSMasterKeyArn": key}}
            for name, each in described(client, tables).items()
        },
    )  # fmt: skip
    return key


def test_a_key_that_cannot_be_used_is_reported_before_the_tables_are_archived(stack: Stack, key: str) -> None:
    kms = stack.session.client("kms")
    assert [f.verdict for f in findings(stack)["encryption key"]] == [Verdict.OK]
    kms.disable_key(KeyId=key)
    (finding,) = findings(stack)["encryption key"]
    assert (finding.verdict, finding.section) == (Verdict.FAIL, Section.KEY)
    assert finding.seen == "the key is Disabled: DynamoDB archives the tables seven days after it became unusable"
    kms.schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    (finding,) = findings(stack)["encryption key"]
    assert re.search(r"^the key is PendingDeletion, deleted on \d{4}-\d\d-\d\d: ", finding.seen)
    for line in runbook_commands("The key of the tables")[:2]:
        _, _, operation, _, name = shlex.split(line)
        assert name == "KEY"
        getattr(kms, operation.replace("-", "_"))(KeyId=key)
    assert [f.verdict for f in findings(stack)["encryption key"]] == [Verdict.OK]


def test_without_the_key_the_doctor_reports_it_though_no_table_can_be_read(
    stack: Stack, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = {"Error": {"Code": "AccessDeniedException", "Message": "KMS"}}

    def refuse(*_: object, **__: object) -> None:
        raise ClientError(error, "Scan")  # type: ignore[arg-type]

    monkeypatch.setattr(Control, "rows", refuse)
    with pytest.raises(ClientError, match="KMS"):
        findings(stack)
    stack.session.client("kms").disable_key(KeyId=key)
    assert wrong(stack) == {"encryption key": (Verdict.FAIL, Section.KEY)}


def test_tables_that_dynamodb_archives_are_reported(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "described", lambda client, tables: {
            name: {**each, "TableStatus": "INACCESSIBLE_ENCRYPTION_CREDENTIALS"} if name == "StepLog" else each
            for name, each in described(client, tables).items()
        },
    )  # fmt: skip
    (finding,) = findings(stack)["encryption key"]
    assert (finding.verdict, "cannot use the key of StepLog" in finding.seen) == (Verdict.FAIL, True)


def test_tables_without_deletion_protection_are_a_warning(own_stack: Stack) -> None:
    assert doctor(own_stack)[0] == 0
    own_stack.session.client("cloudformation").update_stack(
        StackName=own_stack.template.stack_name,
        UsePreviousTemplate=True,
        Parameters=[{"ParameterKey": "DeletionProtection", "ParameterValue": "OFF"}],
    )
    code, output = doctor(own_stack)
    assert code == 1
    assert re.search(r"deletion protection .*WARN.* off ", output), output
    assert "set DeletionProtection=ON and deploy again" in output
