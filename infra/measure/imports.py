"""The start of a function in a new interpreter: imports and one client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from infra.measure.measure import Ratio, Turn, compare
from kanon.local.source import ROOT

LEAST = """
import botocore.session
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
APIGatewayHttpResolver(enable_validation=True)
botocore.session.get_session().create_client("dynamodb", region_name="us-east-1")
"""

OURS = """
import app
from kanon import aws
aws.dynamodb()
import sys
assert "numpy" not in sys.modules
"""


def start(function: str, environment: Mapping[str, str], turns: int) -> Ratio:
    """Importing a function and creating its client, relative to the libraries alone."""
    paths = [str(ROOT / "functions" / function), str(ROOT / "shared")]
    variables = {**environment, "AWS_DEFAULT_REGION": "us-east-1", "PYTHONPATH": os.pathsep.join(paths)}

    def run(text: str) -> None:
        subprocess.run([sys.executable, "-c", text], env={"PATH": os.environ["PATH"], **variables}, check=True)

    return compare(
        f"start of {function}",
        "importing botocore and Powertools' event handler with validation, one client",
        "start",
        lambda _: Turn(1, lambda: run(OURS)),
        lambda _: Turn(1, lambda: run(LEAST)),
        turns=turns,
        target=1.2,
        children=True,
    )
