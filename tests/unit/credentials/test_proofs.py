"""What a proof depends on: all points, the equations, the session, the commitments and fresh randomness."""

from dataclasses import replace

import pytest

from kanon.credentials import proofs
from kanon.credentials.p256 import ORDER, CredentialError, G, Point, decode, hash_to_point
from kanon.credentials.proofs import check, prove, relation
from tests.unit.credentials.vectors import Drawn

H = hash_to_point(b"H", b"test")
TWO = relation("m r", "G H C D", "C = m G + r H", "D = m H")
M, R = 1234, 5678
POINTS = [G, H, G * M + H * R, H * M]
OTHER = hash_to_point(b"other", b"test")


def _scalars(proof: bytes) -> list[int]:
    return decode(proof, 0, len(proof) // 32, "proof")[1]


def test_a_sound_proof_holds() -> None:
    check(TWO, POINTS, b"session", _scalars(prove(TWO, POINTS, [M, R], b"session", Drawn("proof"))), "proof")


@pytest.mark.parametrize(("m", "r"), [(M + 1, R), (M, R + 1), (R, M)])
def test_a_proof_of_other_scalars_is_refused(m: int, r: int) -> None:
    with pytest.raises(CredentialError, match="the proof of the proof does not hold"):
        check(TWO, POINTS, b"session", _scalars(prove(TWO, POINTS, [m, r], b"session", Drawn("proof"))), "proof")


def test_the_challenge_depends_on_everything() -> None:
    """On every point, also on one that stands in no equation: otherwise it could be chosen after the challenge."""
    sums = [OTHER, G]
    asked: list[tuple[proofs.Relation, list[Point], bytes, list[Point]]] = [(TWO, POINTS, b"session", sums)]
    asked += [(TWO, [*POINTS[:at], OTHER, *POINTS[at + 1 :]], b"session", sums) for at in range(len(POINTS))]
    asked += [(TWO, [*POINTS, OTHER], b"session", sums), (TWO, POINTS, b"sessio", sums), (TWO, POINTS, b"", sums)]
    asked += [(replace(TWO, equations=TWO.equations[:1]), POINTS, b"session", sums)]
    asked += [(relation("m r", "G H C D", "C = m G + r H", "D = r H"), POINTS, b"session", sums)]
    asked += [(TWO, POINTS, b"session", [G, OTHER]), (TWO, POINTS, b"session", [OTHER, H])]
    assert len({proofs._challenge(*each) for each in asked}) == len(asked)


def test_a_proof_takes_a_fresh_scalar_for_each_secret() -> None:
    """Two secrets with one nonce, or two proofs with the same ones, reveal the secrets."""
    drawn = Drawn("nonces")
    challenge, *responses = _scalars(prove(TWO, POINTS, [M, R], b"session", drawn))
    nonces = [(response - challenge * secret) % ORDER for response, secret in zip(responses, (M, R), strict=True)]
    assert nonces == drawn.taken
    assert len(set(nonces)) == 2


def test_a_proof_with_the_identity_as_a_commitment_is_refused() -> None:
    """A prover that takes 0 as its nonce gets it; it has no encoding, so it could stand for another point."""
    nonces = iter([0, 77])
    with pytest.raises(CredentialError):
        check(TWO, POINTS, b"session", _scalars(prove(TWO, POINTS, [M, R], b"session", lambda: next(nonces))), "proof")
