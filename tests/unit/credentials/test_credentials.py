"""Who can make presentations, what they are bound to, and what they reveal."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from kanon.credentials import contexts, proofs
from kanon.credentials.arc import (
    _PRESENTATION,
    COMMITMENT_BYTES,
    CREDENTIAL_BYTES,
    PRESENTATION_BYTES,
    PUBLIC_KEY_BYTES,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    SECRETS_BYTES,
    SUITE,
    TAG_BYTES,
    Credential,
    IssuerKey,
    IssuerPublicKey,
    Secrets,
    commitment,
    finish,
    issue,
    present,
    request,
)
from kanon.credentials.p256 import (
    ORDER,
    POINT_BYTES,
    CredentialError,
    G,
    Point,
    decode,
    encode_points,
    encode_scalars,
    inverse,
)
from tests.unit.credentials.vectors import DEPLOYMENT, FILE, Drawn, computed, given, written

SEED = b"a seed of 32 bytes for the tests"
KEY, EPOCH = IssuerKey.derive(SEED), 2900
CONTEXT = contexts.credential_context(DEPLOYMENT, EPOCH)
VERIFIER = KEY.verifier(CONTEXT)
SECRETS = Secrets.random(Drawn("person"))
ASKED = request(SECRETS, CONTEXT, CONTEXT, Drawn("request"))
RESPONSE = issue(KEY, ASKED.message, CONTEXT, Drawn("response"))
CREDENTIAL = finish(ASKED, KEY.public, RESPONSE, CONTEXT)
PLACE = contexts.tag_context(DEPLOYMENT, "fledge", b"a set")
BOUND = {
    "deployment": DEPLOYMENT,
    "issuer_key": KEY.public.encode(),
    "epoch": EPOCH,
    "method": "POST",
    "type_name": "fledge",
    "set_id": b"a set",
    "step": 495_555,
}
SESSION = contexts.session(**BOUND)  # type: ignore[arg-type]
PRESENTATION = present(CREDENTIAL, PLACE, SESSION, Drawn("presentation"))
TAG = VERIFIER.verify(PLACE, SESSION, PRESENTATION)
OTHER_KEY = IssuerKey.derive(b"another seed of 32 bytes, for it")
OTHER_CONTEXT = contexts.credential_context(DEPLOYMENT, EPOCH + 1)
OTHER_PLACES = (
    contexts.tag_context(DEPLOYMENT, "fledge", b"another set"),
    contexts.tag_context(DEPLOYMENT, "terms", b"a set"),
    contexts.tag_context("other.example", "fledge", b"a set"),
)
VECTORS = computed()


def enrolled(name: str, key: IssuerKey = KEY, context: bytes = CONTEXT) -> Credential:
    """Another credential: of the person of this name."""
    asked = request(Secrets.random(Drawn(name)), context, context)
    return finish(asked, key.public, issue(key, asked.message, context), context)


def test_the_messages_have_the_sizes_that_are_published() -> None:
    assert (len(ASKED.message), len(RESPONSE), len(PRESENTATION)) == (REQUEST_BYTES, RESPONSE_BYTES, PRESENTATION_BYTES)
    assert (len(KEY.public.encode()), len(SECRETS.encode())) == (PUBLIC_KEY_BYTES, SECRETS_BYTES)
    assert (len(CREDENTIAL.encode()), len(SECRETS.commitment()), len(TAG)) == (
        CREDENTIAL_BYTES, COMMITMENT_BYTES, TAG_BYTES,
    )  # fmt: skip


def test_the_shared_vectors_are_those_of_the_code() -> None:
    """And thus those of the TypeScript client. ``python -m tests.unit.credentials.vectors`` writes them."""
    assert FILE.read_text() == written(VECTORS)


def test_what_is_kept_is_read_back() -> None:
    assert Secrets.decode(SECRETS.encode()) == SECRETS
    assert IssuerPublicKey.decode(KEY.public.encode()) == KEY.public
    kept = Credential.decode(CREDENTIAL.encode())
    assert present(kept, PLACE, SESSION, Drawn("presentation")) == PRESENTATION


def test_a_short_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        IssuerKey.derive(SEED[:31])


def test_no_text_of_an_object_has_a_secret() -> None:
    for secret in (KEY, VERIFIER, SECRETS, ASKED, CREDENTIAL):
        assert not any(str(value) in repr(secret) for value in vars(secret).values() if isinstance(value, int))
        assert SECRETS.encode().hex() not in repr(secret)


# Tags


def test_a_person_has_one_tag_in_a_context_with_every_credential() -> None:
    """On two devices, in two requests, in two epochs."""
    tags = set()
    for key, context in ((KEY, CONTEXT), (KEY, CONTEXT), (OTHER_KEY, OTHER_CONTEXT)):
        shared = Secrets.decode(SECRETS.encode())
        asked = request(shared, context, context)
        assert commitment(asked.message) == SECRETS.commitment() == commitment(ASKED.message)
        credential = finish(asked, key.public, issue(key, asked.message, context), context)
        tags.add(key.verifier(context).verify(PLACE, SESSION, present(credential, PLACE, SESSION)))
    assert tags == {TAG}


@pytest.mark.slow
def test_two_persons_and_two_contexts_have_different_tags() -> None:
    credentials = [CREDENTIAL, enrolled("another"), enrolled("a third")]
    places = (PLACE, *OTHER_PLACES)
    tags = {
        VERIFIER.verify(place, SESSION, present(credential, place, SESSION))
        for credential, place in product(credentials, places)
    }
    assert len(tags) == len(credentials) * len(places)


def test_a_presentation_has_fresh_randomness_in_all_but_its_tag() -> None:
    """Two presentations of the same request: no point and no scalar but the tag is the same."""
    first, second = (decode(present(CREDENTIAL, PLACE, SESSION), 4, 4, "presentation") for _ in range(2))
    assert encode_points([first[0][3]]) == encode_points([second[0][3]]) == TAG
    assert not {encode_points([point]) for point in first[0][:3]} & {encode_points([point]) for point in second[0][:3]}
    assert not set(first[1]) & set(second[1])


def test_a_simulator_that_has_the_verifier_and_a_tag_makes_presentations(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a presentation tells whoever has the key nothing but its tag.

    The simulator knows neither m1 nor a credential. It chooses all else, with the distribution of a real presentation
    (docs/proofs/credentials.md), and sets the answer of the hash, which the proof takes for a random oracle.
    """
    answers: dict[tuple[bytes, bytes, bytes], int] = {}
    real = proofs._challenge

    def oracle(relation: Any, points: Sequence[Point], session: bytes, sums: Sequence[Point]) -> int:
        asked = (encode_points(points), session, encode_points(sums))
        return answers[asked] if asked in answers else real(relation, points, session, sums)

    monkeypatch.setattr(proofs, "_challenge", oracle)
    unknown = encode_points([G * 7])  # some point: nobody needs to know whose tag it is
    for tag, random in ((TAG, Drawn("simulator of the person's tag")), (unknown, Drawn("simulator of any tag"))):
        simulated, asked, challenge = _simulated(tag, random)
        answers[asked] = challenge
        assert VERIFIER.verify(PLACE, SESSION, simulated) == tag
    assert VERIFIER.verify(PLACE, SESSION, PRESENTATION) == TAG  # the oracle answers real ones as before
    monkeypatch.undo()
    with pytest.raises(CredentialError):  # without the oracle it is no forgery
        VERIFIER.verify(PLACE, SESSION, simulated)


def _simulated(tag: bytes, random: Callable[[], int]) -> tuple[bytes, tuple[bytes, bytes, bytes], int]:
    """A presentation from the verifier's key and a tag alone; which question of the hash must have which answer."""
    u, committed, hidden = (G * random() for _ in range(3))
    (tag_point,), _ = decode(tag, 1, 0, "tag")
    v = u * VERIFIER.y + hidden * VERIFIER.x1 + -committed
    base = SUITE.point(PLACE, b"Tag")
    challenge, m1, z, r = (random() for _ in range(4))
    sums = [
        u * m1 + SUITE.h * z + -(hidden * challenge),
        VERIFIER.public_x1 * z + G * r + -(v * challenge),
        tag_point * m1 + -(base * challenge),
    ]
    points = [G, SUITE.h, u, committed, hidden, v, VERIFIER.public_x1, tag_point, base]
    message = encode_points([u, committed, hidden, tag_point]) + encode_scalars([challenge, m1, z, r])
    return message, (encode_points(points), _bound(), encode_points(sums)), challenge


def _bound() -> bytes:
    """The session of a proof of a presentation."""
    return SUITE.context + b"CredentialPresentation" + SESSION


# Binding


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("deployment", "other.example"),
        ("issuer_key", OTHER_KEY.public.encode()),
        ("epoch", EPOCH + 1),
        ("method", "PUT"),
        ("type_name", "terms"),
        ("set_id", b"another set"),
        ("step", 495_556),
    ],
)
def test_a_presentation_is_refused_in_another_request(part: str, other: object) -> None:
    session = contexts.session(**{**BOUND, part: other})  # type: ignore[arg-type]
    with pytest.raises(CredentialError):
        VERIFIER.verify(PLACE, session, PRESENTATION)


def test_parts_of_a_session_cannot_be_moved_into_others() -> None:
    """ "fledge" and "a set" are not "fledgea" and " set"."""
    moved = {**BOUND, "type_name": "fledgea", "set_id": b" set"}
    assert contexts.session(**moved) != SESSION  # type: ignore[arg-type]
    assert contexts.tag_context(DEPLOYMENT, "fledgea", b" set") != PLACE


@pytest.mark.parametrize("place", OTHER_PLACES)
def test_a_tag_is_refused_in_another_context(place: bytes) -> None:
    with pytest.raises(CredentialError):
        VERIFIER.verify(place, SESSION, PRESENTATION)


def test_a_credential_of_another_epoch_is_refused() -> None:
    """Under another key, and under the same key with another context."""
    for verifier in (KEY.verifier(OTHER_CONTEXT), OTHER_KEY.verifier(CONTEXT)):
        with pytest.raises(CredentialError):
            verifier.verify(PLACE, SESSION, PRESENTATION)


def test_a_request_is_bound_to_its_session() -> None:
    with pytest.raises(CredentialError):
        issue(KEY, ASKED.message, b"another session")
    with pytest.raises(CredentialError):
        finish(ASKED, KEY.public, RESPONSE, b"another session")


def test_a_proof_of_a_request_is_none_of_a_response() -> None:
    """The uses of the proofs are no prefixes of each other, so no session makes one the other."""
    uses = (b"CredentialRequest", b"CredentialResponse", b"CredentialPresentation")
    assert not any(one.startswith(other) for one in uses for other in uses if one != other)


# Forgeries


@pytest.mark.parametrize("part", ["x0", "x1", "x2", "blinding"])
def test_a_credential_under_a_personal_key_is_noticed(part: str) -> None:
    """The issuer answers one person with a key of which any part differs from the published one."""
    personal = replace(KEY, **{part: getattr(KEY, part) + 1})
    response = issue(personal, ASKED.message, CONTEXT)
    with pytest.raises(CredentialError, match="the proof of the response does not hold"):
        finish(ASKED, KEY.public, response, CONTEXT)
    finish(ASKED, personal.public, response, CONTEXT)  # who believes a key that came with the response notices nothing


def test_an_issuer_cannot_prove_a_key_that_is_not_its_own() -> None:
    """It signs with a personal x1, claims the published key, and takes its own scalars as the witness."""
    personal = replace(KEY, x1=KEY.x1 + 1)
    vars(personal)["public"] = KEY.public
    with pytest.raises(CredentialError):
        finish(ASKED, KEY.public, issue(personal, ASKED.message, CONTEXT), CONTEXT)


def test_a_response_to_another_person_is_refused() -> None:
    other = request(Secrets.random(Drawn("another")), CONTEXT, CONTEXT)
    with pytest.raises(CredentialError):
        finish(ASKED, KEY.public, issue(KEY, other.message, CONTEXT), CONTEXT)


def test_a_credential_for_another_m1_is_refused() -> None:
    """A member who has a credential cannot be somebody else with it."""
    for m1 in (CREDENTIAL.m1 + 1, ORDER - CREDENTIAL.m1, 1):
        with pytest.raises(CredentialError):
            VERIFIER.verify(PLACE, SESSION, present(replace(CREDENTIAL, m1=m1), PLACE, SESSION))


@pytest.mark.slow
def test_a_tag_of_another_m1_is_refused_beside_a_sound_credential() -> None:
    for place in (1, 2, 3):
        other = decode(present(enrolled("another"), PLACE, SESSION), 4, 4, "presentation")[0][place]
        points, numbers = decode(PRESENTATION, 4, 4, "presentation")
        points[place] = other
        with pytest.raises(CredentialError):
            VERIFIER.verify(PLACE, SESSION, encode_points(points) + encode_scalars(numbers))


def test_whoever_has_the_verifier_makes_credentials() -> None:
    """Verification is keyed: this limit is published (docs/proofs/credentials.md)."""
    m1, u = 12345, G * 678
    forged = Credential(m1, u, u * ((VERIFIER.y + VERIFIER.x1 * m1) % ORDER), VERIFIER.public_x1)
    tag = VERIFIER.verify(PLACE, SESSION, present(forged, PLACE, SESSION))
    assert tag == encode_points([SUITE.point(PLACE, b"Tag") * inverse(m1)])
    with pytest.raises(CredentialError):  # in its own context only
        KEY.verifier(b"another context").verify(PLACE, SESSION, present(forged, PLACE, SESSION))


# Bytes


@pytest.mark.slow
def test_every_byte_of_a_presentation_counts_and_every_bit_before_a_coordinate() -> None:
    signs = product(range(0, 4 * POINT_BYTES, POINT_BYTES), range(8))
    for at, bit in [*((at, at % 8) for at in range(PRESENTATION_BYTES)), *signs]:
        with pytest.raises(CredentialError):
            VERIFIER.verify(PLACE, SESSION, _flipped(PRESENTATION, at, bit))


@pytest.mark.slow
def test_every_byte_of_a_request_and_of_a_response_counts() -> None:
    for at in range(REQUEST_BYTES):
        with pytest.raises(CredentialError):
            issue(KEY, _flipped(ASKED.message, at, at % 8), CONTEXT)
    for at in range(RESPONSE_BYTES):
        with pytest.raises(CredentialError):
            finish(ASKED, KEY.public, _flipped(RESPONSE, at, at % 8), CONTEXT)


def _flipped(message: bytes, at: int, bit: int) -> bytes:
    return message[:at] + bytes([message[at] ^ 1 << bit]) + message[at + 1 :]


MESSAGES: dict[str, tuple[bytes, int, int, Callable[[bytes], object]]] = {
    "presentation": (PRESENTATION, 4, 4, lambda message: VERIFIER.verify(PLACE, SESSION, message)),
    "request": (ASKED.message, 2, 5, lambda message: issue(KEY, message, CONTEXT)),
    "response": (RESPONSE, 6, 8, lambda message: finish(ASKED, KEY.public, message, CONTEXT)),
    "public key": (KEY.public.encode(), 3, 0, IssuerPublicKey.decode),
    "secrets": (SECRETS.encode(), 0, 2, Secrets.decode),
    "credential": (CREDENTIAL.encode(), 3, 1, Credential.decode),
}
"""A sound message of each kind, its numbers of points and of scalars, and who reads it."""


def malformed(sound: bytes, points: int, numbers: int) -> Iterator[tuple[str, bytes]]:
    """A message with each refused encoding in each place, and with other lengths."""
    yield from (
        ("empty", b""),
        ("shorter", sound[:-1]),
        ("longer", sound + b"\0"),
        ("a point more", sound + sound[:33]),
    )
    split = 33 * points
    for size, kind, places in (
        (33, "Points", range(0, split, 33)),
        (32, "Scalars", range(split, split + 32 * numbers, 32)),
    ):
        for at, bad in product(places, VECTORS[f"refused{kind}"]):
            yield f"{bad['why']} at {at}", sound[:at] + bytes.fromhex(bad["hex"]) + sound[at + size :]


@pytest.mark.parametrize("what", MESSAGES)
def test_what_is_not_well_encoded_is_refused_before_any_multiplication(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, points, numbers, read = MESSAGES[what]
    read(sound)
    monkeypatch.setattr(Point, "__mul__", lambda *_: pytest.fail("multiplied"))
    for why, message in malformed(sound, points, numbers):
        with pytest.raises(CredentialError, match=what) as refused:
            read(message)
        assert "the proof" not in str(refused.value), why


def test_nothing_is_presented_with_the_identity_instead_of_a_credential() -> None:
    """With u = 0, committed = r G and hidden = z H the equations hold for every m1."""
    m1, r, z = 11, 22, 33
    base = SUITE.point(PLACE, b"Tag")
    identity = G.point_at_infinity()
    shown = [identity, G * r, SUITE.h * z, base * inverse(m1)]
    v = VERIFIER.public_x1 * z + G * (ORDER - r)
    points = [G, SUITE.h, *shown[:3], v, VERIFIER.public_x1, shown[3], base]
    proof = proofs.prove(_PRESENTATION, points, [m1, z, ORDER - r], _bound(), Drawn("identity"))
    for first in (bytes(33), b"\x02" + bytes(32), b"\x03" + bytes(32)):
        with pytest.raises(CredentialError):
            VERIFIER.verify(PLACE, SESSION, first + encode_points(shown[1:]) + proof)


def test_nothing_is_presented_without_blinding() -> None:
    """Whoever has the verifier can choose r = z = 0, and V is the identity, which has no encoding."""
    m1, u = 11, G * 22
    base = SUITE.point(PLACE, b"Tag")
    shown = [u, u * ((VERIFIER.y + VERIFIER.x1 * m1) % ORDER), u * m1, base * inverse(m1)]
    points = [G, SUITE.h, *shown[:3], G.point_at_infinity(), VERIFIER.public_x1, shown[3], base]
    proof = proofs.prove(_PRESENTATION, points, [m1, 0, 0], _bound(), Drawn("unblinded"))
    with pytest.raises(CredentialError):
        VERIFIER.verify(PLACE, SESSION, encode_points(shown) + proof)


def test_every_message_takes_as_many_fresh_scalars_as_it_hides_and_proves() -> None:
    for count, make in (
        (1 + 4, lambda drawn: request(SECRETS, CONTEXT, CONTEXT, drawn)),
        (1 + 7, lambda drawn: issue(KEY, ASKED.message, CONTEXT, drawn)),
        (3 + 3, lambda drawn: present(CREDENTIAL, PLACE, SESSION, drawn)),
    ):
        drawn = Drawn("all")
        make(drawn)
        assert len(set(drawn.taken)) == len(drawn.taken) == count


# Vectors


@pytest.mark.parametrize("vector", VECTORS["credentials"], ids=lambda vector: str(vector["epoch"]))
def test_a_vector_gives_the_same_bytes_from_its_texts_alone(vector: dict[str, Any]) -> None:
    context = bytes.fromhex(vector["context"])
    asked = request(Secrets.decode(bytes.fromhex(vector["secrets"])), context, context, given(vector["requestScalars"]))
    assert asked.message.hex() == vector["request"]
    seed = next(issuer["seed"] for issuer in VECTORS["issuers"] if issuer["public"] == vector["public"])
    key = IssuerKey.derive(bytes.fromhex(seed))
    assert issue(key, asked.message, context, given(vector["responseScalars"])).hex() == vector["response"]
    credential = finish(
        asked, IssuerPublicKey.decode(bytes.fromhex(vector["public"])), bytes.fromhex(vector["response"]), context
    )
    assert credential.encode().hex() == vector["credential"]
    for shown in vector["presentations"]:
        place, bound = bytes.fromhex(shown["tagContext"]), bytes.fromhex(shown["session"])
        assert present(credential, place, bound, given(shown["scalars"])).hex() == shown["presentation"]
        assert key.verifier(context).verify(place, bound, bytes.fromhex(shown["presentation"])).hex() == shown["tag"]
