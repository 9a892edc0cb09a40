"""template.yaml as CloudFormation reads it: parameters, conditions, intrinsic functions, nested stacks.

The local stack is built from the template. Only what the stack needs is supported; anything
else raises ``TemplateError`` instead of being skipped silently. A nested stack is read if the local stack runs one of
its resources: stacks of alarms are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kanon.errors import Error

ACCOUNT = "123456789012"
REGION = "us-east-1"
STACK = "AWS::CloudFormation::Stack"
FUNCTION, TABLE, QUEUE = "AWS::Serverless::Function", "AWS::DynamoDB::Table", "AWS::SQS::Queue"
BUCKET, SECRET = "AWS::S3::Bucket", "AWS::SecretsManager::Secret"
BUILT = (FUNCTION, TABLE, QUEUE, BUCKET, SECRET)
"""The types that the local stack builds: a nested stack without any of them is not read."""

_NO_VALUE = object()
_VARIABLE = re.compile(r"\$\{([^}]+)\}")


class TemplateError(Error, ValueError):
    """The template or a parameter is invalid; the message says what to change."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that turns ``!Ref x`` and ``!GetAtt a.b`` into their long forms."""


def _intrinsic(loader: yaml.Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
        if suffix == "GetAtt":
            value = value.split(".", 1)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)
        value = loader.construct_mapping(node, deep=True)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _intrinsic)


@dataclass(frozen=True)
class Resource:
    """One resource of the template with its properties resolved."""

    logical_id: str
    type: str
    properties: dict[str, Any]


class Template:
    """A template with its parameters fixed, and the templates of its nested stacks in ``nested``, by logical id.

    ``identify`` sets the values of ``Ref`` and ``GetAtt`` for a built resource. For any other resource, they
    are the names that CloudFormation would give it.

    Args:
        document: the parsed file.
        parameters: values of its parameters; those of a nested stack may refer to resources of ``parent``.
        stack_name: the value of ``AWS::StackName``.
        limits: whether the rules of the parameters are checked.
        defaults: replace the defaults of the parameters that the template has.
        directory: the folder of the file, to which its relative paths refer.
        parent: the template of which this is a nested stack.
    """

    def __init__(
        self,
        document: dict[str, Any],
        parameters: Mapping[str, Any],
        stack_name: str,
        limits: bool = True,
        defaults: Mapping[str, str] | None = None,
        directory: Path = Path(),
        parent: Template | None = None,
    ) -> None:
        self.stack_name = stack_name
        self.directory = directory
        self._document = document
        self._parent = parent
        self._defaults = defaults or {}
        self._identities: dict[str, dict[str, str]] = {}
        self._replaced: dict[str, dict[str, Any]] = {}
        self._pseudo: dict[str, Any] = {
            "AWS::AccountId": ACCOUNT,
            "AWS::NoValue": _NO_VALUE,
            "AWS::Partition": "aws",
            "AWS::Region": REGION,
            "AWS::StackId": f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/{stack_name}/local",
            "AWS::StackName": stack_name,
            "AWS::URLSuffix": "amazonaws.com",
        }
        self._give(parameters, limits)
        self.nested: dict[str, Template] = {}  # a nested stack may get an output of another one
        self.nested |= self._read_nested()

    @classmethod
    def read(
        cls,
        path: Path,
        parameters: Mapping[str, str],
        stack_name: str,
        limits: bool = True,
        defaults: Mapping[str, str] | None = None,
    ) -> Template:
        """Read the file. ``defaults`` replace those of the parameters that the template has.

        Raises:
            TemplateError: a parameter is unknown, missing or, with ``limits``, refused by its rule.
        """
        text = path.read_text(encoding="utf-8")
        return cls(_parse(text), parameters, stack_name, limits, defaults, path.parent)

    def _read_nested(self) -> Iterator[tuple[str, Template]]:
        for resource in self.resources(STACK):
            path = self.directory / resource.properties["TemplateURL"]
            text = path.read_text(encoding="utf-8")
            if any(built in text for built in BUILT):
                given = self._document["Resources"][resource.logical_id]["Properties"].get("Parameters", {})
                name = f"{self.stack_name}-{resource.logical_id}"
                # Its parameters are not checked: this template has checked them, or they refer to unbuilt resources.
                nested = Template(_parse(text), given, name, limits=False, directory=path.parent, parent=self)
                yield resource.logical_id, nested

    def every(self, name: str = "") -> Iterator[tuple[str, Template]]:
        """The template and those nested in it; each with ``name`` and the logical ids that lead to it."""
        yield name, self
        for logical_id, nested in self.nested.items():
            yield from nested.every(f"{name}-{logical_id}")

    def _give(self, given: Mapping[str, Any], limits: bool) -> None:
        """Set these values of the parameters, or change nothing and raise ``TemplateError``."""
        declared: dict[str, dict[str, Any]] = self._document.get("Parameters", {})
        if unknown := sorted(set(given) - set(declared)):
            raise TemplateError(f"unknown parameters {', '.join(unknown)}; the template has {', '.join(declared)}")
        values = {}
        for name, rule in declared.items():
            if name not in given and "Default" not in rule:
                raise TemplateError(f"parameter {name} has no default: give it a value")
            values[name] = given.get(name, self._defaults.get(name, rule.get("Default")))
            if limits:
                _check(name, self._value(values[name]), rule)
        self._given = values

    def _value(self, given: Any) -> str:
        """A parameter as text. In a nested stack it may refer to resources that the parent has built since."""
        value = given if self._parent is None else self._parent.resolve(given)
        return ",".join(map(as_text, value)) if isinstance(value, list) else as_text(value)

    @property
    def parameters(self) -> dict[str, str]:
        """The values of all parameters."""
        return {name: self._value(given) for name, given in self._given.items()}

    def change(self, parameters: Mapping[str, str], limits: bool = True) -> None:
        """Give parameters new values, as an update of a stack does; the others keep theirs. Nested stacks may be added.

        Raises:
            TemplateError: a parameter is unknown or, with ``limits``, refused by its rule.
        """
        self._give({**self._given, **parameters}, limits)
        self.nested = {**dict(self._read_nested()), **self.nested}

    def resources(self, *types: str) -> list[Resource]:
        """The resources of these types whose condition holds, in the template's order."""
        return [
            Resource(name, body["Type"], self._properties(body))
            for name, body in self._document["Resources"].items()
            if body["Type"] in types and self._holds(body.get("Condition"))
        ]

    def every_resource(self, type_: str) -> Iterator[tuple[Template, Resource]]:
        """The resources of a type in this template and in those nested in it, each with its template."""
        for _, part in self.every():
            for resource in part.resources(type_):
                yield part, resource

    def _properties(self, body: Mapping[str, Any]) -> dict[str, Any]:
        own = self.resolve({**body.get("Properties", {}), **self._replaced.get(body["Type"], {})})
        section = body["Type"].removeprefix("AWS::Serverless::")
        shared = self.resolve(self._document.get("Globals", {}).get(section, {}))
        properties = _merge(shared, own)
        assert isinstance(properties, dict)
        return properties

    def identify(self, logical_id: str, **attributes: str) -> None:
        """Set the values of ``Ref`` (given as ``Ref=``) and ``GetAtt`` for a built resource."""
        self._identities.setdefault(logical_id, {}).update(attributes)

    def replace(self, type_: str, property_: str, value: Any) -> None:
        """Replace a property in every resource of a type."""
        self._replaced.setdefault(type_, {})[property_] = value

    def resolve(self, node: Any) -> Any:
        """The value of a node: intrinsic functions replaced, ``AWS::NoValue`` removed."""
        if isinstance(node, dict):
            if len(node) == 1:
                (name, argument), *_ = node.items()
                if name == "Ref" or name.startswith("Fn::"):
                    return self._call(name, argument)
            resolved = {key: self.resolve(value) for key, value in node.items()}
            return {key: value for key, value in resolved.items() if value is not _NO_VALUE}
        if isinstance(node, list):
            return [v for v in (self.resolve(item) for item in node) if v is not _NO_VALUE]
        return node

    def _call(self, name: str, argument: Any) -> Any:
        match name, argument:
            case "Ref", target:
                return self._ref(target)
            case "Fn::GetAtt", [logical_id, attribute]:
                return self._attribute(logical_id, attribute)
            case "Fn::Sub", text:
                return _VARIABLE.sub(self._substitute, text)
            case "Fn::If", [condition, then, otherwise]:
                return self.resolve(then if self._holds(condition) else otherwise)
            case "Fn::FindInMap", parts:
                table, key, entry = (str(self.resolve(part)) for part in parts)
                return self.resolve(self._document["Mappings"][table][key][entry])
            case "Fn::Join", [separator, parts]:
                return separator.join(map(as_text, self.resolve(parts)))
            case "Fn::Split", [separator, text]:
                return as_text(self.resolve(text)).split(separator)
            case "Fn::Select", [index, values]:
                return self.resolve(values)[int(index)]
        raise TemplateError(f"{name} is not supported by the local stack: add it to kanon/local/template.py")

    def _ref(self, name: str) -> Any:
        if name in self._pseudo:
            return self._pseudo[name]
        if name in self._given:
            value = self._value(self._given[name])
            return value.split(",") if self._document["Parameters"][name]["Type"] == "CommaDelimitedList" else value
        logical_id, _, attribute = name.partition(".")  # SAM's own: Function.Alias
        return self._attribute(logical_id, attribute or "Ref")

    def _attribute(self, logical_id: str, attribute: str) -> str:
        if logical_id not in self._document["Resources"]:
            raise TemplateError(f"no parameter or resource is named {logical_id}")
        if attribute.startswith("Outputs.") and logical_id in self.nested:
            return str(self.nested[logical_id].output(attribute.removeprefix("Outputs.")))
        known = self._identities.get(logical_id, {})
        if attribute in known:
            return known[attribute]
        name = known.get("Ref", f"{self.stack_name}-{logical_id}")
        if attribute == "Ref":
            return name
        if attribute == "Alias":
            return f"{self._attribute(logical_id, 'Arn')}:{self._alias(logical_id)}"
        if attribute == "FunctionUrl":
            return f"https://{logical_id.lower()}.lambda-url.{REGION}.on.aws/"
        if attribute == "Arn":
            service = self._document["Resources"][logical_id]["Type"].split("::")[1].lower()
            return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{name}"
        return f"{name}.{attribute}"

    def output(self, name: str) -> Any:
        """The value of an output; ``TemplateError`` if there is none of this name."""
        output = self._document.get("Outputs", {}).get(name)
        if output is None or not self._holds(output.get("Condition")):
            raise TemplateError(f"{self.stack_name} has no output {name}")
        return self.resolve(output["Value"])

    def _alias(self, logical_id: str) -> str:
        shared = self._document.get("Globals", {}).get("Function", {})
        own = self._document["Resources"][logical_id].get("Properties", {})
        name = {**shared, **own}.get("AutoPublishAlias")
        if name is None:
            raise TemplateError(f"{logical_id} has no alias: give it AutoPublishAlias")
        return str(name)

    def _substitute(self, variable: re.Match[str]) -> str:
        """The value of a variable in a text: of a parameter or resource, or of an attribute after a dot."""
        name, dot, attribute = variable[1].partition(".")
        return self._attribute(name, attribute) if dot else as_text(self._ref(name))

    def _holds(self, condition: Any) -> bool:
        if condition is None:
            return True
        if isinstance(condition, str):
            return self._holds(self._document["Conditions"][condition])
        ((name, argument),) = condition.items()
        match name:
            case "Condition":
                return self._holds(argument)
            case "Fn::Equals":
                left, right = (as_text(self.resolve(side)) for side in argument)
                return left == right
            case "Fn::Not":
                return not self._holds(argument[0])
            case "Fn::And":
                return all(map(self._holds, argument))
            case "Fn::Or":
                return any(map(self._holds, argument))
        raise TemplateError(f"{name} is not a condition of the local stack: add it to kanon/local/template.py")


@cache
def _parse(text: str) -> dict[str, Any]:
    """A parsed file, shared by all stacks of the process: do not change it."""
    document: dict[str, Any] = yaml.load(text, Loader=_Loader)  # noqa: S506
    return document


def as_text(value: Any) -> str:
    """A scalar as AWS writes it, for example ``true``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(name: str, value: str, rule: Mapping[str, Any]) -> None:
    allowed = [as_text(v) for v in rule.get("AllowedValues", [])]
    if allowed and value not in allowed:
        raise TemplateError(f"parameter {name} is {value!r}: use one of {', '.join(allowed)}")
    if not int(rule.get("MinLength", 0)) <= len(value) <= int(rule.get("MaxLength", 4096)):
        raise TemplateError(
            f"parameter {name} has {len(value)} characters: "
            f"use {rule.get('MinLength', 0)} to {rule.get('MaxLength', 4096)}"
        )
    pattern = rule.get("AllowedPattern", ".*")
    if not re.fullmatch(pattern, value, re.DOTALL):
        raise TemplateError(f"parameter {name} is {value!r}: use {rule.get('ConstraintDescription', pattern)}")
    if rule.get("Type") == "Number":
        number = float(value)
        if number < float(rule.get("MinValue", number)):
            raise TemplateError(f"parameter {name} is {value}: use at least {rule['MinValue']}")
        if number > float(rule.get("MaxValue", number)):
            raise TemplateError(f"parameter {name} is {value}: use at most {rule['MaxValue']}")


def _merge(shared: Any, own: Any) -> Any:
    """SAM's Globals: mappings merge, lists are added, anything else is overridden."""
    if isinstance(shared, list) and isinstance(own, list):
        return [*shared, *own]
    if isinstance(shared, dict) and isinstance(own, dict):
        merged = {**shared, **own}
        return {k: _merge(shared[k], own[k]) if k in shared and k in own else v for k, v in merged.items()}
    return own
