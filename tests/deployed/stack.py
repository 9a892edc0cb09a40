"""A stack that `sam deploy` makes on an emulator that enforces permissions."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.credentials import Credentials
from cfnlint.decode import cfn_yaml

from infra import smoke
from kanon.client import Connection
from kanon.local.engines import Ministack
from kanon.local.source import ROOT

REGION = "us-east-1"
STACK = "kanon-dev"  # as samconfig.toml calls it
BUILT = ROOT / ".aws-sam" / "host" / "template.yaml"
PARAMETERS = {
    "Runtime": f"python{sys.version_info[0]}.{sys.version_info[1]}",
    "Architecture": "x86_64" if os.uname().machine == "x86_64" else "arm64",
    "JoinAuth": "IAM",
    "LogRetention": "7",
    "LogLevel": "INFO",
    "Period": "60",
    "Grace": "30",
    "PublishDelay": "180",  # the schedule fires a minute after a step, and the margin is another
    "OutageAllowance": "172800",
    # A new slot first reads every step of the allowance: 2,880 steps in each partition.
    "Slots": '[{"slots":1,"partitions":2,"from_step":0}]',
    "Alarms": "OFF",  # the emulator refuses metric mathematics
    "Canary": "AllAtOnce",  # it has no CodeDeploy
    "DeletionProtection": "ON",
}


class Deployed:
    """A deployed stack."""

    def __init__(self, engine: Ministack, parameters: dict[str, str]) -> None:
        self.engine = engine
        self.session = boto3.Session("test", "test", region_name=REGION)
        self.deploy(parameters)
        described = self.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]
        self.outputs = {o["OutputKey"]: o["OutputValue"] for o in described["Outputs"]}
        self._mend_what_the_emulator_does_otherwise()

    def client(self, service: str, **credentials: str):
        session = boto3.Session(region_name=REGION, **credentials) if credentials else self.session
        return session.client(service, endpoint_url=self.engine.endpoint)

    def deploy(self, parameters: dict[str, str], environment: str = "dev", *options: str) -> None:
        """`sam deploy --config-env ...`, as an operator calls it; without parameters, with those of samconfig.toml."""
        # SAM takes the quotes of JSON away here; with_defaults gives such a value to the template.
        overrides = [f"{name}={value}" for name, value in parameters.items() if '"' not in value]
        result = subprocess.run(
            [
                str(ROOT / ".venv-sam" / "bin" / "sam"), "deploy", "--config-env", environment, *options,
                "--config-file", str(ROOT / "samconfig.toml"), "--region", REGION,
                "--template-file", str(with_defaults({"Canary": "AllAtOnce", **parameters})),
                *(["--parameter-overrides", *overrides] if overrides else []),
            ],
            env={**os.environ, "AWS_ENDPOINT_URL": str(self.engine.endpoint), "AWS_ACCESS_KEY_ID": "test",
                 "AWS_SECRET_ACCESS_KEY": "test", "SAM_CLI_TELEMETRY": "0"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]

    def _mend_what_the_emulator_does_otherwise(self) -> None:
        """Correct three differences from AWS, each as narrowly as possible; :func:`expanded` corrects a fourth.

        A number given by a parameter stays text. Ref of a secret gives its name instead of its ARN. The batch call of
        SQS requires an action that IAM does not have: on AWS, sqs:SendMessage covers it.
        """
        functions = self.client("lambda")
        for mapping in functions.list_event_source_mappings()["EventSourceMappings"]:
            scaling = {"MaximumConcurrency": int(mapping["ScalingConfig"]["MaximumConcurrency"])}
            functions.update_event_source_mapping(UUID=mapping["UUID"], ScalingConfig=scaling)
        secrets = self.client("secretsmanager").list_secrets()["SecretList"]
        arns = {secret["Name"]: secret["ARN"] for secret in secrets}
        iam = self.client("iam")
        for function in [name.removesuffix("Function") for name in self.outputs if name.endswith("Function")]:
            role = self.role(function).rsplit("/", 1)[1]
            for name in iam.list_role_policies(RoleName=role)["PolicyNames"]:
                document = iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
                for statement in document["Statement"]:
                    resources, actions = _listed(statement["Resource"]), _listed(statement["Action"])
                    statement["Resource"] = [arns.get(resource, resource) for resource in resources]
                    if "sqs:SendMessage" in actions:
                        statement["Action"] = [*actions, "sqs:SendMessageBatch"]
                iam.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=json.dumps(document))

        self._mend_policies_of_buckets()

    def _mend_policies_of_buckets(self) -> None:
        """Correct two more differences, in the policies of buckets, which the emulator enforces.

        It speaks no TLS, so the statement that refuses clear text is taken away. The principal of a session is the ARN
        of the session instead of that of its role.
        """
        s3 = self.client("s3")
        for name in (name for name in self.outputs if name.endswith("Bucket")):
            policy = json.loads(s3.get_bucket_policy(Bucket=self.outputs[name])["Policy"])
            kept = [one for one in policy["Statement"] if one["Sid"] != "RefuseClearText"]
            assert len(kept) == len(policy["Statement"]) - 1
            for statement in kept:
                roles = statement["Condition"]["ArnNotEquals"]["aws:PrincipalArn"]
                roles[:] = [role.replace(":iam:", ":sts:").replace(":role/", ":assumed-role/") + "/*" for role in roles]
            if kept:
                s3.put_bucket_policy(Bucket=self.outputs[name], Policy=json.dumps({**policy, "Statement": kept}))
            else:
                s3.delete_bucket_policy(Bucket=self.outputs[name])

    def function(self, name: str) -> dict:
        """The configuration of the version of a function that callers reach."""
        return self.client("lambda").get_function(FunctionName=self.outputs[f"{name}Function"])["Configuration"]

    def role(self, function: str) -> str:
        """The ARN of a function's role."""
        return self.function(function)["Role"]

    def secrets(self) -> list[tuple[str, str]]:
        """Version and text of the three secrets."""
        client = self.client("secretsmanager")
        names = ("SetPepperSecret", "ClientKeySecret", "NoiseKeySecret")
        answers = [client.get_secret_value(SecretId=self.outputs[name]) for name in names]
        return [(answer["VersionId"], answer["SecretString"]) for answer in answers]

    def service(self) -> smoke.Service:
        """The deployed API for `make smoke`, at the address that needs no name server."""
        api = self.outputs["ApiUrl"].removeprefix("http://").split(".")[0]
        url = f"{self.engine.endpoint}/_aws/execute-api/{api}/$default"
        return smoke.Service(url, Credentials("test", "test"), REGION)

    def request(self, method: str, path: str, body: object = None) -> tuple[int, dict]:
        """A request to the deployed API."""
        host = urlsplit(self.outputs["ApiUrl"]).netloc.partition(":")[0]
        headers = {"Content-Type": "application/json", "Host": host}
        with closing(Connection(self.engine.endpoint, timeout=60)) as connection:
            answer = connection(method, path, b"" if body is None else json.dumps(body).encode(), headers)
        return answer.status, json.loads(answer.body or b"{}")


def with_defaults(parameters: dict[str, str]) -> Path:
    """The built template with these values as defaults too: the emulator's SAM transform sees no other values."""
    document = cfn_yaml.load(str(BUILT))
    for name, value in parameters.items():
        document["Parameters"][name]["Default"] = value
    document["Resources"]["ReportsStack"]["Properties"]["TemplateURL"] = expanded(document["Parameters"])
    path = BUILT.with_name("template.json")
    path.write_text(json.dumps(document))
    return path


def expanded(parameters: dict[str, dict]) -> str:
    """The path of the built template of reports, expanded by SAM, with one layer for two.

    The emulator expands no nested template. It also keeps layers in separate directories, where Lambda unpacks them
    into one. So functions would not find ``kanon.reports`` beside the rest of ``kanon``.
    """
    directory = BUILT.parent / "ReportsStack"
    source = directory / "template.yaml"
    own = {name: str(parameters.get(name, {}).get("Default", "")) for name in cfn_yaml.load(str(source))["Parameters"]}
    case = {"template": str(source), "parameters": own, "contents": {}}
    done = subprocess.run(
        [ROOT / ".venv-sam" / "bin" / "python", ROOT / "tests" / "build" / "published.py"],
        input=json.dumps([case]), env={**os.environ, "AWS_DEFAULT_REGION": REGION},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (document,) = json.loads(done.stdout.splitlines()[-1])
    for resource in document["Resources"].values():
        for word in {"Code", "Content"} & set(resource["Properties"]):
            resource["Properties"][word] = resource["Properties"][word]["S3Key"]  # the build is in the same folder
        if resource["Type"] == "AWS::Lambda::Function":
            resource["Properties"]["Layers"].remove({"Ref": "Shared"})
        if resource["Type"] == "AWS::Lambda::LayerVersion":
            resource["Properties"]["Content"] = "Layers"
    for layer in (BUILT.parent / "Shared", directory / "ReportsLayer"):
        shutil.copytree(layer, directory / "Layers", dirs_exist_ok=True)
    (directory / "template.json").write_text(json.dumps(document))
    return f"{directory.name}/template.json"


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


@contextmanager
def deployment(parameters: dict[str, str]) -> Iterator[Deployed]:
    """A stack with these parameters on an emulator of its own."""
    if not BUILT.exists() or not Path(ROOT / ".venv-sam").exists():
        pytest.fail("build first: make e2e does")
    engine = Ministack(AUTH="true", SERVICES="", LOG_LEVEL="WARNING", MINISTACK_REGION=REGION)
    engine.start()
    try:
        yield Deployed(engine, parameters)
    finally:
        engine.stop()
