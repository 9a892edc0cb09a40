"""One emulator that deploys CloudFormation templates."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from kanon.local import engines


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session with an emulator that deploys; nothing is deployed yet."""
    if not engines.MINISTACK_PYTHON.exists():
        pytest.skip("run `make install` first: the emulator has an environment of its own")
    start = subprocess.Popen

    def with_cloudformation(*command: Any, env: dict[str, str], **options: Any) -> Any:
        services = "cloudformation,dynamodb,kms,secretsmanager"
        return start(*command, env={**env, "SERVICES": services}, **options)

    monkeypatch.setattr(engines.subprocess, "Popen", with_cloudformation)
    engine = engines.Ministack()
    engine.start()
    try:
        yield engine.session()
    finally:
        engine.stop()
