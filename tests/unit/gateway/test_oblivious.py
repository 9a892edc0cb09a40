"""Oblivious HTTP: vectors of real clients, agreement with another HPKE, round trips, and capsules that do not open."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from hypothesis import given
from hypothesis import strategies as st

from kanon.gateway import hpke
from kanon.gateway.binary_http import (
    BinaryHttpError,
    BinaryRequest,
    BinaryResponse,
    padded,
    read_response,
    write_request,
    write_response,
)
from kanon.gateway.hpke import SealedError
from kanon.gateway.oblivious import (
    OVERHEAD,
    Exchange,
    KeyConfig,
    open_request,
    read_config,
    seal_request,
)
from tests.paths import ROOT

CLIENTS = json.loads((ROOT / "clients/vectors.json").read_text())
VECTORS = json.loads((ROOT / "tests/vectors/ohttp.json").read_text())
PRIVATE = X25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["server_priv"]))
CONFIG = KeyConfig(7, PRIVATE.public_key())


def _opened(sealed: bytes) -> tuple[bytes, Exchange]:
    return open_request(sealed, lambda key_id: PRIVATE if key_id == CONFIG.id else None)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["request_plaintext"])
def test_the_vectors_open_and_their_responses_are_the_same_bytes(vector: dict) -> None:
    assert PRIVATE.public_key().public_bytes_raw().hex() == VECTORS["server_pub"]
    request, exchange = open_request(bytes.fromhex(vector["request"]), lambda _: PRIVATE)
    assert request.decode() == vector["request_plaintext"]
    response = bytes.fromhex(vector["response"])
    assert exchange.open(response).decode() == vector["response_plaintext"]
    assert exchange.seal(vector["response_plaintext"].encode(), response[:32]) == response


SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_the_key_schedule_is_that_of_cryptography(message: bytes, info: bytes) -> None:
    enc, context = hpke.sender(PRIVATE.public_key(), info)
    assert SUITE.decrypt(enc + context.seal(message), PRIVATE, info=info) == message
    sealed = SUITE.encrypt(message, PRIVATE.public_key(), info=info)
    assert hpke.receiver(PRIVATE, sealed[:32], info).open(sealed[32:]) == message


@pytest.mark.slow
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_request_and_response_arrive(request: bytes, response: bytes) -> None:
    sealed, asked = seal_request(request, CONFIG)
    assert len(sealed) == len(request) + OVERHEAD
    found, answering = _opened(sealed)
    assert found == request
    assert asked.open(answering.seal(response)) == response


def test_two_requests_share_nothing_but_their_header() -> None:
    first, second = (seal_request(b"the same", CONFIG)[0] for _ in range(2))
    assert first[:7] == second[:7]
    assert not set(_pieces(first[7:])) & set(_pieces(second[7:]))


def _pieces(sealed: bytes) -> list[bytes]:
    return [sealed[at : at + 4] for at in range(len(sealed) - 3)]


def test_a_request_with_any_changed_byte_does_not_open() -> None:
    sealed, _ = seal_request(b"a request", CONFIG)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(SealedError):
            _opened(bytes(changed))


def test_a_response_with_any_changed_byte_and_that_of_another_request_do_not_open() -> None:
    (sealed, asked), (_, other) = seal_request(b"a request", CONFIG), seal_request(b"a request", CONFIG)
    answer = _opened(sealed)[1].seal(b"an answer")
    for place in range(len(answer)):
        changed = bytearray(answer)
        changed[place] ^= 1
        with pytest.raises(SealedError):
            asked.open(bytes(changed))
    with pytest.raises(SealedError):
        other.open(answer)


@given(st.binary(max_size=2 * OVERHEAD))
def test_any_bytes_are_refused(message: bytes) -> None:
    _, asked = seal_request(b"", CONFIG)
    for sealed in (message, CONFIG.encode()[:3] + b"\0\x01\0\x02" + message):
        with pytest.raises(SealedError):
            _opened(sealed)
    with pytest.raises(SealedError):
        asked.open(message)


@pytest.mark.parametrize("algorithms", ["002000010001", "002000020002", "001000010002"])
def test_a_request_that_names_other_algorithms_is_refused_though_it_would_open(algorithms: str) -> None:
    header = bytes([CONFIG.id]) + bytes.fromhex(algorithms)
    enc, context = hpke.sender(CONFIG.key, b"message/bhttp request\0" + header)
    with pytest.raises(SealedError, match="for other algorithms"):
        _opened(header + enc + context.seal(b"a request"))


def test_a_key_of_small_order_is_refused() -> None:
    """Everybody knows the secret that it gives."""
    header = bytes([CONFIG.id]) + bytes.fromhex("002000010002")
    for small in (0, 1):
        with pytest.raises(SealedError, match="small order"):
            _opened(header + small.to_bytes(32, "little") + bytes(16))
        with pytest.raises(SealedError, match="small order"):
            seal_request(b"", KeyConfig(1, X25519PublicKey.from_public_bytes(small.to_bytes(32, "little"))))


# Key configurations


def test_a_key_configuration_has_the_bytes_that_chromium_reads() -> None:
    key = PRIVATE.public_key().public_bytes_raw()
    assert CONFIG.encode() == b"\x07" + b"\0\x20" + key + b"\0\x04" + b"\0\x01" + b"\0\x02"
    found = read_config(CONFIG.encode())
    assert (found.id, found.key.public_bytes_raw()) == (7, key)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: b"",
        lambda config: config + config,
        lambda config: config[:-1],
        lambda config: b"\0\x29" + config,
        lambda config: b"\0" + config[1:],
        lambda config: b"\x80" + config[1:],
        lambda config: config[:2] + b"\x10" + config[3:],
        lambda config: config[:36] + b"\x08" + config[37:],
        lambda config: config[:38] + b"\x02" + config[39:],
        lambda config: config[:40] + b"\x01",
    ],
)
def test_a_malformed_key_configuration_is_refused(change) -> None:
    with pytest.raises(ValueError, match="key"):
        read_config(change(CONFIG.encode()))


def test_the_vector_that_the_clients_share_is_what_this_code_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = CLIENTS["relay"]
    ephemeral = X25519PrivateKey.from_private_bytes(bytes.fromhex(vector["ephemeralPrivateKey"]))
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(vector["privateKey"]))
    config = read_config(bytes.fromhex(vector["config"]))
    asked, answered = vector["request"], vector["answer"]
    fields = tuple(map(tuple, asked["fields"]))
    request = BinaryRequest("POST", "https", asked["authority"], asked["path"], fields, asked["body"].encode())
    message = padded(write_request(request))
    assert message == bytes.fromhex(vector["message"]).ljust(vector["messageBytes"], b"\0")
    monkeypatch.setattr(hpke.X25519PrivateKey, "generate", lambda: ephemeral)
    sealed, exchange = seal_request(message, config)
    assert sealed.hex() == vector["sealed"]
    assert open_request(sealed, lambda _: private)[0] == message
    answer = BinaryResponse(answered["status"], tuple(map(tuple, answered["fields"])), answered["body"].encode())
    sealed_answer = exchange.seal(padded(write_response(answer)), bytes.fromhex(vector["answerNonce"]))
    assert sealed_answer.hex() == vector["sealedAnswer"]


def test_lengths_and_refused_answers_are_those_that_the_clients_share() -> None:
    for vector in CLIENTS["relay"]["lengths"]:
        request = BinaryRequest("POST", "https", vector["authority"], vector["path"], (), b"x" * vector["bodyBytes"])
        assert len(padded(write_request(request))) == vector["messageBytes"]
    for vector in CLIENTS["relay"]["refusedAnswers"]:
        with pytest.raises(BinaryHttpError):
            read_response(bytes.fromhex(vector["hex"]))
