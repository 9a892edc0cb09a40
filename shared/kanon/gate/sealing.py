"""Values of listed types, sealed to the public key of the lister.

Whoever writes or stores a join cannot open its value. HPKE (RFC 9180), base mode, one message: DHKEM(X25519,
HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305. ``info`` is ``kanon listed value 1`` followed by the set key, so a value
that was carried to another set does not open. The cleartext is the length of the value (2 bytes), the value, and zeros
up to a multiple of 32 bytes: the length of what is stored reveals no more.
"""

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from kanon.errors import Error
from kanon.gate.models import MOST_VALUE_BYTES
from kanon.hpke import SUITE
from kanon.http.encoding import decode_base64url

if TYPE_CHECKING:
    from kanon.keys import Secret

LISTER_KEY = "lister-key"
"""The name of the secret from which the lister's private key is derived on AWS."""
PADDING = 32
_LENGTH_BYTES = 2
_PREFIX = b"kanon listed value 1"


class UnopenedValueError(Error, ValueError):
    """A sealed value does not open: another key or set, or changed bytes."""


def seal(value: bytes, key: X25519PublicKey, set_key: bytes) -> bytes:
    """Seal the value of a set, at most 512 bytes. The result is random: at most 592 bytes."""
    content = len(value).to_bytes(_LENGTH_BYTES, "big") + value
    return SUITE.encrypt(content + bytes(-len(content) % PADDING), key, info=_PREFIX + set_key)


def sealer(key: str) -> Callable[[bytes, bytes], bytes]:
    """:func:`seal` to a public key in base64url. It draws nothing before it is called."""
    public = X25519PublicKey.from_public_bytes(decode_base64url(key))
    return lambda value, set_key: seal(value, public, set_key)


def private_key(secret: "Secret") -> X25519PrivateKey:
    """The private key of the lister, derived from a secret of the name :data:`LISTER_KEY`."""
    return X25519PrivateKey.from_private_bytes(secret.key)


def public_text(key: X25519PrivateKey) -> str:
    """The public key in base64url: the parameter ``ListerKey``."""
    return base64.urlsafe_b64encode(key.public_key().public_bytes_raw()).rstrip(b"=").decode()


def opened(sealed: bytes, key: X25519PrivateKey, set_key: bytes) -> bytes:
    """The value of a set.

    Raises:
        UnopenedValueError: it does not open.
    """
    try:
        content = SUITE.decrypt(sealed, key, info=_PREFIX + set_key)
    except (InvalidTag, ValueError):
        raise UnopenedValueError("a sealed value does not open") from None
    length = int.from_bytes(content[:_LENGTH_BYTES], "big")
    value = content[_LENGTH_BYTES : _LENGTH_BYTES + length]
    if len(value) != length or not 1 <= length <= MOST_VALUE_BYTES:
        raise UnopenedValueError("a sealed value has another form")
    return value
