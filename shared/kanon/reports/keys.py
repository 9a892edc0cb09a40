"""Key pairs of the service: private keys by id, and the document of public keys that clients fetch."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from kanon.errors import Error

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
