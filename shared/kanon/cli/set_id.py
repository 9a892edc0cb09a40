"""``kanon set-id``: the id of the set of a value, or of a browser's ad."""

from base64 import urlsafe_b64encode
from typing import Annotated

import typer

from kanon.client.ads import OWNED, PARTS, ad_id
from kanon.client.values import value_id

MISSING = "-"
ORIGIN_SLASHES = 3


def set_id(
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE...", help="Values; with --ad the parts of one ad.", show_default=False)
    ],
    ad: Annotated[
        str | None,
        typer.Option("--ad", metavar="KIND", help="The id that Chromium joins for an ad. Kinds: " + ", ".join(PARTS)),
    ] = None,
) -> None:
    """Print the ids of the sets of values, one in each line: base64url of SHA-256.

    With --ad, that of an ad: its owner, bidding logic URL and render URL (of ComponentBid its render URL alone), then
    the ids that its kind has. A missing id is -.

    Example: kanon set-id "a shared value"
    """
    try:
        found = [value_id(value) for value in values] if ad is None else [ad_id(ad, *_parts(ad, values))]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    for one in found:
        typer.echo(one)


def decoded(text: str) -> bytes:
    """A set id as in the path of the API.

    Raises:
        ValueError: it is none, or probably a value; the message continues "the set id".
    """
    from kanon.http.encoding import decode_base64url

    found = decode_base64url(text)
    if (canonical := urlsafe_b64encode(found).decode().rstrip("=")) != text:
        raise ValueError(
            f"has spare bits: give {canonical} if {text} is a set id; of a value, give what `kanon set-id` prints"
        )
    return found


def _parts(kind: str, values: list[str]) -> list[str | None]:
    """The parts as the browser writes them; their number is checked with them."""
    for name, value in zip(PARTS.get(kind, ()), values, strict=False):
        if name in OWNED and not value.startswith("https://"):
            raise ValueError(f"the {name} does not begin with https://: {value!r}")
        if name == OWNED[0] and not _is_origin(value):
            raise ValueError(f"the owner is an origin and a slash, such as https://ad-tech.example/: {value!r}")
    return [None if value == MISSING else value for value in values]


def _is_origin(value: str) -> bool:
    return value.endswith("/") and value.count("/") == ORIGIN_SLASHES
