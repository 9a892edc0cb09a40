"""Which pages of other origins may call a service from a browser (CORS), and the headers that tell the browser so.

A page is never sent a cookie or another credential of the browser: no answer allows it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

ANY = "*"
_HOST = r"([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:]+\])"
_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
ORIGIN = rf"(?!(https://[^,]*:443|http://[^,]*:80)(,|$))https?://{_HOST}(:{_PORT})?"
"""An origin as browsers send it: the host in lower case and in ASCII, no default port, nothing after it."""
_DEFAULT_PORTS = {"https": 443, "http": 80}
ALLOW, REQUESTED = "Access-Control-Allow-Origin", "access-control-request-method"


@dataclass(frozen=True)
class Cors:
    """The pages that may call, by origin.

    Attributes:
        origins: origins such as ``https://example.org``, or ``*`` alone for any.
        methods: of the calls.
        headers: of requests, in lower case.
        exposed: headers of answers that a page may read, in lower case.
        max_age: seconds for which a browser keeps the answer to a preflight request.
    """

    origins: frozenset[str] = frozenset()
    methods: tuple[str, ...] = ("GET", "POST")
    headers: tuple[str, ...] = ("content-type", "authorization")
    exposed: tuple[str, ...] = ("retry-after",)
    max_age: int = 3600

    @classmethod
    def of(cls, origins: Iterable[str]) -> "Cors":
        """The pages of some origins.

        Raises:
            ValueError: an origin has another form; the message says what to change.
        """
        given = frozenset(origins)
        for origin in given - {ANY}:
            if not re.fullmatch(ORIGIN, origin):
                raise ValueError(_what_to_change(origin))
        if ANY in given and len(given) > 1:
            raise ValueError("give either * or a list of origins: * already allows every page")
        return cls(given)

    def allows(self, origin: str) -> bool:
        """Whether pages of this origin may call. The comparison is that of browsers: byte by byte."""
        return ANY in self.origins or origin in self.origins

    def refuses(self, headers: Mapping[str, str]) -> bool:
        """Whether a request was sent by a page that may not call. The page of the service itself may.

        Args:
            headers: of the request, names in lower case.
        """
        origin = headers.get("origin")
        own = headers.get("host", "").lower() or None
        return not (origin is None or self.allows(origin) or _host_of(origin) == own)

    def preflight(self, method: str, headers: Mapping[str, str]) -> dict[str, str] | None:
        """The headers of the answer to a preflight request; ``None`` for a request of another kind."""
        if method != "OPTIONS" or REQUESTED not in headers or not self.allows(headers.get("origin", "")):
            return None
        return {
            **self.answer(headers),
            "Access-Control-Allow-Methods": ", ".join(self.methods),
            "Access-Control-Allow-Headers": ", ".join(self.headers),
            "Access-Control-Max-Age": str(self.max_age),
        }

    def answer(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers to add to the answer to a request. A cache keeps the answers for different origins apart."""
        if not self.origins:
            return {}
        if ANY in self.origins:
            allowed = ANY
        else:
            allowed = headers.get("origin", "")
            if allowed not in self.origins:
                return {"Vary": "Origin"}
        return {ALLOW: allowed, "Access-Control-Expose-Headers": ", ".join(self.exposed), "Vary": "Origin"}


def _what_to_change(origin: str) -> str:
    """What to give instead of what no browser sends as an origin."""
    if origin == "null":
        return "browsers send null for files and for frames without an origin: serve the page, and give its origin"
    if ANY in origin:
        return "* is for any page, alone: give each origin, such as https://example.org"
    if sent := _as_browsers_send(origin):
        return f"give {sent}: browsers send origins in lower case, without a path and without a default port"
    return "give origins such as https://example.org, without a path, or * for any page"


def _as_browsers_send(address: str) -> str | None:
    """The origin of an address, if it has one."""
    try:
        parts = urlsplit(address)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError:
        return None
    host = f"[{host}]" if ":" in host else host
    own = "" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}"
    sent = f"{parts.scheme}://{host}{own}"
    return sent if re.fullmatch(ORIGIN, sent) else None


def _host_of(origin: str) -> str:
    """Host and port of an origin; empty if it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
