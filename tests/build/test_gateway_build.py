"""The build of the gateway: a function with its library, and a layer with its room alone."""

import base64
import json
import shutil
from pathlib import Path

import pytest

from kanon.gateway.oblivious import CONFIG_BYTES, KEYS_PATH
from kanon.local import Stack
from tests.build.test_build import MEGABYTE, answered, size
from tests.paths import ROOT

pytestmark = pytest.mark.build

MODULES = "__init__ answering binary_http epochs hpke oblivious settings"


def test_the_layer_of_the_gateway_holds_its_room_alone(build: Path) -> None:
    room = build / "AnonymousStack" / "GatewayLayer" / "python" / "kanon"
    assert [path.name for path in room.iterdir()] == ["gateway"]
    assert {path.name for path in (room / "gateway").iterdir()} == {f"{name}.py" for name in MODULES.split()}
    assert not (build / "Shared" / "python" / "kanon" / "gateway").exists()
    assert size(build / "Shared") + size(build / "AnonymousStack" / "Gateway") < 40 * MEGABYTE


def test_the_built_gateway_answers_without_the_checkout(
    host_build: Path, runtime_boto3: Path, emulated: Stack, tmp_path: Path
) -> None:
    opt = tmp_path / "opt"
    for layer in (host_build / "Shared", host_build / "AnonymousStack" / "GatewayLayer"):
        shutil.copytree(layer / "python", opt, dirs_exist_ok=True)
    secret = emulated.template.resolve({"Ref": "SetPepper"})  # any text: the gateway derives its keys from it
    environment = {
        "PATH": "/usr/bin:/bin",
        "AWS_LAMBDA_FUNCTION_NAME": "gateway",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "POWERTOOLS_SERVICE_NAME": "gateway",
        "POWERTOOLS_METRICS_NAMESPACE": "kanon",
        **emulated.engine.environment(),
        "KANON_PERIOD": "3600",
        "KANON_GATEWAY_KEY_SECRET": secret,
        "KANON_RELAY_SECRET": "",
        "KANON_EDGE_SECRET": "",
        "KANON_JOIN_FUNCTION": "join",
        "KANON_QUERY_FUNCTION": "query",
        "KANON_ISSUER_FUNCTION": "",
    }
    event = {
        "rawPath": KEYS_PATH,
        "headers": {},
        "requestContext": {"stage": "$default", "http": {"method": "GET", "path": KEYS_PATH}},
    }
    directories = [host_build / "AnonymousStack" / "Gateway", opt, runtime_boto3]
    (key,) = answered(directories, environment, [event])["answers"]
    assert key["statusCode"] == 200, json.dumps(key)
    assert len(base64.b64decode(key["body"])) == CONFIG_BYTES
    content = {path.name for path in (ROOT / "functions" / "gateway").iterdir()} - {"__pycache__"}
    assert content <= {path.name for path in directories[0].iterdir()}
