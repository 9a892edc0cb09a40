"""The key of the lister of a stack: a secret that exists before the stack does, because a parameter is made of it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kanon.gate.sealing import LISTER_KEY, private_key, public_text
from kanon.keys import fetch_secret

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


class ListerKey(NamedTuple):
    """The parameters ``ListerKey`` and ``ListerKeySecret``: the public key in base64url, and the ARN of the secret."""

    public: str
    secret: str


def lister_key(client: "SecretsManagerClient", stack: str, draw: Callable[[], str]) -> ListerKey:
    """The key of a stack. If it has none, its secret gets a text of at least 256 random bits, which ``draw`` makes."""
    name = f"kanon/{stack}/{LISTER_KEY}"
    try:
        arn = client.create_secret(
            Name=name,
            Description=f"Key that opens the values of listed types of {stack}; must never change",
            SecretString=draw(),
        )["ARN"]
    except client.exceptions.ResourceExistsException:
        arn = client.describe_secret(SecretId=name)["ARN"]
    return ListerKey(public_text(private_key(fetch_secret(client, LISTER_KEY, arn))), arn)
