"""The permissions of a template's roles, and those that an AWS call needs, both in ARNs."""

import base64
import fnmatch
import glob
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kanon.local.template import ACCOUNT, FUNCTION, REGION, Template

SERVICES = {"queue": "sqs"}  # botocore's name for it: IAM's
# These calls have no action of their own.
ACTIONS = {
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "s3:HeadObject": "s3:GetObject",
    "s3:DeleteObjects": "s3:DeleteObject",
    "s3:ListObjectsV2": "s3:ListBucket",
}
TRANSACTED = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem", "ConditionCheck": "ConditionCheckItem"}


class Call(NamedTuple):
    """A function's action on a resource; ``key`` is the leading key if one item is named."""

    function: str
    action: str
    resource: str
    key: str


@dataclass(frozen=True)
class Permission:
    """A role allows an action on the resources of a pattern, and items of these patterns; ``keys`` None: on each."""

    action: str
    resource: str
    keys: tuple[str, ...] | None

    def covers(self, call: Call) -> bool:
        """Whether this is the permission, or one of those, that a call needs."""
        return (
            self.action == call.action
            and fnmatch.fnmatchcase(call.resource, self.resource)
            and (self.keys is None or any(fnmatch.fnmatchcase(call.key, key) for key in self.keys))
        )


def permissions(template: Template) -> dict[str, list[Permission]]:
    """The permissions of each function's role, by the name of the function's folder."""
    parts = [part for _, part in template.every()]
    roles = {
        part.resolve({"Fn::GetAtt": [role.logical_id, "Arn"]}): role.properties
        for part in parts
        for role in part.resources("AWS::IAM::Role")
    }
    return {
        Path(function.properties["CodeUri"]).name: list(allowed(roles[function.properties["Role"]]))
        for part in parts
        for function in part.resources(FUNCTION)
    }


def allowed(role: Mapping[str, Any]) -> Iterator[Permission]:
    """The permissions of a role."""
    for statement in (s for policy in role["Policies"] for s in policy["PolicyDocument"]["Statement"]):
        assert statement["Effect"] == "Allow"
        conditions = statement.get("Condition", {})
        kinds = [kind for kind in conditions if "dynamodb:LeadingKeys" in conditions[kind]]
        assert set(kinds) <= {"ForAllValues:StringEquals", "ForAllValues:StringLike"}
        keys = conditions[kinds[0]]["dynamodb:LeadingKeys"] if kinds else None
        if keys is not None and kinds != ["ForAllValues:StringLike"]:
            keys = [glob.escape(key) for key in keys]  # StringEquals takes a star literally
        for action in _listed(statement["Action"]):
            for resource in _listed(statement["Resource"]):
                yield Permission(action, resource, None if keys is None else tuple(keys))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class Resources:
    """The ARNs of a deployment by the names its functions call them by: tables, buckets, URLs, secret ids."""

    arns: Mapping[str, str]

    def calls(self, function: str, service: str, operation: str, params: Mapping[str, Any]) -> Iterator[Call]:
        """The actions of one SDK call, by resource."""
        action = f"{SERVICES.get(service, service)}:{operation}"
        if service == "s3":
            for resource in self._objects(params):
                yield Call(function, ACTIONS.get(action, action), resource, "")
            return
        if operation == "TransactWriteItems":  # IAM asks for each write
            for kind, part in ((kind, part) for entry in params["TransactItems"] for kind, part in entry.items()):
                yield Call(function, f"dynamodb:{TRANSACTED[kind]}", self._arn(part["TableName"]), _leading(part))
            return
        for name in params.get("RequestItems") or [params.get(n) for n in ("TableName", "QueueUrl")]:
            if name is not None:
                yield Call(function, ACTIONS.get(action, action), self._arn(name), _leading(params))
        if service == "lambda":  # a function is named by the ARN of its alias
            yield Call(
                function, "lambda:InvokeFunction" if operation == "Invoke" else action, params["FunctionName"], ""
            )
        if service == "secretsmanager":  # a call that names no secret is on all of them
            yield Call(function, action, self._secret(params.get("SecretId") or params.get("Name", "*")), "")

    def _arn(self, name: str) -> str:
        return self.arns.get(name, f"unknown: {name}")

    def _secret(self, name: str) -> str:
        """The ARN of a secret. Those that a function makes are named by their names."""
        return self.arns.get(name, name if name.startswith(_SECRETS) else f"{_SECRETS}{name}")

    def _objects(self, params: Mapping[str, Any]) -> Iterator[str]:
        """The ARNs of the objects of a call, or of the whole bucket."""
        bucket = self._arn(params["Bucket"])
        keys = [entry["Key"] for entry in params.get("Delete", {}).get("Objects", [])]
        if "Key" in params:
            keys.append(params["Key"])
        yield from (f"{bucket}/{key}" for key in keys) if keys else [bucket]


_SECRETS = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:"


def _leading(params: Mapping[str, Any]) -> str:
    """The leading key of the one item that is named, in a table whose keys are names; binary ones in base64."""
    key = params.get("Key", params.get("Item", {}))
    text: str = key.get("name", {}).get("S", "")
    return base64.b64encode(key["row"]["B"]).decode() if "row" in key else text
