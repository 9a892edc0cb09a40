"""Reports deployed with `sam deploy` to an emulator that enforces permissions (`make e2e`).

One job from the encrypted report to the summary, then what each role may not do. The queue of reports passes on its
messages after a minute, so the test waits for it.
"""

import base64
import json
import time
from collections.abc import Callable
from io import BytesIO
from typing import TypeVar

import numpy as np
import pytest
from botocore.exceptions import ClientError

from kanon.reports.avro import read_summary, write_domain
from kanon.reports.clients.encrypt import ClientReport, contribution, encrypt, outgoing
from kanon.reports.payload import public_keys
from kanon.reports.storage.key_ring import NAME as KEY_RING
from tests.deployed.stack import PARAMETERS, STACK, deployment

pytestmark = pytest.mark.deployed
T = TypeVar("T")

ORIGIN = "https://report.example"
EPSILON, BOUND = 64, 65_536
REPORTS = 20
MOST_NOISE = 100 * BOUND // EPSILON
"""Noise beyond this has a probability below e^-99."""
PUBLIC_KEYS = "/.well-known/aggregation-service/v1/public-keys"


@pytest.fixture(scope="module")
def deployed():
    with deployment(PARAMETERS | {"Reports": "ON", "DeletionProtection": "OFF"}) as stack:
        yield stack


def rotate(deployed) -> None:
    """Run ``rotate``, as the schedule does every five minutes."""
    function = deployed.outputs["RotateFunction"]
    answer = deployed.client("lambda").invoke(FunctionName=function, Payload=json.dumps({"schedule": True}))
    assert "FunctionError" not in answer, answer["Payload"].read()


def waited(found: Callable[[], T], seconds: int) -> T:
    """The first true value, or the last one."""
    deadline = time.monotonic() + seconds
    while not (value := found()) and time.monotonic() < deadline:
        time.sleep(2)  # a real clock: the queue's window, the stages of a job
    return value


def published(deployed) -> str:
    """The document of public keys. Clients see a new key some seconds after it is made."""

    def found() -> str:
        answer = deployed.service().ask("GET", PUBLIC_KEYS)
        return answer.body.decode() if answer.status == 200 else ""

    document = waited(found, 60)
    assert document, "no public key was published"
    return document


@pytest.fixture(scope="module")
def job(deployed) -> dict:
    """A finished job over a few reports that came by HTTP."""
    service = deployed.service()
    assert service.ask("GET", PUBLIC_KEYS).status == 503
    rotate(deployed)
    keys = public_keys(published(deployed))
    now = int(time.time() * 1000)
    for _ in range(REPORTS):
        report = ClientReport((contribution(1, BOUND),), now, ORIGIN, "kanon")
        request = outgoing(report, encrypt(report, keys))
        assert service.ask("POST", request.path, request.body).expect(200) == {}

    s3, buckets = deployed.client("s3"), deployed.outputs
    listed = {"Bucket": buckets["ReportsBucket"], "Prefix": "reports/kanon/"}
    assert waited(lambda: s3.list_objects_v2(**listed).get("Contents"), 180)
    domain = BytesIO()
    write_domain(domain, np.array([bytes(15) + b"\1", bytes(15) + b"\2"], "S16"))
    s3.put_object(Bucket=buckets["SummariesBucket"], Key="domains/two.avro", Body=domain.getvalue())
    wanted = {
        "job_request_id": "first",
        "input_data_bucket_name": buckets["ReportsBucket"],
        "input_data_blob_prefix": "reports/kanon/",
        "output_data_bucket_name": buckets["SummariesBucket"],
        "output_data_blob_prefix": "output/first.avro",
        "job_parameters": {
            "attribution_report_to": ORIGIN,
            "output_domain_bucket_name": buckets["SummariesBucket"],
            "output_domain_blob_prefix": "domains/",
            "debug_privacy_epsilon": str(EPSILON),
        },
    }
    assert service.ask("POST", "/v1alpha/createJob", wanted).status == 403
    assert service.ask("POST", "/v1alpha/createJob", wanted, signed=True).expect(202) == {}

    def finished() -> dict | None:
        asked = service.ask("GET", "/v1alpha/getJob?job_request_id=first", signed=True).expect(200)
        return asked if asked["job_status"] == "FINISHED" else None

    return waited(finished, 180) or service.ask("GET", "/v1alpha/getJob?job_request_id=first", signed=True).expect(200)


def test_reports_become_a_noisy_summary(deployed, job):
    assert job["job_status"] == "FINISHED"
    assert job["result_info"]["return_code"] == "SUCCESS", job
    s3 = deployed.client("s3")
    (part,) = s3.list_objects_v2(Bucket=deployed.outputs["SummariesBucket"], Prefix="output/")["Contents"]
    body = s3.get_object(Bucket=deployed.outputs["SummariesBucket"], Key=part["Key"])["Body"].read()
    one, two = read_summary(BytesIO(body))
    assert (one.bucket[-1], two.bucket[-1]) == (1, 2)
    assert abs(one.metric - REPORTS * BOUND) < MOST_NOISE
    assert abs(two.metric) < MOST_NOISE


def test_a_second_rotation_changes_no_key(deployed, job):
    before = published(deployed)
    rotate(deployed)
    assert published(deployed) == before


def test_the_work_of_a_job_is_deleted_after_it(deployed, job):
    work = {"Bucket": deployed.outputs["WorkBucket"]}
    assert waited(lambda: not deployed.client("s3").list_objects_v2(**work).get("Contents"), 360)


# --------------------------------------------------------------------------------------------- permissions
def private_key(deployed) -> str:
    """The name of the secret of a private key."""
    (name,) = [
        secret["Name"]
        for secret in deployed.client("secretsmanager").list_secrets()["SecretList"]
        if secret["Name"].startswith(f"{STACK}/report-keys/")
    ]
    return name


def arguments(deployed, given: dict) -> dict:
    """The arguments of a call, with the stack's own names in the place of outputs."""
    return {
        name: private_key(deployed) if value == "private key" else deployed.outputs.get(str(value), value)
        for name, value in given.items()
    }


def client(deployed, role: str, service: str):
    """A client of a service with the permissions of a role."""
    assumed = deployed.client("sts").assume_role(RoleArn=role, RoleSessionName="test")
    credentials = assumed["Credentials"]
    return deployed.client(
        service,
        aws_access_key_id=credentials["AccessKeyId"],
        aws_secret_access_key=credentials["SecretAccessKey"],
        aws_session_token=credentials["SessionToken"],
    )


EPOCH = {"row": {"B": b"epoch"}, "part": {"S": "left"}}
ROW = {"row": {"B": bytes(32)}, "part": {"S": "left"}}
BUDGET = {"TableName": "BudgetsTable", "Key": ROW}
NOISE_KEY = {"SecretId": "ReportNoiseKeySecret"}
PRIVATE_KEY = {"SecretId": "private key"}
WORK = {"Bucket": "WorkBucket", "Key": "x"}
REPORT = {"Bucket": "ReportsBucket", "Key": "reports/kanon/x"}
RING = {"TableName": "ControlTable", "Key": {"name": {"S": KEY_RING}}}
# The emulator knows no dynamodb:LeadingKeys: only the rules of the template say which item of Control collect may read.
DENIED = [
    ("Collect", "dynamodb", "scan", {"TableName": "ControlTable"}),
    ("Collect", "dynamodb", "get_item", BUDGET),
    ("Collect", "s3", "get_object", REPORT),
    ("Collect", "sqs", "receive_message", {"QueueUrl": "ArrivalsUrl"}),
    ("Collect", "secretsmanager", "get_secret_value", PRIVATE_KEY),
    ("Store", "s3", "get_object", REPORT),
    ("Store", "s3", "put_object", {"Bucket": "ReportsBucket", "Key": "other/x"}),
    ("Store", "s3", "put_object", WORK),
    ("Store", "secretsmanager", "get_secret_value", PRIVATE_KEY),
    ("Jobs", "s3", "get_object", WORK),
    ("Jobs", "s3", "put_object", {"Bucket": "SummariesBucket", "Key": "output/x"}),
    ("Jobs", "secretsmanager", "get_secret_value", NOISE_KEY),
    ("Jobs", "secretsmanager", "get_secret_value", PRIVATE_KEY),
    ("Jobs", "dynamodb", "put_item", {"TableName": "BudgetsTable", "Item": ROW}),
    ("Decrypt", "dynamodb", "get_item", BUDGET),
    ("Decrypt", "dynamodb", "put_item", {"TableName": "BudgetsTable", "Item": ROW}),
    ("Decrypt", "secretsmanager", "get_secret_value", NOISE_KEY),
    ("Decrypt", "s3", "put_object", {"Bucket": "SummariesBucket", "Key": "output/x"}),
    ("Aggregate", "secretsmanager", "get_secret_value", PRIVATE_KEY),
    ("Aggregate", "s3", "get_object", REPORT),
    ("Rotate", "secretsmanager", "get_secret_value", NOISE_KEY),
    (
        "Rotate",
        "dynamodb",
        "get_item",
        {"TableName": "ReportJobsTable", "Key": {"job": {"S": "x"}, "part": {"S": "x"}}},
    ),
    ("Rotate", "s3", "get_object", WORK),
]
ALLOWED = [
    ("Collect", "dynamodb", "get_item", RING),
    ("Jobs", "dynamodb", "batch_get_item", {"RequestItems": "budgets"}),
    ("Decrypt", "secretsmanager", "get_secret_value", PRIVATE_KEY),
    ("Aggregate", "dynamodb", "get_item", BUDGET),
    ("Aggregate", "secretsmanager", "get_secret_value", NOISE_KEY),
    ("Rotate", "dynamodb", "get_item", {"TableName": "BudgetsTable", "Key": EPOCH}),
]


@pytest.mark.parametrize(("function", "service", "call", "given"), DENIED)
def test_a_role_cannot_make_calls_that_it_is_not_granted(deployed, job, function, service, call, given):
    with pytest.raises(ClientError, match=r"AccessDenied|not authorized"):
        getattr(client(deployed, deployed.role(function), service), call)(**arguments(deployed, given))


@pytest.mark.parametrize(("function", "service", "call", "given"), ALLOWED)
def test_a_role_can_make_the_calls_beside_them(deployed, job, function, service, call, given):
    if given == {"RequestItems": "budgets"}:
        given = {"RequestItems": {deployed.outputs["BudgetsTable"]: {"Keys": [ROW]}}}
    answer = getattr(client(deployed, deployed.role(function), service), call)(**arguments(deployed, given))
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200


@pytest.fixture(scope="module")
def administrator(deployed) -> str:
    """The ARN of a role with every permission."""
    iam, anybody = deployed.client("iam"), {"AWS": "*"}
    trust = {"Statement": [{"Effect": "Allow", "Principal": anybody, "Action": "sts:AssumeRole"}]}
    role = iam.create_role(RoleName="administrator", AssumeRolePolicyDocument=json.dumps(trust))["Role"]
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    iam.put_role_policy(RoleName="administrator", PolicyName="all", PolicyDocument=json.dumps(everything))
    return role["Arn"]


def test_no_other_role_can_access_objects_of_the_work_bucket(deployed, administrator):
    """The policy of the bucket also refuses a role with every permission."""
    s3, outputs = client(deployed, administrator, "s3"), deployed.outputs
    s3.put_object(Bucket=outputs["SummariesBucket"], Key="domains/x", Body=b"")
    for call in ("get_object", "put_object", "delete_object"):
        with pytest.raises(ClientError, match="AccessDenied"):
            getattr(s3, call)(Bucket=outputs["WorkBucket"], Key="x")


def test_a_report_without_its_required_fields_is_refused(deployed):
    shared_info = json.dumps({"api": "kanon", "version": "1.0"})
    payload = {"payload": base64.b64encode(b"x").decode(), "key_id": "x"}
    body = {"shared_info": shared_info, "aggregation_service_payloads": [payload]}
    assert deployed.service().ask("POST", "/v1/reports", body).status == 400
