"""The gateway for relays of a directory (Oblivious HTTP): its secret, and the requests that it lets through."""

import re
from pathlib import Path

from kanon.gateway.answering import Gateway
from kanon.gateway.epochs import Epochs
from kanon.keys import Secret
from kanon.serving.access import JOINS
from kanon.serving.directory import Directory, at_random, write_secret

GATEWAY_KEY = "gateway-key"
STEPPED = re.compile(rf"POST (?:{JOINS.pattern})|(?:POST|DELETE) /v1/credentials")
"""What changes something: a recorded one must not do so again later."""
OTHERS = re.compile(
    r"POST /v1:(?:query|batchQuery|validateHashes)"
    r"|GET /v1/(?:types(?:/[^/]+(?:/sets/[^/]+)?)?|credentials(?:/keys)?)"
)
"""What clients ask beside. Health, metrics, jobs, reports and the console have no place behind a relay."""


def open_gateway(directory: Directory) -> Gateway:
    """The gateway of an open directory. Its secret is made when it is needed first; a new one harms nobody."""
    secret = Secret.derived(GATEWAY_KEY, _secret(directory.path / "secrets" / GATEWAY_KEY))
    return Gateway(Epochs(secret), directory.settings.period, STEPPED, OTHERS)


def _secret(file: Path) -> str:
    if not file.exists():
        write_secret(file, at_random(GATEWAY_KEY))
    return file.read_text().strip()
