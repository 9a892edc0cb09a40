"""The tools that look for weaknesses in code and templates find planted ones, and every exception is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infrastructure.template import PATH, ROOT

RUFF = Path(sys.executable).with_name("ruff")
CHECKOV = ROOT / ".venv-security" / "bin" / "checkov"
EXCEPTIONS = ROOT / ".checkov.yaml"
CONFIGURATION = yaml.safe_load(EXCEPTIONS.read_text())

# Each line is the whole of a module of the service.
WEAK_CODE = {
    "S102": "exec(input())",
    "S105": 'password = "correct horse"',
    "S113": 'import requests\n\nrequests.get("https://example.com")',
    "S301": "import pickle\n\npickle.loads(b'')",
    "S306": "import tempfile\n\ntempfile.mktemp()",
    "S307": "eval(input())",
    "S311": "import random\n\nkey = random.randbytes(32)",
    "S324": "import hashlib\n\nhashlib.md5(b'')",
    "S501": 'import requests\n\nrequests.get("https://example.com", timeout=1, verify=False)',
    "S506": "import yaml\n\nyaml.load('')",
    "S602": "import subprocess\n\nsubprocess.run(input(), shell=True)",
    "S603": "import subprocess\n\nsubprocess.run([input()])",
    "S608": 'name = input()\nquery = f"SELECT * FROM users WHERE name = {name}"',
    "PLE2502": "text = '\N{RIGHT-TO-LEFT OVERRIDE}'",
}


@pytest.mark.parametrize("place", ["shared/kanon/keys.py", "functions/query/app.py"])
@pytest.mark.parametrize("rule", WEAK_CODE)
def test_weak_code_in_the_service_is_found(rule: str, place: str) -> None:
    result = subprocess.run(
        [RUFF, "check", "--output-format", "json", "--stdin-filename", ROOT / place, "-"],
        input=WEAK_CODE[rule],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert rule in {finding["code"] for finding in json.loads(result.stdout)}, result.stderr


WEAK_SETTINGS = {
    "CKV_AWS_7": ("EnableKeyRotation: true", "EnableKeyRotation: false"),
    "CKV_AWS_33": ("AWS: !Sub arn:${AWS::Partition}:iam::${AWS::AccountId}:root", 'AWS: "*"'),
    "CKV_AWS_45": ("POWERTOOLS_SERVICE_NAME: join", "AWS_SECRET_ACCESS_KEY: wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    "CKV_AWS_60": ("Principal: {Service: scheduler.amazonaws.com}", 'Principal: {AWS: "*"}'),
    "CKV_AWS_62": (
        "Action: [dynamodb:PutItem, dynamodb:BatchWriteItem]\n                Resource: !GetAtt StepLog.Arn",
        'Action: "*"\n                Resource: "*"',
    ),
    "CKV_AWS_66": ("RetentionInDays: !Ref LogRetention", "LogGroupClass: STANDARD"),
    "CKV_AWS_95": ("AccessLogSettings:", "StageVariables:"),
    "CKV_AWS_119": ("{SSEEnabled: true, SSEType: KMS, KMSMasterKeyId: !GetAtt Key.Arn}", "{SSEEnabled: true}"),
    "CKV_AWS_149": ("KmsKeyId: !GetAtt Key.Arn", 'KmsKeyId: ""'),
    "CKV_AWS_364": (
        "Principal: apigateway.amazonaws.com\n      SourceAccount: !Ref AWS::AccountId\n      SourceArn:",
        "Principal: apigateway.amazonaws.com\n      EventSourceToken:",
    ),
}

WEAK_SETTINGS_OF_REPORTS = {
    "CKV_AWS_7": ("EnableKeyRotation: true", "EnableKeyRotation: false"),
    "CKV_AWS_53": ("BlockPublicAcls: true", "BlockPublicAcls: false"),
    "CKV_AWS_54": ("BlockPublicPolicy: true", "BlockPublicPolicy: false"),
    "CKV_AWS_55": ("IgnorePublicAcls: true", "IgnorePublicAcls: false"),
    "CKV_AWS_56": ("RestrictPublicBuckets: true", "RestrictPublicBuckets: false"),
    "CKV_AWS_66": ("RetentionInDays: !Ref LogRetention", "LogGroupClass: STANDARD"),
    "CKV_AWS_119": ("{SSEEnabled: true, SSEType: KMS, KMSMasterKeyId: !Ref KeyArn}", "{SSEEnabled: true}"),
    "CKV_AWS_149": ("KmsKeyId: !Ref KeyArn", 'KmsKeyId: ""'),
}


def checkov(directory: Path, files: list[Path], **configuration: Any) -> set[str]:
    """The checks that fail, run where no other configuration is in sight."""
    if not CHECKOV.exists():
        pytest.fail("run `make security`: checkov has an environment of its own")
    path = directory / "checkov.yaml"
    path.write_text(yaml.safe_dump({**configuration, "file": [str(file) for file in files]}))
    result = subprocess.run(
        [CHECKOV, "--config-file", path, "--output", "json"],
        cwd=directory,
        env={**os.environ, "HOME": str(directory)},
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(result.stdout)
    assert report["summary"]["passed"] > 0, result.stdout + result.stderr
    assert report["summary"]["parsing_errors"] == 0, result.stderr
    return {finding["check_id"] for finding in report["results"]["failed_checks"]}


@pytest.mark.security
@pytest.mark.parametrize(
    ("path", "settings"),
    [(PATH, WEAK_SETTINGS), (ROOT / "infra" / "reports.yaml", WEAK_SETTINGS_OF_REPORTS)],
    ids=["gate", "reports"],
)
def test_weak_settings_in_a_template_are_found(
    path: Path, settings: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    text = path.read_text()
    for sound, weak in settings.values():
        assert sound in text
        text = text.replace(sound, weak)
    (tmp_path / "template.yaml").write_text(text)
    found = checkov(tmp_path, [tmp_path / "template.yaml"], **CONFIGURATION)
    assert set(settings) - found == set()


@pytest.mark.security
def test_the_templates_need_exactly_the_exceptions_that_are_explained(tmp_path: Path) -> None:
    templates = [ROOT / name for name in CONFIGURATION["file"]]
    everything = {name: value for name, value in CONFIGURATION.items() if name != "skip-check"}
    assert checkov(tmp_path, templates, **everything) == set(CONFIGURATION["skip-check"])


def test_every_exception_is_explained_above_it() -> None:
    _, _, exceptions = EXCEPTIONS.read_text().partition("skip-check:\n")
    listed = [line.strip() for line in exceptions.splitlines()]
    assert len(CONFIGURATION["skip-check"]) == sum(line.startswith("- ") for line in listed) > 0
    for above, line in zip(["", *listed], listed, strict=False):
        assert not line.startswith("- ") or above.startswith("# "), line
