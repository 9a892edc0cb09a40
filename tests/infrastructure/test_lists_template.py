"""Without the key of a lister a stack has no lists; with it the stack of lists is all that is added to join."""

from typing import Any

import pytest

from kanon.gate.settings import ListSettings, ReleasedSettings
from tests.infrastructure import template
from tests.infrastructure.rules import LISTER
from tests.infrastructure.template import LISTS, ROOT, Documents, functions
from tests.infrastructure.test_reports_template import VARIANTS, resolved

TYPE = '{"k": 20, "window": 24, "profile": "crossing"'
TYPES = f'{{"terms": {TYPE}, "listed": true}}, "other": {TYPE}}}}}'
EDGE = {"DomainName": "a.example", "CertificateArn": "arn:aws:acm:us-east-1:123456789012:certificate/1", "Edge": "ON"}


@pytest.mark.parametrize("parameters", VARIANTS)
def test_without_a_key_there_are_no_lists(parameters: dict[str, str]) -> None:
    without = resolved(template.read(), parameters | {"ListAuth": "NONE", "ListDays": "7", "ReviewSteps": "3"})
    assert "ListsStack" not in without
    assert without == resolved(template.read(), parameters)


@pytest.mark.parametrize("parameters", VARIANTS)
def test_a_key_changes_what_seals_and_adds_the_stack_of_lists(parameters: dict[str, str]) -> None:
    off, on = (resolved(template.read(), parameters | more) for more in ({}, LISTER))
    assert on.keys() - off.keys() == {"ListsStack", "SealingLayer"}
    assert {name for name in off if on[name] != off[name]} <= {"Shared", "Join"}


@pytest.mark.parametrize("more", [{}, EDGE])
def test_the_functions_of_lists_accept_their_environments(more: dict[str, str]) -> None:
    stack = Documents().deployed(**LISTER, **more, Types=TYPES, Period="300", ReviewSteps="3", ListAuth="NONE")

    def environment(name: str) -> dict[str, Any]:
        given = stack.of_type("AWS::Serverless::Function")[name]["Environment"]["Variables"]
        return {variable: str(value) for variable, value in given.items()}

    lister = ListSettings.from_environment(environment("List"))
    assert (lister.period, lister.review_steps, list(lister.listed)) == (300, 3, ["terms"])
    released = ReleasedSettings.from_environment(environment("Released"))
    assert (released.list_auth, released.list_bucket, bool(released.edge_secret)) == (
        "NONE",
        lister.list_bucket,
        bool(more),
    )
    assert functions(template.read(ROOT / LISTS)).keys() == {"List", "Released"}
