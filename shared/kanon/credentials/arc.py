"""Anonymous credentials after draft-ietf-privacypass-arc-crypto-01, presented with nonce 0 only.

A client has a secret m1. The issuer signs a commitment to it, blindly. To present the credential for a context c, the
client shows the tag H(c)^(1/m1), and proves that the m1 in it was signed. docs/proofs/credentials.md has the profile.

The draft's proof that a nonce is below a limit is left out: the nonce is 0. The proofs are bound to sessions.
"""

from dataclasses import dataclass
from functools import cached_property

from kanon.credentials.p256 import (
    ORDER,
    CredentialError,
    G,
    Point,
    Scalars,
    decode,
    encode_points,
    encode_scalars,
    hash_to_point,
    hash_to_scalar,
    inverse,
    random_scalar,
)
from kanon.credentials.proofs import check, prove, relation

REQUEST_BYTES, RESPONSE_BYTES, PRESENTATION_BYTES = 226, 454, 260
PUBLIC_KEY_BYTES, SECRETS_BYTES, CREDENTIAL_BYTES, COMMITMENT_BYTES, TAG_BYTES = 99, 64, 131, 33, 33

_REQUEST = relation("m1 m2 r1 r2", "G H m1Enc m2Enc", "m1Enc = m1 G + r1 H", "m2Enc = m2 G + r2 H")
_RESPONSE = relation(
    "x0 x1 x2 x0Blinding b t1 t2",
    "G H m1Enc m2Enc U encUPrime X0 X1 X2 X0Aux X1Aux X2Aux HAux",
    "X0 = x0 G + x0Blinding H",
    "X1 = x1 H",
    "X2 = x2 H",
    "HAux = b H",
    "X0Aux = x0Blinding HAux",
    "X1Aux = t1 H",
    "X1Aux = b X1",
    "X2Aux = b X2",
    "X2Aux = t2 H",
    "U = b G",
    "encUPrime = b X0 + t1 m1Enc + t2 m2Enc",
)
_PRESENTATION = relation(
    "m1 z rNeg",
    "G H U UPrimeCommit m1Commit V X1 tag T",
    "m1Commit = m1 U + z H",
    "V = z X1 + rNeg G",
    "T = m1 tag",
)


@dataclass(frozen=True)
class Suite:
    """The group with a context string, which separates all hashes from those of other protocols."""

    context: bytes

    @cached_property
    def h(self) -> Point:
        """The second generator. Nobody knows its logarithm."""
        return self.point(encode_points([G]), b"generatorH")

    def point(self, message: bytes, use: bytes) -> Point:
        """The draft's ``HashToGroup``."""
        return hash_to_point(message, b"HashToGroup-" + self.context + use)

    def scalar(self, message: bytes, use: bytes) -> int:
        """The draft's ``HashToScalar``."""
        return hash_to_scalar(message, b"HashToScalar-" + self.context + use)


SUITE = Suite(b"kanon-arc-v1-P256")


@dataclass(frozen=True)
class IssuerPublicKey:
    """What an issuer publishes. All clients must have the same one, or it tells them apart."""

    x0: Point
    x1: Point
    x2: Point

    def encode(self) -> bytes:
        """99 bytes."""
        return encode_points([self.x0, self.x1, self.x2])

    @classmethod
    def decode(cls, encoded: bytes) -> "IssuerPublicKey":
        """Read a key.

        Raises:
            CredentialError: it is malformed.
        """
        return cls(*decode(encoded, 3, 0, "public key")[0])


@dataclass(frozen=True, repr=False)
class IssuerKey:
    """What an issuer keeps. With it one can make any number of credentials."""

    x0: int
    x1: int
    x2: int
    blinding: int
    suite: Suite = SUITE

    @classmethod
    def derive(cls, seed: bytes, suite: Suite = SUITE) -> "IssuerKey":
        """The key of a seed: the same one each time.

        Raises:
            ValueError: the seed has less than 32 bytes. They must be secret and random.
        """
        if len(seed) < 32:
            raise ValueError("the seed of an issuer's key has at least 32 bytes")
        x0, x1, x2, blinding = (suite.scalar(seed, b"issuerKey" + part) for part in (b"0", b"1", b"2", b"b"))
        return cls(x0, x1, x2, blinding, suite)

    @cached_property
    def public(self) -> IssuerPublicKey:
        """The public part."""
        h = self.suite.h
        return IssuerPublicKey(G * self.x0 + h * self.blinding, h * self.x1, h * self.x2)

    def verifier(self, context: bytes) -> "Verifier":
        """What checks presentations of the credentials of a context. It cannot issue for another one."""
        attribute = self.suite.scalar(context, b"requestContext")
        return Verifier((self.x0 + self.x2 * attribute) % ORDER, self.x1, self.public.x1, self.suite)


@dataclass(frozen=True, repr=False)
class Secrets:
    """What a person keeps, on all devices. With m1 all tags of the person can be computed, also past ones."""

    m1: int
    r1: int

    @classmethod
    def random(cls, random: Scalars = random_scalar) -> "Secrets":
        """New secrets: another person, to the service."""
        return cls(random(), random())

    def encode(self) -> bytes:
        """64 bytes."""
        return encode_scalars([self.m1, self.r1])

    @classmethod
    def decode(cls, encoded: bytes) -> "Secrets":
        """Read secrets.

        Raises:
            CredentialError: they are malformed.
        """
        return cls(*decode(encoded, 0, 2, "secrets")[1])

    def tag(self, context: bytes, suite: Suite = SUITE) -> bytes:
        """The tag in a tag context, as 33 bytes: what a presentation shows there."""
        return encode_points([suite.point(context, b"Tag") * inverse(self.m1)])

    def commitment(self, suite: Suite = SUITE) -> bytes:
        """33 bytes that an issuer signs. They reveal nothing, and fit one m1 only."""
        return encode_points([G * self.m1 + suite.h * self.r1])


@dataclass(frozen=True, repr=False)
class CredentialRequest:
    """A request for a credential, and what is needed to read its response. ``message`` is sent."""

    secrets: Secrets
    r2: int
    message: bytes
    suite: Suite = SUITE


@dataclass(frozen=True, repr=False)
class Credential:
    """A signed m1, under a key with this X1."""

    m1: int
    u: Point
    u_prime: Point
    x1: Point
    suite: Suite = SUITE

    def encode(self) -> bytes:
        """131 bytes, as secret as m1."""
        return encode_points([self.u, self.u_prime, self.x1]) + encode_scalars([self.m1])

    @classmethod
    def decode(cls, encoded: bytes, suite: Suite = SUITE) -> "Credential":
        """Read a credential.

        Raises:
            CredentialError: it is malformed.
        """
        (u, u_prime, x1), (m1,) = decode(encoded, 3, 1, "credential")
        return cls(m1, u, u_prime, x1, suite)


def request(
    secrets: Secrets, context: bytes, session: bytes = b"", random: Scalars = random_scalar, suite: Suite = SUITE
) -> CredentialRequest:
    """Ask for a credential.

    Args:
        secrets: the person's.
        context: what the credential is for, such as the deployment and the epoch. The verifier has the same.
        session: what else the proofs of request and response are bound to.
        random: r2, then four nonces.
        suite: the context string.
    """
    m2, r2 = suite.scalar(context, b"requestContext"), random()
    points = [G * secrets.m1 + suite.h * secrets.r1, G * m2 + suite.h * r2]
    witness = [secrets.m1, m2, secrets.r1, r2]
    proof = prove(_REQUEST, [G, suite.h, *points], witness, _session(suite, b"CredentialRequest", session), random)
    return CredentialRequest(secrets, r2, encode_points(points) + proof, suite)


def commitment(message: bytes) -> bytes:
    """The commitment to m1 in a request, which is to be signed. ``issue`` checks the request."""
    return message[:COMMITMENT_BYTES]


def issue(key: IssuerKey, message: bytes, session: bytes = b"", random: Scalars = random_scalar) -> bytes:
    """The response to a request: 454 bytes.

    Args:
        key: the issuer's.
        message: the request, whose commitment is the one that is recorded for the account.
        session: that of the request.
        random: b, then seven nonces.

    Raises:
        CredentialError: the request is malformed, or its proof does not hold.
    """
    suite, public, h = key.suite, key.public, key.suite.h
    enc, proof = decode(message, 2, 5, "request")
    check(_REQUEST, [G, h, *enc], _session(suite, b"CredentialRequest", session), proof, "request")
    b = random()
    masked = (public.x0 + enc[0] * key.x1 + enc[1] * key.x2) * b
    aux = [h * (b * key.blinding % ORDER), public.x1 * b, public.x2 * b, h * b]
    points = [G * b, masked, *aux]
    witness = [key.x0, key.x1, key.x2, key.blinding, b, b * key.x1 % ORDER, b * key.x2 % ORDER]
    bound = _session(suite, b"CredentialResponse", session)
    return encode_points(points) + prove(_RESPONSE, _response_points(public, enc, points, h), witness, bound, random)


def finish(asked: CredentialRequest, public: IssuerPublicKey, response: bytes, session: bytes = b"") -> Credential:
    """The credential in a response.

    Args:
        asked: the request.
        public: the key that is published, not one that came with the response.
        response: the issuer's.
        session: that of the request.

    Raises:
        CredentialError: the response is malformed, or not made with the secret part of ``public``.
    """
    suite, h = asked.suite, asked.suite.h
    enc, _ = decode(asked.message, 2, 5, "request")
    points, proof = decode(response, 6, 8, "response")
    bound = _session(suite, b"CredentialResponse", session)
    check(_RESPONSE, _response_points(public, enc, points, h), bound, proof, "response")
    u, masked, x0_aux, x1_aux, x2_aux, _ = points
    u_prime = masked + -(x0_aux + x1_aux * asked.secrets.r1 + x2_aux * asked.r2)
    return Credential(asked.secrets.m1, u, u_prime, public.x1, suite)


def present(credential: Credential, tag_context: bytes, session: bytes, random: Scalars = random_scalar) -> bytes:
    """A presentation: 260 bytes, which only the tag links to other ones.

    Args:
        credential: the person's.
        tag_context: where the person has one tag.
        session: the request that the presentation is part of; it is refused in another one.
        random: a, r and z, then three nonces.
    """
    suite, m1 = credential.suite, credential.m1
    a, r, z = random(), random(), random()
    u = credential.u * a
    committed, hidden = credential.u_prime * a + G * r, u * m1 + suite.h * z
    base = suite.point(tag_context, b"Tag")
    tag = base * inverse(m1)
    v = credential.x1 * z + G * (ORDER - r)
    points = [G, suite.h, u, committed, hidden, v, credential.x1, tag, base]
    bound = _session(suite, b"CredentialPresentation", session)
    proof = prove(_PRESENTATION, points, [m1, z, ORDER - r], bound, random)
    return encode_points([u, committed, hidden, tag]) + proof


@dataclass(frozen=True, repr=False)
class Verifier:
    """Checks presentations, with y = x0 + x2 m2. With it one can also make credentials of its context."""

    y: int
    x1: int
    public_x1: Point
    suite: Suite = SUITE

    def verify(self, tag_context: bytes, session: bytes, presentation: bytes) -> bytes:
        """The tag of a presentation: 33 bytes.

        Raises:
            CredentialError: it is malformed, or was not made with a credential of this verifier for this tag context
                and this session.
        """
        (u, committed, hidden, tag), proof = decode(presentation, 4, 4, "presentation")
        v = u * self.y + hidden * self.x1 + -committed
        if v.is_point_at_infinity():
            raise CredentialError("the proof of the presentation does not hold")
        base = self.suite.point(tag_context, b"Tag")
        points = [G, self.suite.h, u, committed, hidden, v, self.public_x1, tag, base]
        bound = _session(self.suite, b"CredentialPresentation", session)
        check(_PRESENTATION, points, bound, proof, "presentation")
        return encode_points([tag])


def _session(suite: Suite, use: bytes, session: bytes) -> bytes:
    """What a proof is bound to. The uses are no prefixes of each other, so different ones never give the same bytes."""
    return suite.context + use + session


def _response_points(public: IssuerPublicKey, enc: list[Point], points: list[Point], h: Point) -> list[Point]:
    u, masked, *aux = points
    return [G, h, *enc, u, masked, public.x0, public.x1, public.x2, *aux]
