"""What a body may hold, and how base64 is read."""

import base64
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from kanon.gate import types
from kanon.gate.mechanism.bounds import interval_aware
from kanon.gate.mechanism.parameters import Parameters, profile
from kanon.gate.models import BatchedJoin, BatchJoinBody, JoinBody, QueryBody, TypeAnswer, ValidateHashesBody
from kanon.gate.types import Type, read_types
from kanon.http import encoding
from tests.unit.examples import PUBLISHED

IDS = st.binary(min_size=1, max_size=encoding.MOST_ID_BYTES)


@given(IDS)
def test_every_way_to_write_an_id_in_base64_reads_as_the_id(set_id: bytes) -> None:
    standard, urlsafe = base64.b64encode(set_id).decode(), base64.urlsafe_b64encode(set_id).decode()
    for text in (standard, urlsafe, standard.rstrip("="), urlsafe.rstrip("=")):
        assert encoding.decode_base64(text) == set_id
    assert encoding.decode_base64url(urlsafe.rstrip("=")) == set_id


@given(st.text(max_size=100) | st.text("AZaz09+/-_=", max_size=100))
def test_a_text_is_an_id_if_and_only_if_it_decodes_to_1_to_64_bytes(text: str) -> None:
    def expected(text: str) -> bytes | None:
        standard = text.replace("-", "+").replace("_", "/")
        for padded in (standard, standard + "=" * (-len(standard) % 4) * ("=" not in standard)):
            if len(padded) % 4 == 0 and re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", padded):
                decoded = base64.b64decode(padded)
                return decoded if 1 <= len(decoded) <= 64 else None
        return None

    try:
        decoded = encoding.decode_base64(text)
    except ValueError:
        decoded = None
    assert decoded == expected(text)


@pytest.mark.parametrize(
    "text", ["", "a", "YQ==", "YW Jj", "YW+j", "YW/j", "YWJj\n", "é" * 4, "a" * 87, "a" * 88, None, 1]
)
def test_a_path_takes_base64url_without_padding_only(text: Any) -> None:
    with pytest.raises(ValueError, match="base64url without padding of 1 to 64 bytes"):
        encoding.decode_base64url(text)


@pytest.mark.parametrize("name", ["fledge", "a", "0-_", "a" * 64, "", "-a", "A", "a" * 65, "a\n", "é"])
def test_a_type_name_follows_the_same_rule_as_in_the_configuration(name: str) -> None:
    try:
        BatchedJoin.model_validate({"type": name, "set": "YQ", "client": "c"})
        accepted = True
    except ValidationError:
        accepted = False
    assert accepted == bool(re.fullmatch(types.TYPE_NAME, name))


@pytest.mark.parametrize(
    ("body", "client", "short"),
    [
        ({"client": "c"}, "c", None),
        ({"client": "é" * 128}, "é" * 128, None),
        ({"shortClientIdentifier": 0}, None, 0),
        ({"shortClientIdentifier": 2.0}, None, 2),
        ({"shortClientIdentifier": 2, "name": "type/fledge/sets/asdf"}, None, 2),
    ],
)
def test_a_join_names_one_client(body: Any, client: str | None, short: int | None) -> None:
    join = JoinBody.model_validate(body)
    assert (join.client, join.short_client_identifier) == (client, short)


WRONG_CLIENTS: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of client and shortClientIdentifier"),
    ({"client": "c", "shortClientIdentifier": 2}, "exactly one of"),
    ({"client": None}, "exactly one of"),
    ({"client": None, "shortClientIdentifier": 2}, "exactly one of"),
    ({"short_client_identifier": 2}, "unknown .did you mean shortClientIdentifier"),
    ({"Client": "c"}, "unknown .did you mean client"),
    ({"client": ""}, "at least 1 character"),
    ({"client": "c" * 257}, "at most 256"),
    ({"client": "é" * 129}, "at most 256 bytes of UTF-8"),
    ({"client": "\ud800"}, "unicode"),
    ({"client": 2}, "valid string"),
    ({"client": ["c"]}, "valid string"),
    ({"client": True}, "valid string"),
    ({"shortClientIdentifier": "2"}, "valid integer"),
    ({"shortClientIdentifier": 2.5}, "valid integer"),
    ({"shortClientIdentifier": float("inf")}, "valid integer"),
    ({"shortClientIdentifier": 1e300}, "less than"),
    ({"shortClientIdentifier": True}, "valid integer"),
    ({"shortClientIdentifier": -1}, "greater than or equal to 0"),
    ({"shortClientIdentifier": 1 << 53}, "less than"),
    ({"shortClientIdentifier": 10**1000}, "less than"),
]


@pytest.mark.parametrize(("body", "reason"), WRONG_CLIENTS, ids=lambda value: str(value)[:50])
def test_a_wrong_client_is_refused_alone_and_in_a_batch(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        JoinBody.model_validate(body)
    with pytest.raises(ValidationError, match=reason):
        BatchedJoin.model_validate({"type": "fledge", "set": "asdf", **body})


def test_a_batch_accepts_1_to_500_entries_valid_or_not() -> None:
    assert BatchJoinBody.model_validate({"joins": [None] * 500}).joins == [None] * 500
    for joins in ([], [None] * 501, {}, None, "joins"):
        with pytest.raises(ValidationError):
            BatchJoinBody.model_validate({"joins": joins})


@pytest.mark.parametrize(("model", "field"), [(QueryBody, "setsForType"), (ValidateHashesBody, "sets")])
class TestQuestions:
    """Both forms of a query."""

    def read(self, model: type[BaseModel], field: str, value: Any) -> Any:
        return next(iter(dict(model.model_validate({field: value})).values()))

    def test_one_object_is_a_list_of_one(self, model: type[BaseModel], field: str) -> None:
        entry = {"type": "fledge", "hashes": ["somehash"]}
        assert self.read(model, field, entry) == self.read(model, field, [entry])

    def test_hashes_keep_their_text_and_read_as_ids(self, model: type[BaseModel], field: str) -> None:
        (entry,) = self.read(model, field, [{"type": "t", "hashes": ["YQ==", "YQ", "-_-_"]}])
        assert entry.hashes == [("YQ==", b"a"), ("YQ", b"a"), ("-_-_", base64.b64decode("+/+/"))]

    def test_a_thousand_hashes_may_be_asked_over_all_types(self, model: type[BaseModel], field: str) -> None:
        half = {"type": "a", "hashes": ["asdf"] * 500}
        assert len(self.read(model, field, [half, {**half, "type": "b"}])) == 2
        with pytest.raises(ValidationError, match="at most 1000 hashes at once; split the request"):
            self.read(model, field, [half, half, {"type": "c", "hashes": ["asdf"]}])
        with pytest.raises(ValidationError, match="at most 1000 items"):
            self.read(model, field, [{"type": "a", "hashes": ["asdf"] * 1001}])
        with pytest.raises(ValidationError, match="at most 1000 items"):
            self.read(model, field, [{"type": "a", "hashes": []}] * 1001)

    def test_of_an_entry_the_first_wrong_hash_is_told(self, model: type[BaseModel], field: str) -> None:
        """Else a body of 1 MiB gives half a million errors, of 3 KB each."""
        with pytest.raises(ValidationError) as refused:
            self.read(model, field, [{"type": "a", "hashes": ["asdf", *[1] * 999]}] * 2)
        assert [error["loc"][1:] for error in refused.value.errors()] == [(0, "hashes", 1), (1, "hashes", 1)]


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (JoinBody, {"client": "private"}),
        (BatchJoinBody, {"joins": [{"type": "private", "set": "private", "client": "private"}]}),
        (QueryBody, {"setsForType": [{"type": "private", "hashes": ["private"]}]}),
    ],
)
def test_printing_a_body_does_not_show_its_content(model: type[BaseModel], body: dict[str, Any]) -> None:
    read = model.model_validate(body)
    assert "private" in str(read.model_dump())
    assert repr(read) == f"{model.__name__}()"
    assert str(read) == ""


SHARP = Parameters(50, 168, 3600, *profile("sharp", 168))


def test_the_json_of_a_guarantee_has_both_bounds_the_unit_and_the_certain_counts() -> None:
    told = TypeAnswer.of(Type("fledge", PUBLISHED, "published")).model_dump(by_alias=True)
    assert told["bounds"]["paper"]["epsilon"] == 3
    assert told["bounds"]["intervalAware"]["epsilon"] == 2.25
    assert Fraction(repr(told["bounds"]["intervalAware"]["delta"])) >= interval_aware(PUBLISHED).delta
    assert (told["neverTrueBelow"], told["surelyTrueFrom"]) == (1, 99)
    assert "one client, one set, one step" in told["unit"]
    assert [span["days"] for span in told["rejoining"]] == [7, 30, 365]
    assert told["posterior"]["prior"] == 0.1
    assert (told["restart"], told["hold"], told["epoch"]) == ("grid", None, None)


def test_the_json_of_a_guarantee_has_restart_and_many_watched_sets() -> None:
    type_ = read_types('{"a": {"k": 50, "window": 168, "profile": "returning"}}', 3600)["a"]
    told = TypeAnswer.of(type_).model_dump(by_alias=True)
    assert (told["restart"], told["hold"], told["epoch"]) == ("crossing", 672, 8904)
    assert told["bounds"]["watchedSets"]["sets"] == 10_000
    assert told["bounds"]["watched"]["delta"] < told["bounds"]["watchedSets"]["delta"] <= 1e-6


def test_a_one_sided_type_reports_null_for_the_papers_bound() -> None:
    assert TypeAnswer.of(Type("sharp", SHARP, "sharp")).bounds.paper is None
