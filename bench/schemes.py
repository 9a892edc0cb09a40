"""``python -m bench.schemes``: the credentials of the service beside BBS with pseudonyms, which it does not use.

BBS is sketched after draft-irtf-cfrg-bbs-signatures and draft-irtf-cfrg-bbs-per-verifier-linkability, with one blind
message: enough for times and sizes, and for nothing else. Prints sizes in bytes and processor times in ms, the least of
five turns (docs/proofs/credentials.md). `.venv-rivals` has what it needs: PYTHONPATH=shared.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from functools import partial
from operator import mul

from py_arkworks_bls12381 import GT, G1Point, G2Point, Scalar

from kanon.credentials import arc
from kanon.credentials.p256 import G

ORDER = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
PLACE, SESSION, EPOCH = b"a set", b"a request", b"an epoch"
TURNS, REPEATED = 5, 30


def hashed(message: bytes) -> G1Point:
    """A point of G1 whose logarithm nobody knows."""
    return G1Point.hash_to_curve(message, b"bench-bbs-BLS12381G1_XMD:SHA-256_SSWU_RO_")


def challenge(*parts: bytes) -> Scalar:
    """A scalar from a hash of all parts."""
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return Scalar(int.from_bytes(hashlib.shake_256(text).digest(48), "big") % ORDER)


def drawn(count: int) -> list[Scalar]:
    """Random scalars."""
    return [Scalar(1 + secrets.randbelow(ORDER - 1)) for _ in range(count)]


def encoded(*points: G1Point) -> bytes:
    """Compressed points."""
    return b"".join(point.to_compressed_bytes() for point in points)


P1, Q1, H1, H2 = (hashed(name) for name in (b"P1", b"Q1", b"H1", b"H2"))
DOMAIN = P1 + H2 * challenge(EPOCH)
"""The part of every signature that is public: all credentials of an epoch have it."""


class Bbs:
    """One person and one issuer. The public key is in G2."""

    def __init__(self) -> None:
        self.secret, self.m1, self.blinding = drawn(3)
        self.public = G2Point() * self.secret

    def request(self) -> bytes:
        """A commitment to m1 and the proof that it is known: 144 bytes."""
        commitment, (a, b) = H1 * self.m1 + Q1 * self.blinding, drawn(2)
        c = challenge(encoded(commitment, H1 * a + Q1 * b))
        return encoded(commitment) + scalars(c, a + c * self.m1, b + c * self.blinding)

    def issue(self, message: bytes) -> bytes:
        """A signature of the commitment: 80 bytes."""
        (commitment,), (c, a, b) = read(message, 1, 3)
        expect(challenge(encoded(commitment, H1 * a + Q1 * b - commitment * c)) == c)
        (e,) = drawn(1)
        return encoded((DOMAIN + commitment) * (self.secret + e).inverse()) + scalars(e)

    def finish(self, response: bytes) -> tuple[G1Point, Scalar]:
        """The credential, checked with the public key."""
        (a,), (e,) = read(response, 1, 1)
        expect(GT.pairing_check([a, -self.message()], [self.public + G2Point() * e, G2Point()]))
        return a, e

    def message(self) -> G1Point:
        """What is signed."""
        return DOMAIN + H1 * self.m1 + Q1 * self.blinding

    def present(self, credential: tuple[G1Point, Scalar]) -> bytes:
        """A presentation: 384 bytes."""
        (a, e), (r1, r2), (x, y, z, m, s) = credential, drawn(2), drawn(5)
        d = self.message() * r2
        first, base = a * (r1 * r2), hashed(PLACE)
        second, tag = d * r1 - first * e, base * self.m1
        sums = (first * x + d * y, d * z + H1 * m + Q1 * s, base * m)
        c = challenge(SESSION, encoded(first, second, d, tag, *sums))
        answers = (x + e * c, y - r1 * c, z - r2.inverse() * c, m + self.m1 * c, s + self.blinding * c)
        return encoded(first, second, d, tag) + scalars(c, *answers)

    def verify(self, presentation: bytes) -> bytes:
        """The tag of a presentation: 48 bytes. Nothing secret is needed."""
        (first, second, d, tag), (c, x, y, z, m, s) = read(presentation, 4, 6)
        left = second * c + first * x + d * y
        sums = (left, DOMAIN * c + d * z + H1 * m + Q1 * s, hashed(PLACE) * m - tag * c)
        expect(challenge(SESSION, encoded(first, second, d, tag, *sums)) == c)
        expect(GT.pairing_check([first, -second], [self.public, G2Point()]))
        return encoded(tag)


def scalars(*numbers: Scalar) -> bytes:
    """Scalars in 32 bytes each."""
    return b"".join(number.to_be_bytes() for number in numbers)


def read(message: bytes, points: int, numbers: int) -> tuple[list[G1Point], list[Scalar]]:
    """Points, which are checked, and scalars."""
    split = 48 * points
    rest = (message[at : at + 32] for at in range(split, split + 32 * numbers, 32))
    first = (message[at : at + 48] for at in range(0, split, 48))
    return [G1Point.from_compressed_bytes(each) for each in first], [Scalar.from_be_bytes(each) for each in rest]


def expect(holds: bool) -> None:
    """Raise if a check fails."""
    if not holds:
        raise ValueError("a check failed")


def milliseconds(work: Callable[[], object]) -> float:
    """The processor time of a piece of work: the least of some turns."""
    least = float("inf")
    for _ in range(TURNS):
        began = time.process_time()
        for _ in range(REPEATED):
            work()
        least = min(least, (time.process_time() - began) / REPEATED)
    return 1000 * least


def main() -> None:
    """Print the table."""
    key, person = arc.IssuerKey.derive(secrets.token_bytes(32)), arc.Secrets.random()
    asked = arc.request(person, EPOCH)
    answered = arc.issue(key, asked.message)
    owned, verifier = arc.finish(asked, key.public, answered), key.verifier(EPOCH)
    shown = arc.present(owned, PLACE, SESSION)

    bbs = Bbs()
    request = bbs.request()
    response = bbs.issue(request)
    credential = bbs.finish(response)
    presentation = bbs.present(credential)

    rows: list[tuple[str, bytes, Callable[[], object], bytes, Callable[[], object]]] = [
        ("request", asked.message, lambda: arc.request(person, EPOCH), request, bbs.request),
        ("issue", answered, lambda: arc.issue(key, asked.message), response, lambda: bbs.issue(request)),
        ("finish", owned.encode(), lambda: arc.finish(asked, key.public, answered), encoded(credential[0]) + scalars(
            credential[1], bbs.m1, bbs.blinding), lambda: bbs.finish(response)),
        ("present", shown, lambda: arc.present(owned, PLACE, SESSION), presentation, lambda: bbs.present(credential)),
        ("verify", verifier.verify(PLACE, SESSION, shown), lambda: verifier.verify(PLACE, SESSION, shown),
         bbs.verify(presentation), lambda: bbs.verify(presentation)),
    ]  # fmt: skip
    print("| | ARC, bytes | ms | BBS, bytes | ms |\n|---|---|---|---|---|")
    for name, ours, mine, theirs, other in rows:
        print(f"| {name} | {len(ours)} | {milliseconds(mine):.2f} | {len(theirs)} | {milliseconds(other):.2f} |")
    for name, scalar in (("1", 1), ("2^254 - 1", 2**254 - 1)):
        mine, other = partial(mul, G * 2, scalar), partial(mul, H1, Scalar(scalar))
        print(f"| multiplication by {name} | | {milliseconds(mine):.4f} | | {milliseconds(other):.4f} |")


if __name__ == "__main__":
    main()
