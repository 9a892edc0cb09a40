"""Verification of an anonymous presentation relative to a plain join, which it makes longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.harness import Comparison, Form, Side, Turn
from bench.requests import REQUEST, join
from kanon.credentials.arc import IssuerKey, Secrets, finish, issue, present, request

PLACE, SESSION, CONTEXT = b"a set", b"a request", b"an epoch"


def rows(form: Form) -> Iterator[Comparison]:
    """The verification alone: what a join with a presentation takes more."""
    ours, theirs = Side(verify, (form.size(100, 3),)), Side(join, (form.size(25, 5), False))
    inside = "decoding, hashing to the curve, ten multiplications, the challenge"
    yield Comparison(
        "verify an anonymous presentation", inside, f"a plain join: {REQUEST}", "presentation", ours, theirs,
        form.size(15, 1),
    )  # fmt: skip


@contextmanager
def verify(count: int) -> Iterator[Callable[[], Turn]]:
    """Presentations of one credential, verified one after the other."""
    key, secrets = IssuerKey.derive(bytes(32)), Secrets.random()
    asked = request(secrets, CONTEXT)
    credential = finish(asked, key.public, issue(key, asked.message))
    presentations = [present(credential, PLACE, SESSION) for _ in range(count)]
    verifier = key.verifier(CONTEXT)

    def work() -> None:
        for presentation in presentations:
            verifier.verify(PLACE, SESSION, presentation)

    yield lambda: Turn(count, work)
