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


class Secret:
    """A secret with the semantics of Secrets Manager: labels, deprecated versions, pages, and the removal of old ones.

    Only the newest hundred versions and those with a label are kept. ``cut`` ends the process before or after the
    ``cut``-th call.
    """

    class exceptions:  # noqa: N801, as in boto3
        class ResourceNotFoundException(Exception): ...  # noqa: N818

    def __init__(self, *texts: dict[str, str], kept: int = 4) -> None:
        self.versions: dict[str, tuple[str, set[str]]] = {}
        self.kept, self.calls, self.cut, self.after = kept, 0, 0, False
        for each in texts:
            self._put(json.dumps(each))

    def _called(self, what: Any) -> Any:
        self.calls += 1
        if self.calls == self.cut and not self.after:
            raise KeyboardInterrupt
        answer = what()
        if self.calls == self.cut:
            raise KeyboardInterrupt
        return answer

    def _put(self, text: str) -> None:
        for _, labels in self.versions.values():
            labels.discard("AWSPREVIOUS")
            if "AWSCURRENT" in labels:
                labels.remove("AWSCURRENT")
                labels.add("AWSPREVIOUS")
        self.versions[f"version-{len(self.versions)}-{self.calls}"] = text, {"AWSCURRENT"}
        old = [name for name, (_, labels) in self.versions.items() if not labels]
        for name in old[: len(self.versions) - self.kept] if len(self.versions) > self.kept else []:
            del self.versions[name]

    def put_secret_value(self, **asked: str) -> None:
        self._called(lambda: self._put(asked["SecretString"]))

    def get_secret_value(self, **asked: str) -> Any:
        def found() -> dict[str, str]:
            for name, (text, labels) in self.versions.items():
                if name == asked.get("VersionId") or ("VersionId" not in asked and "AWSCURRENT" in labels):
                    return {"SecretString": text}
            raise self.exceptions.ResourceNotFoundException

        return self._called(found)

    def list_secret_version_ids(self, **asked: Any) -> Any:
        """Pages of two; the second one is empty, and still names a next one."""

        def listed() -> dict[str, Any]:
            deprecated, page = asked.get("IncludeDeprecated", False), int(asked.get("NextToken", "0"))
            shown = [{"VersionId": name} for name, (_, labels) in self.versions.items() if deprecated or labels]
            first = 2 * max(page - 1, 0)
            more = {"NextToken": str(page + 1)} if page == 0 or first + 2 < len(shown) else {}
            return {"Versions": [] if page == 1 else shown[:2] if page == 0 else shown[first : first + 2], **more}

        return self._called(listed)

    @property
    def holds_key_1(self) -> bool:
        return any("1" in json.loads(text) for text, _ in self.versions.values())


def run_command(secret: Secret) -> None:
    manager: Any = secret
    destroy(manager, "arn", "1", holding(manager, "arn", "1"), lambda _: None, lambda *_: None)


@pytest.mark.parametrize("place", range(7))
def test_a_key_is_found_and_removed_in_whatever_version_it_is(place: int) -> None:
    """Current, previous, deprecated, on any page: one version of seven holds the key."""
    secret = Secret(*({"2": "new"} | ({"1": "old"} if n == place else {}) for n in range(7)), kept=7)
    assert secret.holds_key_1
    run_command(secret)
    assert not secret.holds_key_1
    assert {text for text, _ in secret.versions.values()} == {'{"2": "new"}'}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_after_an_end_at_any_call_the_command_completes_and_no_other_key_is_lost(*, after: bool) -> None:
    texts = {"1": "old"}, KEYS, {"2": "new"}, KEYS
    whole = Secret(*texts)
    run_command(whole)
    for cut in range(1, whole.calls + 1):
        secret = Secret(*texts)
        secret.cut, secret.after = cut, after
        with pytest.raises(KeyboardInterrupt):
            run_command(secret)
        if secret.holds_key_1:
            run_command(secret)
        assert not secret.holds_key_1, cut
        assert "2" in json.loads(list(secret.versions.values())[-1][0]), cut


def test_a_version_that_somebody_restores_meanwhile_is_removed_too() -> None:
    secret = Secret(KEYS, KEYS)
    manager: Any = secret
    waits: list[float] = []

    def restored(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            secret._put(json.dumps(KEYS))

    destroy(manager, "arn", "1", holding(manager, "arn", "1"), restored, lambda *_: None)
    assert not secret.holds_key_1
    assert len(waits) > 5
