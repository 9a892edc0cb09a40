"""Which pages of other origins may call a service from a browser (CORS), and the headers that tell the browser so.

A page is never sent a cookie or another credential of the browser: no answer allows it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

ANY = "*"
_ORIGIN = re.compile(r"https?://[^\s,/?#@]+")
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
            if not _ORIGIN.fullmatch(origin):
                raise ValueError("give origins such as https://example.org, without a path, or * for any page")
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


def _host_of(origin: str) -> str:
    """Host and port of an origin; empty if it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
