"""The environments that the pages name are those of samconfig.toml, and each is a stack of its own."""

import re
from pathlib import Path

import pytest

from tests.infrastructure.template import ROOT, configured

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENVIRONMENTS = ("dev", "prod")


def commands(page: Path) -> list[str]:
    """The `sam` commands in the examples of a page."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [found for line in lines for found in re.findall(r"\bsam (?:deploy|delete)\b[^#&|]*", line)]


def named(text: str) -> set[str]:
    """The environments that a text names."""
    return set(re.findall(r"--config-env[ =]([\w-]+)", text))


def test_the_pages_name_these_environments_and_no_other() -> None:
    assert named((ROOT / "README.md").read_text()) == {"dev"}
    assert set().union(*(named(page.read_text()) for page in PAGES)) == set(ENVIRONMENTS)
    assert named((ROOT / "samconfig.toml").read_text()) == set(ENVIRONMENTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_names_its_stack(page: Path) -> None:
    assert [command for command in commands(page) if not named(command) and "--stack-name" not in command] == []


def test_the_pages_contain_commands() -> None:
    assert len(commands(ROOT / "README.md")) == 1
    assert len(commands(ROOT / "docs" / "guides" / "deploy.md")) >= 3


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_names_a_stack_and_all_required_parameters(name: str) -> None:
    environment = configured()[name]
    assert environment["global"]["parameters"]["stack_name"] == {"dev": "kanon-dev", "prod": "kanon"}[name]
    deploy = environment["deploy"]["parameters"]
    assert (deploy["capabilities"], deploy["resolve_s3"]) == ("CAPABILITY_IAM CAPABILITY_AUTO_EXPAND", True)
    assert f"environment={name}" in deploy["tags"].split()


def test_nothing_is_deployed_without_an_environment() -> None:
    assert set(configured()) == {"version", "default", *ENVIRONMENTS}
    assert set(configured()["default"]) == {"build", "validate"}
