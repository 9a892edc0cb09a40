"""Names and keys: what a set and a client are called inside the service.

A set is known by its *set key*, an HMAC under the set pepper: a plain hash would let a reader of the tables
test guessed values. A client is known by a short *token*, different in every set: two sets' tokens cannot be
joined, and no table holds an identity.
"""

import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from kanon.errors import ConfigurationError
from kanon.gate.mechanism.tape import NoiseKey, length_prefixed

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

ClientKind = Literal["client", "short"]
"""The literal client "2" and the short identifier 2 are different clients."""


@dataclass(frozen=True)
class Secret:
    """A key of 32 bytes derived from a generated text, in a domain of its own."""

    name: str
    key: bytes

    @classmethod
    def derived(cls, name: str, text: str) -> "Secret":
        """Derive the key; the text must come from a generator of at least 256 bits."""
        return cls(name, sha256(length_prefixed(b"kanon/secret/1", name.encode(), text.encode())).digest())

    @property
    def fingerprint(self) -> str:
        """16 bytes in hexadecimal that recognise the key and tell nothing about it."""
        return sha256(length_prefixed(b"kanon/fingerprint/1", self.name.encode(), self.key)).hexdigest()[:32]

    def mac(self, *parts: bytes) -> bytes:
        """HMAC-SHA256 of the length-prefixed parts under this key."""
        mac = self._begun.copy()
        mac.update(length_prefixed(*parts))
        return mac.digest()

    @cached_property
    def _begun(self) -> hmac.HMAC:
        return hmac.new(self.key, digestmod="sha256")  # to begin anew costs more than all the rest

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"


def set_key(pepper: Secret, type_name: str, set_id: bytes) -> bytes:
    """The 32-byte key of a set."""
    return pepper.mac(type_name.encode(), set_id)


def client_token(client_key: Secret, set_key: bytes, kind: ClientKind, client: bytes, bits: int) -> int:
    """The first ``bits`` bits (at most 32) of the client's HMAC in this set."""
    digest = client_key.mac(set_key, kind.encode(), client)
    return int.from_bytes(digest[:4], "big") >> (32 - bits)


def slot_of(set_key: bytes, slots: int) -> int:
    """The slot of a set: the leading bits of its key; ``slots`` is a power of two up to 256."""
    return set_key[0] * slots >> 8


def fetch_secret(client: "SecretsManagerClient", name: str, arn: str) -> Secret:
    """Read a generated text from Secrets Manager and derive its key."""
    return Secret.derived(name, client.get_secret_value(SecretId=arn)["SecretString"])


def fetch_noise_keys(client: "SecretsManagerClient", arn: str, ids: Sequence[str]) -> dict[str, NoiseKey]:
    """Read the noise keys of the given ids; the secret is a JSON object of generated texts by key id.

    Raises:
        ConfigurationError: the secret lacks one of the ids.
    """
    texts = json.loads(client.get_secret_value(SecretId=arn)["SecretString"])
    missing = [key_id for key_id in ids if key_id not in texts]
    if missing:
        named = ", ".join(f"key {key_id}" for key_id in missing)
        raise ConfigurationError(f"the noise key secret lacks {named}: put it there first")
    return {key_id: NoiseKey(key_id, Secret.derived(f"noise-key/{key_id}", texts[key_id]).key) for key_id in ids}
