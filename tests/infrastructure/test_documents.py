"""The statements of the pages about parameters, links, outputs and commands are true."""

import ast
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from infra import reference
from kanon.gate.mechanism.parameters import CURRENT_PROFILES
from tests.infrastructure.pages import CONFIGURATION, rows
from tests.infrastructure.template import ROOT, read

RUNBOOK = ROOT / "docs" / "guides" / "operate.md"
PARAMETERS = read()["Parameters"]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md")])


def test_a_parameter_without_a_row_is_found() -> None:
    text = CONFIGURATION.read_text().replace("| `Lease` |", "| Lease |")
    assert set(PARAMETERS) - set(rows(text)) == {"Lease"}


@pytest.mark.parametrize("page", [CONFIGURATION, CONFIGURATION.with_name("glossary.md")], ids=lambda page: page.name)
def test_the_pages_offer_the_profiles_for_new_types(page: Path) -> None:
    (offered,) = re.findall(r"^\| `?profile`? \|.*?: (.*?)(?:\.| \|)", page.read_text(), re.MULTILINE)
    assert tuple(re.findall(r"`([\w-]+)`", offered)) == CURRENT_PROFILES


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@each_page
def test_links_have_a_target(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


def test_the_test_finds_a_broken_link() -> None:
    page = ROOT / "docs" / "start.md"
    links = "[a](nowhere.md) [b](guides/choose.md#nowhere) [c](guides/choose.md#window-and-period) [d](../../beside/x)"
    assert broken_links(page, links) == ["nowhere.md", "guides/choose.md#nowhere", "../../beside/x"]


@each_page
def test_no_page_holds_the_markers_of_a_merge(page: Path) -> None:
    assert not re.search(r"^(<{7}|={7}|>{7})( |$)", page.read_text(), re.MULTILINE)


def broken_links(page: Path, text: str) -> list[str]:
    """The links that lead to no file of the repository, or to no heading of it."""
    found = []
    for link, anchor in re.findall(r"\]\((?!https:)([^)#]*)(?:#([^)]*))?\)", text):
        target = (page.parent / link).resolve() if link else page
        inside = target.is_relative_to(ROOT) and target.exists()
        if not inside or (anchor and anchor not in anchors(target)):
            found.append(f"{link}#{anchor}" if anchor else link)
    return found


@each_page
def test_code_blocks_parse(page: Path) -> None:
    assert unreadable_blocks(page.read_text()) == []


def test_the_test_finds_a_block_that_does_not_parse() -> None:
    text = "```sh\nfor n in 1 2; do\n```\n\n```json\n{'a': 1}\n```\n\n```python\nif x\n```\n\n```sh\necho\n```\n"
    assert [language for language, _ in unreadable_blocks(text)] == ["sh", "json", "python"]


def unreadable_blocks(text: str) -> list[tuple[str, str]]:
    """The code blocks that are not valid in their language."""
    blocks = re.findall(r"^( *)```(\w+)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [(language, code) for indent, language, code in blocks if not parses(language, textwrap.dedent(code))]


def parses(language: str, code: str) -> bool:
    """Whether the code is valid; True for a language that is not checked."""
    try:
        if language == "json":
            json.loads(code)
        elif language == "python":
            ast.parse(code)
    except (ValueError, SyntaxError):
        return False
    if language != "sh":
        return True
    return subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False).returncode == 0


@each_page
def test_files_named_in_a_page_are_in_the_repository(page: Path) -> None:
    assert missing_files(page.read_text()) == []


def test_the_test_finds_a_missing_file() -> None:
    assert missing_files("`tests/nowhere/test_x.py` and `docs/start.md`, `tests/e2e/`, `../beside/page.md`") == [
        "tests/nowhere/test_x.py",
        "../beside/page.md",
    ]


def missing_files(text: str) -> list[str]:
    """The paths in a page, given from the top of the checkout, that are not there."""
    paths = re.findall(r"(?<![\w/.(])((?:tests|docs|functions|infra|shared|requirements|\.\.)/[\w./-]*\w)", text)
    return [path for path in paths if ".." in path or not (ROOT / path).exists()]


def test_the_reference_of_the_commands_is_generated_from_the_code() -> None:
    assert reference.PAGE.read_text() == reference.text(), "run `make reference`"


def test_the_table_of_the_cost_guide_is_what_the_command_prints() -> None:
    page = reference.COST.read_text()
    assert len(re.findall(r"<!-- run: kanon cost ", page)) == 2
    assert reference.with_outputs(page) == page, "run `make reference`"


def anchors(page: Path) -> set[str]:
    """The link targets of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_outputs_named_in_the_pages_exist() -> None:
    text = (ROOT / "docs" / "guides" / "deploy.md").read_text()
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
