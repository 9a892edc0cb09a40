"""The builds of `sam build`: for AWS without Docker and without Python 3.13, and for this machine."""

import base64
import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.steps import step_at
from kanon.gate.names import set_key
from kanon.gate.parts import decode
from kanon.gate.publishing import clock_step, tick_of
from kanon.gate.sealing import LISTER_KEY, opened, private_key
from kanon.gate.settings import QuerySettings
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.step_log import Row, StepLog
from kanon.keys import fetch_secret
from kanon.local import Stack
from kanon.local.engines import Ministack
from kanon.local.gateway import GatewayRequest, event
from kanon.local.source import ROOT
from tests.integration.gate.tables import move_horizon, states_of
from tests.queues import messages

pytestmark = pytest.mark.build

MEGABYTE = 1_000_000
AARCH64 = 183
PERIOD = 3600
REPORTS = ("Collect", "Store", "Jobs", "Decrypt", "Aggregate", "Rotate")
CROWD = 120  # more than M = 99: crosses with any noise
LAYER = {
    "": "aws clock errors hpke keys queues settings snapshots starting strict_json",
    "dynamo": "batches conditions fingerprints limits tables transactions units",
    "gate": "deciding evaluation fingerprints generations join_routes joining listed_sets memory merging models names"
    " parts paths publishing query_routes querying schedule sealing settings showing slots sweeping true_sets types",
    "gate/mechanism": "above_threshold bounds columns members parameters searches steps tape vectorised",
    "gate/storage": "protocols",
    "gate/storage/aws": "control gathering parts statuses step_joins step_log true_objects",
    "http": "answers bodies edge encoding function_url origin totals",
    "noise": "bound exact laws words",
}
"""The modules of the layer by folder. The list is closed: other code must not get into Lambda."""
OF_CREDENTIALS = ("__init__", "arc", "contexts", "enrolling", "p256", "proofs")
OF_ISSUER = ("admitting", "attesting", "enrol_routes", "issuer_settings", "storage/aws/accounts", "storage/aws/opening")
"""The modules of the layer of credentials."""
MOST_CODE = 500_000
"""Bytes of kanon's own code in the layer, and of the description of its API."""
SET = base64.urlsafe_b64encode(hashlib.sha256(b"an ad").digest()).decode().rstrip("=")
SLOT_EVENT = {
    "Records": [
        {
            "messageId": "m", "receiptHandle": "r", "body": json.dumps({"slot": 0, "hop": 0}), "attributes": {},
            "messageAttributes": {}, "md5OfBody": "", "eventSource": "aws:sqs", "awsRegion": "us-east-1",
            "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:queue",
        }
    ]
}  # fmt: skip
"""The message that asks for an evaluation of the only slot."""

RUNTIME = Path(__file__).with_name("runtime.py")


def size(directory: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def machine(library: Path) -> int:
    """The processor an ELF file is made for."""
    header = library.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    return int(struct.unpack_from("<H", header, 18)[0])


def run(
    build: Path, runtime_boto3: Path, stack: Stack, name: str, events: list[dict[str, Any]], layers: str = "Shared"
) -> dict[str, Any]:
    """Answer events in a process that sees a built function, the built layers and the runtime's boto3."""
    function = stack.functions[name.lower()]
    environment = {
        "PATH": "/usr/bin:/bin",
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory),
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        **function.environment,
    }
    with TemporaryDirectory() as opt:
        for layer in layers.split():  # as Lambda unpacks them: into one directory
            shutil.copytree(build / layer / "python", opt, dirs_exist_ok=True)
        directories = [build / name, Path(opt), runtime_boto3]
        return answered(directories, environment, events, stack.clock.now() - time.time())


def answered(
    directories: list[Path], environment: dict[str, str], events: list[dict[str, Any]], ahead: float = 0
) -> dict[str, Any]:
    """Answer events in a process that sees these directories alone, the function's first and the runtime's last."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", RUNTIME],
        check=False,
        input=f"{json.dumps(list(map(str, directories)))}\n{json.dumps(events)}\n{ahead}\n",
        env=environment,
        cwd=directories[0],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    allowed = (*map(str, directories), str(RUNTIME), sys.base_prefix)
    strangers = {module: file for module, file in result["files"].items() if not file.startswith(allowed)}
    assert not strangers, "imported from outside the build"
    assert result["files"]["botocore"].startswith(str(directories[-1]))
    return result


def http_event(stack: Stack, method: str, target: str, body: bytes = b"") -> dict[str, Any]:
    """The event of API Gateway for a request."""
    request = GatewayRequest(method, target, [("content-type", "application/json")], body)
    found = stack.gateway.find(request)
    assert found is not None
    made: dict[str, Any] = event(request, *found, stack.clock.now())
    return made


def layer_modules(build: Path) -> set[str]:
    """The files of the package kanon in the layer."""
    package = build / "Shared" / "python" / "kanon"
    return {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}


def test_build_for_aws_needs_neither_docker_nor_python_3_13(aws_build: Path, calls: Path) -> None:
    parts = {
        "Evaluate",
        "Join",
        "Query",
        "Sweep",
        "Shared",
        "SealingLayer",
        "CredentialsLayer",
        "CredentialsStack",
        "ReportsStack",
        "AnonymousStack",
        "template.yaml",
    }
    assert parts <= {path.name for path in aws_build.iterdir()}
    assert {*REPORTS, "ReportsLayer", "template.yaml"} <= {path.name for path in (aws_build / "ReportsStack").iterdir()}
    assert {"Gateway", "GatewayLayer", "template.yaml"} <= {
        path.name for path in (aws_build / "AnonymousStack").iterdir()
    }
    assert not calls.exists(), calls.read_text()


def test_libraries_for_aws_are_made_for_arm64_and_python_3_13(aws_build: Path) -> None:
    libraries = [path for path in aws_build.rglob("*.so*") if re.search(r"\.so(\.\d+)*$", path.name)]
    assert any("pydantic_core" in path.name for path in libraries)
    assert {machine(path) for path in libraries} == {AARCH64}
    extensions = [path.name for path in libraries if "cpython" in path.name]
    assert extensions
    assert all(".cpython-313-aarch64-linux-gnu.so" in name for name in extensions)


def test_libraries_of_the_host_profile_are_made_for_this_machine(host_build: Path) -> None:
    tag = f".cpython-{sys.version_info.major}{sys.version_info.minor}-"
    here = machine(Path(sys.executable).resolve())
    libraries = list(host_build.rglob("*.so"))
    assert libraries
    assert {machine(path) for path in libraries} == {here}
    extensions = [path.name for path in libraries if "cpython" in path.name]
    assert extensions
    assert all(tag in name for name in extensions)


def test_built_functions_are_small(build: Path) -> None:
    layer = size(build / "Shared")
    sizes = {name: layer + size(build / name) for name in ("Join", "Query", "Evaluate", "Sweep")}
    print({name: f"{bytes_ / MEGABYTE:.1f} MB" for name, bytes_ in sizes.items()})
    assert layer > 5 * MEGABYTE
    assert sizes["Join"] < 10 * MEGABYTE
    assert sizes["Query"] < 10 * MEGABYTE
    assert sizes["Evaluate"] < 90 * MEGABYTE
    assert sizes["Sweep"] < 90 * MEGABYTE


def test_numpy_is_shipped_with_functions_that_compute_alone(build: Path) -> None:
    holders = {path.parents[1].relative_to(build).as_posix() for path in build.rglob("numpy/__init__.py")}
    assert holders == {"Evaluate", "Sweep", "ReportsStack/Decrypt", "ReportsStack/Aggregate"}


def test_the_layer_holds_the_modules_of_the_functions_and_no_other(build: Path) -> None:
    modules = {path for path in layer_modules(build) if path.endswith(".py") and not path.endswith("__init__.py")}
    assert modules == {str(Path(folder, f"{name}.py")) for folder, names in LAYER.items() for name in names.split()}
    assert size(build / "Shared" / "python" / "kanon") < MOST_CODE


def test_layer_holds_these_packages_and_no_other(build: Path) -> None:
    assert {path.name for path in (build / "Shared").iterdir()} == {"python"}
    content = {path.name for path in (build / "Shared" / "python").iterdir()}
    packages = {name for name in content if not name.endswith(".dist-info")}
    assert packages == {
        "annotated_types",
        "aws_lambda_powertools",
        "jmespath",
        "kanon",
        "pydantic",
        "pydantic_core",
        "typing_extensions.py",
        "typing_inspection",
    }


def test_the_layer_that_seals_holds_libraries_alone(build: Path) -> None:
    content = {path.name.partition(".")[0] for path in (build / "SealingLayer" / "python").iterdir()}
    assert {name for name in content if not re.search(r"-\d+$", name)} == {
        "_cffi_backend",
        "cffi",
        "cryptography",
        "pycparser",
    }
    assert size(build / "SealingLayer") < 20 * MEGABYTE


def test_the_layer_of_credentials_holds_their_code_and_one_library(build: Path) -> None:
    layer: Path = build / "CredentialsLayer" / "python"
    content = {path.name for path in layer.iterdir()}
    assert {name for name in content if ".dist-info" not in name} == {"Crypto", "kanon"}
    found = {path.relative_to(layer / "kanon").as_posix() for path in (layer / "kanon").rglob("*.py")}
    assert found == {f"credentials/{name}.py" for name in OF_CREDENTIALS} | {f"gate/{name}.py" for name in OF_ISSUER}
    assert size(layer) < 12 * MEGABYTE


def test_built_join_checks_credentials_with_its_layer(host_build: Path, runtime_boto3: Path) -> None:
    types = {"people": {"k": 50, "window": 24, "profile": "crossing", "credential": True}}
    proof = {"presentation": {"epoch": 0, "step": 0, "proof": "A" * 347}}
    with Stack({"Types": json.dumps(types)}, engine=Ministack) as stack:
        join = http_event(stack, "POST", "/v1/types/people/sets/aGVsbG8:join", json.dumps(proof).encode())
        joined = run(host_build, runtime_boto3, stack, "Join", [join], "Shared CredentialsLayer")
        assert [answer["statusCode"] for answer in joined["answers"]] == [400]
        assert "name the current step" in joined["answers"][0]["body"]


def test_built_join_seals_values_with_its_layer(host_build: Path, runtime_boto3: Path) -> None:
    types = {"terms": {"k": 50, "window": 24, "profile": "crossing", "listed": True}}
    value = "how to plant a tree"
    name = base64.urlsafe_b64encode(hashlib.sha256(value.encode()).digest()).decode().rstrip("=")
    body = json.dumps({"client": "me", "value": value}).encode()
    with Stack({"Types": json.dumps(types)}, engine=Ministack) as stack:
        join = http_event(stack, "POST", f"/v1/types/terms/sets/{name}:join", body)
        joined = run(host_build, runtime_boto3, stack, "Join", [join], "Shared SealingLayer")
        assert [answer["statusCode"] for answer in joined["answers"]] == [200]
        (row,) = stack.session.client("dynamodb").scan(TableName=stack.storage.tables["StepLog"])["Items"]
        secrets = stack.session.client("secretsmanager")
        secret = fetch_secret(secrets, LISTER_KEY, stack.template.parameters["ListerKeySecret"])
        assert opened(row["sealed"]["B"], private_key(secret), row["set_token"]["B"][:32]) == value.encode()


@pytest.mark.parametrize("function", ["Join", "Query"])
def test_functions_without_packages_hold_only_their_own_files(aws_build: Path, function: str) -> None:
    content = {path.name for path in (aws_build / function).iterdir()}
    source = {path.name for path in (ROOT / "functions" / function.lower()).iterdir()}
    assert content - {".lock"} == source - {"__pycache__"}
    assert "app.py" in content


def test_built_template_is_the_template_with_built_paths(aws_build: Path) -> None:
    class Loader(yaml.SafeLoader):
        """Reads tags as their text."""

    Loader.add_multi_constructor("!", lambda loader, suffix, node: (suffix, str(node.value)))
    built = yaml.load((aws_build / "template.yaml").read_text(), Loader)
    source = yaml.load((ROOT / "template.yaml").read_text(), Loader)
    assert set(built["Resources"]) == set(source["Resources"])
    for name in ("Join", "Evaluate", "Query", "Sweep"):
        assert built["Resources"][name]["Properties"]["CodeUri"] == name
    assert built["Resources"]["Shared"]["Properties"]["ContentUri"] == "Shared"


def let_a_crowd_have_joined(stack: Stack) -> tuple[bytes, int]:
    """Rows of SET in the last two closed steps: a crowd, then one client. Returns its key and the last closed step.

    The horizon of the last tick is written too, so that the results of this evaluation are visible at once.
    """
    environment = {**stack.functions["query"].environment, **stack.functions["evaluate"].environment}
    client = stack.session.client("dynamodb")
    secrets = stack.session.client("secretsmanager")
    pepper = fetch_secret(secrets, "set-pepper", environment["KANON_SET_PEPPER_SECRET"])
    key = set_key(pepper, "fledge", base64.urlsafe_b64decode(f"{SET}="))
    now, delay = stack.clock.now(), int(environment["KANON_PUBLISH_DELAY"])
    last = step_at(now - int(environment["KANON_GRACE"]), PERIOD) - 1
    rows = [Row(last - 1, key, token, "fledge", 2**31) for token in range(CROWD)]
    log = StepLog(client, environment["KANON_STEP_LOG_TABLE"], QuerySettings.from_environment(environment).layouts)
    assert not log.put_all([*rows, Row(last, key, CROWD, "fledge", 2**31)])
    shown = clock_step(now, PERIOD, delay)
    move_horizon(Statuses(client, environment["KANON_STATUSES_TABLE"]), 0, shown, tick_of(shown, PERIOD, delay))
    mark = {"name": {"S": "slot#0#0"}, "evaluated_through": {"N": str(min(shown, last - 2))}}
    client.put_item(TableName=environment["KANON_CONTROL_TABLE"], Item=mark)
    return key, last


def newest_parts(stack: Stack) -> list[bytes]:
    """The objects of the parts that the newest manifest of slot 0 lists."""
    environment, place, s3 = stack.functions["evaluate"].environment, Place(0, 0), stack.session.client("s3")
    row = Control(stack.session.client("dynamodb"), environment["KANON_CONTROL_TABLE"]).row(place)
    bucket = environment["KANON_STATES_BUCKET"]
    assert row.manifest
    pieces = PartObjects(s3, bucket, place).list_of(row.manifest).pieces
    return [s3.get_object(Bucket=bucket, Key=piece.name)["Body"].read() for piece in pieces]


def test_built_functions_answer_without_the_checkout(host_build: Path, runtime_boto3: Path, emulated: Stack) -> None:
    path = f"/v1/types/fledge/sets/{SET}"
    join = http_event(emulated, "POST", f"{path}:join", b'{"client": "me"}')
    joined = run(host_build, runtime_boto3, emulated, "Join", [join])
    assert [(answer["statusCode"], json.loads(answer["body"])) for answer in joined["answers"]] == [(200, {})]
    assert not joined["finds_numpy"]

    key, last = let_a_crowd_have_joined(emulated)
    evaluated = run(host_build, runtime_boto3, emulated, "Evaluate", [{"schedule": True}, SLOT_EVENT])
    assert evaluated["answers"][1] == {"batchItemFailures": []}
    assert messages(emulated, "Queue") == ['{"slot":0,"hop":0}']
    assert evaluated["finds_numpy"]
    (part,) = map(decode, newest_parts(emulated))
    state = states_of(part)[key]
    # The second step read what the first had written: only its client joined after the crossing.
    assert state.crossings[0] == last - 1
    assert state.members == (Member(CROWD, last),)

    get = http_event(emulated, "GET", path)
    ask = {"setsForType": [{"type": "fledge", "hashes": [base64.b64encode(b"unknown").decode(), SET]}]}
    query = http_event(emulated, "POST", "/v1:query", json.dumps(ask).encode())
    asked = run(host_build, runtime_boto3, emulated, "Query", [get, query])
    one, many = (json.loads(answer["body"]) for answer in asked["answers"])
    assert [answer["statusCode"] for answer in asked["answers"]] == [200, 200]
    assert one["kAnonymous"] is True
    assert many["kAnonymousSets"] == [{"type": "fledge", "hashes": [SET]}]
    assert not asked["finds_numpy"]
