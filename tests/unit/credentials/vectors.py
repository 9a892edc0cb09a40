"""The vectors of credentials that the Python and the TypeScript client share: clients/credentials.json.

``python -m tests.unit.credentials.vectors`` writes them again.
"""

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from kanon.credentials.arc import IssuerKey, Secrets, finish, issue, present, request
from kanon.credentials.contexts import credential_context, session, tag_context
from kanon.credentials.p256 import ORDER, P, encode_scalars
from tests.paths import ROOT

FILE = ROOT / "clients" / "credentials.json"
ABOUT = (
    "Shared by the Python and the TypeScript client; docs/proofs/credentials.md describes the bytes. They are"
    " hexadecimal. issuers: the key that a seed gives. credentials: one issuance, and presentations; each message is"
    " made with its scalars, in this order, instead of random ones. refusedPoints, refusedScalars: what must be"
    " refused in the place of any point and any scalar of any message."
)
DEPLOYMENT = "kanon.example"
SHOWN = (("fledge", b"a set", 495_555), ("fledge", b"a set", 495_556), ("terms", b"a set", 495_555))
SEEDS = (b"issuer of epoch 2900, 32 bytes..", b"issuer of epoch 2901, 32 bytes..")


def scalars(label: str) -> Iterator[int]:
    """Scalars that anybody can compute again."""
    for number in count():
        yield 1 + int.from_bytes(sha256(f"{label}/{number}".encode()).digest(), "big") % (ORDER - 1)


class Drawn:
    """A source of scalars that remembers them."""

    def __init__(self, label: str) -> None:
        self._scalars, self.taken = scalars(label), list[int]()

    def __call__(self) -> int:
        self.taken.append(next(self._scalars))
        return self.taken[-1]

    @property
    def hex(self) -> list[str]:
        return [encode_scalars([scalar]).hex() for scalar in self.taken]


def given(texts: list[str]) -> Callable[[], int]:
    """The source of the scalars of a vector. It has no more than are needed."""
    left = iter(texts)
    return lambda: int(next(left), 16)


def computed() -> dict[str, Any]:
    keys = [IssuerKey.derive(seed) for seed in SEEDS]
    credentials = [
        _credential(keys[0], 2900, "first"),
        _credential(keys[0], 2900, "second"),
        _credential(keys[1], 2901, "first"),
    ]
    first = credentials[0]
    return {
        "about": ABOUT,
        "issuers": [
            {"seed": seed.hex(), "public": key.public.encode().hex()} for seed, key in zip(SEEDS, keys, strict=True)
        ],
        "credentials": credentials,
        "refusedPoints": [
            {"why": "the identity", "hex": bytes(33).hex()},
            {"why": "an uncompressed prefix", "hex": "04" + first["public"][2:66]},
            {"why": "a prefix that nothing has", "hex": "05" + first["public"][2:66]},
            {"why": "x = p", "hex": "02" + P.to_bytes(32, "big").hex()},
            {"why": "x = p + 5, where 5 is the x of a point", "hex": "02" + (P + 5).to_bytes(32, "big").hex()},
            {"why": "1 is the x of no point", "hex": "02" + (1).to_bytes(32, "big").hex()},
        ],
        "refusedScalars": [
            {"why": why, "hex": encode_scalars([scalar]).hex()}
            for why, scalar in (("0", 0), ("q", ORDER), ("q + 1, which is 1", ORDER + 1), ("2^256 - 1", 2**256 - 1))
        ],
    }


def _credential(key: IssuerKey, epoch: int, person: str) -> dict[str, Any]:
    secrets = Secrets.random(Drawn(person))
    asking, issuing = Drawn(f"{person}/{epoch}/request"), Drawn(f"{person}/{epoch}/response")
    context = credential_context(DEPLOYMENT, epoch)
    asked = request(secrets, context, context, asking)
    response = issue(key, asked.message, context, issuing)
    credential = finish(asked, key.public, response, context)
    shown = []
    for type_name, set_id, step in SHOWN:
        drawn = Drawn(f"{person}/{epoch}/{set_id!r}/{step}")
        place = tag_context(DEPLOYMENT, type_name, set_id)
        bound = session(DEPLOYMENT, key.public.encode(), epoch, "POST", type_name, set_id, step)
        presentation = present(credential, place, bound, drawn)
        tag = key.verifier(context).verify(place, bound, presentation)
        shown.append(
            {
                "method": "POST",
                "type": type_name,
                "set": set_id.hex(),
                "step": step,
                "tagContext": place.hex(),
                "session": bound.hex(),
                "scalars": drawn.hex,
                "presentation": presentation.hex(),
                "tag": tag.hex(),
            }
        )
    return {
        "deployment": DEPLOYMENT,
        "epoch": epoch,
        "public": key.public.encode().hex(),
        "context": context.hex(),
        "secrets": secrets.encode().hex(),
        "commitment": secrets.commitment().hex(),
        "requestScalars": asking.hex,
        "request": asked.message.hex(),
        "responseScalars": issuing.hex,
        "response": response.hex(),
        "credential": credential.encode().hex(),
        "presentations": shown,
    }


def written(vectors: dict[str, Any]) -> str:
    return json.dumps(vectors, indent=1) + "\n"


if __name__ == "__main__":
    Path(FILE).write_text(written(computed()))
