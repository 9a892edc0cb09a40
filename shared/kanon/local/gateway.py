"""API Gateway (HTTP API, payload format 2.0) and function URLs, which have the same format: turn HTTP requests into
events, and results into responses.
"""

from __future__ import annotations

import base64
import json
import re
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from kanon.cors import Cors
from kanon.local.template import ACCOUNT, Template, TemplateError, as_text

PAYLOAD_LIMIT = 10 * 1024 * 1024  # bytes, the gateway's quota
NO_PAGES = Cors()
_OF_CORS = {"AllowOrigins", "AllowMethods", "AllowHeaders", "ExposeHeaders", "MaxAge"}
_TEXT = re.compile(r"text/|application/(json|javascript|xml|[\w.-]+\+(json|xml))\s*(;|$)", re.IGNORECASE)
_SEGMENT = re.compile(r"\{[\w.:-]+\}|[a-zA-Z0-9.:_-]+")
_SIGNED_BY = re.compile(r"^AWS4-HMAC-SHA256 Credential=([^/,\s]+)/")
_TOKEN = re.compile(r"Bearer [^.\s]+\.([^.\s]+)\.[^.\s]*", re.IGNORECASE)


@dataclass(frozen=True)
class GatewayRequest:
    """An HTTP request. ``target`` is the request line's: percent-encoded path and query."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    source: str = "127.0.0.1"


@dataclass(frozen=True)
class GatewayResponse:
    """An HTTP response; header names as the function gave them."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """The first header of that name, case-insensitive."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)


def message(status: int, text: str) -> GatewayResponse:
    """An answer of the gateway itself."""
    return GatewayResponse(status, [("content-type", "application/json")], json.dumps({"message": text}).encode())


NOT_FOUND = message(404, "Not Found")
TOO_LARGE = message(413, "Request Entity Too Large")
SERVER_ERROR = message(500, "Internal Server Error")


@dataclass(frozen=True)
class Route:
    """One route of the API: its key (``POST /a/{b}``), the logical id of its function, and who is told the caller."""

    key: str
    function: str
    authorization: str = "NONE"

    @property
    def method(self) -> str:
        """``GET`` or ``POST``."""
        return self.key.partition(" ")[0]

    @property
    def segments(self) -> list[str]:
        """The path's segments, variables in braces."""
        return self.key.partition(" ")[2].strip("/").split("/")

    def match(self, method: str, path: Sequence[str]) -> dict[str, str] | None:
        """The path parameters, decoded, if the route answers this method and raw path."""
        if self.method != method or len(path) != len(self.segments):
            return None
        parameters: dict[str, str] = {}
        for segment, part in zip(self.segments, path, strict=True):
            value = unquote(part)
            if segment.startswith("{"):
                if not value:
                    return None
                parameters[segment[1:-1]] = value
            elif segment != value:
                return None
        return parameters


class ApiGateway:
    """The routes of a template and of its nested stacks."""

    def __init__(self, routes: Sequence[Route], cors: Cors = NO_PAGES) -> None:
        for route in routes:
            for segment in route.segments:
                if segment and not _SEGMENT.fullmatch(segment):
                    raise TemplateError(f"route {route.key!r}: API Gateway refuses the segment {segment!r}")
        self.cors = cors
        self.routes = sorted(routes, key=lambda route: route.key.count("{"))  # most specific first

    @classmethod
    def from_template(cls, template: Template, functions: dict[str, str]) -> ApiGateway:
        """Read the routes; ``functions`` maps a function's ARN to its logical id."""
        uris = {
            f"integrations/{part.resolve({'Ref': resource.logical_id})}": resource.properties["IntegrationUri"]
            for part, resource in template.every_resource("AWS::ApiGatewayV2::Integration")
        }
        routes = []
        for _, resource in template.every_resource("AWS::ApiGatewayV2::Route"):
            key, target = resource.properties["RouteKey"], resource.properties["Target"]
            if target not in uris:
                raise TemplateError(f"route {key!r}: {target!r} is not an integration")
            uri = uris[target]
            if uri not in functions:
                raise TemplateError(f"route {key!r}: no function has the address {uri}")
            routes.append(Route(key, functions[uri], resource.properties.get("AuthorizationType", "NONE")))
        return cls(routes, _cors(template))

    def find(self, request: GatewayRequest) -> tuple[Route, dict[str, str]] | None:
        """The most specific route for a request, with its path parameters."""
        path = request.target.partition("?")[0][1:].split("/")
        for route in self.routes:
            parameters = route.match(request.method, path)
            if parameters is not None:
                return route, parameters
        return None


def _cors(template: Template) -> Cors:
    """The pages that may call, as the template's API says."""
    apis = [resource.properties for _, resource in template.every_resource("AWS::ApiGatewayV2::Api")]
    given = next((api["CorsConfiguration"] for api in apis if "CorsConfiguration" in api), None)
    if given is None:
        return NO_PAGES
    if unknown := given.keys() - _OF_CORS:
        raise TemplateError(f"CorsConfiguration: {sorted(unknown)} cannot be rehearsed: use {sorted(_OF_CORS)}")
    return Cors(
        frozenset(given["AllowOrigins"]),
        tuple(given["AllowMethods"]),
        tuple(given["AllowHeaders"]),
        tuple(given["ExposeHeaders"]),
        int(given["MaxAge"]),
    )


def event(request: GatewayRequest, route: Route, parameters: dict[str, str], now: float) -> dict[str, Any]:
    """The event of a request to the API that arrives at ``now`` (unix seconds)."""
    headers = _joined((name.lower(), value) for name, value in request.headers)
    path = unquote(request.target.partition("?")[0])
    result = _event(request, route.key, path, headers.get("host", "127.0.0.1"), now)
    if parameters:
        result["pathParameters"] = parameters
    if caller := _caller(route.authorization, headers.get("authorization", "")):
        result["requestContext"]["authorizer"] = caller
    return result


def _caller(authorization: str, header: str) -> dict[str, Any]:
    """Whom the API names to a function. A rehearsal believes every signature and token, and none is no refusal."""
    if authorization == "AWS_IAM" and (signed := _SIGNED_BY.search(header)):
        return {"iam": {"accessKey": signed[1], "userId": signed[1], "cognitoIdentity": None}}
    if authorization == "JWT" and (token := _TOKEN.fullmatch(header)):
        return {"jwt": {"claims": json.loads(base64.urlsafe_b64decode(token[1] + "=" * (-len(token[1]) % 4)))}}
    return {}


def event_at_url(request: GatewayRequest, host: str, now: float) -> dict[str, Any]:
    """The event of a request to a function URL: no route and no parameters, the path as it was sent."""
    return _event(request, "$default", request.target.partition("?")[0], host, now)


def _event(request: GatewayRequest, route_key: str, path: str, host: str, now: float) -> dict[str, Any]:
    _, _, query = request.target.partition("?")
    headers = {**_joined((name.lower(), value) for name, value in request.headers), "host": host}
    result: dict[str, Any] = {
        "version": "2.0",
        "routeKey": route_key,
        "rawPath": path,
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {
            "accountId": ACCOUNT,
            "apiId": "local",
            "domainName": host,
            "domainPrefix": host.partition(".")[0],
            "http": {
                "method": request.method,
                "path": path,
                "protocol": "HTTP/1.1",
                "sourceIp": request.source,
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": str(uuid.uuid4()),
            "routeKey": route_key,
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now)),
            "timeEpoch": int(now * 1000),
        },
        "isBase64Encoded": False,
    }
    if query:
        result["queryStringParameters"] = _joined(parse_qsl(query, keep_blank_values=True))
    if request.body:
        result["body"], result["isBase64Encoded"] = _body(request.body, headers.get("content-type"))
    return result


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The values of each name, separated by commas."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: ",".join(each) for name, each in values.items()}


def _body(body: bytes, content_type: str | None) -> tuple[str, bool]:
    """UTF-8 bodies of text types stay as they are; all other bodies become base64."""
    if content_type is None or _TEXT.match(content_type.strip()):
        try:
            return body.decode(), False
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode(), True


def response(result: Any) -> GatewayResponse:
    """The HTTP response to a function's result (format 2.0)."""
    try:
        status = int(result["statusCode"])
        headers = [(str(k), as_text(v)) for k, v in (result.get("headers") or {}).items()]
        text = result.get("body") or ""
        body = base64.b64decode(text) if result.get("isBase64Encoded") else text.encode()
    except (KeyError, ValueError, TypeError, AttributeError):
        return SERVER_ERROR
    if not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("content-type", "text/plain;charset=UTF-8"))
    return GatewayResponse(status, headers, body)
