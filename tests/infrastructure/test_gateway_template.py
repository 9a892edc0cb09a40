"""Without the gateway the stack is unchanged, and with it only the stage and the edge know of it."""

import copy
from typing import Any

import pytest

from kanon.gateway.settings import GatewaySettings
from tests.infrastructure import template
from tests.infrastructure.template import ANONYMOUS, ROOT, Documents, functions
from tests.infrastructure.test_reports_template import VARIANTS, resolved

PARAMETERS = ("Gateway", "RelayAuth", "GatewayReservedConcurrency")
"""The parameters that are for the gateway alone."""


def without_a_gateway() -> Any:
    """The template as if there were none."""
    made = copy.deepcopy(template.read())
    resources = made["Resources"]
    del resources["AnonymousStack"], resources["Stage"]["Properties"]["Description"]
    del resources["Stage"]["Properties"]["RouteSettings"]["POST /v1/gateway"]
    resources["EdgeStack"]["Properties"]["Parameters"]["RelaySecret"] = ""
    for name in PARAMETERS:
        del made["Parameters"][name]
    return made


@pytest.mark.parametrize("parameters", VARIANTS)
def test_without_a_gateway_every_resource_is_unchanged(parameters: dict[str, str]) -> None:
    off = resolved(template.read(), parameters | {"Gateway": "OFF"})
    assert off == resolved(without_a_gateway(), parameters)


@pytest.mark.parametrize("parameters", VARIANTS)
def test_a_gateway_changes_the_stage_and_the_edge_alone(parameters: dict[str, str]) -> None:
    on = resolved(template.read(), parameters | {"Gateway": "ON", "GatewayReservedConcurrency": "7"})
    off = resolved(without_a_gateway(), parameters)
    changed = {name for name in on if on[name] != off.get(name)}
    assert changed == {"AnonymousStack", "Stage"} | ({"EdgeStack"} & on.keys())
    assert on.keys() - off.keys() == {"AnonymousStack"}


def test_the_gateway_accepts_its_environment() -> None:
    stack = Documents().deployed(Gateway="ON", Period="300")
    given = stack.of_type("AWS::Serverless::Function")["Gateway"]["Environment"]["Variables"]
    settings = GatewaySettings.from_environment({name: str(value) for name, value in given.items()})
    assert (settings.period, settings.edge_secret) == (300, "")
    assert settings.join_function == stack.resolve({"Ref": "Join.Alias"}) != settings.query_function
    assert functions(template.read(ROOT / ANONYMOUS)).keys() == {"Gateway"}
