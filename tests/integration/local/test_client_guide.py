"""docs/guides/python-client.md: every block runs, and what it sends arrives.

The last one needs a listed type: ``tests/integration/serving/test_released_keys.py`` runs it.
"""

from typing import Any

import pytest

from kanon.client import Client
from tests.integration.local.guides import blocks, run, served


def test_every_block_of_the_guide_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    *code, _ = blocks("python-client.md")
    assert len(code) == 5
    with served() as (stack, url):
        monkeypatch.setattr("time.time", stack.clock.now)
        try:
            for block in code:
                run(block, url, names)
            assert capsys.readouterr().out == "False\nfrozenset()\n"
            stack.advance(2 * 3600)
            with Client(url) as client:
                assert client.is_shared("fledge", ["a shared value", "a rare one"]) == {"a shared value"}
            assert names["background"].dropped.total() == 0
        finally:
            for name in ("client", "server", "device"):
                names[name].close()
