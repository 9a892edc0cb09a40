"""Encryption of one payload to a public key of the service: HPKE (RFC 9180), base mode, one message.

DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, no associated data. ``info`` is
``aggregation_service`` followed by the text of shared_info exactly as it was received: a report with a changed hour,
origin or destination does not open.
"""

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
