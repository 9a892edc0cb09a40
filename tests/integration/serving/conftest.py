import os

import pytest

from kanon import disk
from kanon.gate import deciding
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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are split, and joins read in ranges, although there are few."""
    monkeypatch.setattr(deciding, "MOST_PART_BYTES", 400)
    monkeypatch.setattr(deciding, "MOST_JOINS_A_RANGE", 2)
