"""Rotation of the keys that reports are encrypted to.

A new key follows every 7 days. It is published for 14 days, opens reports for 120, and is destroyed a day later, when
the last job that may use it has ended. Then its reports can never be read again.

Each run repeats: read the ring, do the next due step. Every step may be repeated, so the next run continues one that
stopped anywhere:

    id pending in the ring  ->  private key in Secrets Manager  ->  public key in the ring, from now on published
    key ended               ->  secret deleted                  ->  key removed from the ring
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import uuid4

from kanon.reports.service.epoch import Epoch
from kanon.reports.storage.key_ring import Key, Keys
from kanon.reports.storage.private_keys import PrivateKeys

MOST_STEPS = 300


def _new_id() -> str:
    return str(uuid4())


@dataclass(frozen=True)
class Rotation:
    """Rotation with its tables and secrets.

    Attributes:
        epoch: the ring, and the budgets that its keys are issued for.
        private: the private keys.
        new_id: makes the id of a key, a UUID.
    """

    epoch: Epoch
    private: PrivateKeys
    new_id: Callable[[], str] = _new_id

    def run(self, now: float) -> Keys:
        """Do all due steps.

        Args:
            now: unix seconds.

        Returns:
            The ring when nothing is due any more.

        Raises:
            RuntimeError: other workers kept changing the ring.
        """
        for _ in range(MOST_STEPS):
            keys = self.epoch.ring.read()
            if keys is None:
                self.epoch.begin()
            elif not (self.destroy_one(keys, now) or self._step(keys, now)):
                return keys
        raise RuntimeError("other workers kept changing the key ring: the next run continues")

    def destroy_one(self, keys: Keys, now: float) -> bool:
        """Destroy a key that has ended; False if none has."""
        for key in keys.ended(now):
            self.private.destroy(key.id)
            return self._change(keys, keys.without(key))
        return False

    def _step(self, keys: Keys, now: float) -> bool:
        """Do the next due step; False if there is none. If the ring has changed meanwhile, nothing is done."""
        withdrawn = not self.epoch.is_of(keys)
        if withdrawn != keys.withdrawn:
            return self._change(keys, replace(keys, withdrawn=withdrawn))
        if keys.jobs_id is None:
            self.epoch.accept_jobs(keys)  # the first run after an update
            return True
        if withdrawn:
            return False
        if keys.pending is not None:
            public = self.private.make(keys.pending)
            return self._change(keys, keys.with_key(Key.made(keys.pending, public, now)))
        if keys.is_new_key_due(now):
            return self._change(keys, replace(keys, pending=self.new_id()))
        return False

    def _change(self, seen: Keys, to: Keys) -> bool:
        """Change the ring, unless another worker was first. Read the ring again in both cases."""
        self.epoch.ring.change(seen, to)
        return True
