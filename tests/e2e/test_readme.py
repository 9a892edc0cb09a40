"""The commands of the README, run as they stand."""

import json
import os
import re
import shutil
import subprocess
import time

import pytest

from tests.e2e.test_cli import serving
from tests.paths import ROOT

PAGE = (ROOT / "README.md").read_text()
SECONDS = 30  # for a join to show: the page says fifteen


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl"))), reason="needs curl")
def test_the_commands_of_the_readme_make_a_set_k_anonymous() -> None:
    (block,) = re.findall(r"^`make serve` .+?^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    crowd_joins, one_set, many_sets, one_type = block.strip().split("\n\n")
    with serving("moto") as address:

        def answer(commands: str) -> str:
            assert "http://127.0.0.1:8000/" in commands
            script = commands.replace("http://127.0.0.1:8000", address)
            environment = {**os.environ, "no_proxy": "127.0.0.1"}
            done = subprocess.run(
                ["bash", "-euc", script], capture_output=True, text=True, timeout=60, check=False, env=environment
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert json.loads(answer(one_set))["kAnonymous"] is False
        assert answer(crowd_joins) == "{}" * 100
        deadline = time.monotonic() + SECONDS
        while not (found := json.loads(answer(one_set))["kAnonymous"]) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert found
        asked = json.loads(answer(many_sets))["kAnonymousSets"]
        assert asked == [{"type": "fledge", "hashes": ["aGVsbG8"]}]
        assert json.loads(answer(one_type))["k"] == 50
