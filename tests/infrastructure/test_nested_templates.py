"""Without gateway, lists or credentials a stack is unchanged; with one, little more than its nested stack is added."""

import copy
from typing import Any, NamedTuple

import pytest

from kanon.gate.issuer_settings import IssuerSettings
from kanon.gate.settings import JoinSettings, ListSettings, ReleasedSettings
from kanon.gateway.settings import GatewaySettings
from tests.infrastructure import template
from tests.infrastructure.rules import ISSUER, LISTER
from tests.infrastructure.template import ANONYMOUS, LISTS, ROOT, Document, Documents, functions
from tests.infrastructure.test_reports_template import EDGE, VARIANTS, resolved

TYPE = '{"k": 20, "window": 24, "profile": "crossing"'


class Part(NamedTuple):
    """Parameters that have no effect without the part, those that ask for it, and what it adds and may change."""

    off: dict[str, str]
    on: dict[str, str]
    added: set[str]
    changed: set[str]


PARTS = {
    "gateway": Part(
        {"Gateway": "OFF", "RelayAuth": "OPEN", "GatewayReservedConcurrency": "9"},
        {"Gateway": "ON", "GatewayReservedConcurrency": "7"},
        {"AnonymousStack"},
        {"Stage", "EdgeStack"},
    ),
    "lists": Part(
        {"ListAuth": "NONE", "ListDays": "7", "ReviewSteps": "3"},
        LISTER,
        {"ListsStack", "SealingLayer"},
        {"Shared", "Join"},
    ),
    "credentials": Part(
        {"AccountsDeletionProtection": "ON"},
        ISSUER,
        {"CredentialsStack", "CredentialsLayer"},
        {"Shared", "Join", "JoinRole", "Api", "AnonymousStack"},
    ),
}


@pytest.mark.parametrize("parameters", VARIANTS)
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_part_adds_its_nested_stack_and_changes_what_knows_of_it(part: Part, parameters: dict[str, str]) -> None:
    without, off, on = (resolved(template.read(), parameters | more) for more in ({}, part.off, part.on))
    assert off == without
    assert on.keys() - off.keys() == part.added
    assert {name for name in off if on[name] != off[name]} <= part.changed


def without_a_gateway() -> Document:
    """The template as if there were none."""
    made = copy.deepcopy(template.read())
    resources = made["Resources"]
    del resources["AnonymousStack"], resources["Stage"]["Properties"]["Description"]
    del resources["Stage"]["Properties"]["RouteSettings"]["POST /v1/gateway"]
    resources["EdgeStack"]["Properties"]["Parameters"]["RelaySecret"] = ""
    for name in PARTS["gateway"].off:
        del made["Parameters"][name]
    return made


@pytest.mark.parametrize("parameters", VARIANTS)
def test_without_a_gateway_nothing_is_left_of_it(parameters: dict[str, str]) -> None:
    assert resolved(template.read(), parameters) == resolved(without_a_gateway(), parameters)


def environments(**parameters: str) -> dict[str, dict[str, str]]:
    """The environment of each function."""
    stack = Documents().deployed(**parameters, Period="300")
    return {
        name: {variable: str(value) for variable, value in one["Environment"]["Variables"].items()}
        for name, one in stack.of_type("AWS::Serverless::Function").items()
    }


def test_the_gateway_accepts_its_environment() -> None:
    settings = GatewaySettings.from_environment(environments(Gateway="ON")["Gateway"])
    join = Documents().deployed().resolve({"Ref": "Join.Alias"})
    assert (settings.period, settings.edge_secret) == (300, "")
    assert settings.join_function == join != settings.query_function
    assert functions(template.read(ROOT / ANONYMOUS)).keys() == {"Gateway"}


@pytest.mark.parametrize("more", [{}, EDGE])
def test_the_functions_of_lists_accept_their_environments(more: dict[str, Any]) -> None:
    types = f'{{"terms": {TYPE}, "listed": true}}, "other": {TYPE}}}}}'
    given = environments(**LISTER, **more, Types=types, ReviewSteps="3", ListAuth="NONE")
    lister = ListSettings.from_environment(given["List"])
    assert (lister.period, lister.review_steps, list(lister.listed)) == (300, 3, ["terms"])
    released = ReleasedSettings.from_environment(given["Released"])
    assert (released.list_auth, released.list_bucket) == ("NONE", lister.list_bucket)
    assert bool(released.edge_secret) is bool(more)
    assert functions(template.read(ROOT / LISTS)).keys() == {"List", "Released"}


def test_the_functions_of_credentials_accept_their_environments() -> None:
    given = environments(**ISSUER, Types=f'{{"people": {TYPE}, "credential": true}}}}', JoinAuth="OPEN")
    issuer, join = IssuerSettings.from_environment(given["Issuer"]), JoinSettings.from_environment(given["Join"])
    assert (issuer.longest, issuer.edge_secret) == (25 * 300, "")
    assert issuer.issuer_key_secret == join.issuer_key_secret
    assert join.read_types()["people"].credential
