"""A function URL calls a function directly. API Gateway routes requests and checks callers; here nobody does."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kanon.http.answers import NOWHERE
from kanon.http.bodies import RequestError
from kanon.http.edge import Guard

HOST = ".lambda-url."
"""A part of the host of every function URL."""


@dataclass(frozen=True)
class UrlGuard:
    """Admits only some paths at a function URL. The other paths may ask for other callers.

    Attributes:
        paths: the paths that the URL answers.
        others: decides about all requests afterwards.
    """

    paths: re.Pattern[str]
    others: Guard | None

    def check(self, event: Mapping[str, Any]) -> None:
        """Check a request. Lambda itself names the host in its event, not the caller.

        Raises:
            RequestError: 404, the URL does not answer this path; or that of ``others``.
        """
        if HOST in event["requestContext"].get("domainName", "") and not self.paths.fullmatch(event["rawPath"]):
            raise RequestError(NOWHERE)
        if self.others is not None:
            self.others.check(event)
