"""The HTTP front of the local stack: waitress, bound to loopback.

A page of another site in the browser can reach loopback, too. So the server answers only requests to its own names
(a name of somebody else may resolve to loopback: DNS rebinding), and none that a page of another site sent.
"""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from waitress.server import create_server

from kanon.console.answering import name_of
from kanon.cors import Cors
from kanon.local.gateway import NO_PAGES, PAYLOAD_LIMIT, GatewayRequest, GatewayResponse, message

RequestHandler = Callable[[GatewayRequest], GatewayResponse]
OWN_NAMES = frozenset({"127.0.0.1", "localhost"})
MOST_CONNECTIONS, IDLE_SECONDS = 100, 30
"""Open connections, and seconds after which one without a request in progress is closed."""
WRONG_NAME = message(421, "this service answers to 127.0.0.1 and localhost only")
FOREIGN = message(403, "pages of this origin may not call: start the service with --cors-origin for it")
_HOP_BY_HOP = {"connection", "content-length", "keep-alive", "transfer-encoding", "upgrade"}


class ApiServer:
    """Serves ``answer`` on a port (0: a free one) in a thread until closed. Pages that ``cors`` allows may call."""

    def __init__(self, answer: RequestHandler, port: int = 0, cors: Cors = NO_PAGES) -> None:
        logging.getLogger("waitress").setLevel(logging.ERROR)  # hide its warning about queued requests
        server: Any = create_server(
            _application(_for_pages(answer, cors)),
            sockets=[_bound(port)],
            threads=8,
            max_request_body_size=PAYLOAD_LIMIT + 1024,
            connection_limit=MOST_CONNECTIONS,
            channel_timeout=IDLE_SECONDS,
            cleanup_interval=IDLE_SECONDS // 6,
            ident=None,
        )
        self._server = server
        port = server.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish current requests, close the connections, stop listening."""
        self._server.task_dispatcher.shutdown()  # first: workers need the loop's trigger until they end
        # The server's own thread closes the server and the trigger, at the next turn of its loop. An earlier pull may
        # cause that turn, so the thread waits until this pull has written to the trigger.
        pulled = threading.Event()
        self._server.trigger.pull_trigger(partial(self._close, pulled))
        pulled.set()
        self._thread.join(10)

    def _close(self, pulled: threading.Event) -> None:
        pulled.wait()
        for channel in list(self._server.active_channels.values()):
            channel.handle_close()
        self._server.close()


def _bound(port: int) -> socket.socket:
    """A socket on loopback; ``OSError`` if the port cannot be used."""
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
    except OSError:
        bound.close()
        raise
    return bound


def _application(answer: RequestHandler) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        response = WRONG_NAME if _has_wrong_name(environ) else answer(_request(environ))
        headers = [(k, v) for k, v in response.headers if k.lower() not in _HOP_BY_HOP]
        headers.append(("Content-Length", str(len(response.body))))
        start_response(f"{response.status} {http.client.responses.get(response.status, 'Unknown')}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]

    return application


def _has_wrong_name(environ: dict[str, Any]) -> bool:
    return "HTTP_HOST" in environ and name_of(f"//{environ['HTTP_HOST']}") not in OWN_NAMES


def _for_pages(answer: RequestHandler, cors: Cors) -> RequestHandler:
    """As the gateway answers pages: preflight requests itself. Unlike it, a page that may not call is refused."""

    def answer_page(request: GatewayRequest) -> GatewayResponse:
        headers = dict(request.headers)
        preflight = cors.preflight(request.method, headers)
        if preflight is not None:
            return GatewayResponse(204, list(preflight.items()))
        origin = headers.get("origin")
        if origin is not None and name_of(origin) not in OWN_NAMES and not cors.allows(origin):
            return FOREIGN
        answered = answer(request)
        return replace(answered, headers=[*answered.headers, *cors.answer(headers).items()])

    return answer_page


def _request(environ: dict[str, Any]) -> GatewayRequest:
    headers = [(key[5:].replace("_", "-").lower(), value) for key, value in environ.items() if key.startswith("HTTP_")]
    headers += [
        (key.replace("_", "-").lower(), environ[key]) for key in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(key)
    ]
    return GatewayRequest(
        method=environ["REQUEST_METHOD"],
        target=environ["REQUEST_URI"],
        headers=headers,
        body=environ["wsgi.input"].read(PAYLOAD_LIMIT + 1),
        source=environ["REMOTE_ADDR"],
    )
