"""The guide on clients: its example runs, and its commands do what it says."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.reports.payload import EncryptionKey
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "guides" / "reports.md").read_text()
GUIDE = PAGE.partition("\n## Clients\n")[2].partition("\n## ")[0]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_example_makes_reports_and_sends_what_is_due():
    example = runpy.run_path(str(ROOT / "examples" / "report" / "clients.py"))
    key = EncryptionKey("00000000-0000-4000-8000-000000000001", X25519PrivateKey.generate().public_key())
    reports = [example["of_a_window"](), example["of_a_purchase"]()]
    assert [[(pair.bucket, pair.value) for pair in report.contributions] for report in reports] == [
        [(42, 100)],
        [(0x107, 6000)],
    ]
    assert [len(example["send"](report, [key], 0)) for report in reports] == [1, 1]  # nothing is due at 0, or posted


@pytest.mark.slow
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
