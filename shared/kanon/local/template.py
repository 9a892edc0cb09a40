"""template.yaml as CloudFormation reads it: parameters, conditions, intrinsic functions.

The local stack is built from the template. Only what the stack needs is supported; anything
else raises ``TemplateError`` instead of being skipped silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ACCOUNT = "123456789012"
REGION = "us-east-1"

_NO_VALUE = object()
_VARIABLE = re.compile(r"\$\{([^}]+)\}")


class TemplateError(ValueError):
    """The template, or a parameter given to it, cannot be used; the message says what to change."""


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
    """A template with its parameters fixed.

    ``identify`` sets the values of ``Ref`` and ``GetAtt`` for a built resource. For any other resource, they
    are the names that CloudFormation would give it.
    """

    def __init__(
        self,
        document: dict[str, Any],
        parameters: Mapping[str, str],
        stack_name: str,
        limits: bool = True,
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        self.stack_name = stack_name
        self._document = document
        self._identities: dict[str, dict[str, str]] = {}
        self._pseudo: dict[str, Any] = {
            "AWS::AccountId": ACCOUNT,
            "AWS::NoValue": _NO_VALUE,
            "AWS::Partition": "aws",
            "AWS::Region": REGION,
            "AWS::StackId": f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/{stack_name}/local",
            "AWS::StackName": stack_name,
            "AWS::URLSuffix": "amazonaws.com",
        }
        self.parameters = self._parameters(parameters, limits, defaults or {})

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
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506
        return cls(document, parameters, stack_name, limits, defaults)

    def _parameters(self, given: Mapping[str, str], limits: bool, defaults: Mapping[str, str]) -> dict[str, str]:
        declared: dict[str, dict[str, Any]] = self._document.get("Parameters", {})
        if unknown := sorted(set(given) - set(declared)):
            raise TemplateError(f"unknown parameters {', '.join(unknown)}; the template has {', '.join(declared)}")
        values = {}
        for name, rule in declared.items():
            if name not in given and "Default" not in rule:
                raise TemplateError(f"parameter {name} has no default: give it a value")
            value = _text(given.get(name, defaults.get(name, rule.get("Default"))))
            if limits:
                _check(name, value, rule)
            values[name] = value
        return values

    def change(self, parameters: Mapping[str, str], limits: bool = True) -> None:
        """Give parameters new values, as an update of a stack does; the others keep theirs.

        Raises:
            TemplateError: a parameter is unknown or, with ``limits``, refused by its rule.
        """
        self.parameters = self._parameters({**self.parameters, **parameters}, limits, {})

    def resources(self, *types: str) -> list[Resource]:
        """The resources of these types whose condition holds, in the template's order."""
        return [
            Resource(name, body["Type"], self._properties(body))
            for name, body in self._document["Resources"].items()
            if body["Type"] in types and self._holds(body.get("Condition"))
        ]

    def _properties(self, body: Mapping[str, Any]) -> dict[str, Any]:
        own = self.resolve(body.get("Properties", {}))
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
        for body in self._document["Resources"].values():
            if body["Type"] == type_:
                body["Properties"][property_] = value

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
        functions: dict[str, Callable[[Any], Any]] = {
            "Ref": self._ref,
            "Fn::GetAtt": self._get_att,
            "Fn::Sub": self._sub,
            "Fn::If": self._if,
            "Fn::FindInMap": self._find_in_map,
        }
        if name not in functions:
            raise TemplateError(f"{name} is not understood by the local stack: teach it")
        return functions[name](argument)

    def _ref(self, name: str) -> Any:
        if name in self._pseudo:
            return self._pseudo[name]
        if name in self.parameters:
            return self.parameters[name]
        logical_id, _, attribute = name.partition(".")  # SAM's own: Function.Alias
        return self._attribute(logical_id, attribute or "Ref")

    def _get_att(self, argument: list[str]) -> str:
        return self._attribute(argument[0], argument[1])

    def _attribute(self, logical_id: str, attribute: str) -> str:
        if logical_id not in self._document["Resources"]:
            raise TemplateError(f"no parameter or resource is named {logical_id}")
        known = self._identities.get(logical_id, {})
        if attribute in known:
            return known[attribute]
        name = known.get("Ref", f"{self.stack_name}-{logical_id}")
        if attribute == "Ref":
            return name
        if attribute == "Alias":
            return f"{self._attribute(logical_id, 'Arn')}:{self._alias(logical_id)}"
        if attribute == "Arn":
            service = self._document["Resources"][logical_id]["Type"].split("::")[1].lower()
            return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{name}"
        return f"{name}.{attribute}"

    def _alias(self, logical_id: str) -> str:
        shared = self._document.get("Globals", {}).get("Function", {})
        own = self._document["Resources"][logical_id].get("Properties", {})
        name = {**shared, **own}.get("AutoPublishAlias")
        if name is None:
            raise TemplateError(f"{logical_id} has no alias: give it AutoPublishAlias")
        return str(name)

    def _sub(self, text: str) -> str:
        def replace(match: re.Match[str]) -> str:
            name = match[1]
            return self._get_att(name.split(".", 1)) if "." in name else _text(self._ref(name))

        return _VARIABLE.sub(replace, text)

    def _if(self, argument: list[Any]) -> Any:
        return self.resolve(argument[1] if self._holds(argument[0]) else argument[2])

    def _find_in_map(self, argument: list[Any]) -> Any:
        name, key, entry = (str(self.resolve(part)) for part in argument)
        return self.resolve(self._document["Mappings"][name][key][entry])

    def _holds(self, condition: Any) -> bool:
        if condition is None:
            return True
        if isinstance(condition, str):
            return self._holds(self._document["Conditions"][condition])
        ((name, argument),) = condition.items()
        if name == "Condition":
            return self._holds(argument)
        if name == "Fn::Equals":
            left, right = (_text(self.resolve(side)) for side in argument)
            return left == right
        if name == "Fn::Not":
            return not self._holds(argument[0])
        if name in ("Fn::And", "Fn::Or"):
            return (all if name == "Fn::And" else any)(self._holds(part) for part in argument)
        raise TemplateError(f"{name} is not a condition the local stack understands: teach it")


def _text(value: Any) -> str:
    """A scalar as CloudFormation writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(name: str, value: str, rule: Mapping[str, Any]) -> None:
    allowed = [_text(v) for v in rule.get("AllowedValues", [])]
    if allowed and value not in allowed:
        raise TemplateError(f"parameter {name} is {value!r}: use one of {', '.join(allowed)}")
    if not int(rule.get("MinLength", 0)) <= len(value) <= int(rule.get("MaxLength", 4096)):
        raise TemplateError(
            f"parameter {name} has {len(value)} characters: "
            f"use {rule.get('MinLength', 0)} to {rule.get('MaxLength', 4096)}"
        )
    pattern = rule.get("AllowedPattern", ".*")
    if not re.fullmatch(pattern, value, re.DOTALL):
        raise TemplateError(f"parameter {name} is {value!r}: it must match {pattern}")
    if rule.get("Type") == "Number":
        number = float(value)
        if number < float(rule.get("MinValue", number)):
            raise TemplateError(f"parameter {name} is {value}: use at least {rule['MinValue']}")
        if number > float(rule.get("MaxValue", number)):
            raise TemplateError(f"parameter {name} is {value}: use at most {rule['MaxValue']}")


def _merge(shared: Any, own: Any) -> Any:
    """SAM's Globals: mappings merge, anything else is overridden."""
    if isinstance(shared, dict) and isinstance(own, dict):
        merged = {**shared, **own}
        return {k: _merge(shared[k], own[k]) if k in shared and k in own else v for k, v in merged.items()}
    return own
