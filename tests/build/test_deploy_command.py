"""The deploy commands of the pages work as printed, from a fresh shell, up to the first call of AWS."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from kanon.local.source import ROOT

pytestmark = pytest.mark.build

NO_CREDENTIALS = "Unable to locate credentials"


def fresh_shell(command: str, home: Path, **variables: str) -> str:
    """What a command prints in a shell that has no settings of AWS and no path but the system's."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=ROOT,
        env={**environment, "SAM_CLI_TELEMETRY": "0", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_the_command_of_the_readme_asks_for_nothing_but_credentials(tmp_path: Path) -> None:
    (command,) = re.findall(r"^make build && (.*sam deploy.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert NO_CREDENTIALS in fresh_shell(command, tmp_path)  # `make build` is what the fixtures of this folder run


@pytest.mark.parametrize("environment", ["dev", "prod"])
def test_the_commands_of_the_guide_ask_for_nothing_but_credentials(environment: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "deploy.md").read_text()
    block = next(text for text in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "make build" in text)
    lines = [line for line in block.splitlines() if line.startswith("export ") or f"--config-env {environment}" in line]
    assert len(lines) == 3
    assert NO_CREDENTIALS in fresh_shell("\n".join(lines), tmp_path)


def test_without_a_region_the_error_is_the_one_that_the_guide_names(tmp_path: Path) -> None:
    sam = os.path.relpath(ROOT / ".venv-sam" / "bin" / "sam", ROOT)
    said = "Unable to resolve a region"
    assert said in (ROOT / "docs" / "guides" / "deploy.md").read_text()
    assert said in fresh_shell(f"{sam} deploy --config-env dev", tmp_path)
