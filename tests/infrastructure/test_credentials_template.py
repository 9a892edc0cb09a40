"""Without the key of an issuer a stack has no credentials; with it the stack of credentials is all that is added."""

import pytest

from kanon.gate.issuer_settings import IssuerSettings
from kanon.gate.settings import JoinSettings
from tests.infrastructure import template
from tests.infrastructure.rules import ISSUER
from tests.infrastructure.template import Documents
from tests.infrastructure.test_reports_template import VARIANTS, resolved

TYPES = '{"people": {"k": 20, "window": 24, "profile": "crossing", "credential": true}}'


@pytest.mark.parametrize("parameters", VARIANTS)
def test_without_a_key_there_are_no_credentials(parameters: dict[str, str]) -> None:
    without = resolved(template.read(), parameters | {"AccountsDeletionProtection": "ON"})
    assert not {"CredentialsStack", "CredentialsLayer"} & without.keys()
    assert without == resolved(template.read(), parameters)


@pytest.mark.parametrize("parameters", VARIANTS)
def test_a_key_changes_what_checks_and_adds_the_stack_of_credentials(parameters: dict[str, str]) -> None:
    off, on = (resolved(template.read(), parameters | more) for more in ({}, ISSUER))
    assert on.keys() - off.keys() == {"CredentialsStack", "CredentialsLayer"}
    changed = {name for name in off if on[name] != off[name]}
    assert changed <= {"Shared", "Join", "JoinRole", "Api", "AnonymousStack"}


def test_the_functions_accept_their_environments() -> None:
    stack = Documents().deployed(**ISSUER, Types=TYPES, Period="300", JoinAuth="OPEN")
    given = {
        name: {variable: str(value) for variable, value in one["Environment"]["Variables"].items()}
        for name, one in stack.of_type("AWS::Serverless::Function").items()
    }
    issuer = IssuerSettings.from_environment(given["Issuer"])
    assert (issuer.longest, issuer.edge_secret) == (25 * 300, "")
    assert issuer.issuer_key_secret == JoinSettings.from_environment(given["Join"]).issuer_key_secret
    assert JoinSettings.from_environment(given["Join"]).read_types()["people"].credential
