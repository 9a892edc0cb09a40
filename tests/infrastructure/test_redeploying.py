"""Deploying a stack again leaves its keys as they are."""

import json
from typing import Any

import pytest
from botocore.exceptions import WaiterError

from tests.infrastructure.template import STATEFUL, Document, of_type, read

SECRETS = ("SetPepper", "ClientKey", "NoiseKey")


def stateful(document: Document, **more: Document) -> str:
    """The stateful resources of the template, which SAM passes on unchanged."""
    return json.dumps(
        {
            "AWSTemplateFormatVersion": document["AWSTemplateFormatVersion"],
            "Parameters": document["Parameters"],
            "Conditions": {name: document["Conditions"][name] for name in ("IsProtected", "HasDomainName")},
            "Resources": {**of_type(document, *STATEFUL), **more},
        }
    )


def deploy(session: Any, document: Document, **parameters: str) -> dict[str, str]:
    """Create or update the stack; the value of each secret by its logical id."""
    cloudformation = session.client("cloudformation")
    arguments = {
        "StackName": "kanon",
        "TemplateBody": stateful(document),
        "Parameters": [{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
    }
    exists = cloudformation.list_stacks()["StackSummaries"]
    (cloudformation.update_stack if exists else cloudformation.create_stack)(**arguments)
    waiter = cloudformation.get_waiter("stack_update_complete" if exists else "stack_create_complete")
    waiter.wait(StackName="kanon", WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    secrets = session.client("secretsmanager")
    physical = {
        name: cloudformation.describe_stack_resource(StackName="kanon", LogicalResourceId=name) for name in SECRETS
    }
    return {
        name: secrets.get_secret_value(SecretId=answer["StackResourceDetail"]["PhysicalResourceId"])["SecretString"]
        for name, answer in physical.items()
    }


def test_a_stack_deployed_twice_keeps_its_keys(session: Any) -> None:
    document = read()
    first = deploy(session, document)
    assert len(set(first.values())) == len(SECRETS)
    assert set(json.loads(first["NoiseKey"])) == {"1"}

    document["Resources"]["SetPepper"]["Properties"]["Description"] = "another text"
    second = deploy(
        session, document, Types='{"search":{"k":60,"window":168,"profile":"published"}}', LogRetention="90"
    )
    assert second == first


def test_the_emulator_shows_secrets_that_are_generated_again(session: Any) -> None:
    document = read()
    first = deploy(session, document)
    for name in SECRETS:
        document["Resources"][name]["Properties"]["GenerateSecretString"]["PasswordLength"] = 65
    second = deploy(session, document)
    assert {name for name in SECRETS if first[name] != second[name]} == set(SECRETS)


IMPOSSIBLE: Document = {
    "Type": "AWS::KMS::Alias",
    "DependsOn": ["StepLog", "Statuses", "Control"],
    "Properties": {"AliasName": "alias/kanon", "TargetKeyId": ""},
}
"""A resource whose creation fails when the tables exist."""


TABLES = {"StepLog", "Statuses", "Control"}


def tables_left(session: Any, document: Document) -> set[str]:
    """The tables that are there after a first creation that failed."""
    cloudformation = session.client("cloudformation")
    cloudformation.create_stack(StackName="kanon", TemplateBody=stateful(document, Impossible=IMPOSSIBLE))
    waiter = cloudformation.get_waiter("stack_create_complete")
    with pytest.raises(WaiterError):
        waiter.wait(StackName="kanon", WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    (stack,) = cloudformation.describe_stacks(StackName="kanon")["Stacks"]
    assert stack["StackStatus"].startswith("ROLLBACK"), stack
    names = session.client("dynamodb").list_tables()["TableNames"]
    return {table for table in TABLES if any(table in name for name in names)}


def test_a_first_creation_that_fails_leaves_no_table(session: Any) -> None:
    assert tables_left(session, read()) == set()


def test_the_emulator_shows_tables_that_a_failed_creation_leaves(session: Any) -> None:
    document = read()
    for name in TABLES:
        document["Resources"][name]["DeletionPolicy"] = "Retain"
    assert tables_left(session, document) == TABLES


def test_the_second_deployment_protects_the_tables_and_the_first_does_not(session: Any) -> None:
    client = session.client("dynamodb")
    for protection, expected in (("OFF", False), ("ON", True)):
        deploy(session, read(), DeletionProtection=protection)
        described = [client.describe_table(TableName=name)["Table"] for name in client.list_tables()["TableNames"]]
        assert [table["DeletionProtectionEnabled"] for table in described] == [expected] * len(TABLES)
