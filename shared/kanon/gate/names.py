"""The names of sets and clients inside the service.

A set has a *set key*, an HMAC under the set pepper: with a plain hash, a reader of the tables could test guessed
values. A client has a short *token*, different in every set: tokens of two sets cannot be linked, and no table
holds an identity.
"""

from typing import Literal

from kanon.keys import Secret

ClientKind = Literal["client", "short", "arc"]
"""The literal client "2" and the short identifier 2 are different clients. ``arc``: the tag of a credential."""


def set_key(pepper: Secret, type_name: str, set_id: bytes) -> bytes:
    """The 32-byte key of a set."""
    return pepper.mac(type_name.encode(), set_id)


def client_token(client_key: Secret, set_key: bytes, kind: ClientKind, client: bytes, bits: int) -> int:
    """The first ``bits`` bits (at most 32) of the client's HMAC in this set."""
    digest = client_key.mac(set_key, kind.encode(), client)
    return int.from_bytes(digest[:4], "big") >> (32 - bits)
