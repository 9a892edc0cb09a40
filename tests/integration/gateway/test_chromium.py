"""What of Chromium's k-anonymity client works through the gateway, byte for byte.

Its inner messages are put together here by hand, in the form of the public client (RFC 9292): an empty authority, the
host as a field, no trailer section, and zeros up to a power of two.
"""

from kanon.gateway.oblivious import seal_request
from tests.integration.gateway.relayed import config, outer
from tests.integration.serving.machine import Machine

QUERY = b"/v1:query?key=AIzaSyAkey"
JOIN = b"/v1/types/fledge/sets/aGVsbG8:join?key=AIzaSyAkey"


def _text(text: bytes) -> bytes:
    length = bytes([len(text)]) if len(text) < 64 else (0x4000 | len(text)).to_bytes(2, "big")
    return length + text


def _chromium(path: bytes, body: bytes) -> bytes:
    fields = b"".join(map(_text, (b"host", b"kanon.example", b"content-type", b"application/json")))
    message = b"\0" + b"".join(map(_text, (b"POST", b"https", b"", path, fields, body)))
    return message.ljust(1 << (len(message) - 1).bit_length(), b"\0")


def _answer(served: Machine, message: bytes) -> bytes:
    sealed, exchange = seal_request(message, config(served))
    return exchange.open(outer(served, sealed).body)


def test_the_key_is_the_41_bytes_that_it_takes(served: Machine) -> None:
    found = served.request("GET", "/v1/proxy/keys?key=AIzaSyAkey", key=False)
    key = found.body
    assert dict(found.headers)["Content-Type"] == "application/ohttp-keys"
    assert (len(key), key[1:3].hex(), key[35:].hex()) == (41, "0020", "000400010002")
    assert 1 <= key[0] <= 127


def test_its_query_is_answered_with_one_entry_for_its_type(served: Machine) -> None:
    body = b'{"setsForType":[{"type":"fledge","hashes":["aGVsbG8=","AA=="]}]}'
    found = _answer(served, _chromium(QUERY, body))
    fields = b"\rcache-control\nmax-age=30\x0ccontent-type\x10application/json"
    answered = b'{"kAnonymousSets":[{"type":"fledge","hashes":[]}],"step":null,"nextUpdate":"2027-01-15T08:00:30Z"}'
    head = b"\x01\x40\xc8" + bytes([len(fields)]) + fields + b"\x40" + bytes([len(answered)])
    assert found == (head + answered).ljust(1024, b"\0")


def test_its_join_names_no_step_and_is_refused_inside(served: Machine) -> None:
    body = b"{name: 'type/fledge/sets/aGVsbG8', shortClientIdentifier: 2}"
    found = _answer(served, _chromium(JOIN, body))
    assert found[:3] == b"\x01\x41\x90"  # a response of known length, 400
    assert b"kanon-step" in found
    assert served.directory.log.count(int(served.now // 60)) == 0


def test_it_finds_no_trust_tokens(served: Machine) -> None:
    for path in (b"/v1/1/fetchTrustToken", b"/v1/trustTokenKeyCommitment"):
        found = _answer(served, _chromium(path, b""))
        assert found[:3] == b"\x01\x41\x94"  # 404
