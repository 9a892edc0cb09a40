"""The vectors of the draft that the profile has: keys, requests, responses, credentials, tags."""

import json
from typing import Any

import pytest

from kanon.credentials.arc import (
    Credential,
    CredentialRequest,
    IssuerKey,
    IssuerPublicKey,
    Secrets,
    Suite,
    finish,
    issue,
    present,
    request,
)
from kanon.credentials.p256 import _mapped, encode_points, hash_to_point
from tests.paths import ROOT

DRAFT: dict[str, Any] = json.loads((ROOT / "tests/vectors/arc.json").read_text())
ARC = Suite(b"ARCV1-P256")
ASKED, ANSWERED, SHOWN, SERVER = (
    DRAFT[name] for name in ("CredentialRequest", "CredentialResponse", "Presentation1", "ServerKey")
)
REQUEST = bytes.fromhex(ASKED["m1_enc"] + ASKED["m2_enc"] + ASKED["proof"])
RESPONSE = bytes.fromhex(
    "".join(ANSWERED[name] for name in ("U", "enc_U_prime", "X0_aux", "X1_aux", "X2_aux", "H_aux", "proof"))
)
KEY = IssuerKey(*(int(SERVER[name], 16) for name in ("x0", "x1", "x2", "xb")), ARC)
SECRETS = Secrets(int(ASKED["m1"], 16), int(ASKED["r1"], 16))
CONTEXT = bytes.fromhex(ASKED["request_context"])


@pytest.mark.parametrize(
    ("message", "x", "y"),
    [
        (
            b"",
            "2c15230b26dbc6fc9a37051158c95b79656e17a1a920b11394ca91c44247d3e4",
            "8a7a74985cc5c776cdfe4b1f19884970453912e9d31528c060be9ab5c43e8415",
        ),
        (
            b"abc",
            "0bb8b87485551aa43ed54f009230450b492fead5f1cc91658775dac4a3388a0f",
            "5c41b3d0731a27a7b14bc0bf0ccded2d8751f83493404c84a88e71ffd424212e",
        ),
        (
            b"q128_" + 128 * b"q",
            "4be61ee205094282ba8a2042bcb48d88dfbb609301c49aa8b078533dc65a0b5d",
            "98f8df449a072c4721d241a3b1236d3caccba603f916ca680f4539d2bfb3c29e",
        ),
    ],
)
def test_a_hash_to_the_curve_is_that_of_rfc_9380(message: bytes, x: str, y: str) -> None:
    """Appendix J.1.1."""
    point = hash_to_point(message, b"QUUX-V01-CS02-with-P256_XMD:SHA-256_SSWU_RO_")
    assert (int(point.x), int(point.y)) == (int(x, 16), int(y, 16))


def test_the_exception_of_the_map_gives_a_point_too() -> None:
    """0 is the one input for which the fraction of the map does not exist."""
    assert encode_points([_mapped(0)]) == encode_points([_mapped(0)])
    assert not _mapped(0).is_point_at_infinity()


def test_a_public_key_is_that_of_the_draft() -> None:
    assert KEY.public.encode().hex() == SERVER["X0"] + SERVER["X1"] + SERVER["X2"]


def test_a_request_of_the_draft_is_answered_as_in_the_draft_but_for_the_proof() -> None:
    scalars = iter([int(ANSWERED["b"], 16), *range(1, 8)])
    response = issue(KEY, REQUEST, random=lambda: next(scalars))
    assert response[:198] == RESPONSE[:198]


def test_a_request_has_the_points_of_the_draft() -> None:
    scalars = iter([int(ASKED["r2"], 16), 1, 2, 3, 4])
    asked = request(SECRETS, CONTEXT, random=lambda: next(scalars), suite=ARC)
    assert asked.message[:66] == REQUEST[:66]
    assert SECRETS.commitment(ARC) == REQUEST[:33]


def test_the_response_of_the_draft_gives_its_credential() -> None:
    asked = CredentialRequest(SECRETS, int(ASKED["r2"], 16), REQUEST, ARC)
    credential = finish(asked, IssuerPublicKey.decode(KEY.public.encode()), RESPONSE)
    assert credential.encode().hex() == "".join(DRAFT["Credential"][name] for name in ("U", "U_prime", "X1", "m1"))


def test_a_presentation_has_the_points_and_the_tag_of_the_draft() -> None:
    scalars = iter([*(int(SHOWN[name], 16) for name in "arz"), 1, 2, 3])
    credential = Credential.decode(
        bytes.fromhex("".join(DRAFT["Credential"][name] for name in ("U", "U_prime", "X1", "m1"))), ARC
    )
    context = bytes.fromhex(SHOWN["presentation_context"])
    presentation = present(credential, context, b"", lambda: next(scalars))
    assert SHOWN["nonce"] == "0x0"
    points = "".join(SHOWN[name] for name in ("U", "U_prime_commit", "m1_commit", "tag"))
    assert presentation[:132].hex() == points
    assert KEY.verifier(CONTEXT).verify(context, b"", presentation).hex() == SHOWN["tag"]
