"""The processor time of the parts of a function's start: ``python -m infra.measure.starting``.

Each part runs in a new interpreter. Processor time, the median of several turns.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping

from infra.measure.imports import interpreter
from infra.openapi import ENVIRONMENT

TURNS = 9
CLOCK = "import time; began = time.process_time()\n"
TELL = "\nprint(time.process_time() - began)"
PARTS = {
    "boto3 and one client": f"{CLOCK}import boto3; boto3.client('dynamodb'){TELL}",
    "botocore and one client": (
        f"{CLOCK}import botocore.session; botocore.session.get_session().create_client('dynamodb'){TELL}"
    ),
    "importing join": f"{CLOCK}import app{TELL}",
    "its two clients": f"import app; from kanon import aws\n{CLOCK}aws.dynamodb(), aws.secrets_manager(){TELL}",
    "its two clients, after a snapshot": (
        "import app; from kanon import aws; aws.load_models('dynamodb', 'secretsmanager')\n"
        f"{CLOCK}aws.dynamodb(), aws.secrets_manager(){TELL}"
    ),
}


def seconds(text: str, environment: Mapping[str, str]) -> float:
    """The processor time that one run of a part prints."""
    done = subprocess.run([sys.executable, "-c", text], env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the median of each part."""
    keys = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    environment = interpreter("join", {**ENVIRONMENT, **keys})
    taken: dict[str, list[float]] = {name: [] for name in PARTS}
    for _ in range(TURNS):  # in turns: a busy machine slows all parts alike
        for name, text in PARTS.items():
            taken[name].append(seconds(text, environment))
    for name, each in taken.items():
        print(f"{name:<34} {statistics.median(each) * 1000:5.0f} ms")


if __name__ == "__main__":
    main()
