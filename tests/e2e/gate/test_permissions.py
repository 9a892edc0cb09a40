"""Every permission of a role is used: one full flow makes a call for each.

``tests/monitor`` checks in every test that no call exceeds a role.
"""

import json
from collections import defaultdict
from datetime import UTC, datetime

import pytest

from kanon.clock import DAY
from kanon.local.stack import Stack
from tests.integration.credentials.people import TYPE
from tests.integration.credentials.test_on_aws import ON, account, client_of, device
from tests.integration.gateway.test_on_aws import relay
from tests.monitor.monitor import Monitor
from tests.monitor.permissions import Call, Permission

START = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
TYPES = {"fledge": {"k": 50, "window": 24, "profile": "published"}}
FIRST = int(START // 3600)
SLOTS = [{"slots": 1, "from_step": 0}, {"slots": 2, "from_step": FIRST + 5}]
FUNCTIONS = ("join", "evaluate", "query", "sweep")

# Calls an AWS service makes with a function's role, and on what: none of them comes from the function's code.
BY_AWS_FOR_ALL = {
    ("kms:Decrypt", "Key"): "DynamoDB and Secrets Manager decrypt on the caller's behalf",
    ("logs:CreateLogStream", "{function}Logs"): "Lambda writes the log",
    ("logs:PutLogEvents", "{function}Logs"): "Lambda writes the log",
}
BURIED = {("sqs:SendMessage", "LostEvents"): "Lambda buries failed asynchronous invocations"}
BY_AWS = {
    "issuer": BURIED,
    "sweep": {("kms:Decrypt", "StatesKey"): "S3 decrypts on the caller's behalf", **BURIED},
    "evaluate": {
        ("kms:Decrypt", "StatesKey"): "S3 decrypts on the caller's behalf",
        ("kms:GenerateDataKey", "StatesKey"): "S3 encrypts on the caller's behalf",
        ("kms:GenerateDataKey", "Key"): "S3 encrypts true sets on the caller's behalf",
        ("s3:ListBucket", "StatesBucket"): "S3 tells a missing object from one that may not be read",
        ("sqs:ReceiveMessage", "Queue"): "the event source mapping polls the queue",
        ("sqs:DeleteMessage", "Queue"): "the event source mapping deletes what was handled",
        ("sqs:GetQueueAttributes", "Queue"): "the event source mapping reads the visibility timeout",
        ("sqs:ChangeMessageVisibility", "Queue"): "the event source mapping returns what failed",
        **BURIED,
    },
}


@pytest.fixture(scope="module")
def stack():
    """A stack whose functions have made every kind of call."""
    parameters = {"Types": json.dumps(TYPES), "Slots": json.dumps(SLOTS, separators=(",", ":")), "JoinAuth": "OPEN"}
    with Stack(parameters, start=START, seed=5) as stack:
        join = "/v1/types/fledge/sets/YWQ:join"
        for n in range(130):  # certain to cross
            assert stack.request("POST", join, {"client": f"c{n}"}).status == 200
        batch = {"joins": [{"type": "fledge", "set": "b3RoZXI", "client": f"c{n}"} for n in range(60)]}
        assert stack.request("POST", "/v1:batchJoin", batch).status == 200
        for _ in range(30):  # a flip, wake-ups, an instance that turns, new slots, two sweeps
            stack.advance(3600)
            stack.request("POST", "/v1:query", {"setsForType": [{"type": "fledge", "hashes": ["YWQ"]}]})
            stack.request("GET", "/v1/types/fledge/sets/YWQ")
        stack.request("GET", "/v1/types")
        assert not stack.failures
        yield stack


@pytest.fixture(scope="module")
def anonymous(tmp_path_factory):
    """A stack in which an account has enrolled, and joined and asked through a relay, and was deleted and forgotten."""
    with Stack(ON, start=START, seed=5) as stack:
        server, one = stack.serve(), device(stack, tmp_path_factory.mktemp("credential") / "file")
        with relay(stack, server.url) as through:
            one.enrol(server.url, auth=account("me"), relay=through, direct=True)
            with client_of(stack, server.url, one, through) as client:
                client.join(TYPE, "a value")
                client.is_shared(TYPE, ["a value"])
            one.delete(server.url, auth=account("me"), relay=through, direct=True)
        server.close()
        stack.clock.set(stack.clock.now() + 60 * DAY)
        stack.invoke("issuer", {"schedule": True})  # forgets the account
        assert not stack.failures
        yield stack


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_permission_of_a_role_is_used_by_a_function_or_by_aws(stack, function):
    monitor = Monitor.of(stack)
    by_aws = {
        (action, stack.template.resolve({"Fn::GetAtt": [name.format(function=function.title()), "Arn"]}))
        for action, name in [*BY_AWS_FOR_ALL, *BY_AWS.get(function, ())]
    }
    assert by_aws <= {(permission.action, permission.resource) for permission in monitor.allowed[function]}
    assert {(permission.action, permission.resource) for permission in idle(monitor, function)} <= by_aws


@pytest.mark.parametrize("function", ["gateway", "issuer"])
def test_every_permission_of_the_roles_of_anonymous_joins_is_used(anonymous, function):
    unused = idle(Monitor.of(anonymous), function)
    by_aws = [action for action, _ in (*BY_AWS_FOR_ALL, *BY_AWS.get(function, ()))]
    assert sorted(permission.action for permission in unused) == sorted(by_aws)  # each on one resource


def idle(monitor: Monitor, function: str) -> list[Permission]:
    """The permissions of a role that no call of its function needed."""
    calls = [call for call in monitor.calls if call.function == function]
    return [each for each in monitor.allowed[function] if not any(each.covers(call) for call in calls)]


def test_a_permission_for_one_item_does_not_cover_another_item(stack):
    allowed = Monitor.of(stack).allowed["join"]
    (control,) = {permission.resource for permission in allowed if permission.action == "dynamodb:UpdateItem"}

    def may(action: str, resource: str, key: str) -> bool:
        return any(permission.covers(Call("join", action, resource, key)) for permission in allowed)

    assert may("dynamodb:UpdateItem", control, "function#join")
    assert not may("dynamodb:UpdateItem", control, "function#query")
    assert not may("dynamodb:Query", allowed[0].resource, "")


def test_join_and_query_share_only_the_pepper_and_their_own_fingerprint_items(stack):
    touched = defaultdict(set)
    for call in Monitor.of(stack).calls:
        touched[call.function].add(call.resource)
    control = stack.template.resolve({"Fn::GetAtt": ["Control", "Arn"]})
    pepper = stack.template.resolve({"Ref": "SetPepper"})
    assert touched["join"] & touched["query"] == {control, pepper}
    statuses = stack.template.resolve({"Fn::GetAtt": ["Statuses", "Arn"]})
    both = touched["query"] & touched["evaluate"]
    true_sets = {resource for resource in both if "-statesbucket/true/" in resource}
    assert both - true_sets == {control, statuses}
    assert true_sets
