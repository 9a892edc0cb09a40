"""Avro files and key documents: what is written is read, and what is broken is refused in one line."""

import json
import uuid

import fastavro
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kanon.reports import avro
from kanon.reports.errors import JobError
from kanon.reports.payload import KeyDocumentError, private_document, private_keys, public_document, public_keys
from tests.unit.reports.made import keys16


def test_reports_are_read_as_written(tmp_path):
    reports = [avro.Report(b"\0" * n, f"key {n}", "{}") for n in range(3)]
    avro.write_reports(tmp_path / "r.avro", reports)
    assert list(avro.read_reports(tmp_path / "r.avro")) == reports
    with (tmp_path / "r.avro").open("rb") as file:
        assert list(avro.read_reports(file)) == reports
    assert avro.kind_of(tmp_path / "r.avro") == "AggregatableReport"


def test_a_summary_of_many_rows_keeps_keys_that_end_in_zeros(tmp_path):
    keys = keys16(*(n << 64 for n in range(1, 10_001)))
    avro.write_summary(tmp_path / "s.avro", keys, np.arange(-5000, 5000))
    facts = avro.read_summary(tmp_path / "s.avro")
    assert [int.from_bytes(fact.bucket, "big") for fact in facts] == [n << 64 for n in range(1, 10_001)]
    assert [fact.metric for fact in facts] == list(range(-5000, 5000))
    with (tmp_path / "s.avro").open("rb") as file:
        assert fastavro.reader(file).codec == "null"


def test_a_domain_and_a_debug_summary_are_read_as_written(tmp_path):
    avro.write_domain(tmp_path / "d.avro", keys16(3, 1, 3))
    assert avro.listed(avro.read_domain(tmp_path / "d.avro")) == avro.listed(keys16(3, 1, 3))
    facts = [avro.DebugFact(bytes(16), 5, -2, ("in_domain", "in_reports")), avro.DebugFact(b"\1" * 16, 0, 0, ())]
    avro.write_debug_summary(tmp_path / "x.avro", facts)
    assert avro.read_debug_summary(tmp_path / "x.avro") == facts


def written(path, schema, rows, codec="null"):
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, codec=codec)
    return path


def test_deflate_is_read_and_other_codecs_are_refused(tmp_path):
    rows = [{"bucket": b"key1"}]
    assert len(avro.read_domain(written(tmp_path / "d.avro", avro.DOMAIN, rows, "deflate"))) == 1
    with pytest.raises(JobError, match="codec"):
        avro.read_domain(written(tmp_path / "b.avro", avro.DOMAIN, rows, "bzip2"))


@pytest.mark.parametrize("bucket", [b"", b"x" * 17])
def test_a_bucket_of_a_domain_has_1_to_16_bytes(tmp_path, bucket):
    with pytest.raises(JobError, match="1 to 16 bytes"):
        avro.read_domain(written(tmp_path / "d.avro", avro.DOMAIN, [{"bucket": bucket}]))


def test_a_file_of_another_kind_is_refused(tmp_path):
    avro.write_domain(tmp_path / "d.avro", keys16(1))
    with pytest.raises(JobError, match="lacks the fields payload, key_id, shared_info"):
        list(avro.read_reports(tmp_path / "d.avro"))


def test_a_file_that_is_missing_is_refused(tmp_path):
    with pytest.raises(JobError, match="cannot be opened") as caught:
        list(avro.read_reports(tmp_path / "missing.avro"))
    assert caught.value.code == "INPUT_DATA_READ_FAILED"


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.integers(1, 3), st.booleans())
def test_a_damaged_file_is_read_or_refused(tmp_path, randomness, changes, cut):
    place = tmp_path / "r.avro"
    avro.write_reports(place, [avro.Report(b"payload", "key", "{}")] * 3)
    whole = bytearray(place.read_bytes())
    for _ in range(changes):
        whole[randomness.randrange(len(whole))] = randomness.randrange(256)
    place.write_bytes(whole[: randomness.randrange(len(whole))] if cut else whole)
    try:
        list(avro.read_reports(place))
    except JobError as error:
        assert error.code == "INPUT_DATA_READ_FAILED"  # noqa: PT017


@pytest.mark.parametrize(("prefix", "parts", "names"), [
    ("out.avro", 1, ["out-1-of-1.avro"]), ("out", 2, ["out-1-of-2", "out-2-of-2"]),
    ("a.avro.avro", 1, ["a.avro-1-of-1.avro"]),
])  # fmt: skip
def test_parts_are_named_after_the_prefix(prefix, parts, names):
    assert avro.part_names(prefix, parts) == names


KEYS = {str(uuid.UUID(int=n)): X25519PrivateKey.from_private_bytes(bytes([n] * 32)) for n in range(1, 4)}


def test_key_documents_are_read_as_written():
    assert [key.id for key in public_keys(public_document(KEYS))] == list(KEYS)
    opened = private_keys(private_document(KEYS))
    assert {name: key.private_bytes_raw() for name, key in opened.items()} == {
        name: key.private_bytes_raw() for name, key in KEYS.items()
    }
    for public, key in zip(public_keys(public_document(KEYS)), KEYS.values(), strict=True):
        assert public.key.public_bytes_raw() == key.public_key().public_bytes_raw()


ENTRY = json.loads(public_document(KEYS))["keys"][0]


@pytest.mark.parametrize(("document", "message"), [
    ("", "a key document is"), ("[]", "a key document is"), ('{"keys": 5}', "a key document is"),
    ('{"keys": []}', "holds no key"), (json.dumps({"keys": [ENTRY | {"id": "x"}]}), "a key document is"),
    (json.dumps({"keys": [ENTRY | {"key": "A"}]}), "a key document is"),
    (json.dumps({"keys": [ENTRY | {"key": "AAAA"}]}), "32 bytes"), (json.dumps({"keys": [ENTRY] * 2}), "the same id"),
    (json.dumps({"keys": [ENTRY | {"id": str(uuid.UUID(int=n))} for n in range(6)]}), "at most 5"),
])  # fmt: skip
def test_an_invalid_key_document_is_refused(document, message):
    with pytest.raises(KeyDocumentError, match=message):
        public_keys(document)


def test_one_to_five_keys_are_published():
    with pytest.raises(KeyDocumentError, match="1 to 5"):
        public_document({})
