"""The start of a function in a new interpreter: imports and one client, relative to the libraries alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from bench.harness import Comparison, Form, Side, Turn
from kanon.local import Stack
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


def rows(form: Form) -> Iterator[Comparison]:
    """The functions that start while somebody waits, and ``evaluate``."""
    with Stack({"Reports": "ON"}) as stack:
        environments = {name: dict(function.environment) for name, function in stack.functions.items()}
    for function, (least, against) in LEAST.items():
        name = Path(function).name
        paths = os.pathsep.join([str(ROOT / "functions" / function), str(ROOT / "shared")])
        variables = {"AWS_DEFAULT_REGION": "us-east-1", "PYTHONPATH": paths, "PATH": os.environ["PATH"]}
        ours, theirs = (Side(interpreter, (text, {**environments[name], **variables})) for text in (OURS, least))
        inside = "a new interpreter: imports, settings and models of the function, one client; no call"
        yield Comparison(f"start of {name}", inside, against, "start", ours, theirs, form.size(9, 1), 1.2)


def interpreter(text: str, environment: Mapping[str, str]) -> AbstractContextManager[Callable[[], Turn]]:
    """A new interpreter that runs a text."""
    run = partial(subprocess.run, [sys.executable, "-c", text], env=dict(environment), check=True)
    return nullcontext(lambda: Turn(1, run))
