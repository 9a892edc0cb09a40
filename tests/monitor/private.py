"""Private values, in every form in which a text may contain them."""

import base64
from functools import cache
from urllib.parse import quote

from tests.paths import ROOT

SHORTEST = 6
"""Shorter names occur in any text: what may be said at all (``words``) is the guard against them."""
LONGEST = 16
"""So many leading characters give a value away: a truncated key is one, too."""


def forms(value: bytes) -> set[str]:
    """The forms of a value in a text, cut to its first characters."""
    standard = base64.b64encode(value).decode().rstrip("=")
    shown = {value.hex(), value.hex().upper(), standard, standard.replace("+", "-").replace("/", "_")}
    shown |= {repr(value)[2:-1], quote(value, safe="")}
    # The middle of longer base64 differs with where the value begins.
    shown |= {base64.b64encode(bytes(shift) + value).decode()[4:-4] for shift in (1, 2)}
    return {form[:LONGEST] for form in shown if len(form) >= SHORTEST}


@cache
def public() -> str:
    """The service's own words. A value that is one of them, such as a client called "client", is not private."""
    return "\n".join(path.read_text() for folder in ("functions", "shared") for path in (ROOT / folder).rglob("*.py"))


class Private:
    """The private values of a deployment, and a search for all of them at once."""

    def __init__(self) -> None:
        self._values: set[bytes] = set()
        self._texts: set[str] = set()

    def add(self, *values: bytes | str) -> None:
        """Remember values: set ids, clients, keys, tokens, secrets."""
        self._values.update(
            value.encode(errors="surrogatepass") if isinstance(value, str) else value for value in values
        )

    def say(self, text: str) -> None:
        """Remember a text that was output."""
        self._texts.add(text)

    def told(self) -> list[str]:
        """The texts that contain a private value. Forgets the texts and keeps the values."""
        texts, self._texts = self._texts, set()
        return [text for text in texts if self._tells(text)] if texts and self._tells("\n".join(texts)) else []

    def _tells(self, text: str) -> bool:
        grams = {text[i : i + SHORTEST] for i in range(len(text) - SHORTEST + 1)}
        return any(
            form[:SHORTEST] in grams and form in text and form not in public()
            for value in self._values
            for form in forms(value)
        )
