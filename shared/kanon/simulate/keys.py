"""The keys of a simulation. They come from a seed: noise of a deployment must never meet a second log."""

from dataclasses import dataclass
from typing import Self

from kanon.keys import Secret
from kanon.noise.words import NoiseKey

DEPLOYMENT = "kanon/simulate"


@dataclass(frozen=True)
class Keys:
    """What a deployment names sets and clients with, and draws noise from."""

    pepper: Secret
    client_key: Secret
    noise_key: NoiseKey
    deployment: str

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """The keys of a seed. They are not secret: whoever knows the seed can remove the noise."""

        def derived(name: str) -> Secret:
            return Secret.derived(name, f"{DEPLOYMENT}/{seed}")

        noise_key = NoiseKey("1", derived("noise-key/1").key)
        return cls(derived("set-pepper"), derived("client-key"), noise_key, DEPLOYMENT)

    def __reduce__(self) -> tuple[object, ...]:
        """Keys go to other processes; what a key has prepared for its own process stays behind."""
        secrets = [Secret(secret.name, secret.key) for secret in (self.pepper, self.client_key)]
        return Keys, (*secrets, self.noise_key, self.deployment)
