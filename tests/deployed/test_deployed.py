"""The template deployed with `sam deploy` to an emulator that enforces permissions (`make e2e`).

Functions run as processes of their own from what `sam build` made, with the roles, variables and schedule of the
template. The clock is the real one: a step takes a minute here, so the tests wait for it. What no emulator shows of
AWS is listed in docs/evidence/not-shown-here.md.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import time

import pytest
from botocore.exceptions import ClientError

from infra import smoke
from kanon.dynamo.batches import chunks
from kanon.local.source import ROOT
from tests.deployed.stack import PARAMETERS, REGION, STACK, Deployed, deployment

pytestmark = pytest.mark.deployed

CROWDS, CLIENTS = 4, 150  # more than M = 99: true with any noise
COUPLES = 4  # sets of two clients: certainly false


@pytest.fixture(scope="module")
def deployed():
    with deployment(PARAMETERS) as stack:
        yield stack


def set_id(name: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(name.encode()).digest()).decode()


def test_large_sets_become_k_anonymous_through_the_schedule(deployed):
    """The requests of the demo: joins in signed batches of 500, queries for many sets at once."""
    crowds = [set_id(f"crowd {n}") for n in range(CROWDS)]
    couples = [set_id(f"couple {n}") for n in range(COUPLES)]
    joined = [(name, f"c{n}") for n in range(CLIENTS) for name in crowds]
    joined += [(name, f"c{n}") for n in range(2) for name in couples]
    joins = [{"type": "fledge", "set": name, "client": client} for name, client in joined]
    service = deployed.service()
    for some in chunks(joins, 500):
        answer = service.ask("POST", "/v1:batchJoin", {"joins": some}, signed=True)
        assert answer.expect(200)["results"] == [{}] * len(some)

    def k_anonymous() -> list[str]:
        asked = {"setsForType": [{"type": "fledge", "hashes": [*couples, *crowds, set_id("nobody")]}]}
        status, body = deployed.request("POST", "/v1:query", asked)
        assert status == 200, body
        (answer,) = body["kAnonymousSets"]
        return answer["hashes"]

    assert k_anonymous() == []
    deadline = time.monotonic() + 360
    while time.monotonic() < deadline and set(found := k_anonymous()) != set(crowds):
        assert set(found) < set(crowds)
        time.sleep(5)  # a real clock: step, grace, schedule and tick take their minutes
    assert found == crowds
    for name, expected in ((crowds[0], True), (couples[0], False)):
        status, body = deployed.request("GET", f"/v1/types/fledge/sets/{name.rstrip('=')}")
        assert (status, body["kAnonymous"]) == (200, expected)


def test_the_checks_of_a_deployment_pass(deployed):
    results = list(smoke.run(deployed.service()))
    assert [result.name for result in results if result.verdict != "ok"] == ["relays", "credentials"]
    assert {result.verdict for result in results[-2:]} == {"skip"}  # without a gateway and an issuer
    assert len(results) == len(smoke.CHECKS)


def test_every_route_of_the_template_is_deployed(deployed):
    api = deployed.client("apigatewayv2")
    (only,) = api.get_apis()["Items"]
    routes = {
        route["RouteKey"]: route.get("AuthorizationType") for route in api.get_routes(ApiId=only["ApiId"])["Items"]
    }
    assert routes["POST /v1:batchJoin"] == "AWS_IAM"
    assert routes["POST /v1/types/{type}/sets/{set}"] == "AWS_IAM"
    assert routes["POST /v1:query"] == "NONE"
    assert deployed.request("GET", "/v1/types")[1]["types"][0]["type"] == "fledge"
    assert deployed.request("GET", "/openapi.json")[1]["openapi"].startswith("3.1")


@pytest.mark.parametrize(
    ("function", "service", "call", "arguments"),
    [
        ("Join", "dynamodb", "scan", {"TableName": "StepLogTable"}),
        ("Join", "dynamodb", "scan", {"TableName": "StatusesTable"}),
        ("Join", "secretsmanager", "get_secret_value", {"SecretId": "NoiseKeySecret"}),
        ("Join", "s3", "list_objects_v2", {"Bucket": "StatesBucket"}),
        ("Query", "dynamodb", "scan", {"TableName": "StepLogTable"}),
        ("Query", "s3", "list_objects_v2", {"Bucket": "StatesBucket"}),
        ("Query", "secretsmanager", "get_secret_value", {"SecretId": "ClientKeySecret"}),
        ("Evaluate", "secretsmanager", "get_secret_value", {"SecretId": "SetPepperSecret"}),
        ("Evaluate", "secretsmanager", "get_secret_value", {"SecretId": "ClientKeySecret"}),
    ],
)
def test_a_role_cannot_make_calls_that_it_is_not_granted(deployed, function, service, call, arguments):
    assumed = deployed.client("sts").assume_role(RoleArn=deployed.role(function), RoleSessionName="test")
    credentials = assumed["Credentials"]
    client = deployed.client(
        service,
        aws_access_key_id=credentials["AccessKeyId"],
        aws_secret_access_key=credentials["SecretAccessKey"],
        aws_session_token=credentials["SessionToken"],
    )
    with pytest.raises(ClientError, match=r"AccessDenied|not authorized"):
        getattr(client, call)(**{name: deployed.outputs[value] for name, value in arguments.items()})


def test_a_second_deployment_changes_its_parameters_and_no_secret(deployed):
    """Other parameters arrive in a route, the log groups and all functions, which keep their keys."""
    join = f"/v1/types/fledge/sets/{set_id('second')}:join".replace("=", "")
    assert deployed.request("POST", join, {"client": "c"})[0] == 403
    before = deployed.secrets()
    versions = {name: deployed.function(name)["Version"] for name in ("Join", "Query", "Evaluate")}
    changed = {"JoinAuth": "OPEN", "LogRetention": "90", "LogLevel": "WARNING"}
    assert not changed.items() & PARAMETERS.items()
    deployed.deploy(PARAMETERS | changed)
    groups = deployed.client("logs").describe_log_groups(logGroupNamePrefix=f"/kanon/{STACK}/")["logGroups"]
    assert [group["retentionInDays"] for group in groups] == [90, 90, 90, 90]
    for name, version in versions.items():
        assert deployed.function(name)["Version"] != version
        assert deployed.function(name)["Environment"]["Variables"]["POWERTOOLS_LOG_LEVEL"] == "WARNING"
    assert deployed.secrets() == before
    assert all(len(text) >= 64 for _, text in before)
    # A function that started anew compared its keys with those recorded.
    assert deployed.request("POST", join, {"client": "c"}) == (200, {})
    assert deployed.request("GET", join.removesuffix(":join"))[0] == 200


def test_production_as_configured_makes_a_change_set_of_another_stack(deployed):
    """Not further: the emulator refuses its alarms."""
    deployed.deploy({}, "prod", "--no-execute-changeset", "--no-confirm-changeset")
    cloudformation = deployed.client("cloudformation")
    (made,) = cloudformation.list_change_sets(StackName="kanon")["Summaries"]
    described = cloudformation.describe_change_set(StackName="kanon", ChangeSetName=made["ChangeSetName"])
    given = {given["ParameterKey"]: given["ParameterValue"] for given in described["Parameters"]}
    assert given["JoinAuth"] == "IAM"
    assert json.loads(given["Slots"]) == [{"slots": 16, "partitions": 16, "from_step": 0}]


def documented(*options: str) -> list[str]:
    """The actions that docs/guides/operate.md names for `kanon doctor` with these options."""
    page = (ROOT / "docs" / "guides" / "operate.md").read_text()
    tables = page.split("## kanon doctor")[1].split("\n## ")[0].split("| it calls |")[1:]
    rows = [row for table in tables for row in table.split("\n\n")[0].splitlines()[2:]]
    actions = []
    for row in rows:
        wanted = re.findall(r"`(--\w+)`", row.rpartition("| ")[2] or row.split("|")[3])
        if not wanted or set(wanted) & set(options):
            service = ""
            for name in re.findall(r"`([\w:]+)`", row.split("|")[1]):
                service = name.split(":")[0] if ":" in name else service
                actions.append(name if ":" in name else f"{service}:{name}")
    return actions


def doctor(deployed: Deployed, actions: list[str], *options: str) -> tuple[int, str]:
    """`kanon doctor` on the deployed stack with just these permissions."""
    iam = deployed.client("iam")
    trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
    name = f"operator-{time.monotonic_ns()}"
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Statement": [trust]}))["Role"]["Arn"]
    allowed = {"Effect": "Allow", "Action": actions, "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_role_policy(RoleName=name, PolicyName="doctor", PolicyDocument=policy)
    assumed = deployed.client("sts").assume_role(RoleArn=role, RoleSessionName="test")["Credentials"]
    environment = {
        **os.environ,
        "COLUMNS": "200",
        "AWS_ENDPOINT_URL": str(deployed.engine.endpoint),
        "AWS_ACCESS_KEY_ID": assumed["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": assumed["SecretAccessKey"],
        "AWS_SESSION_TOKEN": assumed["SessionToken"],
    }
    command = [sys.executable, "-m", "kanon.cli.start", "doctor", "--stack", STACK, "--region", REGION, *options]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def test_the_doctor_needs_only_the_permissions_that_its_page_names(deployed):
    code, output = doctor(deployed, documented("--secrets"), "--secrets")
    assert code == 0, output
    assert re.search(r"schedule +│ OK +│ enabled", output), output
    assert "set-pepper, client-key" in output


def test_the_doctor_without_a_permission_says_which_it_lacks(deployed):
    code, output = doctor(deployed, [action for action in documented() if action != "dynamodb:Scan"])
    assert code == 2
    assert "Scan answered AccessDeniedException" in output
    code, output = doctor(deployed, documented(), "--secrets")
    assert code == 0, output
    assert re.search(r"keys of join +│ not seen +│ GetSecretValue answered AccessDenied", output), output
