"""Binary HTTP (RFC 9292): one request or one response as bytes.

Both framings are read, that of known and that of indeterminate length; the first one is written. Trailers and
informational responses are checked and dropped: no route has a use for them. The end of a message may be left out where
it is empty, and zeros may follow, so that a length reveals little.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from kanon.errors import Error

MOST_FIELDS, MOST_CHUNKS = 64, 1024
MOST_NAME, MOST_VALUE, MOST_PATH = 256, 8192, 8192
"""Bytes of a field's name and value, and of a path with its query."""
LEAST_PADDED = 1024
"""Bytes of the shortest padded message: most joins, their answers and all errors have this length."""
_KNOWN_REQUEST, _KNOWN_RESPONSE, _REQUEST, _RESPONSE = range(4)
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
_SCHEME = re.compile(rb"[a-z][a-z0-9+.-]*")
_VISIBLE = re.compile(rb"[!-~]*")
_PATH = re.compile(rb"/[!-~]*")

Fields = tuple[tuple[str, str], ...]
"""Names in lower case, and values as Latin-1."""


class BinaryHttpError(Error, ValueError):
    """The bytes are no message; the text names what is wrong, and nothing that was sent."""


@dataclass(frozen=True)
class BinaryRequest:
    """A request. ``path`` is that of the request line, with its query."""

    method: str
    scheme: str
    authority: str
    path: str
    fields: Fields = ()
    content: bytes = b""


@dataclass(frozen=True)
class BinaryResponse:
    """A final response, of a status from 200 to 599."""

    status: int
    fields: Fields = ()
    content: bytes = b""


# Writing


def write_request(request: BinaryRequest) -> bytes:
    """The bytes of a request, without padding."""
    control = (request.method, request.scheme, request.authority, request.path)
    head = b"".join(_prefixed(text.encode("latin-1")) for text in control)
    return bytes([_KNOWN_REQUEST]) + head + _rest(request.fields, request.content)


def write_response(response: BinaryResponse) -> bytes:
    """The bytes of a response, without padding."""
    return bytes([_KNOWN_RESPONSE]) + _number(response.status) + _rest(response.fields, response.content)


def padded(message: bytes) -> bytes:
    """The message with zeros up to the next power of two, at least ``LEAST_PADDED``."""
    return message.ljust(max(LEAST_PADDED, 1 << (len(message) - 1).bit_length()), b"\0")


def _rest(fields: Fields, content: bytes) -> bytes:
    """Header section and content; the trailer section is left out."""
    lines = [_prefixed(text.encode("latin-1")) for field in fields for text in field]
    return _prefixed(b"".join(lines)) + _prefixed(content)


def _prefixed(text: bytes) -> bytes:
    return _number(len(text)) + text


def _number(value: int) -> bytes:
    """A number in the shortest form of RFC 9000, section 16."""
    power, size = next((power, size) for power, size in enumerate((1, 2, 4, 8)) if value < 1 << 8 * size - 2)
    return (value | power << 8 * size - 2).to_bytes(size, "big")


# Reading


def read_request(message: bytes) -> BinaryRequest:
    """Read a request.

    Raises:
        BinaryHttpError: it is malformed, or has more or longer fields than the limits.
    """
    reader = _Reader(message)
    known = _known(reader, _KNOWN_REQUEST, _REQUEST)
    method = reader.text("method", _TOKEN, MOST_NAME)
    scheme = reader.text("scheme", _SCHEME, MOST_NAME)
    authority = reader.text("authority", _VISIBLE, MOST_NAME)
    path = reader.text("path", _PATH, MOST_PATH)
    return BinaryRequest(method, scheme, authority, path, *_read_rest(reader, known=known))


def read_response(message: bytes) -> BinaryResponse:
    """Read a response.

    Raises:
        BinaryHttpError: it is malformed, or has more or longer fields than the limits.
    """
    reader = _Reader(message)
    known = _known(reader, _KNOWN_RESPONSE, _RESPONSE)
    while 100 <= (status := reader.number("status")) < 200:
        reader.fields(known=known)
    if not 200 <= status < 600:
        raise BinaryHttpError("the status is not 100 to 599")
    return BinaryResponse(status, *_read_rest(reader, known=known))


def _known(reader: "_Reader", known: int, indeterminate: int) -> bool:
    framing = reader.number("framing indicator")
    if framing not in (known, indeterminate):
        raise BinaryHttpError("the framing indicator is not that of this kind of message")
    return framing == known


def _read_rest(reader: "_Reader", *, known: bool) -> tuple[Fields, bytes]:
    """Header section and content. The trailer section and the padding are checked."""
    fields = reader.fields(known=known)
    content = reader.part("content") if known else b"".join(reader.chunks())
    reader.fields(known=known)
    reader.padding()
    return fields, content


def _lines(section: "_Reader") -> Iterator[tuple[str, str]]:
    while not section.ended:
        yield section.line()


class _Reader:
    """Reads a message from its start."""

    def __init__(self, message: bytes) -> None:
        self._message, self._at = message, 0
        self._fields = 0

    @property
    def ended(self) -> bool:
        return self._at == len(self._message)

    def take(self, size: int, what: str) -> bytes:
        found = self._message[self._at : self._at + size]
        if len(found) < size:
            raise BinaryHttpError(f"the message ends in its {what}")
        self._at += size
        return found

    def number(self, what: str) -> int:
        first = self.take(1, what)[0]
        more = self.take((1 << (first >> 6)) - 1, what)
        return int.from_bytes(bytes([first & 0x3F]) + more, "big")

    def part(self, what: str) -> bytes:
        """A length and so many bytes; nothing if the message ends before them."""
        return b"" if self.ended else self.take(self.number(what), what)

    def text(self, what: str, form: re.Pattern[bytes], most: int) -> str:
        size = self.number(what)
        if size > most:
            raise BinaryHttpError(f"the {what} is longer than {most} bytes")
        found = self.take(size, what)
        if not form.fullmatch(found):
            raise BinaryHttpError(f"the {what} has another form")
        return found.decode("latin-1")

    def fields(self, *, known: bool) -> Fields:
        """A field section; an empty one if the message ends before it."""
        lines = _lines(_Reader(self.part("fields"))) if known else self.lines_to_terminator()
        found = list(islice(lines, MOST_FIELDS + 1 - self._fields))  # no more are read of a message that is refused
        self._fields += len(found)
        if self._fields > MOST_FIELDS:
            raise BinaryHttpError(f"there are more than {MOST_FIELDS} fields")
        return tuple(found)

    def lines_to_terminator(self) -> Iterator[tuple[str, str]]:
        """The lines of a section of indeterminate length; none if the message ends before it."""
        if self.ended:
            return
        while not self.terminated():
            yield self.line()

    def line(self) -> tuple[str, str]:
        return self.text("name of a field", _NAME, MOST_NAME), self.text("value of a field", _VALUE, MOST_VALUE)

    def terminated(self) -> bool:
        """Whether a terminator is next, which is then read: a zero in any of its lengths."""
        start = self._at
        if self.number("terminator") == 0:
            return True
        self._at = start
        return False

    def chunks(self) -> Iterator[bytes]:
        """The chunks of a content; none if the message ends before them."""
        if self.ended:
            return
        for _ in range(MOST_CHUNKS + 1):
            size = self.number("content")
            if size == 0:
                return
            yield self.take(size, "content")
        raise BinaryHttpError(f"the content has more than {MOST_CHUNKS} chunks")

    def padding(self) -> None:
        if self._message.count(0, self._at) != len(self._message) - self._at:
            raise BinaryHttpError("the padding has other bytes than zeros")
