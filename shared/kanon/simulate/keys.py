"""The keys of a simulation. They come from a seed, because a deployment's noise must not be used for another log."""

from dataclasses import dataclass
from typing import Self

from kanon.keys import Secret
from kanon.noise.words import NoiseKey

DEPLOYMENT = "kanon/simulate"


@dataclass(frozen=True)
class Keys:
    """The keys for the names of sets and clients, and for noise."""

    pepper: Secret
    client_key: Secret
    noise_key: NoiseKey
    deployment: str

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """The keys of a seed. They are not secret: with the seed, anybody can remove the noise."""

        def derived(name: str) -> Secret:
            return Secret.derived(name, f"{DEPLOYMENT}/{seed}")

        noise_key = NoiseKey("1", derived("noise-key/1").key)
        return cls(derived("set-pepper"), derived("client-key"), noise_key, DEPLOYMENT)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the secrets only: prepared hash states cannot be sent to another process."""
        secrets = [Secret(secret.name, secret.key) for secret in (self.pepper, self.client_key)]
        return Keys, (*secrets, self.noise_key, self.deployment)
