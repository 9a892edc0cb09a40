"""template.yaml as a plain document, and queries on it."""

import copy
import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from cfnlint.decode import cfn_yaml

from tests.paths import ROOT

PATH = ROOT / "template.yaml"

Document = dict[str, Any]
FUNCTIONS = ("Join", "Evaluate", "Query")
STATEFUL = (
    "AWS::DynamoDB::Table",
    "AWS::KMS::Key",
    "AWS::SecretsManager::Secret",
)


@cache
def _text(path: Path) -> str:
    return json.dumps(cfn_yaml.load(str(path)))


def read(path: Path = PATH) -> Document:
    """The template with its intrinsic functions in their long forms; a copy of its own."""
    document: Document = json.loads(_text(path))
    return document


def mutated(change: Any) -> Document:
    """A copy of the template that ``change`` has spoiled."""
    document = copy.deepcopy(read())
    change(document)
    assert document != read(), "the mutation changed nothing"
    return document


def of_type(document: Document, *types: str) -> dict[str, Any]:
    """The resources of these types, by logical id."""
    return {n: r for n, r in document["Resources"].items() if r["Type"] in types}


def properties(document: Document, logical_id: str) -> Any:
    return document["Resources"][logical_id].setdefault("Properties", {})


def table_key(table: Document) -> list[tuple[str, str, str]]:
    """The key of a table by its properties: name, type and kind of each attribute."""
    kinds = {a["AttributeName"]: a["AttributeType"] for a in table["AttributeDefinitions"]}
    return [(k["AttributeName"], kinds[k["AttributeName"]], k["KeyType"]) for k in table["KeySchema"]]


def functions(document: Document) -> dict[str, Any]:
    """Functions of any kind, with what Globals gives them."""
    shared = document.get("Globals", {}).get("Function", {})
    return {
        name: {**shared, **resource.get("Properties", {})}
        for name, resource in of_type(document, "AWS::Serverless::Function", "AWS::Lambda::Function").items()
    }


def environment(document: Document, function: str) -> dict[str, Any]:
    """The environment variables of a function, Globals' among them."""
    shared = document["Globals"]["Function"]["Environment"]["Variables"]
    own = properties(document, function)["Environment"]["Variables"]
    return {**shared, **own}


def target(value: Any) -> str | None:
    """The logical id that a ``Ref`` or ``GetAtt`` names."""
    if isinstance(value, dict) and "Ref" in value:
        return str(value["Ref"])
    if isinstance(value, dict) and "Fn::GetAtt" in value:
        name = value["Fn::GetAtt"]
        return str(name[0] if isinstance(name, list) else name.split(".")[0])
    return None


def strings(node: Any) -> list[str]:
    """Every text inside a node, keys excepted."""
    if isinstance(node, str):
        return [node]
    if isinstance(node, dict):
        return [text for value in node.values() for text in strings(value)]
    if isinstance(node, list):
        return [text for value in node for text in strings(value)]
    return []


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def statements(role: Any) -> list[Any]:
    """The statements of a role's own policies."""
    return [
        statement
        for policy in role["Properties"].get("Policies", [])
        for statement in as_list(policy["PolicyDocument"]["Statement"])
    ]


def parameter(document: Document, name: str) -> Any:
    return document["Parameters"][name]


def configured() -> dict[str, Any]:
    """samconfig.toml."""
    return tomllib.loads((ROOT / "samconfig.toml").read_text())
