"""Every IAM policy in the pages permits exactly the routes that it names, and those of one kind of caller."""

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.infrastructure.rules import OF_JOBS, ROUTE, ROUTES
from tests.infrastructure.template import ROOT, Documents, as_list
from tests.infrastructure.test_documents import PAGES

PREFIX = "arn:aws:execute-api:REGION:ACCOUNT:API/"
CALLERS = {
    "joins": {key for key, (function, _) in ROUTES.items() if function == "Join"},
    "queries": {"POST /v1:batchQuery"},
    "jobs": OF_JOBS,
}
"""The routes that ask for a signature, by who calls them."""


def policies(text: str) -> list[Any]:
    """The statements of IAM policies in a page."""
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    return [one for one in blocks if isinstance(one, dict) and "Effect" in one]


def permitted(statement: Any) -> set[str]:
    """The routes that a statement permits."""
    routes = Documents().deployed(Reports="ON").of_type(ROUTE).values()
    keys = {route["RouteKey"] for route in routes}
    found = set()
    for resource in as_list(statement["Resource"]):
        assert resource.startswith(PREFIX), resource
        for key in keys:
            method, path = key.split(" ")
            called = f"$default/{method}{re.sub(r'{[^}]+}', 'x', path)}"
            if fnmatchcase(called, resource.removeprefix(PREFIX)):
                found.add(key)
    return found


def wrong(statement: Any) -> list[str]:
    """What a statement permits beside the routes of one kind of caller, or names without effect."""
    found = [] if statement["Effect"] == "Allow" and statement["Action"] == "execute-api:Invoke" else ["another action"]
    routes = permitted(statement)
    found += [] if routes in CALLERS.values() else [f"it permits {sorted(routes)}"]
    found += [one for one in as_list(statement["Resource"]) if len(permitted({"Resource": one})) != 1]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_policy_of_a_page_permits_the_routes_of_one_kind_of_caller(page: Path) -> None:
    assert [wrong(statement) for statement in policies(page.read_text()) if wrong(statement)] == []


def test_the_pages_have_a_policy_for_every_kind_of_caller() -> None:
    found = [permitted(one) for page in PAGES for one in policies(page.read_text())]
    assert sorted(map(sorted, found)) == sorted(map(sorted, CALLERS.values()))


@pytest.mark.parametrize(
    "path",
    [
        "$default/POST/*",
        "*",
        "$default/POST/v1*",
        "$default/POST/v1:batch*",
        "$default/*/v1:batchQuery/",
        "prod/POST/x",
    ],
)
def test_a_policy_that_permits_more_or_nothing_is_found(path: str) -> None:
    assert wrong({"Effect": "Allow", "Action": "execute-api:Invoke", "Resource": PREFIX + path})


def test_the_policy_of_callers_once_permitted_to_spend_budgets() -> None:
    assert "POST /v1alpha/createJob" in permitted({"Resource": f"{PREFIX}$default/POST/*"})
