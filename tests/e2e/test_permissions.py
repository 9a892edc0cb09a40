"""Each function makes exactly the calls its role allows: none is refused, and no permission lies idle."""

import fnmatch
import json
from collections import defaultdict
from datetime import UTC, datetime

import pytest

from infra.local.stack import Stack

START = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
TYPES = {"fledge": {"k": 50, "window": 24, "profile": "published"}}
ROLES = {"JoinRole": "join", "QueryRole": "query", "EvaluateRole": "evaluate"}

# Calls an AWS service makes with the function's role: none of them comes from the function's code.
BY_AWS = {
    "kms:Decrypt": "DynamoDB and Secrets Manager decrypt on the caller's behalf",
    "logs:CreateLogStream": "Lambda writes the log",
    "logs:PutLogEvents": "Lambda writes the log",
    "sqs:ReceiveMessage": "the event source mapping polls the queue",
    "sqs:DeleteMessage": "the event source mapping deletes what was handled",
    "sqs:GetQueueAttributes": "the event source mapping reads the visibility timeout",
    "sqs:ChangeMessageVisibility": "the event source mapping returns what failed",
}

IAM_ACTIONS = {"sqs:SendMessageBatch": "sqs:SendMessage"}  # the batch call has no action of its own
Call = tuple[str, str, str, str]  # function, action, resource ARN, leading key or ""


class RecordedStack(Stack):
    """A stack that notes every AWS call of its functions."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.recorded: set[Call] = set()

    def _function_session(self, function):
        session = super()._function_session(function)

        def note(params, model, **_):
            service = model.service_model.endpoint_prefix
            service = {"queue": "sqs"}.get(service, service)
            action = f"{service}:{model.name}"
            for resource, key in self._touched(params):
                self.recorded.add((function, IAM_ACTIONS.get(action, action), resource, key))

        session.events.register("before-parameter-build", note)
        return session

    def _touched(self, params):
        """ARN and leading key of everything a call touches."""
        if "RequestItems" in params:
            return [(self._table(name), "") for name in params["RequestItems"]]
        if "TableName" in params:
            return [(self._table(params["TableName"]), params.get("Key", {}).get("name", {}).get("S", ""))]
        if "QueueUrl" in params:
            urls = {url: arn for arn, url in self.storage.queue_urls.items()}
            return [(urls[params["QueueUrl"]], "")]
        return [(params["SecretId"], "")]

    def _table(self, name):
        client = self.session.client("dynamodb")
        return client.describe_table(TableName=name)["Table"]["TableArn"]


@pytest.fixture(scope="module")
def stack():
    """A stack through which everything its functions ever do has gone."""
    with RecordedStack({"Types": json.dumps(TYPES), "JoinAuth": "OPEN"}, start=START, seed=5) as stack:
        join = "/v1/types/fledge/sets/YWQ:join"
        for n in range(130):  # crosses for sure
            assert stack.request("POST", join, {"client": f"c{n}"}).status == 200
        batch = {"joins": [{"type": "fledge", "set": "b3RoZXI", "client": f"c{n}"} for n in range(60)]}
        assert stack.request("POST", "/v1:batchJoin", batch).status == 200
        for _ in range(26):  # a flip, wake-ups, an instance that turns
            stack.advance(3600)
            stack.request("POST", "/v1:query", {"setsForType": [{"type": "fledge", "hashes": ["YWQ"]}]})
            stack.request("GET", "/v1/types/fledge/sets/YWQ")
        stack.request("GET", "/v1/types")
        assert not stack.failures
        yield stack


def permissions(stack, role):
    """(action, resource, leading keys) that a role allows; leading keys None if there is no such condition."""
    (found,) = [r for r in stack.template.resources("AWS::IAM::Role") if r.logical_id == role]
    statements = [s for policy in found.properties["Policies"] for s in policy["PolicyDocument"]["Statement"]]
    assert {statement["Effect"] for statement in statements} == {"Allow"}
    return [
        (action, resource, s.get("Condition", {}).get("ForAllValues:StringEquals", {}).get("dynamodb:LeadingKeys"))
        for s in statements
        for action in listed(s["Action"])
        for resource in listed(s["Resource"])
    ]


def listed(value):
    return value if isinstance(value, list) else [value]


def covers(permission, call):
    action, resource, keys = permission
    _, called, touched, key = call
    return action == called and fnmatch.fnmatchcase(touched, resource) and (keys is None or key in keys)


@pytest.mark.parametrize(("role", "function"), ROLES.items())
def test_every_call_of_a_function_is_allowed_by_its_role(stack, role, function):
    calls = {call for call in stack.recorded if call[0] == function}
    assert calls
    refused = {call for call in calls if not any(covers(p, call) for p in permissions(stack, role))}
    assert refused == set()


@pytest.mark.parametrize(("role", "function"), ROLES.items())
def test_every_permission_of_a_role_is_used_or_used_by_aws(stack, role, function):
    calls = {call for call in stack.recorded if call[0] == function}
    dead_letters = stack.template.resolve({"Fn::GetAtt": ["DeadLetters", "Arn"]})
    idle = [
        (action, resource)
        for action, resource, keys in permissions(stack, role)
        if action not in BY_AWS
        and resource != dead_letters  # Lambda buries failed asynchronous invocations there
        and not any(covers((action, resource, keys), call) for call in calls)
    ]
    assert idle == []


def test_a_call_beyond_the_role_would_be_noticed(stack):
    allowed = permissions(stack, "JoinRole")
    (control,) = {r for a, r, keys in allowed if a == "dynamodb:UpdateItem"}
    assert any(covers(p, ("join", "dynamodb:UpdateItem", control, "function#join")) for p in allowed)
    assert not any(covers(p, ("join", "dynamodb:UpdateItem", control, "function#query")) for p in allowed)
    assert not any(covers(p, ("join", "dynamodb:Query", allowed[0][1], "")) for p in allowed)


def test_join_and_query_touch_nothing_in_common_but_the_pepper_and_their_own_marks(stack):
    touched = defaultdict(set)
    for function, _, resource, _ in stack.recorded:
        touched[function].add(resource)
    control = stack.template.resolve({"Fn::GetAtt": ["Control", "Arn"]})
    pepper = stack.template.resolve({"Ref": "SetPepper"})
    assert touched["join"] & touched["query"] == {control, pepper}
    statuses = stack.template.resolve({"Fn::GetAtt": ["Statuses", "Arn"]})
    assert touched["query"] & touched["evaluate"] == {control, statuses}
