"""What the roles of a template allow, and what an AWS call asks for, both in ARNs."""

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kanon.local.partiql import read
from kanon.local.template import FUNCTION, Template

SERVICES = {"queue": "sqs"}  # botocore's name for it: IAM's
ACTIONS = {"sqs:SendMessageBatch": "sqs:SendMessage"}  # the batch call has no action of its own


class Call(NamedTuple):
    """Something a function did to a resource; ``key`` is the leading key where one item is named."""

    function: str
    action: str
    resource: str
    key: str


@dataclass(frozen=True)
class Permission:
    """A role allows an action on the resources of a pattern; ``keys`` None: on every item."""

    action: str
    resource: str
    keys: tuple[str, ...] | None

    def covers(self, call: Call) -> bool:
        """Whether this is the permission, or one of those, that a call needs."""
        return (
            self.action == call.action
            and fnmatch.fnmatchcase(call.resource, self.resource)
            and (self.keys is None or call.key in self.keys)
        )


def permissions(template: Template) -> dict[str, list[Permission]]:
    """What each function's role allows, by the name of the function's folder."""
    parts = [part for _, part in template.every()]
    roles = {
        part.resolve({"Fn::GetAtt": [role.logical_id, "Arn"]}): role.properties
        for part in parts
        for role in part.resources("AWS::IAM::Role")
    }
    return {
        Path(function.properties["CodeUri"]).name: list(_allowed(roles[function.properties["Role"]]))
        for part in parts
        for function in part.resources(FUNCTION)
    }


def _allowed(role: Mapping[str, Any]) -> Iterator[Permission]:
    for statement in (s for policy in role["Policies"] for s in policy["PolicyDocument"]["Statement"]):
        assert statement["Effect"] == "Allow"
        keys = statement.get("Condition", {}).get("ForAllValues:StringEquals", {}).get("dynamodb:LeadingKeys")
        for action in _listed(statement["Action"]):
            for resource in _listed(statement["Resource"]):
                yield Permission(action, resource, None if keys is None else tuple(keys))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class Resources:
    """The ARNs of a deployment by the names its functions call them by: table names, URLs, secret ids."""

    arns: Mapping[str, str]

    def calls(self, function: str, service: str, operation: str, params: Mapping[str, Any]) -> Iterator[Call]:
        """What one SDK call does, resource by resource."""
        if operation == "BatchExecuteStatement":  # IAM has one action for each kind of statement
            for write in map(read, params["Statements"]):
                action = "dynamodb:PartiQLInsert" if write.stored is None else "dynamodb:PartiQLUpdate"
                yield Call(function, action, self.arns.get(write.table, f"unknown: {write.table}"), "")
            return
        action = f"{SERVICES.get(service, service)}:{operation}"
        key = params.get("Key", {}).get("name", {}).get("S", "")
        for name in params.get("RequestItems") or [params.get(n) for n in ("TableName", "QueueUrl", "SecretId")]:
            if name is not None:
                yield Call(function, ACTIONS.get(action, action), self.arns.get(name, f"unknown: {name}"), key)
