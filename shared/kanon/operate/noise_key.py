"""``kanon operate destroy-noise-key``: removes an old noise key from all versions of its secret.

Secrets Manager cannot delete one version. It keeps the newest hundred, and all of the last 24 hours. So the secret is
written again, at the pace that AWS asks for, until it has removed every version that holds the key.
"""

import json
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from kanon.errors import KanonError
from kanon.gate.fingerprints import missing_noise_keys, steps_late
from kanon.gate.settings import NoiseKeyEntry
from kanon.operate.stacks import RunningStack

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

PACE = 600
"""Seconds between two writes of a secret: AWS removes old versions no faster than one in ten minutes."""
MOST_WRITES = 300
"""Two days of writes, enough for both limits of Secrets Manager. A version that is still there has a label."""


class NoiseKeyKeptError(KanonError):
    """The key is needed, or Secrets Manager still holds it; the message says what to do."""


def last_needed(stack: RunningStack, new: NoiseKeyEntry) -> int:
    """The last step that may need the key before ``new``: its searches begin before the first step of ``new``.

    With restart after the crossing they may run for an epoch, and a replay may evaluate them again within the outage
    allowance.
    """
    settings = stack.evaluate
    again = steps_late(settings)
    kept = [
        p.cycle + (0 if p.restart is None else again)
        for p in (type_.parameters for type_ in settings.read_types().values())
    ]
    return new.from_step + max(kept)


def refuse_needed(stack: RunningStack, key_id: str) -> None:
    """Check that no search needs the key any more.

    Raises:
        NoiseKeyKeptError: it is configured, or in force after a rollback, or a slot is not evaluated far enough.
    """
    entries, layouts = stack.evaluate.noise_keys, stack.evaluate.layouts
    if key_id in [entry.id for entry in missing_noise_keys(stack.control.recorded("evaluate"), entries)]:
        raise NoiseKeyKeptError(
            f"noise key {key_id} is newer than the configured ones, because a deployment was rolled back: it is in"
            f" force"
        )
    if key_id in [entry.id for entry in entries]:
        raise NoiseKeyKeptError(f"noise key {key_id} is configured: first remove it from NoiseKeys and deploy")
    last, marks = last_needed(stack, entries[0]), stack.marks
    if entries[0].from_step > 0 and any(layouts.steps(slot, marks.get(slot) or 0, last) for slot in layouts.slots):
        raise NoiseKeyKeptError(
            f"noise key {key_id} is needed until every slot is evaluated through step {last}: run the command then"
        )


def holding(manager: "SecretsManagerClient", arn: str, key_id: str) -> set[str]:
    """The ids of the versions of the secret that hold the key.

    Raises:
        NoiseKeyKeptError: there are none.
    """
    if held := _holding(manager, arn, key_id):
        return held
    raise NoiseKeyKeptError(f"no version of the secret holds noise key {key_id}: nothing was changed")


def _holding(manager: "SecretsManagerClient", arn: str, key_id: str) -> set[str]:
    return {version for version in _versions(manager, arn) if key_id in _texts(manager, arn, version)}


def destroy(
    manager: "SecretsManagerClient",
    arn: str,
    key_id: str,
    held: Collection[str],
    wait: Callable[[float], None],
    tell: Callable[[int, int], None],
) -> None:
    """Remove the key from the secret, and write the secret again until no version holds the key.

    It is safe to interrupt and to repeat.

    Args:
        manager: a client of Secrets Manager.
        arn: the secret: a JSON object of random strings by key id.
        key_id: which key.
        held: the versions that hold it.
        wait: waits for some seconds.
        tell: called before each wait with the number of versions written and the number that still hold the key.

    Raises:
        NoiseKeyKeptError: a version is not removed.
    """
    for written in range(1, MOST_WRITES + 1):
        texts = {name: text for name, text in _texts(manager, arn).items() if name != key_id}
        manager.put_secret_value(SecretId=arn, SecretString=json.dumps(texts))
        held = set(held).intersection(_versions(manager, arn)) or _holding(manager, arn, key_id)
        if not held:
            return
        tell(written, len(held))
        wait(PACE)
    raise NoiseKeyKeptError(
        f"Secrets Manager still keeps {len(held)} versions that hold noise key {key_id}: remove their staging labels,"
        " then run the command again"
    )


def _versions(manager: "SecretsManagerClient", arn: str) -> list[str]:
    """The ids of all versions of a secret, with and without labels."""
    answer = manager.list_secret_version_ids(SecretId=arn, IncludeDeprecated=True)
    versions = [version["VersionId"] for version in answer["Versions"]]
    while token := answer.get("NextToken"):
        answer = manager.list_secret_version_ids(SecretId=arn, IncludeDeprecated=True, NextToken=token)
        versions += [version["VersionId"] for version in answer["Versions"]]
    return versions


def _texts(manager: "SecretsManagerClient", arn: str, version: str | None = None) -> dict[str, str]:
    """The keys in a version of the secret, by default the current one; none if it was removed meanwhile."""
    which = {} if version is None else {"VersionId": version}
    try:
        texts: dict[str, str] = json.loads(manager.get_secret_value(SecretId=arn, **which)["SecretString"])
    except manager.exceptions.ResourceNotFoundException:
        if version is None:
            raise
        return {}
    return texts
