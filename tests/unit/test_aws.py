"""The client of the tables parses answers like botocore, whose own parser is the oracle."""

import json
from base64 import b64encode
from typing import Any

import pytest
from botocore.parsers import create_parser
from botocore.session import get_session
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon import aws

BYTES = st.binary(max_size=40).map(lambda data: b64encode(data).decode())
NUMBER = st.integers().map(str)
TABLE = st.text(min_size=3, max_size=5)
NAME = st.sampled_from(["set_key", "crossings", "B", "BS", "N", "M"]) | st.text(min_size=1, max_size=5)


def _one(kind: str, value: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({kind: value})


VALUE: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.one_of(
        _one("B", BYTES),
        _one("BS", st.lists(BYTES, min_size=1)),
        _one("N", NUMBER),
        _one("NS", st.lists(NUMBER, min_size=1)),
        _one("S", st.text()),
        _one("SS", st.lists(st.text(), min_size=1)),
        _one("BOOL", st.booleans()),
        st.just({"NULL": True}),
    ),
    lambda value: _one("L", st.lists(value)) | _one("M", st.dictionaries(NAME, value)),
    max_leaves=6,
)
ITEM = st.dictionaries(NAME, VALUE, max_size=4)
ITEMS = st.lists(ITEM, max_size=3)
ANSWERS = {
    "BatchGetItem": st.fixed_dictionaries(
        {
            "Responses": st.dictionaries(TABLE, ITEMS, max_size=2),
            "UnprocessedKeys": st.dictionaries(
                TABLE, st.fixed_dictionaries({"Keys": ITEMS, "ConsistentRead": st.booleans()}), max_size=2
            ),
        },
        optional={"ConsumedCapacity": st.lists(st.fixed_dictionaries({"CapacityUnits": st.floats(0, 9)}))},
    ),
    "Query": st.fixed_dictionaries(
        {"Items": ITEMS, "Count": st.integers(0, 9), "ScannedCount": st.integers(0, 9)},
        optional={"LastEvaluatedKey": ITEM},
    ),
}


@pytest.fixture(scope="module")
def client() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        return aws.dynamodb()


def _read(client: Any, operation: str, status: int, body: bytes) -> tuple[Any, Any]:
    """An answer as the client reads it, and as botocore would alone."""
    shape = client.meta.service_model.operation_model(operation).output_shape
    plain = {"status_code": status, "headers": {"x-amzn-requestid": "1"}, "body": body}
    ours, parsed = dict(plain), dict[str, Any]()
    client.meta.events.emit(
        f"before-parse.dynamodb.{operation}", response_dict=ours, customized_response_dict=parsed, operation_model=None
    )
    parser = create_parser("json")
    return parser.parse(ours, shape) | parsed, parser.parse(plain, shape)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ANSWERS)
def test_a_response_parses_to_the_same_value_as_with_botocore(client: Any, operation: str) -> None:
    @settings(max_examples=40)  # an answer holds dozens of values
    @given(ANSWERS[operation])
    def check(answer: dict[str, Any]) -> None:
        ours, plain = _read(client, operation, 200, json.dumps(answer).encode())
        assert ours == plain

    check()


def test_an_answer_is_parsed_once(client: Any) -> None:
    answer = {"status_code": 200, "headers": {}, "body": b'{"Items": [{"B": {"B": "AQ=="}}]}'}
    parsed: dict[str, Any] = {}
    client.meta.events.emit("before-parse.dynamodb.Query", response_dict=answer, customized_response_dict=parsed)
    assert parsed == {"Items": [{"B": {"B": b"\1"}}]}
    assert answer["body"] == b"{}"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b'{"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException", "message": "busy"}'),
        (500, b""),
        (200, b'{"Responses": {"t": ['),
        (200, b'{"Responses": {"t": [{"set_key": {"B": "A"}}]}}'),
    ],
    ids=["throttled", "empty", "cut off", "no base64"],
)
def test_an_error_response_is_parsed_by_botocore(client: Any, status: int, body: bytes) -> None:
    answer = {"status_code": status, "headers": {}, "body": body}
    parsed: dict[str, Any] = {}
    client.meta.events.emit("before-parse.dynamodb.BatchGetItem", response_dict=answer, customized_response_dict=parsed)
    assert (answer["body"], parsed) == (body, {})


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (None, "https://objects.s3.amazonaws.com/a/b"),
        ("http://emulator:4566", "http://emulator:4566/objects/a/b"),
        ("http://127.0.0.1:4566", "http://127.0.0.1:4566/objects/a/b"),
    ],
)
def test_a_bucket_is_in_the_host_or_in_the_path_if_all_services_share_one_endpoint(
    endpoint: str | None, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    if endpoint is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(aws, "session", get_session)
    signed = aws.s3().generate_presigned_url("get_object", {"Bucket": "objects", "Key": "a/b"})
    assert signed.partition("?")[0] == url


def test_the_s3_client_waits_longer_than_the_dynamodb_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert aws.s3().meta.config.read_timeout > aws.CONFIG.read_timeout
    assert aws.s3().meta.config.retries == aws.CONFIG.retries
