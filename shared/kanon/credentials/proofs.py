"""Proofs that one knows scalars which satisfy linear equations over points, without showing them.

Schnorr proofs of linear relations, made non-interactive with SHAKE128 and sent as challenge and responses, as in
draft-irtf-cfrg-sigma-protocols-01 and draft-irtf-cfrg-fiat-shamir-01 (suite ``sigma/Shake128+P256``).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from kanon.credentials.p256 import ORDER, CredentialError, Point, Scalars, encode_points, encode_scalars, public

_PROTOCOL = b"ietf sigma proof linear relation".ljust(64, b"\0")
_RATE = 168
"""Bytes of a block of SHAKE128. The protocol fills one."""
_CHALLENGE = 48

Terms = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Relation:
    """Equations between points.

    Attributes:
        scalars: how many scalars they have.
        points: how many points they have.
        equations: of each, the place of the point on the left, and on the right the places of scalars and points.
    """

    scalars: int
    points: int
    equations: tuple[tuple[int, Terms], ...]

    def header(self) -> bytes:
        """The equations, as they are hashed."""
        numbers = [len(self.equations)]
        for left, terms in self.equations:
            numbers += [left, len(terms), *(place for term in terms for place in term)]
        return b"".join(number.to_bytes(4, "little") for number in numbers)


def relation(scalars: str, points: str, *equations: str) -> Relation:
    """A relation in words: its names, and equations such as ``"C = m G + r H"``."""
    scalar, point = scalars.split(), points.split()
    read = []
    for equation in equations:
        left, right = equation.split(" = ")
        terms = [term.split() for term in right.split(" + ")]
        read.append((point.index(left), tuple((scalar.index(s), point.index(p)) for s, p in terms)))
    return Relation(len(scalar), len(point), tuple(read))


def prove(
    relation: Relation, points: Sequence[Point], witness: Sequence[int], session: bytes, random: Scalars
) -> bytes:
    """A proof of (1 + ``relation.scalars``) * 32 bytes that holds for these points and this session only.

    Args:
        relation: the equations; ``witness`` must satisfy them.
        points: the points, in the order of the relation.
        witness: the secret scalars.
        session: what else the proof is bound to.
        random: gives one fresh scalar for each of the witness. Two proofs with the same ones reveal the witness.
    """
    nonces = [random() for _ in witness]
    challenge = _challenge(relation, points, session, _sums(relation, points, nonces))
    responses = [(nonce + secret * challenge) % ORDER for nonce, secret in zip(nonces, witness, strict=True)]
    return encode_scalars([challenge, *responses])


def check(relation: Relation, points: Sequence[Point], session: bytes, proof: Sequence[int], what: str) -> None:
    """Check a proof: challenge and responses, each from 1 to ``ORDER`` - 1.

    Raises:
        CredentialError: it does not hold.
    """
    challenge, *responses = proof
    minus = public(ORDER - challenge)
    images = [points[left] * minus for left, _ in relation.equations]
    sums = [a + b for a, b in zip(_sums(relation, points, list(map(public, responses))), images, strict=True)]
    if any(map(Point.is_point_at_infinity, sums)) or _challenge(relation, points, session, sums) != challenge:
        raise CredentialError(f"the proof of the {what} does not hold")


def _sums(relation: Relation, points: Sequence[Point], scalars: Sequence[int]) -> list[Point]:
    """The right sides of the equations."""
    return [reduce(add, (points[p] * scalars[s] for s, p in terms)) for _, terms in relation.equations]


def _challenge(relation: Relation, points: Iterable[Point], session: bytes, commitments: Iterable[Point]) -> int:
    label = relation.header() + encode_points(points)
    sponge = hashlib.shake_128(_PROTOCOL.ljust(_RATE, b"\0"))
    for part in (session, label):
        sponge.update(len(part).to_bytes(4, "big") + part)
    sponge.update(encode_points(commitments))
    return int.from_bytes(sponge.digest(_CHALLENGE), "big") % ORDER
