"""Who calls. An auth object takes method, URL, body and headers of a request and returns the headers to send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Headers = Mapping[str, str]
Auth = Callable[[str, str, bytes, Headers], Headers]


@dataclass(frozen=True)
class Bearer:
    """Sends ``Authorization: Bearer ...``: an API key of a service on one machine, or a token of your issuer.

    Args:
        token: the text, or a function that returns a token that is still valid; it is called for every attempt.

    >>> Bearer("secret")
    Bearer()
    >>> Bearer("secret")("GET", "https://kanon.example/v1/types", b"", {})
    {'Authorization': 'Bearer secret'}
    """

    token: str | Callable[[], str] = field(repr=False)

    def __call__(self, _method: str, _url: str, _body: bytes, headers: Headers) -> Headers:
        """The headers with the token."""
        return {**headers, "Authorization": f"Bearer {self.token if isinstance(self.token, str) else self.token()}"}
