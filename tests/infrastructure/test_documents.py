"""What the pages say of parameters, links, outputs and commands is so."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.infrastructure.template import ROOT, read

CONFIGURATION = ROOT / "docs" / "configuration.md"
RUNBOOK = ROOT / "docs" / "operating.md"
PARAMETERS = read()["Parameters"]


def rows(text: str) -> dict[str, tuple[str, str]]:
    """What the tables say of each parameter: default and allowed values."""
    found = re.findall(r"^\| `([A-Z]\w*)` \| (.+?) \| (.+?) \| .+ \|$", text, re.MULTILINE)
    assert len({name for name, *_ in found}) == len(found), "a parameter is described twice"
    return {name: (default, allowed) for name, default, allowed in found}


def default(declared: Any) -> str:
    """The default as the document writes it."""
    return "empty" if declared["Default"] == "" else f"`{declared['Default']}`"


def allowed(declared: Any) -> str | None:
    """The allowed values as the document writes them; None if it uses words of its own."""
    if "AllowedValues" in declared:
        return ", ".join(f"`{value}`" for value in declared["AllowedValues"])
    if "MaxValue" in declared:
        return f"`{declared['MinValue']}` to `{declared['MaxValue']}`"
    if "MinValue" in declared:
        return f"`{declared['MinValue']}` and up"
    if "MaxLength" in declared:
        return f"JSON, up to {declared['MaxLength']:,} characters"
    return None


def test_every_parameter_is_described_and_no_other() -> None:
    assert set(rows(CONFIGURATION.read_text())) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_defaults_and_allowed_values_are_the_templates(name: str) -> None:
    said_default, said_allowed = rows(CONFIGURATION.read_text())[name]
    assert said_default == default(PARAMETERS[name])
    assert said_allowed == (allowed(PARAMETERS[name]) or said_allowed)


def test_a_parameter_without_a_row_is_found() -> None:
    text = CONFIGURATION.read_text().replace("| `Lease` |", "| Lease |")
    assert set(PARAMETERS) - set(rows(text)) == {"Lease"}


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=lambda page: page.name
)
def test_every_link_has_a_target(page: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!https:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        target = page.parent / link if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), (link, anchor)


def anchors(page: Path) -> set[str]:
    """What the headings of a page are linked by."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_outputs_named_in_the_pages_exist() -> None:
    text = (ROOT / "docs" / "deploying.md").read_text()
    assert {"ApiUrl", "NoiseKeySecret"} <= set(read()["Outputs"])
    assert set(re.findall(r"output `(\w+)`", text)) <= set(read()["Outputs"])


@pytest.mark.parametrize(("kept", "done"), [({"1": "a"}, True), ({"1": "a", "2": "b"}, False), ({}, True)])
def test_the_rotation_of_the_runbook_adds_a_key_and_never_replaces_one(kept: dict[str, str], done: bool) -> None:
    (program,) = re.findall(r"python3 -c '(import json, secrets, sys; new.+)'", RUNBOOK.read_text())
    ran = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(kept), capture_output=True, text=True, check=False
    )
    assert (ran.returncode == 0, bool(ran.stdout)) == (done, done), ran.stderr
    if done:
        made = json.loads(ran.stdout)
        assert made.keys() == {*kept, "2"}
        assert {name: made[name] for name in kept} == kept
        assert len(made["2"]) >= 43  # 256 bits
