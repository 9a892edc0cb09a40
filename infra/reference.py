"""Writes the reference of the commands and the outputs in the cost guide: ``python -m infra.reference``."""

import inspect
import re
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from kanon.cli.main import app

DOCS = Path(__file__).parents[1] / "docs"
PAGE, COST = DOCS / "reference" / "cli.md", DOCS / "guides" / "cost.md"
KINDS = {int: "NUMBER", float: "NUMBER", Path: "PATH", datetime: "DATE"}
HEAD = """# Commands

`make reference` generates this page from the code. `kanon COMMAND --help` prints the same. In a checkout the program is
`.venv/bin/kanon` after `make install`. `make demo`, `make serve` and `make simulate` install `.venv-demo/bin/kanon`,
which lacks the libraries of `kanon release` and `kanon risk`.

| status | meaning |
|---|---|
| 0 | The command succeeded. |
| 1 | The command failed: a check or an audit fails, an emulator does not work, a library is missing. |
| 2 | An option, a file or a log is invalid, or the stack cannot be reached. One line says what to change. |

Some commands have other statuses too; their description names them. Results go to standard output, messages and
progress to standard error. `--json` prints camelCase names. `kanon --install-completion` sets up completion for your
shell, `kanon --version` prints the version.
"""


def text() -> str:
    """The page: one section for each command, those of groups included."""
    return "\n".join([HEAD, *_sections("kanon", get_command(app))])


# A command is a `click` object: Typer brings its own copy, so its types have no public name.
def _sections(path: str, command: Any) -> list[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [_section(path, command)]
    return [section for name, one in inner.items() if not one.hidden for section in _sections(f"{path} {name}", one)]


def _section(path: str, command: Any) -> str:
    parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    words = [path, *(_word(parameter) for parameter in parameters if parameter.param_type_name == "argument")]
    options = any(parameter.param_type_name == "option" for parameter in parameters)
    usage = " ".join([*words, *(["[OPTIONS]"] if options else [])])
    table = ["| option | default | meaning |", "|---|---|---|", *map(_row, parameters)] if parameters else []
    return "\n".join([f"## {path}", "", f"`{usage}`", "", _described(command), "", *table, ""])


def _described(command: Any) -> str:
    """The help text; its example as code."""
    return re.sub(r"^Example: (.+)$", r"Example: `\1`", inspect.cleandoc(command.help or ""), flags=re.MULTILINE)


def _word(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()) + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def _row(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    own = [parameter.metavar] if argument and parameter.metavar else [*parameter.opts, *parameter.secondary_opts]
    names = ", ".join(f"`{name}`" for name in own)
    value = "" if argument else _value(parameter)
    default = parameter.default
    shown = "required" if parameter.required else "" if default in (None, False) else f"`{default}`"
    meaning = (parameter.help or "").replace("|", "\\|")
    return f"| {names}{value} | {shown} | {meaning} |"


def _value(option: Any) -> str:
    """The placeholder after the name of an option."""
    kind = option.type_descriptor.annotation
    return "" if kind is bool else f" {option.metavar or KINDS.get(kind, 'TEXT')}"


def with_outputs(page: str) -> str:
    """The page with new outputs of the commands in its blocks ``<!-- run: kanon ... -->`` to ``<!-- end -->``."""

    def run(block: re.Match[str]) -> str:
        ran = CliRunner().invoke(app, shlex.split(block[1]))
        if ran.exit_code:
            raise RuntimeError(f"kanon {block[1]}: {ran.output}")
        return f"<!-- run: kanon {block[1]} -->\n\n{ran.stdout.strip()}\n\n<!-- end -->"

    return re.sub(r"<!-- run: kanon (.+?) -->\n.*?<!-- end -->", run, page, flags=re.DOTALL)


def main() -> None:
    """Write both pages."""
    PAGE.write_text(text())
    COST.write_text(with_outputs(COST.read_text()))


if __name__ == "__main__":
    main()
