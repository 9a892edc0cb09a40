"""Tokens are valid only with the issuer's signature, audience and time; a new file of keys is used at once."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from kanon.errors import ConfigurationError
from kanon.serving.tokens import AcceptedTokens

ISSUER, AUDIENCE = "https://issuer.test", "kanon"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
SECRET = b"a secret that two parties share, of 32 bytes"


def rsa_key(kid: str, key: rsa.RSAPrivateKey = RSA) -> dict[str, Any]:
    return {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "alg": "RS256", "use": "sig"}


def stored(path: Path, *keys: dict[str, Any]) -> Path:
    file = path / "jwks.json"
    file.write_text(json.dumps({"keys": keys}))
    return file


def claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    made = {"iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 3600, **more}
    return {name: value for name, value in made.items() if value is not None}


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "1", **more: Any) -> str:
    return jwt.encode(claims(**more), key, algorithm, headers={} if kid is None else {"kid": kid})


@pytest.fixture
def tokens(tmp_path: Path) -> AcceptedTokens:
    curve = {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "2", "alg": "ES256"}
    return AcceptedTokens(stored(tmp_path, rsa_key("1"), curve), ISSUER, AUDIENCE)


def test_a_token_of_the_issuer_is_valid(tokens: AcceptedTokens) -> None:
    assert tokens.has(token())
    assert tokens.has(token(EC, "ES256", "2"))
    assert tokens.has(token(aud=["another", AUDIENCE]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"iss": "https://another.test"},
        {"aud": "another"},
        {"exp": 1},
        {"nbf": 4_000_000_000},
        {"exp": None},
        {"iss": None},
        {"aud": None},
    ],
    ids=str,
)
def test_a_token_with_a_wrong_claim_is_refused(tokens: AcceptedTokens, wrong: dict[str, Any]) -> None:
    assert not tokens.has(token(**wrong))


def test_a_token_without_the_issuers_signature_is_refused(tokens: AcceptedTokens) -> None:
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert not tokens.has(token(stranger))
    assert not tokens.has(token(kid="3"))
    assert not tokens.has(token(kid=None))
    assert not tokens.has(token(kid="2"))
    assert not tokens.has(jwt.encode(claims(), None, "none", headers={"kid": "1"}))
    head, body, _ = token().split(".")
    assert not tokens.has(f"{head}.{body}.")
    for text in ("", "a", "a.b.c", "....", "\N{SNOWMAN}.a.b"):
        assert not tokens.has(text)


def test_the_public_key_is_no_shared_secret(tokens: AcceptedTokens) -> None:
    import hmac

    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    signed = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': '1'})}.{part(claims())}"
    mac = base64.urlsafe_b64encode(hmac.digest(public, signed.encode(), "sha256")).decode().rstrip("=")
    assert not tokens.has(f"{signed}.{mac}")


def test_new_keys_are_used_when_the_file_changes_and_an_unreadable_file_changes_nothing(tmp_path: Path) -> None:
    file = stored(tmp_path, rsa_key("1"))
    tokens = AcceptedTokens(file, ISSUER, AUDIENCE)
    new = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert not tokens.has(token(new, kid="new"))
    file.write_text("{")
    assert tokens.has(token())
    stored(tmp_path, rsa_key("new", new))
    assert tokens.has(token(new, kid="new"))
    assert not tokens.has(token())
    file.unlink()
    assert tokens.has(token(new, kid="new"))


def test_a_file_without_public_keys_is_refused(tmp_path: Path) -> None:
    shared = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET).decode(), "kid": "1", "alg": "HS256"}
    with pytest.raises(ConfigurationError, match="holds no public key: a shared secret"):
        AcceptedTokens(stored(tmp_path, shared), ISSUER, AUDIENCE)
    for text in ("", "{", "[]", "{}", '{"keys": []}', '{"keys": [1]}', '{"keys": 1}', '{"keys": [{"kty": "RSA"}]}'):
        (tmp_path / "jwks.json").write_text(text)
        with pytest.raises(ConfigurationError, match="is not a JSON Web Key Set"):
            AcceptedTokens(tmp_path / "jwks.json", ISSUER, AUDIENCE)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        AcceptedTokens(tmp_path / "absent.json", ISSUER, AUDIENCE)
