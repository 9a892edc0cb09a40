"""Writes the reference of the commands and the outputs in the cost guide: ``python -m infra.reference``."""

import re
import shlex
from pathlib import Path
from typing import Any

from typer.cli import get_docs_for_click
from typer.main import get_command
from typer.testing import CliRunner

from kanon.cli.main import app

DOCS = Path(__file__).parents[1] / "docs"
PAGE, COST = DOCS / "reference" / "cli.md", DOCS / "guides" / "cost.md"
HEAD = """# Commands

`make reference` generates this page from the code. `kanon COMMAND --help` prints the same. In a checkout the program is
`.venv/bin/kanon` after `make install`. `make demo`, `make serve` and `make simulate` install `.venv-demo/bin/kanon`,
which lacks the libraries of `kanon release` and `kanon risk`, and the emulator of `kanon serve` without `--data`.

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
    """The page, as ``typer utils docs`` writes it: one section for each command, those of groups included."""
    command: Any = get_command(app)
    written = get_docs_for_click(obj=command, ctx=command.context_class(command), name="kanon")
    sections = re.sub(r"^Example: (.+)$", r"Example: `\1`", written.partition("\n## ")[2], flags=re.MULTILINE)
    return f"{HEAD}\n## {sections.rstrip()}\n"


NOTES = "\n- "
"""Where the notes of an output begin."""


def with_outputs(page: str) -> str:
    """The page with new outputs of the commands in its blocks ``<!-- run: kanon ... -->`` to ``<!-- end -->``.

    Notes below a table, which the command prints as a list, are left out.
    """

    def run(block: re.Match[str]) -> str:
        ran = CliRunner().invoke(app, shlex.split(block[1]))
        if ran.exit_code:
            raise RuntimeError(f"kanon {block[1]}: {ran.output}")
        return f"<!-- run: kanon {block[1]} -->\n\n{ran.stdout.partition(NOTES)[0].strip()}\n\n<!-- end -->"

    return re.sub(r"<!-- run: kanon (.+?) -->\n.*?<!-- end -->", run, page, flags=re.DOTALL)


def main() -> None:
    """Write both pages."""
    PAGE.write_text(text())
    COST.write_text(with_outputs(COST.read_text()))


if __name__ == "__main__":
    main()
