"""Every `kanon` and `make` command in the pages has a command, options, targets and variables that exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from kanon.cli.demo import next_steps
from tests.infrastructure.template import ROOT
from tests.infrastructure.test_documents import PAGES
from tests.unit.cli.commands import commands

COMMANDS = commands()
ROOT_OPTIONS = {"--version", "--help", "--install-completion", "--show-completion"}
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))
RECIPES = dict(re.findall(r"^([a-z0-9-]+):.*\n\t.*\$\((?:KANON|BIN\)/kanon)\)? (\w+)", MAKEFILE, re.MULTILINE))
"""The command of kanon that a target runs."""


def written(page: str) -> Iterator[str]:
    """The commands of a page: each line of its blocks of `sh`, and what else stands in backquotes."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    for block in blocks:
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(
        r"(?<!`)`((?:\S*bin/)?(?:kanon|make) [^`]+)`(?!`)", re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    )


def calls(line: str) -> Iterator[list[str]]:
    """The words of each call of kanon or make in a line of shell."""
    words: list[str] = []
    for word in [*_words(line), ";"]:
        if not set(word) <= set("();<>|&"):
            words.append(word)
            continue
        program = next((n for n, one in enumerate(words) if "=" not in one), 0)
        if words and Path(words[program]).name in ("kanon", "make"):
            yield [Path(words[program]).name, *words[program + 1 :]]
        words = []


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a string that goes on in the next line
        return []


def unknown(call: list[str]) -> list[str]:
    """The words of a call that name nothing: commands and options of kanon, targets and variables of make."""
    program, *words = call
    return _unknown_to_make(words) if program == "make" else _unknown_to_kanon(words)


def _unknown_to_kanon(words: list[str]) -> list[str]:
    name = "kanon"
    while (
        words and not words[0].startswith("-") and any(f"{one} ".startswith(f"{name} {words[0]} ") for one in COMMANDS)
    ):
        name, words = f"{name} {words[0]}", words[1:]
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    if name in COMMANDS:
        known = {"--help", *(o for p in COMMANDS[name].params for o in (*p.opts, *p.secondary_opts))}
        return [option for option in given if option not in known]
    known = ROOT_OPTIONS if name == "kanon" else {"--help"}
    placeholders = not words or words[0].isupper() or words[0] == "..." or words[0] in known
    return [option for option in given if option not in known] if placeholders else words[:1]


def _unknown_to_make(words: list[str]) -> list[str]:
    targets = [word for word in words if "=" not in word]
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    missing = [word for word in targets if word not in TARGETS and not word.isupper()]
    missing += [name for name in variables if f"$({name})" not in MAKEFILE and f"$(or $({name})" not in MAKEFILE]
    for target in targets:
        if target in RECIPES and "ARGS" in variables:
            missing += _unknown_to_kanon([RECIPES[target], *shlex.split(variables["ARGS"])])
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_a_page_exist_with_their_options(page: Path) -> None:
    found = [call for line in written(page.read_text()) for call in calls(line)]
    assert [(shlex.join(call), unknown(call)) for call in found if unknown(call)] == []


def test_the_pages_hold_many_commands_of_both_programs() -> None:
    found = [call for page in PAGES for line in written(page.read_text()) for call in calls(line)]
    assert {"demo", "serve", "simulate", "plan", "cost", "reports", "operate"} <= {
        c[1] for c in found if c[0] == "kanon"
    }
    assert {"demo", "serve", "simulate", "demo-reports", "build", "install"} <= {c[1] for c in found if c[0] == "make"}
    assert {"demo", "serve", "simulate"} <= set(RECIPES)


@pytest.mark.parametrize("program", [".venv-demo/bin/kanon", "kanon"])
def test_the_commands_suggested_by_the_demo_exist_and_are_aligned(program: str) -> None:
    lines = next_steps(program).splitlines()[1:-1]
    parts = [re.split(" {3,}", line) for line in lines]
    assert [unknown(call) for command, _ in parts for call in calls(command)] == [[]] * 5
    assert len({line.index(meaning) for line, (_, meaning) in zip(lines, parts, strict=True)}) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kanon plans --k 5", ["plans"]),
        ("cd x && .venv-demo/bin/kanon plan --ks 5 | head", ["--ks"]),
        ("kanon reports demos", ["demos"]),
        ("kanon operate skip --stack NAME --forced", ["--forced"]),
        ("make demos", ["demos"]),
        ("make demo LOGS=x", ["LOGS"]),
        ('make simulate LOG=x ARGS="--k 20 --windows 5"  # a comment', ["--windows"]),
    ],
)
def test_a_command_or_an_option_that_does_not_exist_is_found(line: str, words: list[str]) -> None:
    assert [word for call in calls(line) for word in unknown(call)] == words


def test_existing_commands_and_options_are_accepted() -> None:
    good = 'A=1 kanon reports demo --log x > out; kanon COMMAND --help; kanon --version; make lint types ARGS="-k"'
    assert [unknown(call) for call in calls(good)] == [[], [], [], []]
