"""What credentials, tags and presentations of the service are bound to. Strings are UTF-8, numbers 8 bytes."""

from hashlib import sha256

from kanon.noise.words import length_prefixed

PROFILE = b"kanon-arc-v1"


def credential_context(deployment: str, epoch: int) -> bytes:
    """What a credential is for: one deployment, one epoch of the issuer's keys. Also the session of its request."""
    return length_prefixed(b"kanon-credential-v1", deployment.encode(), _number(epoch))


def tag_context(deployment: str, type_name: str, set_id: bytes) -> bytes:
    """Where a person has one tag: a set, as the bytes that its set key is made of, whatever the path looked like."""
    return length_prefixed(b"kanon-tag-v1", deployment.encode(), type_name.encode(), set_id)


def session(
    deployment: str, issuer_key: bytes, epoch: int, method: str, type_name: str, set_id: bytes, step: int
) -> bytes:
    """The request that a presentation is part of.

    Args:
        deployment: the name of the deployment.
        issuer_key: the encoded public key of the issuer.
        epoch: the number of its epoch.
        method: the method of the request, such as POST.
        type_name: the type of the set.
        set_id: as in ``tag_context``.
        step: the step of the join.
    """
    request = (method.encode(), type_name.encode(), set_id, _number(step))
    return length_prefixed(PROFILE, deployment.encode(), issuer_key, _number(epoch), *request)


def attested(deployment: str, at: int, method: str, body: bytes) -> bytes:
    """The 32 bytes that a device attests when it enrols: its request, at this time (Unix s), to this deployment."""
    request = (method.encode(), body)
    return sha256(length_prefixed(b"kanon-attestation-v1", deployment.encode(), _number(at), *request)).digest()


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")
