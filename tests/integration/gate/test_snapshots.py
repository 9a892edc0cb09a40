"""A start from a snapshot: what must differ between environments is made after the restore."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kanon.local.source import ROOT
from tests.unit.gate.test_settings import JOIN, QUERY

SCRIPT = Path(__file__).with_name("snapshot_process.py")
GATEWAY = {
    "POWERTOOLS_SERVICE_NAME": "gateway",
    "POWERTOOLS_METRICS_NAMESPACE": "kanon",
    "KANON_PERIOD": "3600",
    "KANON_GATEWAY_KEY_SECRET": "key",
    "KANON_RELAY_SECRET": "relays",
    "KANON_EDGE_SECRET": "edge",
    "KANON_JOIN_FUNCTION": "join",
    "KANON_QUERY_FUNCTION": "query",
    "KANON_ISSUER_FUNCTION": "",
}
FUNCTIONS = {"join": JOIN, "query": QUERY, "gateway": GATEWAY}


@cache
def started(function: str, hooks: str) -> dict[str, Any]:
    """What the process finds in a snapshot of a function, and in two environments restored from it."""
    paths = [ROOT / "shared", ROOT / "functions" / function]
    environment = {
        **FUNCTIONS[function],
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PATH": os.environ["PATH"],
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "before",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.read_text(), hooks], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("function", FUNCTIONS)
def test_secrets_clients_connections_and_random_numbers_are_made_after_the_restore(function: str) -> None:
    found = started(function, "hooks")
    assert found["snapshot"] == {"clients": [], "secrets": 0, "sockets": 0, "begun": []}
    first, second = found["environments"]
    assert first["random"] != second["random"]
    assert [first["credentials"], second["credentials"]] == ["after-0", "after-1"]


def test_without_the_hooks_environments_would_draw_the_same_numbers_and_read_the_models_again() -> None:
    plain, prepared = started("join", "none")["environments"], started("join", "hooks")["environments"]
    assert plain[0]["random"] == plain[1]["random"]
    assert plain[0]["models_read"] > 0
    assert prepared[0]["models_read"] == 0
