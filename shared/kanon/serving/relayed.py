"""The gateway for relays of a directory (Oblivious HTTP): its secret, and the requests that it lets through."""

import re

from kanon.gateway.answering import Gateway
from kanon.gateway.epochs import Epochs
from kanon.serving.access import JOINS
from kanon.serving.directory import Directory
from kanon.serving.secret_files import GATEWAY_KEY, secret_of

STEPPED = re.compile(rf"POST (?:{JOINS.pattern})|(?:POST|DELETE) /v1/credentials")
"""What changes something: a recorded one must not do so again later."""
OTHERS = re.compile(
    r"POST /v1:(?:query|batchQuery|validateHashes)"
    r"|GET /v1/(?:types(?:/[^/]+(?:/sets/[^/]+)?)?|credentials(?:/keys)?)"
)
"""What clients ask beside. Health, metrics, jobs, reports and the console have no place behind a relay."""


def open_gateway(directory: Directory) -> Gateway:
    """The gateway of an open directory. Its secret is made when it is needed first; a new one harms nobody."""
    secret = secret_of(directory.path / "secrets" / GATEWAY_KEY, made=True)
    return Gateway(Epochs(secret), directory.settings.period, STEPPED, OTHERS)
