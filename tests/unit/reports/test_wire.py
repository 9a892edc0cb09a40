"""The vector of docs/reference/vectors.json, and the page that shows it, are what the code computes."""

import base64
import json
import re
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from jsonschema import Draft202012Validator

from kanon.client import value_id
from kanon.gate.models import BatchJoinBody, JoinBody, QueryBody
from kanon.reports import avro
from kanon.reports.clients.encrypt import LAYOUT
from kanon.reports.collecting import PUBLIC_KEYS, REPORTS, ReportBody, report_message
from kanon.reports.payload import PREFIX, Contribution, encode, open_sealed, public_keys
from kanon.reports.shared_info import CONTRIBUTION_BOUND, SharedInfo
from tests.oracles import hpke
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "wire.md").read_text()
VECTOR: dict[str, Any] = json.loads((ROOT / "docs" / "reference" / "vectors.json").read_text())
REPORT: dict[str, Any] = VECTOR["report"]
PRIVATE = X25519PrivateKey.from_private_bytes(bytes.fromhex(REPORT["privateKey"]))


def clear_text() -> bytes:
    pair = REPORT["contribution"]
    return encode([Contribution(int(pair["bucket"], 16), pair["value"], pair["filteringId"])], LAYOUT)


def sealed(info: bytes) -> hpke.Sealed:
    ephemeral = X25519PrivateKey.from_private_bytes(bytes.fromhex(REPORT["ephemeralPrivateKey"]))
    return hpke.seal(clear_text(), PRIVATE.public_key(), ephemeral, info)


def test_the_set_of_the_vector_is_the_hash_of_its_value() -> None:
    one = VECTOR["set"]
    digest = sha256(one["value"].encode())
    assert (one["utf8"], one["sha256"]) == (one["value"].encode().hex(), digest.hexdigest())
    assert one["id"] == value_id(one["value"])
    assert REPORT["contribution"]["bucket"] == digest.digest()[:16].hex()


def test_the_joins_and_the_query_of_the_vector_are_accepted() -> None:
    raw = bytes.fromhex(VECTOR["set"]["sha256"])
    JoinBody.model_validate_json(VECTOR["join"]["body"])
    assert VECTOR["join"]["path"] == f"/v1/types/fledge/sets/{VECTOR['set']['id']}:join"
    joins = BatchJoinBody.model_validate_json(VECTOR["batchJoin"]["body"]).joins
    assert [join["set"] for join in joins] == [VECTOR["set"]["id"]] * 2
    (asked,) = QueryBody.model_validate_json(VECTOR["query"]["body"]).sets_for_type
    assert asked.hashes == [(VECTOR["set"]["id"], raw)]


def test_the_clear_text_of_the_vector_is_what_the_client_writes() -> None:
    clear = clear_text()
    assert REPORT["cleartext"] == clear.hex()
    parts = [
        REPORT["cborHead"],
        REPORT["cborPair"],
        *[REPORT["cborPadding"]] * (REPORT["slots"] - 1),
        REPORT["cborTail"],
    ]
    assert "".join(parts) == clear.hex()
    assert REPORT["slots"] == LAYOUT.slots


def test_the_shared_info_of_the_vector_is_what_the_client_writes() -> None:
    fields = json.loads(REPORT["sharedInfo"])
    info = SharedInfo(**{**fields, "scheduled_report_time": int(fields["scheduled_report_time"])})
    assert info.text() == REPORT["sharedInfo"]
    assert REPORT["info"] == (PREFIX + REPORT["sharedInfo"].encode()).hex()


def test_the_encryption_of_the_vector_is_rfc_9180_and_opens() -> None:
    made = sealed(bytes.fromhex(REPORT["info"]))
    names = ("encapsulatedKey", "sharedSecret", "key", "nonce", "ciphertext")
    assert [REPORT[name] for name in names] == [part.hex() for part in made]
    wire = made.encapsulated_key + made.ciphertext
    assert base64.b64decode(REPORT["payload"]) == wire
    assert open_sealed(wire, PRIVATE, REPORT["sharedInfo"]) == clear_text()
    assert PRIVATE.public_key().public_bytes_raw().hex() == REPORT["publicKey"]


def test_a_message_of_another_info_does_not_equal_the_vector() -> None:
    assert sealed(b"aggregation_service{}").ciphertext.hex() != REPORT["ciphertext"]


def test_the_body_of_the_vector_is_accepted_and_keeps_its_bytes() -> None:
    (key,) = public_keys(REPORT["publicKeys"])
    assert key.key.public_bytes_raw().hex() == REPORT["publicKey"]
    body = ReportBody.model_validate_json(REPORT["body"])
    now = int(json.loads(REPORT["sharedInfo"])["scheduled_report_time"])
    message = report_message(body, REPORTS[REPORT["path"]], lambda origin: True, lambda name: name == key.id, now)
    assert (message.payload, message.shared_info) == (REPORT["payload"], REPORT["sharedInfo"])


BODIES = [("JoinBody", "join"), ("BatchJoinBody", "batchJoin"), ("QueryBody", "query"), ("ReportBody", "report")]


@pytest.mark.parametrize(("name", "call"), BODIES)
def test_the_bodies_of_the_vector_keep_their_json_schemas(name: str, call: str) -> None:
    schemas = json.loads((ROOT / "docs" / "reference" / "schemas.json").read_text())
    Draft202012Validator.check_schema(schemas)
    schema = Draft202012Validator({**schemas, "$ref": f"#/$defs/{name}"})
    body = json.loads(VECTOR[call]["body"])
    schema.validate(body)
    assert not schema.is_valid({f"{field}s": value for field, value in body.items()})


def test_the_page_says_where_the_vector_has_each_part() -> None:
    section = PAGE.partition("\n## A complete report\n")[2]
    named = set(re.findall(r"`(\w+)`", section)) - {"report"}
    assert named == {"cborHead", "cborPair", "cborPadding", "cborTail", "key", "nonce"}
    assert named <= REPORT.keys()
    assert f"{REPORT['slots'] - 1} times `cborPadding`" in section
    assert f"its value {REPORT['contribution']['value']}." in section
    assert f"The id of `{VECTOR['set']['value']}` is `{VECTOR['set']['id']}`" in PAGE
    assert f"`{VECTOR['join']['body']}`" in PAGE


@pytest.mark.parametrize(
    ("name", "schema"),
    [("reports", avro.REPORTS), ("declared keys", avro.DOMAIN), ("summary", avro.SUMMARY)],
)
def test_the_page_names_the_schemas_of_the_files(name: str, schema: Any) -> None:
    (row,) = re.findall(rf"^\| {name} \| record `(\w+)`: (.*) \|$", PAGE, re.MULTILINE)
    fields = [(field["name"], field["type"]) for field in schema["fields"]]
    assert (row[0], re.findall(r"`(\w+)` (\w+)", row[1])) == (schema["name"], fields)


def test_the_page_names_the_algorithms_paths_and_bounds_of_the_code() -> None:
    ids = re.findall(r"`0x(\d{4})`", PAGE)
    assert [bytes.fromhex(one) for one in ids] == [hpke.KEM, hpke.KDF, hpke.AEAD]
    for text in (f"GET {PUBLIC_KEYS}", f"POST {REPORT['path']}", PREFIX.decode(), f"{CONTRIBUTION_BOUND:,}"):
        assert text in PAGE
    rows = re.findall(r"^\| `(api|report_id|reporting_origin|scheduled_report_time|version)` \|", PAGE, re.MULTILINE)
    assert rows == list(json.loads(REPORT["sharedInfo"]))
