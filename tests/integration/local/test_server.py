"""The local server stops on request at any time."""

import pytest

from kanon.local.gateway import Request, Response
from kanon.local.server import Server


def _answer(_: Request) -> Response:
    return Response(200)


def test_a_server_closes_even_if_its_loop_turns_early(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(_answer)
    trigger, loop = server._server.trigger, server._thread
    wake = trigger._physical_pull

    def woken_already() -> None:
        wake()
        loop.join(0.2)  # as long as it takes, if it closes the trigger now
        wake()

    monkeypatch.setattr(trigger, "_physical_pull", woken_already)
    assert loop.is_alive()
    server.close()
    assert not loop.is_alive()
