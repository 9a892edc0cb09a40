"""The reader of template.yaml."""

from pathlib import Path
from typing import Any

import pytest

from kanon.local.template import Template, TemplateError

ECHO = Path(__file__).parent / "echo_stack" / "template.yaml"


def read(parameters: dict[str, str] | None = None, **options: Any) -> Template:
    return Template.read(ECHO, parameters or {}, "stack", **options)


def variables(template: Template) -> dict[str, Any]:
    (function,) = template.resources("AWS::Serverless::Function")
    found: dict[str, Any] = function.properties["Environment"]["Variables"]
    return found


def test_globals_parameters_mappings_and_conditions_reach_a_function() -> None:
    assert variables(read())["ECHO_LEVEL"] == "3"
    assert variables(read())["ECHO_UNIT"] == "whisper"
    assert variables(read({"Loud": "yes", "Level": "9"}))["ECHO_UNIT"] == "shout"
    assert variables(read({"Level": "9"}))["ECHO_LEVEL"] == "9"


def test_no_value_removes_a_property() -> None:
    assert "ECHO_LOUDER" not in variables(read())
    assert variables(read({"Loud": "yes"}))["ECHO_LOUDER"] == "yes"


def test_sub_replaces_names() -> None:
    assert variables(read())["ECHO_GREETING"] == "hello from stack"


def test_a_resource_exists_only_under_its_condition() -> None:
    def queues(template: Template) -> list[str]:
        return [resource.logical_id for resource in template.resources("AWS::SQS::Queue")]

    assert queues(read()) == ["DeadLetters", "Work"]
    assert queues(read({"Loud": "yes"})) == ["DeadLetters", "Work", "Silent"]


def test_references_have_the_values_of_built_resources() -> None:
    template = read()
    template.identify("Table", Ref="built", Arn="arn:built")
    assert variables(template)["ECHO_TABLE"] == "built"
    assert template.resolve({"Fn::GetAtt": ["Table", "Arn"]}) == "arn:built"
    assert template.resolve({"Ref": "Api"}) == "stack-Api"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"Volume": "1"}, "unknown parameters Volume; the template has Greeting, Level, Loud"),
        ({"Loud": "maybe"}, "Loud is 'maybe': use one of yes, no"),
        ({"Greeting": "Hello"}, "Greeting is 'Hello': use "),
        ({"Level": "0"}, "Level is 0: use at least 1"),
        ({"Level": "10"}, "Level is 10: use at most 9"),
    ],
)
def test_a_refused_parameter_says_what_to_change(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        read(parameters)


def test_without_limits_a_parameter_may_go_beyond_them() -> None:
    assert variables(read({"Level": "10"}, limits=False))["ECHO_LEVEL"] == "10"


def test_a_missing_parameter_and_an_unknown_function_are_refused() -> None:
    with pytest.raises(TemplateError, match="Name has no default"):
        Template({"Parameters": {"Name": {"Type": "String"}}, "Resources": {}}, {}, "stack")
    with pytest.raises(TemplateError, match="Fn::Cidr is not supported"):
        read().resolve({"Fn::Cidr": ["10.0.0.0/8", 1, 8]})
    with pytest.raises(TemplateError, match="no parameter or resource is named Nobody"):
        read().resolve({"Ref": "Nobody"})
