"""Reports of real browsers can be opened, and encode to the same bytes."""

import json
from collections import Counter

import fastavro
import numpy as np
import pytest

from kanon.hpke import SUITE
from kanon.reports import avro, payload, shared_info
from kanon.reports.errors import ReportRefusedError
from kanon.reports.payload import Contribution, decode, encode, layout_of, open_sealed
from tests.integration.reports.vectors import VECTORS, golden_key, goldens, needs_vectors

pytestmark = needs_vectors
GOLDENS = goldens()


def opened(golden):
    if golden.version == "none":  # the service refuses this version: only the codec is checked with it
        return SUITE.decrypt(golden.wire, golden_key(), payload.PREFIX + b"\0" + golden.shared_info.encode())
    return open_sealed(golden.wire, golden_key(), golden.shared_info)


def test_there_are_43_reports_of_every_length_the_readme_names():
    assert len(GOLDENS) == 43
    assert {len(golden.cleartext) for golden in GOLDENS} == {63, 99, 747, 109, 847, 867, 987, 4128, 41029}


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_a_payload_opens_to_its_cleartext_and_is_encoded_to_the_same_bytes(golden):
    cleartext = opened(golden)
    assert cleartext == golden.cleartext
    assert len(golden.wire) == len(cleartext) + 48
    if golden.debug_cleartext is not None:
        assert cleartext == golden.debug_cleartext
    report = decode(cleartext)
    assert report.operation == "histogram"
    layout = layout_of(cleartext)
    real = [contribution for contribution in report.contributions if contribution.value]
    assert encode(real, layout) == cleartext
    assert encode(report.contributions, layout) == cleartext


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_the_layout_reads_what_cbor2_reads(golden):
    layout = layout_of(golden.cleartext)
    rows = np.frombuffer(golden.cleartext * 2, np.uint8).reshape(2, -1)
    assert layout.matches(rows).all()
    slots = layout.read(rows)
    for buckets, values, ids in zip(*slots, strict=True):
        read = [
            Contribution(int.from_bytes(key, "big"), int(value), int(number))
            for key, value, number in zip(avro.listed(buckets), values, ids, strict=True)
        ]
        assert tuple(read) == decode(golden.cleartext).contributions


def test_the_named_reports_have_the_contributions_of_the_readme():
    facts = {}
    for golden in GOLDENS:
        api, version, name = golden.name.split("/")
        if (api, version) == ("private-aggregation", "1.0"):
            pairs = decode(golden.cleartext).contributions
            real = [pair for pair in pairs if pair.value]
            facts[int(name.split("_")[1].removesuffix(".json"))] = (
                len(real), len(pairs), {pair.filtering_id for pair in real},
            )  # fmt: skip
    assert facts[7] == (0, 20, set())
    assert facts[10] == (1, 20, {2**64 - 1})
    assert (facts[11], facts[14]) == ((1, 100, {0}), (100, 100, {0}))
    assert facts[15] == (100, 100, {3})
    assert facts[18] == (1, 1000, {3})


def test_reports_of_version_0_1_and_1_0_are_readable_and_of_the_empty_version_refused():
    counted = Counter()
    for golden in GOLDENS:
        try:
            counted[shared_info.parse(golden.shared_info).version] += 1
        except ReportRefusedError as error:
            counted[error.counter.value] += 1
    refused = sum(golden.version == "none" for golden in GOLDENS)
    assert counted["UNSUPPORTED_SHAREDINFO_VERSION"] == refused
    assert counted["0.1"] + counted["1.0"] == 43 - refused


def test_the_text_of_shared_info_is_written_as_browsers_write_it():
    written = 0
    for golden in GOLDENS:
        if golden.version != "none":
            assert shared_info.parse(golden.shared_info).text() == golden.shared_info
            written += 1
    assert written > 30


@pytest.mark.parametrize("golden", [g for g in GOLDENS if g.version != "none"][:4], ids=lambda golden: golden.name)
def test_a_named_version_has_no_zero_byte_after_the_prefix(golden):
    sealed = SUITE.encrypt(
        golden.cleartext, golden_key().public_key(), payload.PREFIX + b"\0" + golden.shared_info.encode()
    )
    with pytest.raises(ReportRefusedError):
        open_sealed(sealed, golden_key(), golden.shared_info)


CBOR = {
    "report1": [(1, 2, 0)],
    "report3": [(1, 2, 0), (3, 4, 0)],
    "debug_api_report_1": [(1, 2, 0), (3, 4, 0)],
    "report5": [(2**128 - 1, 1000, 0)],
    "nullReport": [],
    "report_with_id_1": [(1, 2, 0), (3, 4, 1)],
}


@pytest.mark.parametrize("name", CBOR)
def test_a_cbor_file_is_read_and_encoded_to_the_same_bytes(name):
    cleartext = (VECTORS / f"cbor/{name}.cbor").read_bytes()
    contributions = [pair for pair in decode(cleartext).contributions if pair.value]
    assert contributions == CBOR[name]
    assert encode(contributions, layout_of(cleartext)) == cleartext


@pytest.mark.parametrize(
    ("file", "schema"),
    [
        ("reports", avro.REPORTS),
        ("output_domain", avro.DOMAIN),
        ("results", avro.SUMMARY),
        ("debug_results", avro.DEBUG_SUMMARY),
    ],
)
def test_a_schema_is_the_public_one(file, schema):
    public = json.loads((VECTORS / f"schemas/{file}.avsc").read_text())
    assert fastavro.schema.fingerprint(
        fastavro.schema.to_parsing_canonical_form(public), "SHA-256"
    ) == fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(schema), "SHA-256")
