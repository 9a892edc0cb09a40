"""``kanon operate lister-key``: one secret for each stack, which the printed parameters belong to."""

import json
import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.gate.sealing import LISTER_KEY, opened, private_key, sealer
from kanon.keys import fetch_secret
from kanon.local import Stack
from kanon.local.template import Template, TemplateError
from tests.infrastructure.template import PATH
from tests.integration.gate.doctor_view import wrong
from tests.integration.gate.edge import base64url

ACCOUNT = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "COLUMNS": "250"}


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield boto3.client("secretsmanager", region_name="us-east-1")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["operate", "lister-key", *arguments], env=ACCOUNT)
    return result.exit_code, result.output


def parameters(stack: str) -> dict[str, str]:
    """The parameters that the command prints."""
    code, said = run("--stack", stack, "--region", "us-east-1")
    assert code == 0, said
    (line,) = said.splitlines()
    return dict(word.split("=", 1) for word in line.split())


def test_what_is_sealed_to_the_printed_key_opens_with_the_secret_that_is_printed(secrets: Any) -> None:
    printed = parameters("kanon")
    sealed = sealer(printed["ListerKey"])(b"value", b"s" * 32)
    key = private_key(fetch_secret(secrets, LISTER_KEY, printed["ListerKeySecret"]))
    assert opened(sealed, key, b"s" * 32) == b"value"


def test_the_template_takes_what_is_printed(secrets: Any) -> None:
    printed = parameters("kanon-prod")
    assert Template.read(PATH, printed, "kanon-prod").parameters.items() >= printed.items()
    with pytest.raises(TemplateError, match="ListerKeySecret"):
        Template.read(PATH, {"ListerKeySecret": "kanon/kanon-prod/lister-key"}, "kanon-prod")


def test_the_command_prints_the_same_when_it_runs_again_and_another_key_for_another_stack(secrets: Any) -> None:
    first, again, other = parameters("kanon"), parameters("kanon"), parameters("kanon-dev")
    assert first == again
    assert not set(first.values()) & set(other.values())
    assert {each["Name"] for each in secrets.list_secrets()["SecretList"]} == {
        "kanon/kanon/lister-key",
        "kanon/kanon-dev/lister-key",
    }


def test_the_secret_is_random_and_the_output_does_not_have_it(secrets: Any) -> None:
    text = secrets.get_secret_value(SecretId=parameters("kanon")["ListerKeySecret"])["SecretString"]
    assert re.fullmatch(r"[\w-]{64}", text)
    assert text not in run("--stack", "kanon", "--region", "us-east-1")[1]


def test_a_stack_must_be_named() -> None:
    code, said = run()
    assert code == 2
    assert "--stack" in said


def test_a_refused_call_is_one_line_that_names_the_permissions(secrets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Stubber(secrets) as stub:
        stub.add_client_error("create_secret", "AccessDeniedException", "not allowed")
        monkeypatch.setattr(boto3.Session, "client", lambda *_, **__: secrets)
        code, said = run("--stack", "kanon", "--region", "us-east-1")
    assert code == 2
    assert "secretsmanager:CreateSecret" in said


def test_the_doctor_finds_another_key_of_the_lister(new_stack: Callable[..., Stack]) -> None:
    types = {"terms": {"k": 50, "window": 24, "profile": "crossing", "listed": True}}
    stack = new_stack({"Types": json.dumps(types)})
    name = base64url(sha256(b"value").digest())
    assert stack.request("POST", f"/v1/types/terms/sets/{name}:join", {"client": "me", "value": "value"}).status == 200
    stack.advance(3 * 3600)
    before = wrong(stack)
    stack.deploy({"ListerKey": "A" * 42 + "w"})
    assert wrong(stack).keys() - before.keys() == {"fingerprints of join"}
