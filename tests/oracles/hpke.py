"""HPKE (RFC 9180) written out: base mode, one message, X25519, HKDF-SHA256, ChaCha20-Poly1305.

Unlike the library of the product it takes the ephemeral key as an argument, so a message has known bytes.
"""

import hmac
from hashlib import sha256
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KEM, KDF, AEAD = b"\x00\x20", b"\x00\x01", b"\x00\x03"


class Sealed(NamedTuple):
    """A message and the secrets that it was made with."""

    encapsulated_key: bytes
    shared_secret: bytes
    key: bytes
    nonce: bytes
    ciphertext: bytes


def seal(cleartext: bytes, receiver: X25519PublicKey, ephemeral: X25519PrivateKey, info: bytes) -> Sealed:
    """Encrypt one message without associated data."""
    enc = ephemeral.public_key().public_bytes_raw()
    kem, suite = b"KEM" + KEM, b"HPKE" + KEM + KDF + AEAD
    eae_prk = _extract(kem, b"", b"eae_prk", ephemeral.exchange(receiver))
    shared = _expand(kem, eae_prk, b"shared_secret", enc + receiver.public_bytes_raw(), 32)
    context = b"\x00" + _extract(suite, b"", b"psk_id_hash", b"") + _extract(suite, b"", b"info_hash", info)
    secret = _extract(suite, shared, b"secret", b"")
    key, nonce = (_expand(suite, secret, label, context, size) for label, size in ((b"key", 32), (b"base_nonce", 12)))
    return Sealed(enc, shared, key, nonce, ChaCha20Poly1305(key).encrypt(nonce, cleartext, b""))


def _extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + material, sha256)


def _expand(suite: bytes, key: bytes, label: bytes, context: bytes, size: int) -> bytes:
    """The first block of HKDF-Expand: no more than 32 bytes are asked for."""
    text = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + context
    return hmac.digest(key, text + b"\x01", sha256)[:size]
