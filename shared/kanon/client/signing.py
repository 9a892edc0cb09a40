"""AWS Signature Version 4, which some routes need. It needs botocore (the extra ``aws``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kanon.client.auth import Headers

if TYPE_CHECKING:
    from botocore.credentials import Credentials


@dataclass(frozen=True)
class SigV4:
    """Signs requests to an API of API Gateway, or to a function URL.

    Args:
        credentials: for example ``boto3.Session().get_credentials()``.
        region: of the API, for example ``eu-central-1``.
    """

    credentials: Credentials = field(repr=False)
    region: str

    def __call__(self, method: str, url: str, body: bytes, headers: Headers) -> Headers:
        """The headers with the signature."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        request = AWSRequest(method, url, dict(headers), body)
        service = "lambda" if ".lambda-url." in url else "execute-api"
        SigV4Auth(self.credentials, service, self.region).add_auth(request)
        return dict(request.headers.items())
