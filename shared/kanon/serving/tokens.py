"""Tokens (JWT) of an issuer whose public keys are in a file (JWKS)."""

import threading
from pathlib import Path
from typing import Any

import jwt

from kanon.errors import ConfigurationError

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a private key. A token that is signed with a shared secret is refused."""
REQUIRED = ["exp", "iss", "aud"]


class AcceptedTokens:
    """Checks tokens. If the file changes, its new keys are used; a file that cannot be read changes nothing.

    Args:
        jwks: the file.
        issuer, audience: the claims ``iss`` and ``aud`` that a token must have.

    Raises:
        ConfigurationError: the file cannot be read, or has no key.
    """

    def __init__(self, jwks: Path, issuer: str, audience: str) -> None:
        self._jwks, self._issuer, self._audience = jwks, issuer, audience
        self._lock = threading.Lock()
        self._seen: object = self._state()
        self._keys = read_keys(jwks)

    def has(self, token: str) -> bool:
        """Whether a token is valid now."""
        return self._claims(token) is not None

    def subject_of(self, token: str) -> str | None:
        """The claim ``sub`` of a valid token; None without one."""
        subject = (self._claims(token) or {}).get("sub")
        return subject if isinstance(subject, str) and subject else None

    def _claims(self, token: str) -> dict[str, Any] | None:
        self._read_again()
        try:
            key = self._keys.get(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                return None
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                issuer=self._issuer,
                audience=self._audience,
                options={"require": REQUIRED},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        return claims

    def _read_again(self) -> None:
        with self._lock:
            state = self._state()
            if state == self._seen:
                return
            self._seen = state
            try:
                self._keys = read_keys(self._jwks)
            except ConfigurationError:
                return  # it may still be being written

    def _state(self) -> object:
        try:
            found = self._jwks.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


def read_keys(jwks: Path) -> dict[str | None, Any]:
    """The public keys of a file by their ids.

    Raises:
        ConfigurationError: the file cannot be read, or has no key.
    """
    try:
        keys = jwt.PyJWKSet.from_json(jwks.read_text()).keys
    except OSError as error:
        raise ConfigurationError(f"{jwks} cannot be read: {error.strerror}") from error
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{jwks} is not a JSON Web Key Set with public keys") from error
    public = {key.key_id: key for key in keys if key.key_type != "oct"}
    if not public:
        raise ConfigurationError(f"{jwks} holds no public key: a shared secret (oct) is not accepted")
    return public
