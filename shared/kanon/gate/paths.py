"""The parameters in the paths of the HTTP interface. (The models of bodies need no Lambda library.)"""

from typing import Annotated

from aws_lambda_powertools.event_handler.openapi.params import Path
from pydantic import BeforeValidator, WithJsonSchema

from kanon.gate.types import TYPE_NAME
from kanon.http.encoding import BASE64URL, decode_base64url

TypeInPath = Annotated[
    str,
    Path(
        alias="type",
        pattern=TYPE_NAME,
        description="A type of this deployment",
        examples=["fledge"],
    ),
]
SetInPath = Annotated[
    bytes,
    BeforeValidator(decode_base64url),
    WithJsonSchema({"type": "string", "pattern": BASE64URL, "examples": ["c2V0IG9uZQ"]}),
    Path(alias="set", description="The set id, 1 to 64 bytes, as base64url without padding"),
]
