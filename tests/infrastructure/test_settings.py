"""The functions accept what the environments of samconfig.toml give them."""

import re

import pytest

from kanon.gate.settings import EvaluateSettings, GateSettings
from kanon.gate.slots import Layout
from kanon.gate.types import read_types
from kanon.local.template import Template
from tests.infrastructure.rules import SETTINGS
from tests.infrastructure.template import FUNCTIONS, GATE, PATH, REPORTS, ROOT, configured, functions, parameter, read

ENVIRONMENTS = ("dev", "prod")


def overrides(name: str) -> dict[str, str]:
    """The parameters that samconfig.toml gives an environment."""
    given = configured()[name]["deploy"]["parameters"]["parameter_overrides"]
    return dict(entry.split("=", 1) for entry in given)


def resolved(parameters: dict[str, str], function: str) -> dict[str, str]:
    """The environment variables of a function as a deployed stack has them."""
    template = Template.read(PATH, parameters, "kanon")
    return {
        name: str(value)
        for resource in template.resources("AWS::Serverless::Function")
        if resource.logical_id == function
        for name, value in resource.properties["Environment"]["Variables"].items()
    }


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_accepts_its_environment(function: str, name: str) -> None:
    settings = SETTINGS[function].from_environment(resolved(overrides(name), function))
    assert isinstance(settings, GateSettings)
    assert settings.read_types()
    assert settings.layouts.entries == (Layout(16, 0, 16),)


def test_four_entries_of_slots_fit_and_are_read() -> None:
    entries = ",".join(f'{{"slots":128,"partitions":16,"from_step":{29_700_000 + n}}}' for n in range(4))
    given, text = parameter(read(), "Slots"), f"[{entries}]"
    assert re.fullmatch(given["AllowedPattern"], text)
    assert len(text) <= given["MaxLength"]
    variables = resolved(overrides(ENVIRONMENTS[0]), "Evaluate") | {"KANON_SLOTS": text}
    assert len(EvaluateSettings.from_environment(variables).layouts.entries) == 4


def test_the_default_type_restarts_after_the_crossing() -> None:
    (fledge,) = read_types(parameter(read(), "Types")["Default"], 3600).values()
    assert (fledge.name, fledge.parameters.k, fledge.parameters.window) == ("fledge", 50, 720)
    assert fledge.profile == "crossing"


def test_the_code_of_a_function_is_where_the_template_looks_for_it() -> None:
    for path in (GATE, REPORTS):
        for given in functions(read(ROOT / path)).values():
            module, _, name = given["Handler"].partition(".")
            source = (ROOT / path).parent / given["CodeUri"] / f"{module}.py"
            assert f"\ndef {name}(event" in source.read_text()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_samconfig_gives_parameters_that_the_template_has(name: str) -> None:
    assert Template.read(PATH, overrides(name), "kanon").parameters["Period"]


def test_production_asks_for_signed_joins_and_confirmation() -> None:
    deploy = configured()["prod"]["deploy"]["parameters"]
    assert overrides("prod")["JoinAuth"] == "IAM"
    assert deploy["confirm_changeset"] is True
