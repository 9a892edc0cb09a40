"""Bodies as clients send them, and errors as the service answers them."""

import base64
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from aws_lambda_powertools import Logger
from botocore.exceptions import ClientError, ReadTimeoutError
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from kanon.errors import FingerprintMismatchError, ThrottledError
from kanon.http import edge
from kanon.http.answers import STATUS_NAMES, error_answer
from kanon.http.bodies import MOST_BODY_BYTES, MOST_RELAXED_CHARACTERS, RequestError, read_json
from kanon.local.functions import HandlerContext


class Number(BaseModel):
    number: int


CONTEXT = HandlerContext("number", "512", lambda: 30.0)


class Service:
    """A resolver with one route, `POST /number`; ``on_call`` is what its function does."""

    def __init__(self) -> None:
        self.logger = mock.Mock(spec=Logger)
        self.app = edge.resolver(self.logger)
        self.numbers: list[int] = []
        self.on_call: Callable[[], None] = lambda: None

        @self.app.post("/number")
        def number(body: Number) -> dict[str, bool]:
            self.on_call()
            self.numbers.append(body.number)
            return {}

    def send(
        self, body: str | None, headers: dict[str, str] | None = None, *, encoded: bool = False,
        method: str = "POST", path: str = "/number",
    ) -> Any:  # fmt: skip
        event = {
            "version": "2.0",
            "rawPath": path,
            "rawQueryString": "",
            "headers": {"content-type": "application/json"} if headers is None else headers,
            "requestContext": {"http": {"method": method, "path": path}, "stage": "$default"},
            "isBase64Encoded": encoded,
        }
        if body is not None:
            event["body"] = body
        return edge.handle(self.app, event, CONTEXT, self.logger)

    def failing(self, error: Exception) -> Any:
        """The answer to a request whose function raises this error."""

        def fail() -> None:
            raise error

        self.on_call = fail
        return self.send('{"number": 7}')

    def refusal(self, body: str | None, headers: dict[str, str] | None = None, *, encoded: bool = False) -> Any:
        """The error of a request that must not reach the route."""
        result = self.send(body, headers, encoded=encoded)
        assert self.numbers == []
        assert set(result["headers"]) >= {"Content-Type", "Cache-Control"}
        error = json.loads(result["body"])["error"]
        assert error["code"] == result["statusCode"]
        return error


@pytest.fixture
def service() -> Service:
    return Service()


# Reading


@given(
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.lists(st.text(), max_size=3), max_size=4)
)
def test_json_reads_as_python_reads_it(body: dict[str, Any]) -> None:
    for text in (json.dumps(body), json.dumps(body, ensure_ascii=False), json.dumps(body, indent=1)):
        assert read_json(text) == body


@pytest.mark.parametrize(
    ("text", "body"),
    [
        # As Chromium joins.
        (
            "{name: 'type/fledge/sets/asdf', shortClientIdentifier: 2}",
            {"name": "type/fledge/sets/asdf", "shortClientIdentifier": 2},
        ),
        # As the Bidding and Auction services' documents ask.
        (
            '{"sets": { type: "fledge", hashes: [ "somehash" ] }}',
            {"sets": {"type": "fledge", "hashes": ["somehash"]}},
        ),
        ("{a:'',b:\t'x: y, {z}' ,c1_ : null}", {"a": "", "b": "x: y, {z}", "c1_": None}),
        ('{\'a\': true, "it\'s: {b: 1}": "\\"c:"}', {"a": True, "it's: {b: 1}": '"c:'}),
        ("{true: false, null: 1.5e3}", {"true": False, "null": 1500.0}),
    ],
)
def test_the_relaxed_json_of_real_clients_is_read(text: str, body: Any) -> None:
    assert read_json(text) == body


@pytest.mark.slow
@given(st.dictionaries(st.from_regex(r"[A-Za-z_]\w*", fullmatch=True), st.integers() | st.text("az:,{} ")))
def test_bare_keys_and_single_quotes_read_like_json(body: dict[str, Any]) -> None:
    ascii_keys = {key: value for key, value in body.items() if key.isascii()}
    relaxed = ",".join(f"{k} : {v}" if isinstance(v, int) else f"{k}: '{v}'" for k, v in ascii_keys.items())
    assert read_json("{" + relaxed + "}") == ascii_keys


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value at line 1 column 1"),
        ("{", "Expecting property name"),
        ("{a: }", "Expecting value"),
        ("{a: b}", "Expecting value"),
        ("{a: 'b\"c'}", "Expecting value"),
        ("{a: 1,}", "at line 1 column"),
        ("{'a': 1", "Expecting ',' delimiter"),
        ("{'a", "property name"),
        ("\ufeff{}", "BOM"),
        ('{"a": 1} {"b": 2}', "Extra data"),
        ('{"a": NaN}', "NaN and Infinity are not JSON"),
        ("{a: -Infinity}", "NaN and Infinity are not JSON"),
        ('{"a": 1, "a": 1}', "a key is given twice"),
        ('{"x": [{"a": 1, "\\u0061": 2}]}', "a key is given twice"),
        ("{a: 1, 'a': 2}", "a key is given twice"),
        ('{"a": ' + "9" * 5000 + "}", "too many digits"),
        ("{a: " + "9" * 5000 + "}", "too many digits"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a": "\n"}', "Invalid control character"),
    ],
    ids=lambda value: value[:30],
)
def test_a_body_that_is_not_json_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_json(text)
    error = refused.value.answer.error
    assert error.code == 400
    assert reason in error.message
    assert [problem.field for problem in error.details] == ["body"]


@pytest.mark.parametrize("text", ["[]", '[{"number": 1}]', "null", '"a"', "1", "true"])
def test_a_body_that_is_not_an_object_is_refused(text: str, service: Service) -> None:
    assert service.refusal(text)["message"] == "the body must be a JSON object"


def test_only_small_bodies_are_read_as_relaxed_json() -> None:
    fits = "{a: '" + "x" * (MOST_RELAXED_CHARACTERS - 7) + "'}"
    assert len(read_json(fits)["a"]) == MOST_RELAXED_CHARACTERS - 7
    with pytest.raises(RequestError):
        read_json(fits.replace("x'", "xx'"))


@given(st.text("{}[]\"'\\:,a1 \n", max_size=200) | st.text(max_size=50))
@example('"\\')
@example("'\\'")
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(RequestError):
        assert isinstance(read_json(text), dict)


@pytest.mark.parametrize("part", ["a", '"', "'", '\\"', "a ", " ", "a:", "'a", '"\\'])
def test_no_small_body_takes_long_to_refuse(part: str) -> None:
    text = (part * MOST_RELAXED_CHARACTERS)[:MOST_RELAXED_CHARACTERS]
    begin = time.process_time()
    for prefix in ("", '"', "'", "{"):
        with pytest.raises(RequestError):
            read_json((prefix + text)[:MOST_RELAXED_CHARACTERS])
    assert time.process_time() - begin < 0.5


# Content types, encodings, sizes


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "Application/JSON ;x=y", ";", "", None],
)
def test_json_is_accepted_under_every_spelling_of_its_type(content_type: str | None, service: Service) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert service.send('{"number": 7}', headers)["statusCode"] == 200
    assert service.numbers == [7]


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "application/json5",
        "message/ohttp-req",
        "nonsense",
    ],
)
def test_another_content_type_is_415_with_any_body(content_type: str, service: Service) -> None:
    for body in ('{"number": 7}', "number=7", "", None):
        error = service.refusal(body, {"content-type": content_type})
        assert (error["code"], error["status"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
        assert "application/json" in error["message"]


def test_a_base64_body_is_decoded(service: Service) -> None:
    body = base64.b64encode(b'{"number": 7}').decode()
    assert service.send(body, encoded=True)["statusCode"] == 200
    assert service.numbers == [7]


@pytest.mark.parametrize("body", ["?", "YQ", "Y=Jj", "é", "{}"])
def test_a_broken_base64_body_is_400(body: str, service: Service) -> None:
    assert "UTF-8" in service.refusal(body, encoded=True)["message"]


@pytest.mark.parametrize("data", [b'{"number": "\xff"}', '{"number": 7}'.encode("utf-16"), b"\xed\xa0\x80"])
def test_a_body_that_is_not_utf_8_is_400(data: bytes, service: Service) -> None:
    error = service.refusal(base64.b64encode(data).decode(), encoded=True)
    assert "UTF-8" in error["message"]


def test_half_a_surrogate_pair_in_the_event_is_400(service: Service) -> None:
    assert "UTF-8" in service.refusal('{"number": "\ud800"}')["message"]


@pytest.mark.parametrize("body", [None, ""])
def test_a_missing_body_is_400(body: str | None, service: Service) -> None:
    error = service.refusal(body)
    assert (error["code"], error["message"]) == (400, "body: Field required")


@pytest.mark.parametrize("encoded", [False, True])
def test_a_mebibyte_is_accepted_and_a_byte_more_is_413(encoded: bool, service: Service) -> None:
    def sent(size: int, filler: str) -> str:
        head = '{"number": 7, "x": "'
        room = size - len(head) - 2
        text = head + filler * (room // len(filler.encode()))
        text += "x" * (size - len(text.encode()) - 2) + '"}'
        assert len(text.encode()) == size
        return base64.b64encode(text.encode()).decode() if encoded else text

    for filler in ("x", "é"):
        error = service.refusal(sent(MOST_BODY_BYTES + 1, filler), encoded=encoded)
        assert (error["code"], error["status"]) == (413, "PAYLOAD_TOO_LARGE")
        assert "split the request" in error["message"]
    for filler in ("x", "é"):
        assert service.send(sent(MOST_BODY_BYTES, filler), encoded=encoded)["statusCode"] == 200


# Errors


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "the key c2VjcmV0"}}, "PutItem")


@pytest.mark.parametrize(
    ("error", "code", "logged"),
    [
        (ThrottledError("c2VjcmV0"), 503, False),
        (client_error("ProvisionedThroughputExceededException"), 503, False),
        (client_error("ThrottlingException"), 503, False),
        (client_error("InternalServerError"), 503, False),
        (client_error("AccessDeniedException"), 503, True),
        (client_error("ValidationException"), 503, True),
        (ReadTimeoutError(endpoint_url="https://c2VjcmV0"), 503, True),
        (FingerprintMismatchError("restore the types"), 503, True),
        (KeyError("c2VjcmV0"), 500, True),
        (RecursionError("c2VjcmV0"), 500, True),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_an_error_inside_is_answered_without_its_text_and_logged_if_someone_must_act(
    error: Exception, code: int, logged: bool, service: Service
) -> None:
    result = service.failing(error)
    assert result["statusCode"] == code
    assert result["headers"].get("Retry-After") == ("5" if code == 503 else None)
    assert service.logger.error.called == logged
    assert "c2VjcmV0" not in result["body"] + str(service.logger.mock_calls)
    assert json.loads(result["body"])["error"]["status"] == {500: "INTERNAL", 503: "UNAVAILABLE"}[code]


def test_the_log_of_an_unforeseen_error_names_its_kind_and_place(service: Service) -> None:
    service.failing(KeyError("c2VjcmV0"))
    (call,) = service.logger.error.mock_calls
    assert call.kwargs["kind"] == "KeyError"
    assert ".fail:" in call.kwargs["place"]


@pytest.mark.parametrize("code", sorted(STATUS_NAMES))
def test_every_code_of_the_interface_has_one_form(code: int, service: Service) -> None:
    result = service.failing(RequestError(error_answer(code, "change this")))
    assert result["statusCode"] == code
    assert json.loads(result["body"]) == {
        "error": {"code": code, "status": STATUS_NAMES[code], "message": "change this", "details": []}
    }
    assert result["headers"]["Cache-Control"] == "no-store"
    assert ("Retry-After" in result["headers"]) == (code in (429, 503))


def test_validation_is_answered_400_with_the_field_and_without_the_value(service: Service) -> None:
    error = service.refusal('{"number": "c2VjcmV0"}')
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert [problem["field"] for problem in error["details"]] == ["number"]
    assert "c2VjcmV0" not in json.dumps(error)


def test_at_most_ten_problems_are_reported() -> None:
    class Numbers(BaseModel):
        numbers: list[Number]

    with pytest.raises(ValidationError) as refused:
        Numbers.model_validate({"numbers": [1] * 500})
    error = edge.invalid(refused.value.errors()).error
    assert len(error.details) == 10
    assert error.message == "numbers.0: Input should be an object"


def test_an_unknown_path_or_method_is_404(service: Service) -> None:
    result = service.send(None, {}, method="GET", path="/numbers")
    assert result["statusCode"] == 404
    assert json.loads(result["body"])["error"]["status"] == "NOT_FOUND"


def test_the_environment_cannot_make_the_resolver_print_requests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWERTOOLS_DEV", "1")
    assert Service().send('{"number": 7}')["statusCode"] == 200
    assert capsys.readouterr().out == ""
