"""Keys, derived from the random strings that Secrets Manager stores."""

import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from kanon.errors import ConfigurationError
from kanon.noise.words import NoiseKey, length_prefixed

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


@dataclass(frozen=True)
class Secret:
    """A 32-byte key derived from a random string; different names give independent keys."""

    name: str
    key: bytes

    @classmethod
    def derived(cls, name: str, text: str) -> "Secret":
        """Derive the key. The generator of ``text`` must provide at least 256 bits of randomness."""
        return cls(name, sha256(length_prefixed(b"kanon/secret/1", name.encode(), text.encode())).digest())

    @property
    def fingerprint(self) -> str:
        """16 bytes in hexadecimal that identify the key and reveal nothing about it."""
        return sha256(length_prefixed(b"kanon/fingerprint/1", self.name.encode(), self.key)).hexdigest()[:32]

    def mac(self, *parts: bytes) -> bytes:
        """HMAC-SHA256 of the length-prefixed parts under this key."""
        mac = self._empty_mac.copy()
        mac.update(length_prefixed(*parts))
        return mac.digest()

    @cached_property
    def _empty_mac(self) -> hmac.HMAC:
        return hmac.new(self.key, digestmod="sha256")  # key setup dominates the cost; reuse it

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"


def fetch_secret(client: "SecretsManagerClient", name: str, arn: str) -> Secret:
    """Read a random string from Secrets Manager and derive its key."""
    return Secret.derived(name, client.get_secret_value(SecretId=arn)["SecretString"])


def fetch_header_values(client: "SecretsManagerClient", arn: str, what: str) -> tuple[str, ...]:
    """Read the values that a header may have, from a JSON object. There are two while the value changes.

    Raises:
        ConfigurationError: the secret is not a JSON object of texts, or has an empty one.
    """
    return tuple(_texts(client, arn, what).values())


def fetch_noise_keys(
    client: "SecretsManagerClient", arn: str, ids: Sequence[str], if_there: Sequence[str] = ()
) -> dict[str, NoiseKey]:
    """Read the noise keys with the given ids, and those of ``if_there`` that the secret has.

    The secret is a JSON object of random strings by key id.

    Raises:
        ConfigurationError: the secret lacks one of the ids, is not a JSON object of texts, or has an empty one, whose
            noise anybody could compute.
    """
    texts = _texts(client, arn, "noise key secret")
    missing = [key_id for key_id in ids if key_id not in texts]
    if missing:
        named = ", ".join(f"key {key_id}" for key_id in missing)
        raise ConfigurationError(f"the noise key secret lacks {named}: add it to the secret first")
    present = [*ids, *(key_id for key_id in if_there if key_id in texts)]
    return {key_id: NoiseKey(key_id, Secret.derived(f"noise-key/{key_id}", texts[key_id]).key) for key_id in present}


def _texts(client: "SecretsManagerClient", arn: str, what: str) -> dict[str, str]:
    """The texts in a secret by their names. Another form is a ConfigurationError."""
    try:
        texts = json.loads(client.get_secret_value(SecretId=arn)["SecretString"])
    except ValueError:
        texts = None
    if not isinstance(texts, dict) or not texts or not all(isinstance(text, str) and text for text in texts.values()):
        raise ConfigurationError(f'the {what} must be a JSON object such as {{"name": "..."}} without empty texts')
    return texts
