"""HPKE (RFC 9180) with export: base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM.

``cryptography`` encrypts one message and exports nothing, but the answer of Oblivious HTTP is encrypted under an
exported secret. So the key schedule is here, over the primitives of ``cryptography``; a test compares both.
"""

import hmac
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from kanon.errors import Error

KEM, KDF, AEAD = 0x0020, 0x0001, 0x0002
ENC_BYTES, KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 32, 12, 16
_KEM_SUITE = b"KEM" + KEM.to_bytes(2, "big")
_SUITE = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (KEM, KDF, AEAD))
_BASE = b"\0"


class SealedError(Error, ValueError):
    """An encrypted message does not open: another key, or changed bytes."""


@dataclass(frozen=True, repr=False)
class Context:
    """The state of one message, the same on both sides."""

    key: bytes
    nonce: bytes
    exporter: bytes

    def export(self, label: bytes, size: int) -> bytes:
        """A secret of ``size`` bytes that only both sides know."""
        return _expand(_SUITE, self.exporter, b"sec", label, size)

    def seal(self, cleartext: bytes) -> bytes:
        """Encrypt the message. A context encrypts one only."""
        return seal(self.key, self.nonce, cleartext)

    def open(self, sealed: bytes) -> bytes:
        """Decrypt the message.

        Raises:
            SealedError: it does not open.
        """
        return open_sealed(self.key, self.nonce, sealed)


def sender(key: X25519PublicKey, info: bytes) -> tuple[bytes, Context]:
    """The encapsulated key to send, and the context.

    Raises:
        SealedError: the public key has a small order.
    """
    own = X25519PrivateKey.generate()
    enc = own.public_key().public_bytes_raw()
    return enc, _context(_shared(own, key), enc + key.public_bytes_raw(), info)


def receiver(key: X25519PrivateKey, enc: bytes, info: bytes) -> Context:
    """The context for an encapsulated key.

    Raises:
        SealedError: the encapsulated key has a small order.
    """
    secret = _shared(key, X25519PublicKey.from_public_bytes(enc))
    return _context(secret, enc + key.public_key().public_bytes_raw(), info)


def extract(salt: bytes, secret: bytes) -> bytes:
    """HKDF-Extract with SHA-256."""
    return hmac.digest(salt or bytes(32), secret, "sha256")


def expand(key: bytes, info: bytes, size: int) -> bytes:
    """HKDF-Expand with SHA-256."""
    return HKDFExpand(SHA256(), size, info).derive(key)


def seal(key: bytes, nonce: bytes, cleartext: bytes) -> bytes:
    """AES-256-GCM without associated data."""
    return AESGCM(key).encrypt(nonce, cleartext, None)


def open_sealed(key: bytes, nonce: bytes, sealed: bytes) -> bytes:
    """The inverse of ``seal``.

    Raises:
        SealedError: it does not open.
    """
    try:
        return AESGCM(key).decrypt(nonce, sealed, None)
    except InvalidTag:
        raise SealedError("the message does not open: another key, or changed bytes") from None


def _shared(own: X25519PrivateKey, other: X25519PublicKey) -> bytes:
    try:
        return own.exchange(other)
    except ValueError:
        raise SealedError("the key of the message has a small order") from None


def _context(exchanged: bytes, keys: bytes, info: bytes) -> Context:
    """The key schedule of RFC 9180, section 5.1, after that of the KEM, section 4.1."""
    shared = _expand(_KEM_SUITE, _extract(_KEM_SUITE, b"", b"eae_prk", exchanged), b"shared_secret", keys, 32)
    hashes = (_extract(_SUITE, b"", label, text) for label, text in ((b"psk_id_hash", b""), (b"info_hash", info)))
    context = _BASE + b"".join(hashes)
    secret = _extract(_SUITE, shared, b"secret", b"")
    parts = ((b"key", KEY_BYTES), (b"base_nonce", NONCE_BYTES), (b"exp", 32))
    return Context(*(_expand(_SUITE, secret, label, context, size) for label, size in parts))


def _extract(suite: bytes, salt: bytes, label: bytes, secret: bytes) -> bytes:
    return extract(salt, b"HPKE-v1" + suite + label + secret)


def _expand(suite: bytes, key: bytes, label: bytes, info: bytes, size: int) -> bytes:
    return expand(key, size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info, size)
