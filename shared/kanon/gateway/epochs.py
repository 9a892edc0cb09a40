"""The keys of the gateway: one for each week, derived from one secret, so every instance has the same."""

from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.clock import valid_weeks, week_of
from kanon.gateway.oblivious import LAST_ID, KeyConfig
from kanon.keys import Secret


@dataclass(frozen=True)
class Epochs:
    """The keys of a deployment. Whoever has the secret can open every request that was recorded."""

    secret: Secret = field(repr=False)

    def current(self, now: float) -> KeyConfig:
        """The key of the week of ``now`` (Unix s), to which clients encrypt."""
        return KeyConfig(id_of_week(now), _derived(self.secret, week_of(now)).public_key())

    def opening(self, key_id: int, now: float) -> X25519PrivateKey | None:
        """The private key of an id; None if it is not valid at ``now``."""
        return next((_derived(self.secret, epoch) for epoch in valid_weeks(now) if _id(epoch) == key_id), None)


def id_of_week(now: float) -> int:
    """The id of the current key of every deployment."""
    return _id(week_of(now))


def _id(epoch: int) -> int:
    return 1 + epoch % LAST_ID


@lru_cache(maxsize=4)
def _derived(secret: Secret, epoch: int) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(secret.mac(b"gateway", epoch.to_bytes(8, "big")))
