"""The settings of the function `gateway` on AWS."""

from typing import Annotated

from pydantic import Field

from kanon.settings import Edge


class GatewaySettings(Edge):
    """The environment of ``gateway``: ARNs of secrets and aliases, and the length of a step in seconds.

    ``relay_secret`` is empty if anybody may be a relay, ``issuer_function`` if nobody needs a credential.
    """

    period: Annotated[int, Field(ge=1, le=86_400)]
    gateway_key_secret: str
    relay_secret: str
    join_function: str
    query_function: str
    issuer_function: str
