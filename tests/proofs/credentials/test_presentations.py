"""Of presentations all that ``make test`` tries some of."""

from itertools import product

import pytest

from kanon.credentials import arc, contexts
from kanon.credentials.p256 import CredentialError
from tests.unit.credentials.vectors import DEPLOYMENT, Drawn

pytestmark = pytest.mark.prove

KEY = arc.IssuerKey.derive(b"a seed of 32 bytes for the tests")
EPOCH = contexts.credential_context(DEPLOYMENT, 2900)
PLACE = contexts.tag_context(DEPLOYMENT, "fledge", b"a set")
SESSION = b"a session"
VERIFIER = KEY.verifier(EPOCH)
PERSON = arc.Secrets.random(Drawn("person"))


def _credential(device: int) -> arc.Credential:
    asked = arc.request(PERSON, EPOCH, EPOCH, Drawn(f"request {device}"))
    return arc.finish(asked, KEY.public, arc.issue(KEY, asked.message, EPOCH), EPOCH)


def test_every_bit_of_a_presentation_counts() -> None:
    presentation = arc.present(_credential(0), PLACE, SESSION, Drawn("presentation"))
    for at, bit in product(range(arc.PRESENTATION_BYTES), range(8)):
        flipped = bytearray(presentation)
        flipped[at] ^= 1 << bit
        with pytest.raises(CredentialError):
            VERIFIER.verify(PLACE, SESSION, bytes(flipped))


def test_a_thousand_presentations_of_one_person_from_three_devices_have_one_tag() -> None:
    held = [_credential(device) for device in range(3)]
    tags = {VERIFIER.verify(PLACE, SESSION, arc.present(held[n % 3], PLACE, SESSION)) for n in range(1_000)}
    assert len(tags) == 1
