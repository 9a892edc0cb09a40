"""cfn-lint, with the rules of cfn-lint-serverless, and sam report no problem of the template."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infrastructure.template import PATH, ROOT

CFN_LINT = Path(sys.executable).with_name("cfn-lint")
SAM = ROOT / ".venv-sam" / "bin" / "sam"
NESTED = sorted((ROOT / "infra").glob("*.yaml"))

pytestmark = pytest.mark.build


def cfn_lint(*templates: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CFN_LINT, "--append-rules", "cfn_lint_serverless.rules", "--", *map(str, templates)],
        cwd=ROOT,
        env={**os.environ, "AWS_DEFAULT_REGION": "us-east-1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_cfn_lint_finds_nothing() -> None:
    result = cfn_lint(PATH, *NESTED)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


PLANTED = {
    "E1010": ("!GetAtt Statuses.Arn", "!GetAtt Status.Arn"),
    "E3002": ("PayloadFormatVersion:", "PayloadVersion:"),
    "E3003": ("      Qualifier: live\n", ""),
    "E3034": ("MemorySize: 512", "MemorySize: 5"),
    "ES6000": ("cfn-lint: {config: {ignore_checks: [ES6000]}}", "lint: none"),
}


def test_cfn_lint_finds_a_planted_error(tmp_path: Path) -> None:
    text = PATH.read_text()
    for sound, spoiled in PLANTED.values():
        assert sound in text
        text = text.replace(sound, spoiled)
    template = tmp_path / "template.yaml"
    template.write_text(text)
    result = cfn_lint(template)
    assert [finding for finding in PLANTED if finding not in result.stdout] == [], result.stdout + result.stderr


def test_sam_validate_finds_nothing() -> None:
    result = subprocess.run(
        [str(SAM), "validate", "--lint", "--template-file", str(PATH)],
        cwd=ROOT,
        env={**os.environ, "AWS_DEFAULT_REGION": "us-east-1", "SAM_CLI_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "is a valid SAM Template" in result.stdout
