"""``kanon operate new-report-keys``: begins a new epoch of the keys that reports are encrypted to.

Use it after the budget table was replaced, or a private key leaked. Every key ends immediately and its private key is
destroyed. Then no report encrypted to it can be opened, and none is charged to a table that may lack spent budgets. The
new epoch is one transaction on the ring and the table. It is safe to interrupt the command anywhere: run it again, or
let the function ``rotate`` finish.
"""

from dataclasses import dataclass

from kanon.errors import KanonError
from kanon.operate.stacks import RunningStack
from kanon.reports.service.rotation import Rotation
from kanon.reports.storage.key_ring import Keys
from kanon.reports.storage.private_keys import PrivateKeys


class NoNewKeysError(KanonError):
    """Nothing was changed; the message says why."""


@dataclass(frozen=True)
class Situation:
    """The current keys.

    Attributes:
        keys: the ring.
        replaced: whether table Budgets is not the one for which the keys were issued.
    """

    keys: Keys
    replaced: bool


def situation(stack: RunningStack) -> Situation:
    """Read the ring and compare it with table Budgets.

    Raises:
        NoNewKeysError: the stack has no keys.
    """
    epoch = _rotation(stack).epoch
    keys = epoch.ring.read()
    if keys is None:
        raise NoNewKeysError("the stack has no keys yet: nothing was changed; the first ones come within five minutes")
    return Situation(keys, not epoch.is_of(keys))


def renew(stack: RunningStack, seen: Keys, now: float) -> None:
    """Begin a new epoch at ``now`` (Unix s) and destroy all keys.

    The next rotation, within five minutes, issues the first new key.

    Raises:
        NoNewKeysError: the table has changed, or the ring is no longer as ``seen``.
    """
    rotation = _rotation(stack)
    if not rotation.epoch.renew(seen):
        raise NoNewKeysError("the keys or the table have changed meanwhile: nothing was changed, run the command again")
    while (keys := rotation.epoch.ring.read()) is not None and rotation.destroy_one(keys, now):
        pass


def _rotation(stack: RunningStack) -> Rotation:
    reports = stack.reports
    if reports is None:
        raise NoNewKeysError("Reports is OFF in this stack: nothing was changed")
    settings = reports.rotate
    private = PrivateKeys(reports.client("secretsmanager"), settings.report_key_prefix, settings.kms_key)
    return Rotation(reports.epoch, private)
