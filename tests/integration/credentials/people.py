"""People with accounts and devices at a machine whose type needs credentials."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kanon.client import Bearer, Client
from kanon.client.anonymous import Anonymous
from kanon.clock import week_of
from kanon.credentials import arc
from kanon.credentials.contexts import credential_context, session, tag_context
from kanon.credentials.enrolling import Issuer
from kanon.gate.enrol_routes import EnrolRoutes
from kanon.serving.api_keys import ApiKeys
from tests.integration.serving.machine import PERIOD, Machine, machine

TYPE = "person"
TYPES = {
    TYPE: {"k": 50, "window": 24, "profile": "published", "credential": True},
    "people": {"k": 50, "window": 24, "profile": "published", "credential": True},
    "fledge": {"k": 50, "window": 24, "profile": "published"},
}
SET = b"hello"
PATH = f"/v1/types/{TYPE}/sets/aGVsbG8:join"


@contextmanager
def served(path: Path, **how: Any) -> Iterator[Machine]:
    with machine(path, types=TYPES, gateway=True, **how) as made:
        yield made


def account(at: Machine, name: str) -> Bearer:
    """A new account: an API key of this name."""
    return Bearer(ApiKeys(lambda: at.directory.control.database).make(name, at.now)[1])


def device(at: Machine, file: Path) -> Anonymous:
    return Anonymous(file, now=lambda: at.now)


def client_of(at: Machine, anonymous: Anonymous, relay: str | None = None) -> Client:
    made = Client(at.server.url, anonymous=anonymous, relay=relay, sleep=lambda _: None, deadline=0)
    made._calls.now, made._calls.random = lambda: at.now, lambda: 0.0
    if relay is not None:
        made._connection._relaying.now = lambda: at.now  # type: ignore[union-attr]
    return made


def enrolment(at: Machine) -> EnrolRoutes:
    found = at.service._enrolment
    assert found is not None
    return found


def issuer(at: Machine) -> Issuer:
    return enrolment(at).enrolling.issuer


def asked(deployment: str, week: int, secrets: arc.Secrets | None = None) -> dict[str, Any]:
    """The body of a request for a credential."""
    context = credential_context(deployment, week)
    return {"epoch": week, "request": text(arc.request(secrets or arc.Secrets.random(), context, context).message)}


def credential(at: Machine, week: int | None = None, secrets: arc.Secrets | None = None) -> arc.Credential:
    """A credential from the issuer itself."""
    own, week = issuer(at), week_of(at.now) if week is None else week
    context = credential_context(own.deployment, week)
    asked = arc.request(secrets or arc.Secrets.random(), context, context)
    return arc.finish(asked, own.key(week).public, arc.issue(own.key(week), asked.message, context), context)


def presented(
    at: Machine, held: arc.Credential, step: int | None = None, week: int | None = None, **bound: Any
) -> dict[str, Any]:
    """The body of a join of ``SET``; ``bound`` replaces parts of what its proof is bound to."""
    own = issuer(at)
    step, week = int(at.now // PERIOD) if step is None else step, week_of(at.now) if week is None else week
    of = {
        "deployment": own.deployment,
        "issuer_key": own.key(week).public.encode(),
        "epoch": week,
        "method": "POST",
        "type_name": TYPE,
        "set_id": SET,
        "step": step,
        **bound,
    }
    tagged = tag_context(of["deployment"], of["type_name"], of["set_id"])
    return body(arc.present(held, tagged, session(**of)), step, week)


def body(proof: bytes, step: int, week: int) -> dict[str, Any]:
    return {"presentation": {"epoch": week, "step": step, "proof": text(proof)}}


def text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def count(at: Machine) -> int:
    """The joins in the log at the machine's step."""
    return at.directory.log.count(int(at.now // PERIOD))
