"""Encryption of one payload to a public key of the service: HPKE (RFC 9180), base mode, one message; and the keys.

DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, no associated data. ``info`` is
``aggregation_service`` followed by the text of shared_info exactly as it was received: a report with a changed hour,
origin or destination does not open.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from kanon.errors import Error

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
PREFIX = b"aggregation_service"
OVERHEAD = 48
"""Bytes that encryption adds: a key (32) before the cleartext, a tag (16) behind it."""


class DecryptionError(Error, ValueError):
    """A payload does not open: another key, another shared_info, or changed bytes."""


def seal(cleartext: bytes, key: X25519PublicKey, shared_info: str) -> bytes:
    """Encrypt a payload. The result is random, and ``OVERHEAD`` longer."""
    return SUITE.encrypt(cleartext, key, info=PREFIX + shared_info.encode())


def open_sealed(wire: bytes, key: X25519PrivateKey, shared_info: str) -> bytes:
    """Decrypt a payload under the text of shared_info as received.

    Raises:
        DecryptionError: the payload does not open.
    """
    try:
        return SUITE.decrypt(wire, key, info=PREFIX + shared_info.encode())
    except InvalidTag:
        raise DecryptionError("the payload does not open with this key and shared_info") from None


MOST_PUBLIC_KEYS = 5


class KeyDocumentError(Error, ValueError):
    """A key document is invalid; the message says what to change."""


@dataclass(frozen=True)
class PublicKey:
    """A key that clients encrypt to, and its id (a UUID)."""

    id: str
    key: X25519PublicKey


def public_document(keys: Mapping[str, X25519PrivateKey]) -> str:
    """The published JSON: ``{"keys": [{"id": uuid, "key": base64 of 32 bytes}]}``, 1 to 5 keys."""
    if not 1 <= len(keys) <= MOST_PUBLIC_KEYS:
        raise KeyDocumentError(f"1 to {MOST_PUBLIC_KEYS} keys must be published, not {len(keys)}")
    return _document({key_id: key.public_key().public_bytes_raw() for key_id, key in keys.items()})


def private_document(keys: Mapping[str, X25519PrivateKey]) -> str:
    """The JSON of the local tool's key file: the same form with private keys. Its holder can decrypt reports."""
    return _document({key_id: key.private_bytes_raw() for key_id, key in keys.items()})


def public_keys(document: str) -> list[PublicKey]:
    """Read published keys, in their order.

    Raises:
        KeyDocumentError: wrong form, no key or more than five, an id twice, or a key that is not 32 bytes.
    """
    keys = _keys(document)
    if len(keys) > MOST_PUBLIC_KEYS:
        raise KeyDocumentError(f"a document must have at most {MOST_PUBLIC_KEYS} public keys, not {len(keys)}")
    return [PublicKey(key_id, X25519PublicKey.from_public_bytes(raw)) for key_id, raw in keys.items()]


def private_keys(document: str) -> dict[str, X25519PrivateKey]:
    """Read a key file of the local tool.

    Raises:
        KeyDocumentError: wrong form, no key, an id twice, or a key that is not 32 bytes.
    """
    return {key_id: X25519PrivateKey.from_private_bytes(raw) for key_id, raw in _keys(document).items()}


def _document(keys: Mapping[str, bytes]) -> str:
    entries = [{"id": key_id, "key": base64.b64encode(raw).decode()} for key_id, raw in keys.items()]
    return json.dumps({"keys": entries}, indent=1)


def _keys(document: str) -> dict[str, bytes]:
    try:
        listed = json.loads(document)["keys"]
        entries = [(str(UUID(entry["id"])), base64.b64decode(entry["key"], validate=True)) for entry in listed]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise KeyDocumentError('a key document is {"keys": [{"id": UUID, "key": base64 of 32 bytes}]}') from error
    if not entries:
        raise KeyDocumentError("the key document holds no key: make one with `kanon reports keys`")
    if any(len(raw) != 32 for _, raw in entries):
        raise KeyDocumentError("a key must be 32 bytes in base64")
    if len(dict(entries)) < len(entries):
        raise KeyDocumentError("two keys have the same id: give each its own")
    return dict(entries)
