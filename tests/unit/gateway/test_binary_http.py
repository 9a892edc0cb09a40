"""Binary HTTP: the examples of RFC 9292, round trips in both framings, and malformed messages."""

from collections.abc import Callable
from contextlib import suppress
from string import ascii_lowercase, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.gateway.binary_http import (
    LEAST_PADDED,
    MOST_CHUNKS,
    MOST_FIELDS,
    MOST_NAME,
    MOST_PATH,
    MOST_VALUE,
    BinaryHttpError,
    BinaryRequest,
    BinaryResponse,
    padded,
    read_request,
    read_response,
    write_request,
    write_response,
)

HELLO = BinaryRequest(
    "GET",
    "https",
    "",
    "/hello.txt",
    (
        ("user-agent", "curl/7.16.3 libcurl/7.16.3 OpenSSL/0.9.7l zlib/1.2.3"),
        ("host", "www.example.com"),
        ("accept-language", "en, mi"),
    ),
)
KNOWN = bytes.fromhex(
    "000347455405687474707300 0a2f68656c6c6f2e747874406c0a757365722d6167656e74346375726c2f372e31362e33206c6962"
    "6375726c2f372e31362e33204f70656e53534c2f302e392e376c207a6c69622f312e322e3304686f73740f7777772e6578616d70"
    "6c652e636f6d0f6163636570742d6c616e677561676506656e2c206d690000"
)
INDETERMINATE = bytes.fromhex(
    "0203474554056874747073000a2f68656c6c6f2e7478740a757365722d6167656e74346375726c2f372e31362e33206c69626375"
    "726c2f372e31362e33204f70656e53534c2f302e392e376c207a6c69622f312e322e3304686f73740f7777772e6578616d706c65"
    "2e636f6d0f6163636570742d6c616e677561676506656e2c206d6900000000000000000000000000"
)
WITH_INFORMATION = bytes.fromhex(
    "0340660772756e6e696e670a22736c65657020313522004067046c696e6b233c2f7374796c652e6373733e3b2072656c3d70726"
    "56c6f61643b2061733d7374796c65046c696e6b243c2f7363726970742e6a733e3b2072656c3d7072656c6f61643b2061733d73"
    "63726970740040c80464617465"
    "1d4d6f6e2c203237204a756c20323030392031323a32383a353320474d5400034869210000"
)
WITH_TRAILER = bytes.fromhex(
    "0140c8001d5468697320636f6e74656e7420636f6e7461696e732043524c462e0d0a0d07747261696c65720474657874"
)


def test_the_examples_of_the_rfc_are_read_and_written() -> None:
    assert read_request(KNOWN) == read_request(INDETERMINATE) == HELLO
    assert write_request(HELLO) == KNOWN[:-1]  # an empty trailer section is left out
    assert read_response(WITH_INFORMATION) == BinaryResponse(200, (("date", "Mon, 27 Jul 2009 12:28:53 GMT"),), b"Hi!")
    assert read_response(WITH_TRAILER) == BinaryResponse(200, (), b"This content contains CRLF.\r\n")
    assert read_request(bytes.fromhex("00034745540568747470730b6578616d706c652e636f6d012f")) == BinaryRequest(
        "GET", "https", "example.com", "/"
    )


@pytest.mark.parametrize("message", [KNOWN, INDETERMINATE.rstrip(b"\0") + bytes(3)])
def test_only_an_empty_end_may_be_left_out(message: bytes) -> None:
    ends = [end for end in range(len(message)) if _is_read(message[:end])]
    least = len(message.rstrip(b"\0")) + (message[0] == 2)  # the header section of the second one has a terminator
    head = 1 + 4 + 6 + 1 + 11  # framing and control data, without any field
    assert ends == [head, *range(least, len(message))]


def _is_read(message: bytes) -> bool:
    try:
        read_request(message)
    except BinaryHttpError:
        return False
    return True


# Any message, in both framings

NAMES = st.text(ascii_lowercase + digits + "!#$%&'*+.^_`|~-", min_size=1, max_size=12)
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f", categories=None))
VALUES = TEXT.map(lambda text: text.strip(" "))
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=8).map(tuple)
CONTENT = st.binary(max_size=300)
REQUESTS = st.builds(
    BinaryRequest,
    st.sampled_from(["GET", "POST", "M-SEARCH"]),
    st.sampled_from(["https", "http"]),
    st.sampled_from(["", "kanon.example:8000"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=80).map("/".__add__),
    FIELDS,
    CONTENT,
)
RESPONSES = st.builds(BinaryResponse, st.integers(200, 599), FIELDS, CONTENT)


def _number(value: int, size: int) -> bytes:
    """A number of QUIC in 1, 2, 4 or 8 bytes."""
    return (value | {1: 0, 2: 1, 4: 2, 8: 3}[size] << 8 * size - 2).to_bytes(size, "big")


def _indeterminate(start: bytes, fields: tuple, content: bytes, cut: int, size: int) -> bytes:
    """A message of indeterminate length: chunks of ``cut`` bytes, whose lengths take ``size`` bytes."""
    lines = [_number(len(part), 4) + part.encode("latin-1") for field in fields for part in field]
    pieces = [content[at : at + cut] for at in range(0, len(content), cut)]
    chunks = [_number(len(piece), size) + piece for piece in pieces]
    trailer = _number(1, 1) + b"t" + _number(1, 1) + b"x"
    return start + b"".join(lines) + b"\0" + b"".join(chunks) + _number(0, size) + trailer + b"\0"


@pytest.mark.slow
@given(REQUESTS, st.integers(0, 9))
def test_a_request_is_read_as_it_was_written(request: BinaryRequest, padding: int) -> None:
    assert read_request(write_request(request) + bytes(padding)) == request


@given(RESPONSES, st.integers(0, 9))
def test_a_response_is_read_as_it_was_written(response: BinaryResponse, padding: int) -> None:
    assert read_response(write_response(response) + bytes(padding)) == response


@pytest.mark.slow
@given(REQUESTS, RESPONSES, st.integers(1, 60), st.sampled_from([2, 4, 8]))
def test_both_framings_say_the_same(request: BinaryRequest, response: BinaryResponse, cut: int, size: int) -> None:
    control = (request.method, request.scheme, request.authority, request.path)
    start = b"\x02" + b"".join(_number(len(text), size) + text.encode() for text in control)
    assert read_request(_indeterminate(start, request.fields, request.content, cut, size)) == request
    start = b"\x03" + _number(response.status, size)
    assert read_response(_indeterminate(start, response.fields, response.content, cut, size)) == response


@given(st.binary(max_size=80), st.sampled_from([read_request, read_response]))
def test_any_bytes_are_read_or_refused(message: bytes, read: Callable[[bytes], object]) -> None:
    for first in range(4):
        with suppress(BinaryHttpError):
            read(bytes([first]) + message)


@given(REQUESTS, st.data())
def test_a_changed_request_is_read_or_refused(request: BinaryRequest, data: st.DataObject) -> None:
    message = bytearray(write_request(request))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    _is_read(bytes(message))


def test_the_largest_numbers_of_fields_and_chunks_are_read() -> None:
    message = b"\x02" + HEAD[1:] + b"\x01a\0" * (MOST_FIELDS - 1) + b"\0" + b"\x01x" * MOST_CHUNKS + b"\0\x01t\0\0"
    found = read_request(message)
    assert (len(found.fields), found.content) == (MOST_FIELDS - 1, b"x" * MOST_CHUNKS)


# What is malformed

HEAD = b"\0" + b"\x03GET" + b"\x05https" + b"\0" + b"\x01/"


def _request(**changes: str) -> bytes:
    texts = {"method": "GET", "scheme": "https", "authority": "", "path": "/", **changes}
    return b"\0" + b"".join(_number(len(text), 4) + text.encode("latin-1") for text in texts.values())


def _fields(*lines: tuple[bytes, bytes]) -> bytes:
    section = b"".join(_number(len(part), 4) + part for line in lines for part in line)
    return HEAD + _number(len(section), 4) + section


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"", "the message ends in its framing indicator"),
        (b"\x01" + HEAD[1:], "the framing indicator is not that of this kind"),
        (b"\x04", "the framing indicator is not that of this kind"),
        (_request(method=""), "the method has another form"),
        (_request(method="G T"), "the method has another form"),
        (_request(method="G" * 257), f"the method is longer than {MOST_NAME} bytes"),
        (_request(scheme="HTTPS"), "the scheme has another form"),
        (_request(authority="a b"), "the authority has another form"),
        (_request(path=""), "the path has another form"),
        (_request(path="x"), "the path has another form"),
        (_request(path="/a b"), "the path has another form"),
        (_request(path="/a\n"), "the path has another form"),
        (_request(path="/" * (MOST_PATH + 1)), f"the path is longer than {MOST_PATH} bytes"),
        (HEAD + b"\x05", "the message ends in its fields"),
        (HEAD + b"\x40", "the message ends in its fields"),
        (HEAD + b"\x02\x01a", "the message ends in its value of a field"),
        (HEAD + b"\x01\x01\0", "the message ends in its name of a field"),
        (_fields((b"", b"x")), "the name of a field has another form"),
        (_fields((b"A", b"x")), "the name of a field has another form"),
        (_fields((b":path", b"/")), "the name of a field has another form"),
        (_fields((b"a", b"x\r\nb: y")), "the value of a field has another form"),
        (_fields((b"a", b"x\0")), "the value of a field has another form"),
        (_fields((b"a", b" x")), "the value of a field has another form"),
        (_fields((b"a", b"x ")), "the value of a field has another form"),
        (_fields((b"a" * (MOST_NAME + 1), b"")), "the name of a field is longer"),
        (_fields((b"a", b"x" * (MOST_VALUE + 1))), "the value of a field is longer"),
        (_fields(*[(b"a", b"")] * (MOST_FIELDS + 1)), f"there are more than {MOST_FIELDS} fields"),
        (HEAD + b"\0\x03ab", "the message ends in its content"),
        (HEAD + b"\0\xff" + b"\xff" * 7 + b"ab", "the message ends in its content"),
        (HEAD + b"\0\0\0\0\x01", "the padding has other bytes than zeros"),
        (b"\x02" + HEAD[1:] + b"\0\x02ab", "the message ends in its content"),
        (b"\x02" + HEAD[1:] + b"\0" + b"\x01a" * (MOST_CHUNKS + 1), f"the content has more than {MOST_CHUNKS} chunks"),
        (b"\x02" + HEAD[1:] + b"\x01a\0" * (MOST_FIELDS + 1), f"there are more than {MOST_FIELDS} fields"),
        (b"\x02" + HEAD[1:] + b"\x01a\x01b", "the message ends in its terminator"),
        (b"\x02" + HEAD[1:] + b"\x01a\x01b\0\0" + b"\x01:\0\0", "the name of a field has another form"),
    ],
)
def test_a_malformed_request_is_refused(message: bytes, problem: str) -> None:
    with pytest.raises(BinaryHttpError, match=f"^{problem}"):
        read_request(message)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\0", "the framing indicator is not that of this kind"),
        (b"\x01", "the message ends in its status"),
        (b"\x01" + _number(99, 2), "the status is not 100 to 599"),
        (b"\x01" + _number(600, 2), "the status is not 100 to 599"),
        (b"\x01" + _number(103, 2), "the message ends in its status"),
        (b"\x01" + _number(103, 2) + b"\0" + _number(99, 2), "the status is not 100 to 599"),
        (b"\x01" + (_number(100, 2) + b"\x03\x01a\0") * (MOST_FIELDS + 1), f"there are more than {MOST_FIELDS}"),
    ],
)
def test_a_malformed_response_is_refused(message: bytes, problem: str) -> None:
    with pytest.raises(BinaryHttpError, match=f"^{problem}"):
        read_response(message)


# Padding


@given(st.binary(min_size=1, max_size=5000))
def test_a_padded_message_has_the_next_power_of_two_of_bytes(message: bytes) -> None:
    found = padded(message)
    assert found.rstrip(b"\0") == message.rstrip(b"\0")
    assert len(found) & (len(found) - 1) == 0
    assert max(LEAST_PADDED, len(message)) <= len(found) < max(LEAST_PADDED + 1, 2 * len(message))
