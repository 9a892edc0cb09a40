"""template.yaml as a plain document, and queries on it."""

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from cfnlint.decode import cfn_yaml

from kanon.local.template import STACK, Template
from tests.paths import ROOT

PATH = ROOT / "template.yaml"
GATE, REPORTS = "template.yaml", "infra/reports.yaml"
ANONYMOUS, LISTS, CREDENTIALS = "infra/anonymous.yaml", "infra/lists.yaml", "infra/credentials.yaml"
OBSERVABILITY, EDGE, SPENDING = "infra/observability.yaml", "infra/edge.yaml", "infra/spending.yaml"
WITH_FUNCTIONS = (GATE, REPORTS, ANONYMOUS, LISTS, CREDENTIALS)
PATHS = (*WITH_FUNCTIONS, OBSERVABILITY, EDGE, SPENDING)

Document = dict[str, Any]
FUNCTIONS = ("Join", "Evaluate", "Query", "Sweep")
REPORT_FUNCTIONS = ("Collect", "Store", "Jobs", "Decrypt", "Aggregate", "Rotate")
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


class Documents(dict[str, Document]):
    """All templates by path. ``stacks`` keeps what was resolved; clear it after an edit."""

    def __init__(self) -> None:
        super().__init__({path: read(ROOT / path) for path in PATHS})
        self.stacks: dict[Any, Deployed] = {}

    def deployed(self, **parameters: str) -> "Deployed":
        """The stack with these parameters."""
        key = tuple(parameters.items())
        if key not in self.stacks:
            self.stacks[key] = Deployed(self, parameters)
        return self.stacks[key]


class Deployed(Template):
    """The stack as CloudFormation resolves these documents; ``nested`` has every nested stack that exists."""

    def __init__(self, given: Documents, parameters: dict[str, str]) -> None:
        self.documents = given
        self._found: dict[str, dict[str, Any]] = {}
        super().__init__(given[GATE], parameters, "kanon")

    def _read_nested(self) -> Any:
        for stack in self.resources(STACK):
            document = self.documents[stack.properties["TemplateURL"]]
            told = self._document["Resources"][stack.logical_id]["Properties"]["Parameters"]
            yield stack.logical_id, Template(document, told, f"kanon-{stack.logical_id}", limits=False, parent=self)

    def of_type(self, type_: str) -> dict[str, Any]:
        """The properties of the resources of a type, by logical id, those of nested stacks among them."""
        if type_ not in self._found:
            found = {one.logical_id: one.properties for _, part in self.every() for one in part.resources(type_)}
            self._found[type_] = found
        return self._found[type_]


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


def parameter(document: Document, name: str) -> Any:
    return document["Parameters"][name]


def configured() -> dict[str, Any]:
    """samconfig.toml."""
    return tomllib.loads((ROOT / "samconfig.toml").read_text())
