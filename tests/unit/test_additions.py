"""What is added to kanon is added everywhere: the lists of CONTRIBUTING, found in the code itself.

A noise distribution, an endpoint, a command and a table each stand in several files. Every file of a list must hold the
same names, so an addition that leaves one out fails here.
"""

import ast
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any
from unittest import mock

import pytest

from infra.openapi import ENVIRONMENT
from kanon.http.edge import resolver
from tests.paths import ROOT
from tests.unit.cli.commands import commands

HANDLERS = (
    "shared/kanon/gate/*_routes.py",
    "shared/kanon/reports/*_routes.py",
    "shared/kanon/reports/service/*_routes.py",
)
EXAMPLE = re.compile(r"^Example: `?(.+?)`?$", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """Files that together hold the names of all things of a kind.

    ``read`` finds the names in the text of a file. Without it the text only has to mention each name.
    """

    patterns: tuple[str, ...]
    read: Callable[[str], set[str]] | None = None
    exempt: Callable[[str], bool] = lambda name: False

    def files(self) -> list[str]:
        return [str(path.relative_to(ROOT)) for pattern in self.patterns for path in sorted(ROOT.glob(pattern))]

    def missing(self, names: set[str], text_of: Callable[[str], str]) -> set[str]:
        """The names that these files leave out."""
        texts = [text_of(file) for file in self.files()]
        found = set().union(*map(self.read, texts)) if self.read else {n for n in names if n in " ".join(texts)}
        return {name for name in names - found if not self.exempt(name)}


def place(*patterns: str, **how: Any) -> Place:
    return Place(patterns, **how)


@cache
def stored(file: str) -> str:
    return (ROOT / file).read_text()


# ------------------------------------------------------------------------------------------ readers
def assigned(name: str) -> Callable[[str], set[str]]:
    """The keys of a dictionary, or the texts of another expression, that a module assigns to a name."""

    def read(text: str) -> set[str]:
        for node in ast.walk(ast.parse(text)):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, ast.Assign | ast.AnnAssign) and name in {ast.unparse(t) for t in targets if t}:
                keys = node.value.keys if isinstance(node.value, ast.Dict) else [node.value]
                return {one for key in keys if key for one in constants(key)}
        return set()

    return read


def constants(node: ast.AST) -> set[str]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def shapes_of_profiles(text: str) -> set[str]:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {call.args[0].value for call in calls if ast.unparse(call.func) == "Profile"}  # type: ignore[attr-defined]


def routes_of_a_handler(text: str) -> set[str]:
    """The routes of a handler, or of a class of routes: its module runs, because it registers some of them in loops."""
    return {route(one.method, one.path) for one in routes_in(text)}


@cache
def hidden(name: str) -> bool:
    """Whether a route is left out of the description: a debug address, an alias, the description itself."""
    routes = [one for file in place(*HANDLERS).files() for one in routes_in(stored(file))]
    return "/debug/" in name or name not in {route(one.method, one.path) for one in routes if one.include_in_schema}


@cache
def routes_in(text: str) -> list[Any]:
    module: dict[str, Any] = {"__name__": "app", "__file__": str(ROOT / "app.py")}
    classes_of_routes = [name for name in classes(text) if name.endswith("Routes")]
    if "\napp = resolver(" not in text and not classes_of_routes:
        return []
    with mock.patch.dict(os.environ, ENVIRONMENT), mock.patch.dict(sys.modules, {"app": mock.Mock()}):
        exec(compile(text, "app.py", "exec"), module)
    app = module.get("app") or resolver(mock.Mock())
    for name in classes_of_routes:
        module[name](*[None] * len(fields(module[name]))).add_to(app)
    return [*app._static_routes, *app._dynamic_routes]


def route(method: str, path: str) -> str:
    """The route as API Gateway writes it: a verb behind a placeholder belongs to the placeholder."""
    return f"{method} {re.sub(r'[}]:[^/]+$', '}', path.replace('<', '{').replace('>', '}').partition('?')[0])}"


def route_keys(text: str) -> set[str]:
    return set(re.findall(r"^      RouteKey: (.+)$", text, re.MULTILINE))


def routes_of_a_page(text: str) -> set[str]:
    return {route(*found) for found in re.findall(r"`(GET|POST) (/[^`]*)`", text)}


def routes_of_a_description(text: str) -> set[str]:
    return {route(method.upper(), path) for path, one in json.loads(text)["paths"].items() for method in one}


def tables_of_a_template(text: str) -> set[str]:
    return set(re.findall(r"^  (\w+):\n    Type: AWS::DynamoDB::Table$", text, re.MULTILINE))


def tables_of_settings(text: str) -> set[str]:
    return {
        "".join(map(str.capitalize, name.split("_"))) for name in re.findall(r"^    (\w+)_table: ", text, re.MULTILINE)
    }


def watched_tables(text: str) -> set[str]:
    return set(re.findall(r"Name: TableName, Value: !Ref (\w+)", text))


def tables_of_drills(text: str) -> set[str]:
    names = {one for found in constants(ast.parse(text)) for one in re.findall(r"^KANON_(\w+)_TABLE$", found)}
    return constants(ast.parse(text)) | {"".join(map(str.capitalize, name.split("_"))) for name in names}


def classes(text: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}


def examples(text: str) -> set[str]:
    """The examples of the commands that a module defines; a group has one that is not its own."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    own = [node for node in functions if not any("callback" in ast.unparse(one) for one in node.decorator_list)]
    return {found[1] for node in own if (found := EXAMPLE.search(ast.get_docstring(node) or ""))}


def registered(text: str) -> set[str]:
    module: dict[str, Any] = {"__name__": "main", "__file__": "main.py"}
    exec(compile(text, "main.py", "exec"), module)
    return {found[1] for one in commands(module["app"]).values() if (found := EXAMPLE.search(one.help or ""))}


def routes_of_rules(text: str) -> set[str]:
    return {
        one for name in ("ROUTES", "COLLECTED", "OF_JOBS", "OF_LISTS", "OF_ACCOUNTS") for one in assigned(name)(text)
    }


# -------------------------------------------------------------------------------------------- lists
LISTS = {
    "A noise distribution": [
        place("shared/kanon/noise/laws.py", read=assigned("SHAPES")),
        place("shared/kanon/noise/laws.py", read=assigned("Shape")),
        place("shared/kanon/audit/mechanism.py", read=assigned("AUDITED")),
        place("shared/kanon/gate/mechanism/parameters.py", read=shapes_of_profiles),
        place("docs/proofs/privacy.md"),
        place("docs/reference/configuration.md"),
    ],
    "An endpoint": [
        place(*HANDLERS, read=routes_of_a_handler),
        place("template.yaml", "infra/reports.yaml", "infra/lists.yaml", "infra/credentials.yaml", read=route_keys),
        place("tests/infrastructure/rules.py", read=routes_of_rules),
        place("docs/reference/api.md", read=routes_of_a_page, exempt=hidden),
        place("docs/openapi.json", read=routes_of_a_description, exempt=hidden),
    ],
    "A command": [
        place("shared/kanon/cli/*.py", read=examples),
        place("shared/kanon/cli/main.py", read=registered),
        place("docs/reference/cli.md", read=lambda text: set(EXAMPLE.findall(text))),
    ],
    "A table": [
        place("template.yaml", "infra/reports.yaml", "infra/credentials.yaml", read=tables_of_a_template),
        place("infra/observability.yaml", "infra/reports.yaml", "infra/credentials.yaml", read=watched_tables),
        place("shared/kanon/settings.py", "shared/kanon/*/*settings.py", read=tables_of_settings),
        place("shared/kanon/*/storage/*.py", "shared/kanon/gate/storage/aws/*.py", read=classes),
        place("tests/infrastructure/rules.py", read=assigned("TABLES")),
        place(
            "tests/e2e/*/test_drills.py",
            "tests/e2e/gate/test_restored_log.py",
            "tests/integration/credentials/test_on_aws.py",
            read=tables_of_drills,
        ),
        place("docs/architecture.md"),
        place("docs/guides/deploy.md"),
    ],
}
"""The heading of a list in CONTRIBUTING, and the places that it names."""
PLACES = [(heading, at) for heading, places in LISTS.items() for at in range(len(places))]


@cache
def known(heading: str) -> set[str]:
    """Every name in one of the places that hold nothing but names."""
    exact = [one for one in LISTS[heading] if one.read and one.read not in (classes, tables_of_drills)]
    return {name for one in exact for file in one.files() for name in one.read(stored(file))}  # type: ignore[misc]


@pytest.mark.parametrize(("heading", "at"), PLACES)
def test_every_place_of_a_list_has_every_name(heading: str, at: int) -> None:
    one = LISTS[heading][at]
    missing = one.missing(known(heading), stored)
    assert not missing, f"{heading} is only half there: {', '.join(one.patterns)} lacks {missing}"


def without(text: str, name: str) -> str:
    """A file from which a thing is left out: a shape, a route, the example of a command, or a table."""
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    path = name.partition(" ")[2] if " /" in name else name
    command = name.split()[1] if name.startswith("kanon ") else name
    for word in (name, path, path.replace("{", "<").replace("}", ">"), f"{snake}_table", f"{snake.upper()}_TABLE"):
        text = text.replace(word, "/x" if "/" in word else "x")
    return text.replace(f"    {command}: ", "    serve: ")


@pytest.mark.parametrize(("heading", "at"), PLACES)
def test_a_name_that_is_left_out_of_a_place_is_found(heading: str, at: int) -> None:
    one = LISTS[heading][at]
    name = next(
        name
        for name in sorted(known(heading))
        if not one.exempt(name) and any(without(stored(file), name) != stored(file) for file in one.files())
    )
    assert name in one.missing(known(heading), lambda file: without(stored(file), name))


@pytest.mark.parametrize("heading", LISTS)
def test_each_list_of_the_page_names_its_places(heading: str) -> None:
    section = stored("CONTRIBUTING.md").partition(f"### {heading}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    patterns = {pattern for one in LISTS[heading] for pattern in one.patterns}
    assert {pattern for pattern in patterns if f"`{pattern}`" not in section} == set()
    named = set(re.findall(r"`((?:shared|functions|infra|tests|docs)/[^`]+|template\.yaml)`", section))
    assert {name for name in named if name not in patterns} == set()
