import os

import pytest

from kanon import disk
from tests.integration.serving.own_joins import with_fixed_secrets


@pytest.fixture(autouse=True)
def not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses power in these tests, and waiting for the disk takes most of their time."""
    monkeypatch.setattr(disk, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def fixed_secrets(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What a test draws depends on its name alone."""
    with_fixed_secrets(monkeypatch, request.node.nodeid)
