"""Every parser against any input: it reads it, or refuses it with its own error.

`FUZZ_EXAMPLES` says how many examples each parser gets; `make fuzz` asks for thousands.
"""

import base64
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest import mock
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kanon import clock
from kanon.clock import week_of
from kanon.credentials.arc import PRESENTATION_BYTES, REQUEST_BYTES
from kanon.errors import ConfigurationError, UndecodableMembersError
from kanon.gate.attesting import DeviceAccounts
from kanon.gate.mechanism.columns import NEVER
from kanon.gate.parts import Part, decode, encode
from kanon.gate.settings import EvaluateSettings
from kanon.gate.types import Type, read_types
from kanon.gateway.binary_http import BinaryHttpError, BinaryRequest, read_request, read_response, write_request
from kanon.gateway.oblivious import GATEWAY_PATH, KEYS_PATH, REQUEST_TYPE, read_config, seal_request
from kanon.local import Stack, gateway
from tests.integration.credentials.people import TYPE, text
from tests.integration.credentials.test_on_aws import ON, signed

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
START = 1_700_000_000.0

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 100,  # the short form is the same every day
    database=None,
    suppress_health_check=list(HealthCheck),
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "asdf", "fledge", "0.5", "published", "two-sided", 10**400, 1e308, -1, 1 << 64])
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3), max_leaves=8
)
DEEP = ["[" * 100_000, '{"a":' * 100_000, "[" * 900 + "]" * 900]


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed after a few edits: bytes replaced, cut out, put in, or a part of it repeated."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 6))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 8))
        new = draw(
            st.binary(max_size=4) | st.sampled_from([b'"', b"'", b"{", b"[", b":", b"\\u", b"\xff", b"9" * 5000])
        )
        data[at : at + length] = data[at : at + length] * 2 if draw(st.booleans()) else new
    return bytes(data)


@st.composite
def spoilt(draw: st.DrawFn, seeds: list[Any]) -> Any:
    """A JSON value of which one part, somewhere inside, is replaced or left out."""
    value = json.loads(json.dumps(draw(st.sampled_from(seeds))))
    at = value
    while True:
        places = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not places:
            return value
        place = draw(st.sampled_from(places))
        if isinstance(at[place], dict | list) and draw(st.integers(0, 3)):
            at = at[place]
        elif draw(st.booleans()):
            at[place] = draw(VALUES)
            return value
        else:
            del at[place]
            return value


# The interface, below the level of its description: bytes and paths


class Service:
    """A stack whose functions may answer and write nothing unless they answer 200."""

    def __init__(self, stack: Stack, logs: io.StringIO) -> None:
        self.stack, self.logs = stack, logs

    def send(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> gateway.GatewayResponse:
        before = sum(self.stack.meter.written.values())
        answer = self.stack.answer(gateway.GatewayRequest(method, target, list(headers.items()), body))
        assert self.stack.failures == []
        assert answer.status in (200, 400, 401, 404, 405, 413, 415, 422)
        if answer.status != 200:
            assert sum(self.stack.meter.written.values()) == before
        return answer


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    logs = io.StringIO()
    with Stack({}, start=START, logs=logs) as stack:
        # Fingerprints are written once, at the cold start.
        stack.request("POST", "/v1/types/fledge/sets/asdf:join", {"client": "first"})
        stack.request("GET", "/v1/types/fledge/sets/asdf")
        yield Service(stack, logs)
        for line in logs.getvalue().splitlines():
            assert "_aws" in json.loads(line), f"a request made the function log: {line}"


BODIES = [
    b'{"client": "client-1"}',
    b"{name: 'type/fledge/sets/asdf', shortClientIdentifier: 2}",
    b'{"joins": [{"type": "fledge", "set": "asdf", "client": "c"}, {"type": "fledge", "set": "_-_-"}]}',
    b'{"setsForType": [{"type": "fledge", "hashes": ["asdf", "YQ=="]}]}',
    b'{"sets": { type: "fledge", hashes: [ "somehash" ] }}',
]
TARGETS = ["/v1/types/fledge/sets/asdf:join", "/v1:batchJoin", "/v1:query", "/v1:validateHashes"]
CONTENT_TYPES = st.sampled_from(["application/json"] * 8 + ["", "text/plain", "application/x-www-form-urlencoded"])


@fuzz
@given(target=st.sampled_from(TARGETS), body=mutated(BODIES) | st.binary(max_size=200), content_type=CONTENT_TYPES)
@example("/v1:query", b"[" * 200_000, "application/json")
@example("/v1:query", b'{"setsForType":' * 50_000, "application/json")
@example("/v1:batchJoin", b'{"joins":[' + b"[" * 900 + b"]" * 900 + b"]}", "application/json")
@example("/v1:batchJoin", b'{"joins":[' + b"9" * 4000 + b"]}", "application/json")
@example("/v1:batchJoin", b'{"joins":[' + b"9" * 5000 + b"]}", "application/json")
@example("/v1:batchJoin", b'{"joins":[1e999]}', "application/json")
@example("/v1:query", b"\xef\xbb\xbf{}", "application/json")
@example("/v1:query", '{"setsForType":[]}'.encode("utf-16"), "application/json")
@example("/v1:query", b" " * (1 << 20), "application/json")
@example("/v1:query", b" " * ((1 << 20) + 1), "application/json")
@example("/v1:query", b'{"setsForType":[]}' + b" " * ((1 << 20) - 18), "application/json")
@example("/v1:query", b'{"a":"' + b"\\u0000" * 170_000 + b'"}', "application/json")
@example("/v1:query", b"{" + b",".join(b'"%d":0' % i for i in range(90_000)) + b"}", "application/json")
def test_any_bytes_as_a_body_get_a_valid_response(
    service: Service, target: str, body: bytes, content_type: str
) -> None:
    service.send("POST", target, body, {"content-type": content_type})


QUESTIONS: list[Any] = [
    {"setsForType": [{"type": "fledge", "hashes": ["asdf", "YQ=="]}, {"type": "x", "hashes": []}]},
    {"sets": [{"type": "fledge", "hashes": ["asdf"] * 3}]},
    {"joins": [{"type": "fledge", "set": "asdf", "client": "c"}, {"type": "fledge", "set": "asdf", "client": "d"}]},
    {"client": "client-1"},
    {"shortClientIdentifier": 2},
]


@fuzz
@given(target=st.sampled_from(TARGETS), body=spoilt(QUESTIONS))
def test_a_body_with_a_value_of_a_wrong_kind_gets_a_valid_response(service: Service, target: str, body: Any) -> None:
    service.send("POST", target, json.dumps(body).encode(), {"content-type": "application/json"})


SEGMENT = st.text(st.characters(codec="utf-8"), max_size=12).map(lambda text: quote(text, safe=""))
PATH = st.lists(
    st.sampled_from(["v1", "types", "fledge", "sets", "asdf", "asdf:join", ":join", "v1:query", ""]) | SEGMENT,
    max_size=7,
).map(lambda parts: "/" + "/".join(parts))


@fuzz
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "HEAD"]),
    path=PATH | SEGMENT.map("/v1/types/fledge/sets/{}:join".format) | SEGMENT.map("/v1/types/{}/sets/asdf".format),
    query=st.just("") | st.text("ab=&%,+;?/", max_size=12),
    headers=st.dictionaries(
        st.sampled_from(["cookie", "accept", "accept-encoding", "x-forwarded-for", "authorization", "content-length"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=20),
    ),
)
def test_any_path_query_string_and_header_get_a_valid_response(
    service: Service, method: str, path: str, query: str, headers: dict[str, str]
) -> None:
    target = f"{path}?{query}" if query else path
    answer = service.send(method, target, b'{"client":"c"}' if method == "POST" else b"", headers)
    if answer.status != 200:
        error = answer.json()
        assert error == {"message": "Not Found"} or set(error) == {"error"}  # of the gateway or of the service


# The queue


@pytest.fixture
def evaluating() -> Iterator[Stack]:
    with Stack({"Slots": "4"}, start=START) as stack:
        stack.cold_start("evaluate")
        yield stack


def bad_messages() -> st.SearchStrategy[str]:
    slots = {"slot": 0, "hop": 0}
    spoilt_messages = spoilt([slots]).map(json.dumps)
    return (spoilt_messages | st.text(max_size=50) | VALUES.map(json.dumps)).filter(lambda body: not is_slot(body))


def is_slot(body: str) -> bool:
    """Whether a text is a message the queue may hold, judged without the service's model."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or not {"slot"} <= set(value) <= {"slot", "hop"}:
        return False
    kinds = all(type(entry) is int for entry in value.values())
    return kinds and 0 <= value["slot"] < 256 and 0 <= value.get("hop", 0) <= 100


def test_a_message_without_a_valid_slot_is_returned_to_the_queue_and_changes_nothing(evaluating: Stack) -> None:
    @fuzz
    @given(body=bad_messages())
    @example(DEEP[0])
    @example(DEEP[1])
    @example('{"slot": ' + "9" * 5000 + "}")
    @example('{"slot": 0, "slot": NaN}')
    @example('{"slot": 0.5}')
    @example('{"slot": true}')
    @example('{"slot": "0"}')
    @example('{"slot": 256}')
    @example('{"slot": -1}')
    def run(body: str) -> None:
        before = dict(evaluating.meter.calls)
        record = {"messageId": "m", "receiptHandle": "r", "body": body, "attributes": {}, "messageAttributes": {}}
        source = {"eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-central-1:1:q", "awsRegion": "x"}
        result = evaluating.invoke("evaluate", {"Records": [{**record, **source}]})
        assert result == {"batchItemFailures": [{"itemIdentifier": "m"}]}
        assert dict(evaluating.meter.calls) == before

    run()


# What is stored


STEP = 472_000
PART = Part.of(
    STEP,
    np.array([b"\x01" * 32, b"\x02" * 32]),
    np.array([1, 2], np.uint8),
    np.array([2, 1]),
    np.array([7, 70_000, 8]),
    np.array([STEP, STEP - 3, STEP - 1]),
    np.array([[NEVER, STEP - 9], [NEVER, NEVER]]),
    np.array([NEVER, STEP + 12]),
    np.array([STEP + 20, STEP + 24]),
)
STORED = encode(PART, STEP)[0].rstrip(b"\0")
"""A part as it is stored, without the padding; its digest does not end with a zero."""


@fuzz
@given(content=st.binary(max_size=60) | mutated([STORED]) | st.integers(0, len(STORED)).map(lambda n: STORED[:n]))
@example(STORED[:12] + b"\xff" * 4 + STORED[16:])
@example(STORED[:16] + DEEP[0].encode())
def test_a_stored_part_is_read_exactly_or_refused(content: bytes) -> None:
    try:
        part = decode(content)
    except UndecodableMembersError:
        return
    assert encode(part, STEP) == encode(PART, STEP)


def with_header(header: bytes) -> bytes:
    """The part with another header."""
    length = int.from_bytes(STORED[12:16], "big")
    return STORED[:12] + len(header).to_bytes(4, "big") + header + STORED[16 + length :]


HEADER = {"step": STEP, "sets": 2, "members": 3, "token_bytes": 4}


@fuzz
@given(header=spoilt([HEADER]) | VALUES)
@example({**HEADER, "sets": -1})
@example({**HEADER, "sets": 2**70})
@example({**HEADER, "token_bytes": 3})
@example({**HEADER, "step": "1"})
def test_a_part_with_any_header_is_read_exactly_or_refused(header: Any) -> None:
    try:
        part = decode(with_header(json.dumps(header, sort_keys=True).encode()))
    except UndecodableMembersError:
        return
    assert encode(part, STEP) == encode(PART, STEP)


# Configuration


TYPES: list[Any] = [
    {"fledge": {"k": 50, "window": 720, "profile": "published"}},
    {"a": {"k": 60, "window": 24, "profile": "balanced", "client_bits": 20, "phase": "zero"}},
    {
        "own": {
            "k": 50,
            "window": 24,
            "laws": {
                "threshold": {"shape": "one-sided", "epsilon": "0.9", "truncation": 15},
                "query": {"shape": "two-sided", "epsilon": "0.5", "truncation": 12},
            },
        }
    },
]


NOISE_KEYS = [{"id": "1", "from_step": 0}, {"id": "2", "from_step": 9}]
GENERATIONS = [{"log": "a-1", "from_step": 1}, {"log": "b", "from_step": 9}]


def settings_with(
    noise_keys: str = json.dumps(NOISE_KEYS), log_generations: str = json.dumps(GENERATIONS)
) -> EvaluateSettings:
    environment = {f"KANON_{name.upper()}": "1" for name in EvaluateSettings.model_fields}
    lists = {"KANON_NOISE_KEYS": noise_keys, "KANON_LOG_GENERATIONS": log_generations}
    return EvaluateSettings.from_environment(environment | lists)


def test_the_undamaged_values_are_read() -> None:
    """The tests of damaged values would also pass if every value were refused."""
    assert encode(decode(STORED), STEP) == encode(PART, STEP)
    assert with_header(json.dumps(HEADER, sort_keys=True).encode()) == STORED
    assert [list(read_types(json.dumps(document), 3600)) for document in TYPES] == [["fledge"], ["a"], ["own"]]
    settings = settings_with()
    assert [key.from_step for key in settings.noise_keys] == [0, 9]
    assert [entry.from_step for entry in settings.log_generations] == [1, 9]


def read_or_refused(document: str) -> None:
    try:
        types = read_types(document, 3600)
    except ConfigurationError:
        return
    assert types
    for name, type_ in types.items():
        assert isinstance(type_, Type)
        assert re.fullmatch("[a-z0-9][a-z0-9_-]{0,63}", name)
        assert type_.parameters.never_true_below >= 1


@fuzz
@given(spoilt(TYPES) | VALUES)
def test_a_type_document_is_read_or_refused(document: Any) -> None:
    read_or_refused(json.dumps(document))


@fuzz
@given(mutated([json.dumps(document).encode() for document in TYPES]))
@example(DEEP[0].encode())
@example(DEEP[1].encode())
@example(DEEP[2].encode())
def test_any_text_as_a_type_document_is_read_or_refused(document: bytes) -> None:
    read_or_refused(document.decode(errors="surrogateescape"))


@fuzz
@given(spoilt([NOISE_KEYS]).map(json.dumps) | st.text(max_size=40))
@example(DEEP[0])
@example(DEEP[1])
def test_a_list_of_noise_keys_is_read_or_refused(document: str) -> None:
    try:
        keys = settings_with(noise_keys=document).noise_keys
    except ConfigurationError:
        return
    assert [key.from_step for key in keys] == sorted({key.from_step for key in keys})
    assert len({key.id for key in keys}) == len(keys) >= 1


@fuzz
@given(spoilt([GENERATIONS]).map(json.dumps) | st.text(max_size=40))
@example(DEEP[0])
@example(DEEP[1])
def test_a_list_of_log_generations_is_read_or_refused(document: str) -> None:
    try:
        generations = settings_with(log_generations=document).log_generations
    except ConfigurationError:
        return
    assert [entry.from_step for entry in generations] == sorted({entry.from_step for entry in generations})
    assert all(entry.log and entry.from_step >= 1 for entry in generations)


# Joins without a name


CREDENTIALS, PEOPLE = "/v1/credentials", f"/v1/types/{TYPE}/sets/asdf:join"
WEEK, STEP = week_of(START), int(START // 3600)
POINTS = st.sampled_from([bytes(33), *(b"\x02" + bytes([byte]) * 32 for byte in (0, 1, 255)), b"\x04" + bytes(32)])
"""Of no point, or of one that nobody chose."""


@pytest.fixture(scope="module")
def issuing() -> Iterator[Service]:
    logs = io.StringIO()
    with Stack({**ON, "JoinAuth": "OPEN", "RelayAuth": "OPEN"}, start=START, logs=logs) as stack:
        # Fingerprints are written once, at the first request.
        stack.request("POST", CREDENTIALS, {"epoch": WEEK, "request": text(bytes(REQUEST_BYTES))}, signed("me"))
        proof = text(bytes(PRESENTATION_BYTES))
        stack.request("POST", PEOPLE, {"presentation": {"epoch": WEEK, "step": STEP, "proof": proof}})
        yield Service(stack, logs)
        for line in logs.getvalue().splitlines():
            assert "_aws" in json.loads(line), f"a request made the function log: {line}"


PRESENTATIONS = st.tuples(st.lists(POINTS, min_size=4, max_size=4), st.binary(min_size=PRESENTATION_BYTES - 132)).map(
    lambda parts: b"".join(parts[0]) + parts[1][: PRESENTATION_BYTES - 132]
)


@fuzz
@given(proof=PRESENTATIONS | st.binary(max_size=400), epoch=st.just(WEEK) | SCALARS, step=st.just(STEP) | SCALARS)
def test_any_presentation_in_a_join_is_refused(issuing: Service, proof: bytes, epoch: Any, step: Any) -> None:
    body = {"presentation": {"epoch": epoch, "step": step, "proof": text(proof)}}
    answer = issuing.send("POST", PEOPLE, json.dumps(body).encode(), {"content-type": "application/json"})
    assert answer.status == 400


@fuzz
@given(
    body=spoilt([{"epoch": WEEK, "request": text(bytes(REQUEST_BYTES)), "recovery": "AAAA"}])
    | st.binary(min_size=REQUEST_BYTES, max_size=REQUEST_BYTES).map(lambda b: {"epoch": WEEK, "request": text(b)})
)
def test_any_request_for_a_credential_without_a_proof_is_refused(issuing: Service, body: Any) -> None:
    headers = {"content-type": "application/json", **signed("me")}
    assert issuing.send("POST", CREDENTIALS, json.dumps(body).encode(), headers).status == 400


@fuzz
@given(
    method=st.sampled_from(["GET", "DELETE", "PUT", "HEAD"]),
    target=st.sampled_from([CREDENTIALS, f"{CREDENTIALS}/keys", f"{CREDENTIALS}/", f"{CREDENTIALS}/keys/x"]),
    query=st.text(max_size=20).map(lambda words: f"?{quote(words)}" if words else ""),
    caller=st.sampled_from([{}, signed("me"), {"authorization": "Bearer x"}]),
    body=st.binary(max_size=40),
)
def test_any_request_about_an_account_that_never_enrolled_changes_nothing(
    issuing: Service, method: str, target: str, query: str, caller: dict[str, str], body: bytes
) -> None:
    answer = issuing.send(method, f"{target}{query}", body, caller)
    if (method, target) == ("GET", CREDENTIALS):
        assert answer.status == (404 if caller == signed("me") else 401)
    if (method, target) == ("DELETE", CREDENTIALS):
        assert answer.status == (200 if caller == signed("me") else 401)
    accounts = issuing.stack.storage.tables["Accounts"]
    assert issuing.stack.session.client("dynamodb").scan(TableName=accounts)["Items"] == []


INNER = write_request(BinaryRequest("GET", "https", "kanon.test", "/v1/types"))


@fuzz
@given(data=st.data(), inside=mutated([INNER]) | st.binary(max_size=80))
def test_any_request_of_a_relay_is_answered_inside_or_refused_outside(
    issuing: Service, data: st.DataObject, inside: bytes
) -> None:
    config = read_config(issuing.stack.request("GET", KEYS_PATH).body)
    sealed, exchange = seal_request(inside, config)
    sent = data.draw(st.just(sealed) | mutated([sealed]) | st.binary(max_size=100))
    answer = issuing.send("POST", GATEWAY_PATH, sent, {"content-type": REQUEST_TYPE})
    assert answer.status == (200 if sent == sealed else 400)
    if answer.status == 200:
        assert read_response(exchange.open(answer.body)).status in (200, 400, 403, 404)


OF_A_DEVICE = f"Bearer {int(START)}.{text(bytes(100))}"


@fuzz
@given(header=mutated([OF_A_DEVICE.encode()]).map(lambda sent: sent.decode("latin-1")) | st.text(max_size=60))
@example(OF_A_DEVICE)
@example(OF_A_DEVICE.replace("Bearer", "bearer  "))
@example(f"Bearer {'9' * 12}.AAAA")
@example(f"Bearer {'9' * 5000}.AAAA")
@example(f"Bearer \u0664.{text(bytes(3))}")
def test_any_attestation_is_asked_about_whole_or_not_at_all(header: str) -> None:
    asked: list[dict[str, str]] = []

    def ask(question: bytes) -> bytes:
        asked.append(json.loads(question))
        return b'{"account": null}'

    event = {"headers": {"authorization": header}, "requestContext": {"http": {"method": "GET"}}}
    with mock.patch.object(clock, "now", return_value=START):
        assert DeviceAccounts("deployment", ask)(event) is None
    for each in asked:
        assert {*each} == {"attestation", "binding"}
        assert len(base64.urlsafe_b64decode(each["binding"] + "=")) == 32
        assert header.endswith(each["attestation"])
        assert base64.urlsafe_b64decode(each["attestation"] + "==")
    assert asked or header != OF_A_DEVICE


FIELDS = (("content-type", "application/json"),)
REQUESTS = [
    write_request(BinaryRequest("POST", "https", "kanon.test", "/v1:query", FIELDS, b"{}")),
    write_request(BinaryRequest("GET", "https", "kanon.test", "/v1/types")),
]


@fuzz
@given(message=mutated(REQUESTS) | st.binary(max_size=200))
def test_a_binary_request_is_read_or_refused_with_its_own_error(message: bytes) -> None:
    with suppress(BinaryHttpError):
        assert isinstance(read_request(message), BinaryRequest)
