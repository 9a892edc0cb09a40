"""Oblivious HTTP (RFC 9458): key configurations, and messages in capsules.

A key configuration has 41 bytes, as Chromium reads it: id, KEM, public key, and one pair of KDF and AEAD. It has no
length before it, as the list of ``application/ohttp-keys`` in the RFC has.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from kanon.gateway import hpke
from kanon.gateway.hpke import SealedError

KEYS_TYPE, REQUEST_TYPE, RESPONSE_TYPE = "application/ohttp-keys", "message/ohttp-req", "message/ohttp-res"
KEYS_PATH, GATEWAY_PATH = "/v1/proxy/keys", "/v1/gateway"
STEP_FIELD = "kanon-step"
"""The field in which an inner request names its step."""
CONFIG_BYTES = 41
LAST_ID = 127
"""Chromium takes ids from 1 to this one."""
HEADER_BYTES = 7
OVERHEAD = HEADER_BYTES + hpke.ENC_BYTES + hpke.TAG_BYTES
"""Bytes by which a request gets longer."""
_REQUEST, _RESPONSE = b"message/bhttp request", b"message/bhttp response"
_KEM, _KDF_AEAD = hpke.KEM.to_bytes(2, "big"), hpke.KDF.to_bytes(2, "big") + hpke.AEAD.to_bytes(2, "big")
_SYMMETRIC = len(_KDF_AEAD).to_bytes(2, "big") + _KDF_AEAD


@dataclass(frozen=True)
class KeyConfig:
    """A public key, and its id from 1 to 127."""

    id: int
    key: X25519PublicKey

    def encode(self) -> bytes:
        """The 41 bytes."""
        return bytes([self.id]) + _KEM + self.key.public_bytes_raw() + _SYMMETRIC


def read_config(encoded: bytes) -> KeyConfig:
    """Read a key configuration.

    Raises:
        ValueError: it is not one of 41 bytes for these algorithms.
    """
    if len(encoded) != CONFIG_BYTES or encoded[1:3] != _KEM or encoded[35:] != _SYMMETRIC:
        raise ValueError("the keys are not one key of 41 bytes for X25519, HKDF-SHA256 and AES-256-GCM")
    if not 1 <= encoded[0] <= LAST_ID:
        raise ValueError(f"the id of the key is not 1 to {LAST_ID}")
    return KeyConfig(encoded[0], X25519PublicKey.from_public_bytes(encoded[3:35]))


@dataclass(frozen=True)
class Exchange:
    """What both sides keep of a request until its response."""

    enc: bytes
    context: hpke.Context = field(repr=False)

    def seal(self, response: bytes, nonce: bytes | None = None) -> bytes:
        """Encrypt the response, on the side of the service. Only tests choose the nonce."""
        nonce = nonce or os.urandom(hpke.KEY_BYTES)
        return nonce + hpke.seal(*self._keys(nonce), response)

    def open(self, sealed: bytes) -> bytes:
        """Decrypt the response, on the side of the client.

        Raises:
            SealedError: it does not open.
        """
        if len(sealed) < hpke.KEY_BYTES + hpke.TAG_BYTES:
            raise SealedError("the response is too short")
        return hpke.open_sealed(*self._keys(sealed[: hpke.KEY_BYTES]), sealed[hpke.KEY_BYTES :])

    def _keys(self, nonce: bytes) -> tuple[bytes, bytes]:
        """Key and nonce of the response (RFC 9458, section 4.4)."""
        secret = hpke.extract(self.enc + nonce, self.context.export(_RESPONSE, hpke.KEY_BYTES))
        return hpke.expand(secret, b"key", hpke.KEY_BYTES), hpke.expand(secret, b"nonce", hpke.NONCE_BYTES)


def seal_request(request: bytes, config: KeyConfig) -> tuple[bytes, Exchange]:
    """Encrypt a request, on the side of the client.

    Raises:
        SealedError: the public key has a small order.
    """
    header = bytes([config.id]) + _KEM + _KDF_AEAD
    enc, context = hpke.sender(config.key, _info(header))
    return header + enc + context.seal(request), Exchange(enc, context)


def open_request(sealed: bytes, key_of: Callable[[int], X25519PrivateKey | None]) -> tuple[bytes, Exchange]:
    """Decrypt a request, on the side of the service.

    Args:
        sealed: what arrived.
        key_of: the private key of an id; None if it is not valid.

    Raises:
        SealedError: it does not open.
    """
    header, enc = sealed[:HEADER_BYTES], sealed[HEADER_BYTES : HEADER_BYTES + hpke.ENC_BYTES]
    if len(sealed) < OVERHEAD or header[1:] != _KEM + _KDF_AEAD:
        raise SealedError("the request is too short, or for other algorithms")
    key = key_of(header[0])
    if key is None:
        raise SealedError("the key of the request is not valid now")
    context = hpke.receiver(key, enc, _info(header))
    return context.open(sealed[HEADER_BYTES + hpke.ENC_BYTES :]), Exchange(enc, context)


def _info(header: bytes) -> bytes:
    return _REQUEST + b"\0" + header
