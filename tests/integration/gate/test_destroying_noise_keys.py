"""`kanon operate destroy-noise-key` on a secret alone. moto keeps all versions, so these tests remove the old ones."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws
from moto.secretsmanager.models import secretsmanager_backends

from kanon.operate import noise_key
from kanon.operate.noise_key import NoiseKeyKeptError, destroy, holding

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

KEYS = {"1": "old " * 16, "2": "new " * 16}


def stored(arn: str) -> dict[str, dict[str, Any]]:
    """The versions of a secret in moto, oldest first."""
    backends = [backend for regions in secretsmanager_backends.values() for backend in regions.values()]
    (found,) = (backend.secrets[arn] for backend in backends if arn in backend.secrets)
    versions: dict[str, dict[str, Any]] = found.versions
    return versions


def remove_old_versions(arn: str) -> None:
    """As Secrets Manager does, which keeps the newest hundred."""
    versions = stored(arn)
    while len(versions) > 100:
        del versions[next(iter(versions))]


def texts(arn: str) -> list[dict[str, str]]:
    return [json.loads(version["secret_string"]) for version in stored(arn).values()]


@pytest.fixture
def manager() -> "Iterator[SecretsManagerClient]":
    with mock_aws():
        yield boto3.client("secretsmanager", "us-east-1", aws_access_key_id="a", aws_secret_access_key="b")


@pytest.fixture
def arn(manager: "SecretsManagerClient") -> str:
    """A secret whose first version holds key 1, the next two both keys."""
    arn: str = manager.create_secret(Name="noise", SecretString=json.dumps({"1": KEYS["1"]}))["ARN"]
    for _ in range(2):
        manager.put_secret_value(SecretId=arn, SecretString=json.dumps(KEYS))
    return arn


def test_no_version_holds_the_key_afterwards_and_the_other_key_is_kept(
    manager: "SecretsManagerClient", arn: str
) -> None:
    told: list[tuple[int, int]] = []
    held = holding(manager, arn, "1")
    destroy(manager, arn, "1", held, lambda _: remove_old_versions(arn), lambda *left: told.append(left))
    assert {json.dumps(each) for each in texts(arn)} == {json.dumps({"2": KEYS["2"]})}
    assert (told[0], told[-1]) == ((1, 3), (100, 1))
    with pytest.raises(NoiseKeyKeptError, match="no version of the secret holds noise key 1: nothing was changed"):
        holding(manager, arn, "1")


def test_after_an_interruption_the_current_version_lacks_the_key_and_the_next_run_removes_the_others(
    manager: "SecretsManagerClient", arn: str
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        destroy(manager, arn, "1", holding(manager, arn, "1"), interrupt, lambda *_: None)
    assert texts(arn)[-1] == {"2": KEYS["2"]}
    destroy(manager, arn, "1", holding(manager, arn, "1"), lambda _: remove_old_versions(arn), lambda *_: None)
    assert not any("1" in each for each in texts(arn))


def test_a_version_that_secrets_manager_never_removes_is_reported(
    manager: "SecretsManagerClient", arn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_key, "MOST_WRITES", 5)
    with pytest.raises(NoiseKeyKeptError, match="keeps 3 versions that hold noise key 1: remove their staging labels"):
        destroy(manager, arn, "1", holding(manager, arn, "1"), lambda _: None, lambda *_: None)
