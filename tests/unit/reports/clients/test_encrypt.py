"""Encryption on the device, public keys and sending."""

import json
from base64 import b64decode
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.reports.clients.encrypt import MAX_KEY_AGE, ClientReport, contribution, encrypt, outgoing, usable_keys
from kanon.reports.payload import (
    Contribution,
    EncryptionKey,
    KeyDocumentError,
    PayloadError,
    PayloadLayout,
    decode,
    open_sealed,
    public_document,
)
from kanon.reports.shared_info import parse

PRIVATE = {f"00000000-0000-4000-8000-00000000000{n}": X25519PrivateKey.generate() for n in (1, 2, 3)}
KEYS = [EncryptionKey(key_id, key.public_key()) for key_id, key in PRIVATE.items()]
PAIRS = (Contribution(7, 3), Contribution(2**128 - 1, 65_533))


def report(contributions=PAIRS, **fields):
    return ClientReport(contributions, 1_767_225_600_999, "https://report.test", "kanon", **fields)


def opened(encrypted):
    return open_sealed(encrypted.payload, PRIVATE[encrypted.key_id], encrypted.shared_info)


def test_a_report_opens_to_its_contributions_and_padding():
    _, pairs = decode(opened(encrypt(report(), KEYS)))

    assert pairs == (*PAIRS, *[Contribution(0, 0)] * 18)


def test_a_null_report_has_the_same_length_and_clear_fields_as_other_reports():
    full, null = (encrypt(report(pairs), KEYS[:1], new_id=lambda: UUID(int=1)) for pairs in (PAIRS, ()))

    assert len(full.payload) == len(null.payload) == 847 + 48
    assert (full.shared_info, full.key_id) == (null.shared_info, null.key_id)


def test_clear_fields_have_the_form_that_the_service_reads():
    attribution = ClientReport(PAIRS, 5_500, "https://report.test", "attribution-reporting", "https://shop.test")
    info = parse(encrypt(attribution, KEYS, PayloadLayout(20, None)).shared_info)

    assert (info.api, info.version, info.scheduled_report_time) == ("attribution-reporting", "0.1", 5)
    assert (info.attribution_destination, info.source_registration_time) == ("https://shop.test", None)
    assert parse(encrypt(report(), KEYS).shared_info).version == "1.0"


def test_report_ids_are_unique_and_every_key_is_used():
    encrypted = [encrypt(report(), KEYS) for _ in range(60)]

    assert len({parse(one.shared_info).report_id for one in encrypted}) == 60
    assert {one.key_id for one in encrypted} == PRIVATE.keys()  # false alarm: 3 (2/3)^60 < 1e-10


def test_more_contributions_than_slots_are_refused():
    with pytest.raises(PayloadError, match="do not fit"):
        encrypt(report(PAIRS * 2), KEYS, PayloadLayout(3))


def test_a_contribution_has_its_filtering_id_and_one_that_does_not_fit_is_refused():
    _, pairs = decode(opened(encrypt(report((contribution(7, 3, 200),)), KEYS)))
    assert [pair for pair in pairs if pair.value] == [Contribution(7, 3, 200)]
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match="a filtering id must have at most 64 bits"):
            contribution(7, 3, wrong)


def fetching(*answers):
    answers = list(answers)
    return lambda: answers.pop(0)


def test_public_keys_are_kept_up_to_their_end_and_no_longer():
    document, other = (public_document({key_id: PRIVATE[key_id]}) for key_id in list(PRIVATE)[:2])
    first = usable_keys(None, 1000, fetching((document, 60)))

    assert usable_keys(first, 60_999, fetching()) is first
    assert usable_keys(first, 61_000, fetching((other, 60))).keys[0].id == KEYS[1].id


def test_an_expired_key_is_not_used_even_without_a_new_key():
    document = public_document(PRIVATE)
    first = usable_keys(None, 0, fetching((document, 60)))

    with pytest.raises(KeyDocumentError):
        usable_keys(first, 60_000, fetching(("{}", 60)))


def test_keys_are_kept_for_a_day_at_most():
    assert usable_keys(None, 5, fetching((public_document(PRIVATE), 10**9))).until == 5 + MAX_KEY_AGE


def test_the_body_is_what_browsers_send():
    encrypted = encrypt(report(), KEYS)
    body = json.loads(outgoing(report(), encrypted).body)

    assert set(body) == {"shared_info", "aggregation_service_payloads"}
    assert body["shared_info"] == encrypted.shared_info
    (payload,) = body["aggregation_service_payloads"]
    assert (b64decode(payload["payload"]), payload["key_id"]) == (encrypted.payload, encrypted.key_id)
