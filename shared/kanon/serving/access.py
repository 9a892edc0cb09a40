"""Who may call which route of the service on one machine, in the words of the template's parameters.

Whatever is not listed here as open to anybody needs a key or a token, so a route that is added later is closed.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kanon.gate.models import CREDENTIALS, JOIN_PATH
from kanon.http.answers import UNKNOWN_CALLER
from kanon.http.bodies import RequestError
from kanon.reports.collecting import JOB_PATHS, PUBLIC_KEYS, REPORTS, debug_path

OPEN_QUERIES = frozenset({"/v1:query", "/v1:validateHashes"})
METRICS = "/metrics"
COLLECTED = frozenset({PUBLIC_KEYS, *REPORTS, *map(debug_path, REPORTS)})
"""What anybody may call of reports."""
LISTS = re.compile(r"/v1/types/[^/]*/(released|ranges)")
"""How the paths of lists begin."""
JOINS = re.compile(rf"{JOIN_PATH.pattern}|/v1:batchJoin")

BearerCheck = Callable[[str], bool]
"""Whether the text behind ``Bearer`` is a valid key or token."""


class AuthMode(StrEnum):
    """Who may call: anybody, holders of an API key, or holders of a token of the issuer."""

    OPEN = "OPEN"
    KEY = "KEY"
    JWT = "JWT"


@dataclass(frozen=True)
class Access:
    """Decides about a request before its body is read.

    Attributes:
        join: who may call ``join``, as ``JoinAuth``.
        batch: who may call the other calls that need it, and read metrics, as ``BatchAuth``.
        lists: who may read lists.
        enrol: who may enrol for credentials.
        with_credential: the types whose joins need a credential, and nothing that names their caller.
        checks: how the credentials of each way are checked.
    """

    join: AuthMode
    batch: AuthMode
    checks: Mapping[AuthMode, BearerCheck]
    lists: AuthMode = AuthMode.KEY
    enrol: AuthMode = AuthMode.KEY
    with_credential: frozenset[str] = frozenset()

    def check(self, event: Mapping[str, Any]) -> None:
        """Check the credentials of a request.

        Raises:
            RequestError: 401, they are needed and absent, or not valid.
        """
        needed = self._needed(event["requestContext"]["http"]["method"], event["rawPath"])
        if needed is AuthMode.OPEN:
            return
        scheme, _, credentials = event["headers"].get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self.checks[needed](credentials.strip()):
            raise RequestError(UNKNOWN_CALLER)

    def _needed(self, method: str, path: str) -> AuthMode:
        if path in COLLECTED:
            return AuthMode.OPEN
        if path.startswith((METRICS, *JOB_PATHS)):  # a router may take a line feed after them for nothing
            return self.batch
        if LISTS.match(path):
            return self.lists
        if path.rstrip("\n") == CREDENTIALS:
            return self.enrol
        if method in ("GET", "HEAD") or path in OPEN_QUERIES:
            return AuthMode.OPEN
        if JOIN_PATH.fullmatch(path):
            return AuthMode.OPEN if path.split("/")[3] in self.with_credential else self.join
        return self.batch
