"""Every edit of a template is found by a rule, or is one of the edits that may pass.

The sweep changes, removes or replaces every value of every template, one at a time, as a careless hand would.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.infrastructure.rules import checks
from tests.infrastructure.template import PATHS, Document, Documents

ALLOWED = {
    r"\b(Alarm)?Description\b": "words for readers",
    r"\.(Label|DisplayName|Comment)\b": "words for readers",
    r"Metrics\.0\.Id changed$": "nobody calculates with the value that is judged",
    r"(edge|spending)\.yaml: Parameters\.\w+\.(AllowedPattern|MinValue) ": "AWS itself refuses such a value",
    r"edge.yaml: .*\.(Name|MetricName)(\.Fn::Sub)? ": "names within the firewall, and of policies",
    r"Statement\.\d+(\.Fn::If\.1)?\.Sid ": "names within a policy",
    r"PolicyName ": "names within a role",
    r"(Api|Tokens)\.Properties\.Name\b": "names for readers",
    r"(Dead|Letters|Events|Messages|Domain)\.Metadata\b": "`make template` asks for what the linter needs",
    r"TimeoutInMillis changed$": "it is still longer than the function's",
    r"DeploymentPreference\.Alarms\.Fn::If\.2\.0 removed$": "an empty list means the same",
    r"\.MinLength\b|DeltaCap\.MaxLength|(Constraint|Assert)Description": "functions refuse these values, too",
}
"""Patterns of edits that may pass, and why. An entry that nothing needs fails."""

REMOVED = object()


class Edit(NamedTuple):
    """One edit of a document: what is put where, instead of what."""

    name: str
    node: Any
    key: Any
    value: Any

    def make(self) -> Callable[[], None]:
        """Edit the document in place; the result undoes it."""
        before = self.node.copy()

        def undo() -> None:
            self.node.clear()
            self.node.update(before) if isinstance(before, dict) else self.node.extend(before)

        if self.value is REMOVED:
            del self.node[self.key]
        else:
            self.node[self.key] = self.value
        return undo


def edits(document: Document) -> Iterator[Edit]:
    """Every edit of a document; all are made on this one."""
    yield from _edits(document, document, "")
    for name, condition in document.get("Conditions", {}).items():
        yield Edit(f"Conditions.{name} negated", document["Conditions"], name, {"Fn::Not": [condition]})


def _edits(document: Document, node: Any, path: str) -> Iterator[Edit]:
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict | list):
            yield from _edits(document, value, here)
        if not is_call(node):
            yield Edit(f"{here} removed", node, key, REMOVED)
        if is_call(value):
            yield Edit(f"{here} constant", node, key, "*")
            if "Fn::If" in value:
                condition, one, other = value["Fn::If"]
                yield Edit(f"{here} swapped", node, key, {"Fn::If": [condition, other, one]})
        elif not isinstance(value, dict | list):
            yield Edit(f"{here} changed", node, key, changed(document, path, key, value))


def is_call(node: Any) -> bool:
    """Whether a node is an intrinsic function."""
    return isinstance(node, dict) and len(node) == 1 and next(iter(node)).startswith(("Ref", "Fn::"))


def changed(document: Document, path: str, key: Any, value: Any) -> Any:
    """Another value of the same kind: for a name, that of something else of its kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if key == "Ref" or (path.endswith("Fn::GetAtt") and key == 0):
        name, dot, attribute = str(value).partition(".")
        kinds = {one: body["Type"] for part in ("Parameters", "Resources") for one, body in document[part].items()}
        same = [one for one, kind in kinds.items() if one != name and kind == kinds.get(name)]
        return f"{[*same, *(one for one in kinds if one != name)][0]}{dot}{attribute}"
    return f"{value}x"


def passing(path: str, pattern: str | None = None) -> Iterator[str]:
    """The edits of a template that no rule finds: those of one pattern, or else those that no pattern allows."""
    every = Documents()
    rules = checks(path, every)
    assert not any(next(iter(check()), None) for check in rules)
    likely: dict[str, list[Any]] = {}
    for edit in edits(every[path]):
        name = f"{path}: {edit.name}"
        if not (re.search(pattern, name) if pattern else not any(re.search(one, name) for one in ALLOWED)):
            continue
        order = likely.setdefault(place_of(every[path], edit.name), list(rules))
        undo = edit.make()
        every.stacks.clear()
        place = next((place for place, check in enumerate(order) if finds(check)), None)
        undo()
        if place is None:
            yield name
        else:
            order.insert(0, order.pop(place))


def place_of(document: Document, name: str) -> str:
    """What an edit is about. The rule that has found an edit is likely to find those of the same place elsewhere."""
    parts = name.partition(" ")[0].split(".")
    if parts[0] == "Resources" and len(parts) > 1:
        parts[1] = document["Resources"][parts[1]]["Type"]
    return ".".join(part for part in parts[:8] if not part.isdigit())


def finds(check: Callable[[], Iterator[str]]) -> bool:
    """Whether a rule finds a problem, or cannot read the template any more."""
    try:
        return next(iter(check()), None) is not None
    except Exception:
        return True


@pytest.mark.sweep
@pytest.mark.parametrize("path", PATHS)
def test_every_edit_of_a_template_is_found_or_may_pass(path: str) -> None:
    assert list(passing(path)) == []


@pytest.mark.sweep
@pytest.mark.parametrize("pattern", ALLOWED)
def test_every_entry_of_the_list_is_needed(pattern: str) -> None:
    assert next((name for path in PATHS for name in passing(path, pattern)), None)
