"""Shared by the tests of releases."""

import random
from types import SimpleNamespace

import pytest

from kanon.release import ledger


@pytest.fixture(autouse=True)
def fixed_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers draw the same secrets in every run, so that a test meets the same noise in every run."""
    draw = random.Random(1)
    source = SimpleNamespace(token_bytes=draw.randbytes, token_hex=lambda size: draw.randbytes(size).hex())
    monkeypatch.setattr(ledger, "secrets", source)
