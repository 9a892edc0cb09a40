"""The guide names everything that a deleted stack, or reports that are switched off, leave, and how to remove it."""

import json
import re

import pytest

from tests.infrastructure.rules import STATEFUL
from tests.infrastructure.template import CREDENTIALS, GATE, LISTS, REPORTS, ROOT, Documents, environment, of_type

GUIDE = (ROOT / "docs" / "guides" / "deploy.md").read_text().partition("## What stays when a stack goes")[2]
COMMANDS = {
    "AWS::DynamoDB::Table": "aws dynamodb delete-table",
    "AWS::SecretsManager::Secret": "aws secretsmanager delete-secret",
    "AWS::S3::Bucket": "aws s3 rb s3://NAME --force",
    "AWS::KMS::Key": "aws kms schedule-key-deletion",
}


def outputs_of_what_stays(documents: Documents) -> set[str]:
    """The outputs that name the resources which CloudFormation keeps."""
    found = set()
    for path in (GATE, REPORTS, LISTS, CREDENTIALS):
        outputs = documents[path]["Outputs"]
        for name, resource in documents[path]["Resources"].items():
            if resource.get("DeletionPolicy", "Delete") != "Delete":
                found |= {word for word, one in outputs.items() if f'"{name}"' in json.dumps(one["Value"])}
    return found


def test_the_guide_lists_the_outputs_of_everything_that_stays() -> None:
    table = re.findall(r"^\| (?!what|-).*\|$", GUIDE, re.MULTILINE)
    assert set(re.findall(r"`([A-Z]\w+)`", " ".join(table))) == outputs_of_what_stays(Documents())


def test_a_resource_that_stays_and_is_not_listed_is_found() -> None:
    documents = Documents()
    documents[GATE]["Resources"]["Queue"]["DeletionPolicy"] = "Retain"
    assert outputs_of_what_stays(documents) - outputs_of_what_stays(Documents()) == {"QueueUrl"}


@pytest.mark.parametrize("kind", STATEFUL)
def test_the_guide_has_a_command_for_every_kind_of_thing_that_stays(kind: str) -> None:
    assert COMMANDS[kind] in GUIDE
    assert any(of_type(document, kind) for document in Documents().values())


def test_the_guide_finds_the_private_keys_that_rotate_creates() -> None:
    prefix = environment(Documents()[REPORTS], "Rotate")["KANON_REPORT_KEY_PREFIX"]["Fn::Sub"]
    assert prefix == "${Name}/report-keys/"
    assert "list-secrets --filters Key=name,Values=kanon-dev/report-keys/" in GUIDE
    assert GUIDE.index("stack-name kanon-dev --query") < GUIDE.index("sam delete")


def test_the_policy_that_protects_objects_is_removed_before_its_bucket() -> None:
    assert GUIDE.index("delete-bucket-policy") < GUIDE.index("aws s3 rb")
    assert GUIDE.index("aws s3 rb") < GUIDE.index("schedule-key-deletion")
