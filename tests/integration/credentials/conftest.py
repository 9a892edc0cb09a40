from hashlib import sha256
from itertools import count

import pytest

from kanon.credentials import arc
from kanon.credentials.p256 import ORDER
from tests.integration.serving.conftest import fixed_secrets, not_durable

__all__ = ["fixed_secrets", "not_durable"]


@pytest.fixture(autouse=True)
def fixed_people(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The tokens of people depend on the name of the test alone. Two random ones of 16 bits may be equal."""
    drawn, random = count(), arc.Secrets.random.__func__  # type: ignore[attr-defined]

    def scalar() -> int:
        text = f"{request.node.nodeid} {next(drawn)}"
        return 1 + int.from_bytes(sha256(text.encode()).digest(), "big") % (ORDER - 1)

    monkeypatch.setattr(arc.Secrets, "random", classmethod(lambda cls: random(cls, scalar)))
