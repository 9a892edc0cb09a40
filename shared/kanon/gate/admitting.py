"""Joins with a credential: the client is the tag of its presentation."""

from hashlib import sha256

from kanon.credentials.enrolling import Admission, CredentialError, Issuer, NotNowError
from kanon.gate.models import Presentation
from kanon.http.answers import Problem, error_answer, wrong_field
from kanon.http.bodies import RequestError
from kanon.keys import Secret

NOT_HELD = error_answer(
    400,
    "presentation: the proof does not hold for this join: enrol again, and make a new presentation for each join",
    Problem(field="presentation", reason="does not hold"),
)

ISSUER_KEY, ACCOUNT_KEY = "issuer-key", "account-key"
"""The names of the secrets from which the keys of an issuer, and that which names its accounts, are derived."""


def issuer_of(secret: Secret, stack: str) -> Issuer:
    """The issuer of a stack. Its public name is a hash, because the id of a stack names an account of AWS."""
    return Issuer(secret, sha256(stack.encode()).hexdigest())


def admit(admission: Admission, type_name: str, set_id: bytes, given: Presentation, now: float) -> bytes:
    """The tag of a presentation.

    Raises:
        RequestError: it does not hold, or not now.
    """
    try:
        return admission.tag(type_name, set_id, given.epoch, given.step, given.proof, now)
    except NotNowError as error:
        raise RequestError(wrong_field("presentation", str(error))) from None
    except CredentialError:
        raise RequestError(NOT_HELD) from None
