"""The guide on clients: its code runs, and its commands do what it says."""

import re
import shlex
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.reports.clients.encrypt import ClientReport
from kanon.reports.payload import PublicKey

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "guides" / "reports.md").read_text()
GUIDE = PAGE.partition("\n## Clients\n")[2].partition("\n## ")[0]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_guide_runs():
    key = PublicKey("00000000-0000-4000-8000-000000000001", X25519PrivateKey.generate().public_key())
    names = {"keys": [key], "now": 0}  # nothing is due at 0, so nothing is posted
    for block in blocks("python"):
        exec(block, names)

    assert isinstance(names["report"], ClientReport)
    assert [(pair.bucket, pair.value) for pair in names["report"].contributions] == [(0x107, 6000)]
    assert len(names["pending"]) == 1


@pytest.mark.parametrize("options", [[], ["--client", "attribution"]], ids=["windows", "attribution"])
def test_the_commands_of_the_guide_run_on_its_table(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    (table,) = blocks("csv")
    Path("events.csv").write_text(table)
    for command in "".join(blocks("sh")).splitlines():
        program, *words = shlex.split(command)
        assert program == "kanon"
        more = options if "simulate" in words else ["--any-age"] if "aggregate" in words else []
        ran = CliRunner().invoke(app, [*words, *more])
        assert ran.exit_code == 0, ran.output
