"""The private keys of the service in Secrets Manager: one secret for each, named by the key's id.

Secrets keep old versions for a while. So each key has its own secret and is destroyed with it.
"""

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from mypy_boto3_secretsmanager import SecretsManagerClient


class PrivateKeys:
    """The private keys of a deployment. Keys that were read stay in memory only."""

    def __init__(self, client: "SecretsManagerClient", prefix: str, kms_key: str = "") -> None:
        self._client = client
        self._prefix = prefix
        self._kms_key = kms_key
        self._kept: dict[str, X25519PrivateKey] = {}

    def make(self, key_id: str) -> str:
        """Write a new private key under an id, unless it has one. Returns the public key, base64.

        Raises:
            RuntimeError: the secret of an earlier attempt is being deleted.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        private = X25519PrivateKey.generate()
        try:
            self._client.create_secret(
                Name=self._name(key_id),
                Description="kanon: a private key of reports",
                KmsKeyId=self._kms_key,
                SecretString=base64.b64encode(private.private_bytes_raw()).decode(),
            )
        except self._client.exceptions.ResourceExistsException:
            earlier = self._read(key_id)
            if earlier is None:
                raise RuntimeError("the secret of a new key is marked for deletion: restore it first") from None
            private = earlier
        return base64.b64encode(private.public_key().public_bytes_raw()).decode()

    def existing(self, ids: Sequence[str]) -> "dict[str, X25519PrivateKey]":
        """The private keys with these ids that still exist. Other keys are dropped from memory."""
        found = {key_id: self._kept.get(key_id) or self._read(key_id) for key_id in ids}
        self._kept = {key_id: key for key_id, key in found.items() if key is not None}
        return dict(self._kept)

    def destroy(self, key_id: str) -> None:
        """Delete the secret of a key immediately. It may be called again.

        There is no recovery window: within one, a role that may restore secrets could still open every report of the
        key.
        """
        try:
            self._client.delete_secret(SecretId=self._name(key_id), ForceDeleteWithoutRecovery=True)
        except self._client.exceptions.ResourceNotFoundException:
            return

    def _read(self, key_id: str) -> "X25519PrivateKey | None":
        """The private key; None if its secret was deleted, or is marked for deletion."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        gone = self._client.exceptions.ResourceNotFoundException, self._client.exceptions.InvalidRequestException
        try:
            text = self._client.get_secret_value(SecretId=self._name(key_id))["SecretString"]
        except gone:
            return None
        return X25519PrivateKey.from_private_bytes(base64.b64decode(text, validate=True))

    def _name(self, key_id: str) -> str:
        return f"{self._prefix}{key_id}"

    def __repr__(self) -> str:
        return f"PrivateKeys({len(self._kept)} kept)"
