"""Every field wrong in every way: it gets its error, nothing is written, and no private value is logged."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kanon.gate.names import client_token
from kanon.keys import Secret
from tests.integration.gate.edge import CLIENT_KEY, PEPPER, Edge, base64url, key_of

SET_ID = b"secret set id of a test"
SET = base64url(SET_ID)
CLIENT = "secret client of a test"
JOIN = f"/v1/types/fledge/sets/{SET}:join"
GET = f"/v1/types/fledge/sets/{SET}"
WHO = {"client": CLIENT}
ENTRY = {"type": "fledge", "set": SET, "client": CLIENT}
HASHES = {"type": "fledge", "hashes": [SET]}


@pytest.fixture(scope="module")
def edge() -> Iterator[Edge]:
    with Edge() as edge:
        yield edge


@pytest.fixture(autouse=True)
def quiet(edge: Edge) -> Iterator[None]:
    """No case writes, and none outputs more than is allowed."""
    edge.calls.clear()
    edge.output.truncate(0)
    edge.output.seek(0)
    yield
    assert edge.written() == []
    assert edge.rows() == []
    check_output(edge)


LOG_KEYS = {
    "level", "location", "message", "timestamp", "service", "cold_start", "xray_trace_id",
    "function_name", "function_memory_size", "function_arn", "function_request_id",
    "reason", "operation", "code", "kind", "place",
}  # fmt: skip
METRICS = {"JoinsAccepted", "JoinsRefused", "QueriesAnswered", "QueriesRefused", "RequestsRejected"}


def check_output(edge: Edge) -> None:
    """Every line is a log entry or a metric of known keys, and none holds anything of the request or of a key."""
    output = edge.output.getvalue()
    for line in output.splitlines():
        entry = json.loads(line)
        if "_aws" in entry:
            assert set(entry) <= METRICS | {"_aws", "service"}
            (described,) = entry["_aws"]["CloudWatchMetrics"]
            assert described["Dimensions"] == [["service"]]
        else:
            assert set(entry) <= LOG_KEYS
    # The id of a request is random: its digits may be those of a token.
    assert_private(re.sub(r'"function_request_id":"[0-9a-f-]{36}"', "", output))


def assert_private(text: str) -> None:
    pepper, client_key = Secret.derived("set-pepper", PEPPER), Secret.derived("client-key", CLIENT_KEY)
    private = [SET_ID, CLIENT.encode(), PEPPER.encode(), CLIENT_KEY.encode(), pepper.key, client_key.key]
    for type_name in ("fledge", "search-term", "unknown"):
        key = key_of(type_name, SET_ID)
        token = client_token(client_key, key, "client", CLIENT.encode(), 32)
        private += [key, token.to_bytes(4, "big")]
    text += text.replace("\\\\", "\\")  # JSON writes a backslash twice
    for secret in private:
        for shown in (secret.hex(), base64url(secret), base64.b64encode(secret).decode(), repr(secret)[2:-1]):
            assert shown not in text


# (method, target, body, code, field, part of the message)
PATHS: list[tuple[str, str, Any, int, list[str], str]] = [
    ("POST", f"/v1/types/unknown/sets/{SET}:join", WHO, 404, ["type"], "GET /v1/types lists"),
    ("POST", f"/v1/types/FLEDGE/sets/{SET}:join", WHO, 400, ["type"], "should match"),
    ("POST", f"/v1/types/{'a' * 65}/sets/{SET}:join", WHO, 400, ["type"], "should match"),
    ("POST", f"/v1/types/fl%20edge/sets/{SET}:join", WHO, 400, ["type"], "should match"),
    ("POST", f"/v1/types/fledge%0A/sets/{SET}:join", WHO, 404, [], "no such path"),
    ("POST", f"/v1/types//sets/{SET}:join", WHO, 404, [], "no such path"),
    ("POST", f"/v1/type/fledge/sets/{SET}:join", WHO, 404, [], "no such path"),
    ("POST", f"/v1/types/fledge/sets/{SET}", WHO, 404, [], "no such path"),
    ("POST", f"/v1/types/fledge/sets/{SET}:Join", WHO, 404, [], "no such path"),
    ("POST", f"/v1/types/fledge/sets/{SET}:join:", WHO, 404, [], "no such path"),
    ("POST", f"/v1/types/fledge/sets/{SET}:leave", WHO, 404, [], "no such path"),
    ("POST", f"/v1/types/fledge/sets/{SET}:join/", WHO, 404, [], "no such path"),
    ("POST", "/v1/types/fledge/sets/:join", WHO, 404, [], "no such path"),
    ("POST", f"/v1/types/fledge/sets/{SET}:join:join", WHO, 400, ["set"], "base64url without padding"),
    ("POST", f"/v1/types/fledge/sets/{SET}=:join", WHO, 400, ["set"], "base64url without padding"),
    ("POST", f"/v1/types/fledge/sets/{SET}%3D:join", WHO, 400, ["set"], "base64url without padding"),
    ("POST", f"/v1/types/fledge/sets/{SET}+:join", WHO, 400, ["set"], "base64url without padding"),
    ("POST", f"/v1/types/fledge/sets/{SET}.:join", WHO, 400, ["set"], "base64url without padding"),
    ("POST", f"/v1/types/fledge/sets/{SET}%20:join", WHO, 400, ["set"], "base64url without padding"),
    ("POST", f"/v1/types/fledge/sets/{SET}%C3%A9:join", WHO, 400, ["set"], "base64url without padding"),
    ("POST", f"/v1/types/fledge/sets/{SET}%2F:join", WHO, 404, [], "no such path"),
    ("POST", f"/v1/types/fledge/sets/{SET}%00:join", WHO, 404, [], "no such path"),
    ("POST", "/v1/types/fledge/sets/a:join", WHO, 400, ["set"], "1 to 64 bytes"),
    ("POST", f"/v1/types/fledge/sets/{'A' * 87}:join", WHO, 400, ["set"], "1 to 64 bytes"),
    ("POST", f"/v1/types/fledge/sets/{'A' * 100_000}:join", WHO, 400, ["set"], "1 to 64 bytes"),
    ("GET", f"/v1/types/fledge/sets/{SET}:join", None, 404, [], "no such path"),
    ("GET", f"/v1/types/fledge/sets/{SET}:", None, 400, ["set"], "base64url"),
    ("GET", f"/v1/types/unknown/sets/{SET}", None, 404, ["type"], "GET /v1/types lists"),
    ("GET", f"/v1/types/FLEDGE/sets/{SET}", None, 400, ["type"], "should match"),
    ("GET", f"/v1/types/fledge/sets/{SET}=", None, 400, ["set"], "base64url without padding"),
    ("GET", f"/v1/types/fledge/sets/{SET}+", None, 400, ["set"], "base64url without padding"),
    ("GET", f"/v1/types/fledge/sets/{SET}%2B", None, 400, ["set"], "base64url without padding"),
    ("GET", "/v1/types/fledge/sets/a", None, 400, ["set"], "1 to 64 bytes"),
    ("GET", f"/v1/types/fledge/sets/{'A' * 87}", None, 400, ["set"], "1 to 64 bytes"),
    ("GET", "/v1/types/fledge/sets/", None, 404, [], "no such path"),
    ("GET", "/v1/types/unknown", None, 404, ["type"], "GET /v1/types lists"),
    ("GET", "/v1/types/UNKNOWN", None, 400, ["type"], "should match"),
    ("GET", "/v1/types/", None, 404, [], "no such path"),
    ("GET", "/v1:query", None, 404, [], "no such path"),
    ("GET", "/", None, 404, [], "no such path"),
    ("GET", f"/{SET}", None, 404, [], "no such path"),
    ("PUT", GET, WHO, 404, [], "no such path"),
    ("DELETE", GET, None, 404, [], "no such path"),
]

# What decodes to no character, or to one that no path may hold: there is no such path.
NO_CHARACTERS = ["%ff", "%80", "%c3", "%00", "%7f", "%ef%bf%bd", "%ed%a0%80", "\ud800"]
OVERLONG = ["%c0%af", "%e0%80%af", "%f0%80%80%af", "%c1%a1", "%f8%88%80%80%80", "%f4%90%80%80"]
# What is no encoding, or is one twice: the part of the path holds a percent sign, which is wrong there.
UNDECODED = ["%", "%4", "%zz", "%u0041", "%25ff", "%2500", "%252F", "%25zz", "%25ed%25a0%2580"]
WRONG_ENCODINGS = [
    *((wrong, 404, "no such path") for wrong in NO_CHARACTERS + OVERLONG),
    *((wrong, 400, "base64url without padding") for wrong in UNDECODED),
]

NOT_OBJECTS: list[tuple[str, str]] = [
    ("", "Field required"),
    ("null", "must be a JSON object"),
    ("[]", "must be a JSON object"),
    (json.dumps([WHO]), "must be a JSON object"),
    (json.dumps(CLIENT), "must be a JSON object"),
    ("12", "must be a JSON object"),
    ("NaN", "NaN and Infinity are not JSON"),
    (CLIENT, "not valid JSON"),
    (json.dumps(WHO)[:-1], "not valid JSON"),
    (json.dumps(WHO) * 2, "Extra data"),
    (f'{{"client": "{CLIENT}", "client": "{CLIENT}"}}', "a key is given twice"),
    (f"{{client: '{CLIENT}', client: '{CLIENT}'}}", "a key is given twice"),
    (f"{{client: '{CLIENT}'", "not valid JSON"),
    ('{"client": ' + "9" * 5000 + "}", "too many digits"),
    ('{"client": ' + "[" * 100_000, "nested too deeply"),
    (f'{{"client": "{CLIENT}\n"}}', "control character"),
]

ITS_FIELDS = "client, shortClientIdentifier, value, presentation and name"
FIELDS: list[tuple[str, Any, list[str], str]] = [
    (JOIN, {}, ["body"], "exactly one of client and shortClientIdentifier"),
    (JOIN, {"type": "fledge"}, ["body"], f"a field is unknown: give only {ITS_FIELDS} there"),
    (JOIN, {**WHO, "shortClientIdentifer": 2}, ["body"], "did you mean shortClientIdentifier?"),
    (JOIN, {**WHO, "short_client_identifier": 2}, ["body"], "did you mean shortClientIdentifier?"),
    (JOIN, {**WHO, "shortClientIdentifier": 2}, ["body"], "exactly one of"),
    (JOIN, {"client": None}, ["body"], "exactly one of"),
    (JOIN, {"client": ""}, ["client"], "at least 1 character"),
    (JOIN, {"client": CLIENT * 20}, ["client"], "at most 256"),
    (JOIN, {"client": "é" * 129}, ["client"], "at most 256 bytes of UTF-8"),
    (JOIN, {"client": 2}, ["client"], "valid string"),
    (JOIN, {"client": [CLIENT]}, ["client"], "valid string"),
    (JOIN, {"client": WHO}, ["client"], "valid string"),
    (JOIN, '{"client": "\\ud800"}', ["client"], "unicode"),
    (JOIN, {"shortClientIdentifier": CLIENT}, ["shortClientIdentifier"], "valid integer"),
    (JOIN, {"shortClientIdentifier": 2.5}, ["shortClientIdentifier"], "valid integer"),
    (JOIN, {"shortClientIdentifier": -1}, ["shortClientIdentifier"], "greater than or equal to 0"),
    (JOIN, {"shortClientIdentifier": 10**400}, ["shortClientIdentifier"], "less than"),
    (JOIN, '{"shortClientIdentifier": 1e999}', ["shortClientIdentifier"], "valid integer"),
    ("/v1:batchJoin", {}, ["joins"], "required"),
    ("/v1:batchJoin", {"joins": None}, ["joins"], "valid list"),
    ("/v1:batchJoin", {"joins": ENTRY}, ["joins"], "valid list"),
    ("/v1:batchJoin", {"joins": []}, ["joins"], "at least 1 item"),
    ("/v1:batchJoin", {"joins": [ENTRY] * 501}, ["joins"], "at most 500 items"),
    *(
        (target, body, [at.replace("*", name) for at in fields], message)
        for target, name in (("/v1:query", "setsForType"), ("/v1:validateHashes", "sets"))
        for body, fields, message in (
            ({}, ["*"], "required"),
            ({"hashes": HASHES}, ["body"], "a field is unknown"),
            ({name: [{**HASHES, "hashs": [SET]}]}, ["*.0"], "did you mean hashes?"),
            ({name: [HASHES], "setForType": [HASHES]}, ["body"], "a field is unknown"),
            ({name: None}, ["*"], "valid list"),
            ({name: SET}, ["*"], "valid list"),
            ({name: [SET]}, ["*.0"], "should be an object"),
            ({name: [[HASHES]]}, ["*.0"], "should be an object"),
            ({name: {}}, ["*.0.type", "*.0.hashes"], "required"),
            ({name: [{"type": "fledge"}]}, ["*.0.hashes"], "required"),
            ({name: [{"hashes": [SET]}]}, ["*.0.type"], "required"),
            ({name: [{**HASHES, "type": None}]}, ["*.0.type"], "valid string"),
            ({name: [{**HASHES, "type": SET}]}, ["*.0.type"], "should match"),
            ({name: [{**HASHES, "hashes": SET}]}, ["*.0.hashes"], "valid list"),
            ({name: [{**HASHES, "hashes": None}]}, ["*.0.hashes"], "valid list"),
            ({name: [{**HASHES, "hashes": {"0": SET}}]}, ["*.0.hashes"], "valid list"),
            ({name: [{**HASHES, "hashes": [SET, 1]}]}, ["*.0.hashes.1"], "base64 of 1 to 64 bytes"),
            ({name: [HASHES, {**HASHES, "hashes": [SET + "?"]}]}, ["*.1.hashes.0"], "base64"),
            ({name: [{**HASHES, "hashes": [""]}]}, ["*.0.hashes.0"], "base64 of 1 to 64 bytes"),
            ({name: [{**HASHES, "hashes": ["A" * 88]}]}, ["*.0.hashes.0"], "base64 of 1 to 64"),
            ({name: [{**HASHES, "hashes": [SET] * 1001}]}, ["*.0.hashes"], "at most 1000 items"),
            ({name: [{**HASHES, "hashes": [SET] * 501}] * 2}, ["*"], "split the request"),
            ({name: [{**HASHES, "hashes": [SET] * 101}]}, ["*"], "at most 100 hashes at once"),
            ({name: [{**HASHES, "hashes": [SET] * 51}] * 2}, ["*"], "or sign it and call batchQuery"),
        )
    ),
    ("/v1:batchQuery", {"setsForType": [{**HASHES, "hashes": [SET] * 501}] * 2}, ["setsForType"], "split the request"),
]  # fmt: skip

ROUTES = (JOIN, "/v1:batchJoin", "/v1:query", "/v1:batchQuery", "/v1:validateHashes")


def refused(edge: Edge, method: str, target: str, body: Any = None, **more: Any) -> dict[str, Any]:
    """The error of a request, which has the common form and no part of the request."""
    result = edge.request(method, target, body, **more)
    assert result.headers["Content-Type"] == "application/json"
    assert result.headers["Cache-Control"] == "no-store"
    assert set(result.json()) == {"error"}
    error: dict[str, Any] = result.json()["error"]
    assert set(error) == {"code", "status", "message", "details"}
    assert error["code"] == result.status
    for problem in error["details"]:
        assert set(problem) == {"field", "reason"}
    assert_private(result.body)
    return error


def named(value: Any) -> str:
    return str(value)[:40]


@pytest.mark.parametrize(("method", "target", "body", "code", "fields", "message"), PATHS, ids=named)
def test_a_wrong_path_is_refused(
    edge: Edge, method: str, target: str, body: Any, code: int, fields: list[str], message: str
) -> None:
    error = refused(edge, method, target, body)
    assert error["code"] == code
    assert [problem["field"] for problem in error["details"]] == fields
    assert message in error["message"]


@pytest.mark.parametrize(("method", "body", "verb"), [("GET", None, ""), ("POST", WHO, ":join")], ids=named)
@pytest.mark.parametrize("place", ["{}", "{}" + SET[2:], SET[:5] + "{}" + SET[5:], SET + "{}"], ids=named)
@pytest.mark.parametrize(("wrong", "code", "message"), WRONG_ENCODINGS, ids=ascii)
def test_a_set_of_a_path_that_is_wrongly_encoded_is_refused(
    edge: Edge, method: str, body: Any, verb: str, place: str, wrong: str, code: int, message: str
) -> None:
    error = refused(edge, method, f"/v1/types/fledge/sets/{place.format(wrong)}{verb}", body)
    assert error["code"] == code
    assert message in error["message"]
    assert [problem["field"] for problem in error["details"]] == (["set"] if code == 400 else [])


@pytest.mark.parametrize(
    ("method", "body", "target"),
    [
        ("GET", None, "/v1/types/fledge{}"),
        ("GET", None, f"/v1/types/fledge{{}}/sets/{SET}"),
        ("POST", WHO, f"/v1/types/{{}}fledge/sets/{SET}:join"),
    ],
    ids=named,
)
@pytest.mark.parametrize(("wrong", "code", "_"), WRONG_ENCODINGS, ids=ascii)
def test_a_type_of_a_path_that_is_wrongly_encoded_is_refused(
    edge: Edge, method: str, body: Any, target: str, wrong: str, code: int, _: str
) -> None:
    error = refused(edge, method, target.format(wrong), body)
    assert error["code"] == code
    assert [problem["field"] for problem in error["details"]] == (["type"] if code == 400 else [])


@pytest.mark.parametrize("wrong", NO_CHARACTERS + OVERLONG + UNDECODED, ids=ascii)
def test_a_verb_of_a_path_that_is_wrongly_encoded_is_refused(edge: Edge, wrong: str) -> None:
    assert refused(edge, "POST", f"{GET}:{wrong}join", WHO)["code"] == 404
    assert refused(edge, "POST", f"{JOIN}{wrong}", WHO)["code"] == 404


@pytest.mark.parametrize("target", ROUTES)
@pytest.mark.parametrize(("body", "message"), NOT_OBJECTS, ids=named)
def test_a_body_that_is_not_a_json_object_is_400(edge: Edge, target: str, body: str, message: str) -> None:
    error = refused(edge, "POST", target, body)
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert [problem["field"] for problem in error["details"]] == ["body"]
    assert message in error["message"]


@pytest.mark.parametrize(("target", "body", "fields", "message"), FIELDS, ids=named)
def test_a_wrong_field_is_400_and_named(edge: Edge, target: str, body: Any, fields: list[str], message: str) -> None:
    error = refused(edge, "POST", target, body)
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert [problem["field"] for problem in error["details"]] == fields
    assert message in error["message"]


@pytest.mark.parametrize("target", ROUTES)
@pytest.mark.parametrize(
    ("body", "more", "code", "message"),
    [
        (json.dumps(WHO), {"content_type": "text/html"}, 415, "application/json"),
        (f"client={CLIENT}", {"content_type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        (json.dumps(WHO), {"content_type": "multipart/form-data"}, 415, "application/json"),
        (CLIENT + "!", {"encoded": True}, 400, "UTF-8"),
        (base64.b64encode(b"\xff" + CLIENT.encode()).decode(), {"encoded": True}, 400, "UTF-8"),
        (json.dumps(WHO).encode("utf-16").hex(), {}, 400, "not valid JSON"),
        (json.dumps({"client": CLIENT, "x": "x" * (1 << 20)}), {}, 413, "split the request"),
        (base64.b64encode(b" " * ((1 << 20) + 1)).decode(), {"encoded": True}, 413, "split the request"),
    ],
    ids=named,
)
def test_an_unreadable_body_is_refused(
    edge: Edge, target: str, body: str, more: dict[str, Any], code: int, message: str
) -> None:
    error = refused(edge, "POST", target, body, **more)
    assert error["code"] == code
    assert message in error["message"]


WRONG_ENTRIES: list[tuple[Any, int, str]] = [
    (None, 400, "body"),
    (1, 400, "body"),
    (CLIENT, 400, "body"),
    ([ENTRY], 400, "body"),
    ({}, 400, "type"),
    ({**ENTRY, "type": "unknown"}, 404, "type"),
    ({**ENTRY, "type": CLIENT}, 400, "type"),
    ({**ENTRY, "type": ["fledge"]}, 400, "type"),
    ({**ENTRY, "type": None}, 400, "type"),
    ({**ENTRY, "type": "fledge\n"}, 400, "type"),
    ({**ENTRY, "set": SET + "?"}, 400, "set"),
    ({**ENTRY, "set": ""}, 400, "set"),
    ({**ENTRY, "set": "A" * 88}, 400, "set"),
    ({**ENTRY, "set": None}, 400, "set"),
    ({**ENTRY, "set": [SET]}, 400, "set"),
    ({"type": "fledge", "set": SET}, 400, "body"),
    ({**ENTRY, "client": ""}, 400, "client"),
    ({**ENTRY, "client": CLIENT * 20}, 400, "client"),
    ({**ENTRY, "shortClientIdentifier": 1}, 400, "body"),
    ({**ENTRY, "client": {"a": [CLIENT] * 50}}, 400, "client"),
    ({**ENTRY, "sett": SET}, 400, "body"),
    ({**ENTRY, "name": SET}, 400, "body"),
]


@pytest.mark.parametrize(("entry", "code", "field"), WRONG_ENTRIES, ids=named)
def test_a_wrong_join_of_a_batch_has_its_own_error(edge: Edge, entry: Any, code: int, field: str) -> None:
    result = edge.post("/v1:batchJoin", {"joins": [entry]})
    assert result.status == 200
    error = result.json()["results"][0]["error"]
    assert (error["code"], error["details"][0]["field"]) == (code, field)
    assert_private(result.body)


def test_a_deeply_nested_entry_is_refused_like_one_that_is_not_an_object(edge: Edge) -> None:
    body = '{"joins": [' + "[" * 500 + "]" * 500 + "]}"
    assert edge.post("/v1:batchJoin", body).json()["results"][0]["error"]["code"] == 400


@pytest.mark.parametrize("operation", ["GetSecretValue", "UpdateItem", "PutItem", "BatchWriteItem", "BatchGetItem"])
@pytest.mark.parametrize("code", ["ThrottlingException", "AccessDeniedException", "ResourceNotFoundException"])
def test_an_error_response_contains_nothing_of_the_request(edge: Edge, operation: str, code: str) -> None:
    edge.restart()
    edge.fail = lambda name: code if name == operation else None
    results = []
    if operation != "BatchWriteItem":  # it does not stop a single join
        results.append(edge.get(GET))
    if operation in ("GetSecretValue", "UpdateItem", "PutItem"):
        results.append(edge.post(JOIN, WHO))
    if operation in ("GetSecretValue", "UpdateItem", "BatchWriteItem"):
        results.append(edge.post("/v1:batchJoin", {"joins": [ENTRY]}))
    edge.fail = lambda name: None
    edge.calls.clear()  # the failed attempts to write
    for result in results:
        assert_private(result.body)
    assert {503} <= {result.status for result in results} or '"code":503' in results[-1].body
