"""The examples of docs/reference/api.md, run unchanged against a service on this machine."""

import base64
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kanon.gate.names import set_key
from kanon.gate.storage.aws.statuses import Statuses
from kanon.keys import fetch_secret
from kanon.local import Stack
from tests.integration.gate.tables import cross, move_horizon
from tests.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "api.md"
# Every curl of the page prints its request and fails if it is refused.
CURL = 'curl() { command curl --silent --show-error --fail-with-body "$@" || exit 1; echo; }\n'

STEP = 500_000  # of the page's answers
STEP_VISIBLE = (STEP + 1) * 3600 + 1800.0


def release(stack: Stack, set_id: bytes) -> None:
    """Write what evaluate writes when a set crosses at the step of the page."""
    environment = stack.functions["query"].environment
    pepper = fetch_secret(stack.session.client("secretsmanager"), "set-pepper", environment["KANON_SET_PEPPER_SECRET"])
    statuses = Statuses(stack.session.client("dynamodb"), environment["KANON_STATUSES_TABLE"])
    cross(statuses, set_key(pepper, "fledge", set_id), (STEP,), 2**31)
    move_horizon(statuses, 0, STEP, int(STEP_VISIBLE))


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "openssl", "basenc"))), reason="needs curl and openssl")
def test_every_example_of_the_page_is_answered(tmp_path: Path) -> None:
    examples = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    with Stack(start=STEP_VISIBLE) as stack:
        release(stack, base64.b64decode("c2V0IG9uZQ=="))
        server = stack.serve()
        try:
            script = tmp_path / "examples.sh"
            script.write_text(CURL + "\n".join(examples).replace("http://127.0.0.1:8000", server.url))
            environment = {**os.environ, "no_proxy": "127.0.0.1"}
            run = subprocess.run(
                ["bash", "-eu", script], capture_output=True, text=True, timeout=600, check=False, env=environment
            )
        finally:
            server.close()
    assert run.returncode == 0, run.stdout + run.stderr
    answers = [line for line in run.stdout.splitlines() if line]
    promised = re.findall(r"^# (.*)$", "\n".join(examples), re.MULTILINE)
    assert len(answers) == sum(example.count("curl ") for example in examples)
    for promise in promised:
        assert any(answer.startswith(promise.removesuffix("...")) for answer in answers), f"{promise}\n{answers}"
