"""``kanon operate issuer-key`` and ``new-accounts``: what they print, ask and change."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.credentials import arc
from kanon.local import Stack
from kanon.local.template import Template, TemplateError
from tests.infrastructure.template import PATH
from tests.integration.credentials.test_on_aws import ON, enrol
from tests.moto_engine import ENGINES

ACCOUNT = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "COLUMNS": "250"}


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield boto3.client("secretsmanager", region_name="us-east-1")


def printed(*more: str) -> dict[str, str]:
    """The parameter that the command prints."""
    arguments = ["operate", "issuer-key", "--stack", "kanon-prod", "--region", "us-east-1", *more]
    result = CliRunner().invoke(app, arguments, env=ACCOUNT)
    assert result.exit_code == 0, result.output
    name, _, value = result.output.strip().partition("=")
    return {name: value}


def test_the_template_takes_the_key_that_is_printed_again_until_another_one_is_asked_for(secrets: Any) -> None:
    first = printed()
    assert printed() == first
    assert Template.read(PATH, {**first, "Gateway": "ON"}, "kanon-prod").parameters.items() >= first.items()
    with pytest.raises(TemplateError, match="IssuerKeySecret"):
        Template.read(PATH, {"IssuerKeySecret": "kanon/kanon-prod/issuer-key-1"}, "kanon-prod")
    second = printed("--new")
    assert first != second == printed()
    texts = {secrets.get_secret_value(SecretId=one["IssuerKeySecret"])["SecretString"] for one in (first, second)}
    assert len(texts) == 2
    assert all(len(text) == 64 for text in texts)


def test_new_accounts_says_when_accounts_can_enrol_and_asks(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(ON, engine=ENGINES["ministack"])
    assert enrol(stack, "me", arc.Secrets.random()) == 200
    with closing(stack.serve()) as server:
        command = ["operate", "new-accounts", "--url", server.url]
        refused, done = (CliRunner().invoke(app, command, input=answer) for answer in ("n\n", "y\n"))
    assert refused.exit_code == 1
    assert "Nobody will be able to enrol before" in refused.output
    assert (done.exit_code, "Accounts can enrol from" in done.output) == (0, True)
    assert enrol(stack, "me", arc.Secrets.random()) == 400
