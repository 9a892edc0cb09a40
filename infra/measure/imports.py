"""The start of a function in a new interpreter: imports and one client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from infra.measure.measure import Ratio, Turn, compare
from infra.measure.rows import Form, row
from infra.measure.service import service
from kanon.local.source import ROOT

HTTP = """
import botocore.session
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
APIGatewayHttpResolver(enable_validation=True)
botocore.session.get_session().create_client("dynamodb", region_name="us-east-1")
"""
QUEUE = """
import botocore.session, numpy
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType
from pydantic import BaseModel
BatchProcessor(event_type=EventType.SQS)
botocore.session.get_session().create_client("dynamodb", region_name="us-east-1")
"""
OF_HTTP = "importing botocore and Powertools' event handler with validation, one client"
LEAST = {
    "join": (HTTP, OF_HTTP),
    "query": (HTTP, OF_HTTP),
    "evaluate": (QUEUE, "importing botocore, numpy, pydantic and Powertools' batch processor, one client"),
    "reports/collect": (HTTP, OF_HTTP),
    "reports/jobs": (HTTP, OF_HTTP),
}
"""The minimal imports of a function, by its folder."""
HEAVY = ("numpy", "fastavro", "cbor2", "cryptography", "publicsuffixlist")
"""Modules that functions behind HTTP must not import at their start."""

OURS = f"""
import app, sys
from kanon import aws
aws.dynamodb()
found = [name for name in {HEAVY!r} if name in sys.modules]
assert found == (["numpy"] if "evaluate" in app.__file__ else []), found
"""


def interpreter(function: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a new interpreter that imports a function, by its folder, as ``app``."""
    paths = os.pathsep.join([str(ROOT / "functions" / function), str(ROOT / "shared")])
    return {**variables, "AWS_DEFAULT_REGION": "us-east-1", "PYTHONPATH": paths, "PATH": os.environ["PATH"]}


@row("start")
def start(form: Form) -> Iterator[Ratio]:
    """Importing a function and creating its client, relative to the libraries alone."""
    with service({"Reports": "ON"}) as running:
        environments = running.environments
    for function, (least, against) in LEAST.items():
        name = Path(function).name
        run = partial(subprocess.run, env=interpreter(function, environments[name]), check=True)
        yield compare(
            f"start of {name}",
            against,
            "start",
            partial(Turn, 1, partial(run, [sys.executable, "-c", OURS])),
            partial(Turn, 1, partial(run, [sys.executable, "-c", least])),
            inside="a new interpreter: imports, settings and models of the function, one client; no call",
            turns=form.size(9, 1),
            target=1.2,
            children=True,
        )
