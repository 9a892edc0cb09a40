"""HTTP requests to API Gateway events and back."""

import base64
from typing import Any

import pytest

from kanon.local.gateway import ApiGateway, GatewayRequest, Route, event, response
from kanon.local.template import TemplateError

GATEWAY = ApiGateway(
    [
        Route("GET /things/{thing}", "a"),
        Route("POST /things/{thing}", "a"),
        Route("GET /things/known", "a"),
        Route("POST /v1:batch", "a"),
    ]
)


def find(method: str, target: str) -> tuple[str, dict[str, str]] | None:
    found = GATEWAY.find(GatewayRequest(method, target))
    return None if found is None else (found[0].key, found[1])


def sent(**fields: Any) -> dict[str, Any]:
    request = GatewayRequest(**{"method": "GET", "target": "/things/x", **fields})
    found = GATEWAY.find(request)
    assert found is not None
    return event(request, *found, now=1_700_000_000.25)


def test_the_most_specific_route_wins() -> None:
    assert find("GET", "/things/known") == ("GET /things/known", {})
    assert find("GET", "/things/other") == ("GET /things/{thing}", {"thing": "other"})


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "/things/x"),
        ("GET", "/things"),
        ("GET", "/things/"),
        ("GET", "/things/x/y"),
        ("GET", "/"),
        ("GET", "//things/x"),
        ("GET", "/things/x/"),
    ],
)
def test_a_request_that_matches_no_route_is_404(method: str, target: str) -> None:
    assert find(method, target) is None


def test_a_segment_is_matched_and_passed_decoded() -> None:
    assert find("POST", "/v1%3Abatch") == ("POST /v1:batch", {})
    assert find("POST", "/things/a%2Fb%3Ajoin?x=1") == (
        "POST /things/{thing}",
        {"thing": "a/b:join"},
    )
    assert sent(target="/things/a%3Ajoin")["rawPath"] == "/things/a:join"
    assert sent(target="/things/%C3%A9")["pathParameters"] == {"thing": "é"}


def test_the_query_string_stays_raw_beside_its_parsed_form() -> None:
    made = sent(target="/things/x?a=1&b=%20&a=2&c")
    assert made["rawQueryString"] == "a=1&b=%20&a=2&c"
    assert made["queryStringParameters"] == {"a": "1,2", "b": " ", "c": ""}
    assert "queryStringParameters" not in sent()


def test_headers_are_lower_case_and_joined() -> None:
    made = sent(headers=[("X-One", "1"), ("x-one", "2"), ("Host", "h.org")])
    assert made["headers"] == {"x-one": "1,2", "host": "h.org"}


def test_the_context_carries_route_time_and_address() -> None:
    context = sent(source="10.0.0.9")["requestContext"]
    assert context["routeKey"] == "GET /things/{thing}"
    assert context["timeEpoch"] == 1_700_000_000_250
    assert context["http"]["sourceIp"] == "10.0.0.9"
    assert context["http"]["method"] == "GET"
    assert context["requestId"] != sent()["requestContext"]["requestId"]


@pytest.mark.parametrize(
    ("content_type", "body", "encoded"),
    [
        ("application/json", b'{"a": 1}', False),
        ("application/json; charset=utf-8", "é".encode(), False),
        ("text/plain", b"x", False),
        ("application/vnd.api+json", b"{}", False),
        (None, b"x", False),
        ("message/ohttp-req", b"x", True),
        ("application/x-www-form-urlencoded", b"a=1", True),
        ("application/jsonl", b"{}", True),
        ("application/json", b"\xff", True),
    ],
)
def test_text_passes_unchanged_and_other_content_in_base64(
    content_type: str | None, body: bytes, encoded: bool
) -> None:
    headers = [] if content_type is None else [("content-type", content_type)]
    made = sent(method="POST", headers=headers, body=body)
    assert made["isBase64Encoded"] is encoded
    assert made["body"] == (base64.b64encode(body).decode() if encoded else body.decode())
    assert "body" not in sent()


def test_a_route_api_gateway_would_refuse_is_refused() -> None:
    with pytest.raises(TemplateError, match="refuses the segment"):
        ApiGateway([Route("POST /things/{thing}:join", "a")])


def test_a_result_becomes_status_headers_and_body() -> None:
    made = response(
        {
            "statusCode": 201,
            "headers": {"X-A": 1, "Content-Type": "text/html"},
            "body": "é",
        }
    )
    assert made.status == 201
    assert made.body == "é".encode()
    assert made.header("x-a") == "1"
    assert made.header("content-type") == "text/html"


def test_a_result_in_base64_becomes_bytes() -> None:
    text = base64.b64encode(b"\xff\x00").decode()
    assert response({"statusCode": 200, "body": text, "isBase64Encoded": True}).body == b"\xff\x00"
    assert response({"statusCode": 200, "body": text, "isBase64Encoded": False}).body == text.encode()


@pytest.mark.parametrize("result", [{"statusCode": "many"}, {"a": 1}, None, [], {"statusCode": 200, "headers": 1}])
def test_a_malformed_result_is_the_gateways_error(result: Any) -> None:
    made = response(result)
    assert (made.status, made.json()) == (500, {"message": "Internal Server Error"})
