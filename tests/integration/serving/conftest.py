import os

import pytest

from kanon.gate.storage.disk import control


@pytest.fixture(autouse=True)
def not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses power in these tests, and waiting for the disk takes most of their time."""
    monkeypatch.setattr(control, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(os, "fsync", lambda _: None)
