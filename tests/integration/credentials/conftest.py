from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest

from kanon.credentials import arc
from kanon.credentials.p256 import ORDER
from kanon.local import Stack
from tests.integration.credentials.people import served
from tests.integration.gateway.relayed import Relay
from tests.integration.serving.conftest import fixed_secrets, not_durable
from tests.integration.serving.machine import Machine

__all__ = ["fixed_secrets", "not_durable"]


@pytest.fixture(autouse=True)
def fixed_people(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The tokens of people depend on the name of the test alone. Two random ones of 16 bits may be equal."""
    drawn, random = count(), arc.Secrets.random.__func__  # type: ignore[attr-defined]

    def scalar() -> int:
        text = f"{request.node.nodeid} {next(drawn)}"
        return 1 + int.from_bytes(sha256(text.encode()).digest(), "big") % (ORDER - 1)

    monkeypatch.setattr(arc.Secrets, "random", classmethod(lambda cls: random(cls, scalar)))


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Machine]:
    with served(tmp_path / "data") as made:
        yield made


@pytest.fixture
def relay(at: Machine) -> Iterator[Relay]:
    with closing(Relay(at.server.url)) as made:
        yield made


@pytest.fixture
def address(stack: Stack) -> Iterator[str]:
    with closing(stack.serve()) as server:
        yield server.url
