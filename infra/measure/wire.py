"""Answers that take the place of an engine's behind a client of botocore."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders


def answer(request: AWSPreparedRequest, status: int, body: object) -> AWSResponse:
    """The answer to a request, for an event ``before-send``. ``body`` is sent as JSON."""
    return AWSResponse(request.url, status, HTTPHeaders(), _Raw(json.dumps(body).encode()))


class _Raw(io.BytesIO):
    """A body that botocore can read."""

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.read()
