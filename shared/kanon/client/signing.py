"""AWS Signature Version 4, which routes for operators need. It needs botocore, unlike the rest of the client."""

from typing import TYPE_CHECKING

from kanon.client.connection import Headers, Sign

if TYPE_CHECKING:
    from botocore.credentials import Credentials


def signer(credentials: "Credentials", region: str) -> Sign:
    """Signs requests to an API of API Gateway in a region."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest

    def sign(method: str, url: str, body: bytes, headers: Headers) -> Headers:
        request = AWSRequest(method, url, dict(headers), body)
        SigV4Auth(credentials, "execute-api", region).add_auth(request)
        return dict(request.headers.items())

    return sign
