"""The HTTP server of the service on one machine: waitress, with limits that strangers cannot pass.

It knows nothing about the routes: it turns a request into the event that a resolver of API Gateway expects, and the
resolver's result into the response. Neither an answer nor a log ever repeats a part of a request.
"""

import base64
import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl

from waitress.channel import HTTPChannel
from waitress.server import create_server
from waitress.task import ErrorTask

from kanon.cors import Cors
from kanon.errors import kind_and_place
from kanon.http.answers import ErrorAnswer, error_answer
from kanon.http.bodies import MOST_BODY_BYTES

NO_PAGES = Cors()
EventHandler = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes an event and returns a result, both in format 2.0 of API Gateway."""
THREADS = 16
"""Requests at a time. Joins wait for the disk together, so more threads store more joins with each write."""
MOST_CONNECTIONS = 200
MOST_HEADER_BYTES = 16 * 1024
IN_MEMORY = 16 * MOST_BODY_BYTES
"""More bytes than a request or an answer has: none is written to a temporary file, and no thread waits for a client."""
SECONDS_OF_A_REQUEST = 30
"""Seconds after which a connection is closed that has no request, an incomplete one, or an answer that has not left."""
LEAST_BYTES_A_SECOND = 16 * 1024
"""How fast a client must read an answer, beyond these seconds."""
SECONDS_TO_STOP = 10.0
LOOK_SECONDS = 0.02
TOO_LARGE = error_answer(413, f"the body is larger than {MOST_BODY_BYTES} bytes; split the request")
HEADERS_TOO_LARGE = error_answer(400, f"the headers are larger than {MOST_HEADER_BYTES} bytes: send fewer")
NOT_HTTP = error_answer(400, "the request is not HTTP/1.1 as this service reads it")
UNFORESEEN = error_answer(500, "internal error; the operator has been notified")
FOREIGN_PAGE = error_answer(403, "pages of this origin may not call: start the service with --cors-origin for it")


class _Refusal(ErrorTask):
    """Answers a request that waitress cannot parse. Its own texts repeat parts of the request."""

    def execute(self) -> None:
        request: Any = self.request
        answer = {413: TOO_LARGE, 431: HEADERS_TOO_LARGE}.get(request.error.code, NOT_HTTP)
        body = answer.model_dump_json().encode()
        self.status = _status_line(answer.error.code)
        headers = {"origin": getattr(request, "headers", {}).get("ORIGIN", "")}
        server: Any = self.channel.server
        of_pages = server.cors.answer(headers).items()
        self.response_headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store"), *of_pages]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Channel(HTTPChannel):
    """A connection. Waitress lets a client send or read for ever, as long as it moves a byte from time to time.

    A request is answered when the answer before it has left: no thread waits for a client that does not read.
    """

    error_task_class = _Refusal
    _begun = 0.0
    _until = float("inf")
    _waits = False  # a request is there, and the answer before it has not left

    def readable(self) -> bool:
        open_ = self.connected and (self.server.accepting or self.request is not None)
        return bool(open_ and super().readable())

    def writable(self) -> bool:
        return bool(self.connected and super().writable())

    def service(self) -> None:
        with self.outbuf_lock:
            self._waits = bool(self.total_outbufs_len)
        if not self._waits:
            super().service()

    def write_soon(self, data: Any) -> Any:
        self._until = time.time() + SECONDS_OF_A_REQUEST + (self.total_outbufs_len + len(data)) / LEAST_BYTES_A_SECOND
        return super().write_soon(data)

    def handle_write(self) -> None:
        super().handle_write()
        with self.outbuf_lock:
            goes_on = self._waits and not self.total_outbufs_len
            self._waits = self._waits and not goes_on
        if goes_on:
            server: Any = self.server
            server.add_task(self)

    def stale(self, now: float) -> bool:
        """Whether an answer is read too slowly, or nothing moves and no whole request has come."""
        unread = self.total_outbufs_len and self._until < now
        return bool(unread or (not self.requests and self.last_activity < now - SECONDS_OF_A_REQUEST))

    def received(self, data: bytes) -> Any:
        begins = self.request is None
        result = super().received(data)
        if self.request is not None:  # it is not complete yet
            self._begun = self.last_activity if begins else self._begun
            self.last_activity = self._begun  # the server closes what was not active for SECONDS_OF_A_REQUEST
        return result


class Server:
    """Answers requests on a port in threads, from its creation until it is closed.

    Args:
        answer: the answer to an event; several threads call it.
        host: the address to listen on.
        port: 0 for any free one.
        failed: is told the kind and the place of an error that ``answer`` raised.
        cors: the pages of other origins that may call.

    Raises:
        OSError: the address cannot be used.
    """

    def __init__(
        self,
        answer: EventHandler,
        host: str,
        port: int,
        failed: Callable[[dict[str, Any]], None],
        cors: Cors = NO_PAGES,
    ) -> None:
        logging.getLogger("waitress").setLevel(logging.CRITICAL + 1)  # it logs paths, which name sets
        bound = _bound(host, port)
        server: Any = create_server(
            _application(_for_pages(answer, failed, cors)),
            sockets=[bound],
            _start=False,
            threads=THREADS,
            max_request_header_size=MOST_HEADER_BYTES,
            max_request_body_size=2 * MOST_BODY_BYTES,  # a longer one is not read, so its client may lose the answer
            inbuf_overflow=IN_MEMORY,
            outbuf_overflow=IN_MEMORY,
            outbuf_high_watermark=IN_MEMORY,
            connection_limit=MOST_CONNECTIONS,
            cleanup_interval=max(1, SECONDS_OF_A_REQUEST // 6),
            asyncore_use_poll=True,
            log_socket_errors=False,
            ident=None,
        )
        server.channel_class, server.cors, server.maintenance = _Channel, cors, self._close_stale
        server.accept_connections()
        self._server = server
        self.port = int(bound.getsockname()[1])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread = threading.Thread(target=server.run, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no connection any more, finish the requests that have arrived, and close. Again: nothing happens."""
        if not self._thread.is_alive():
            return
        self._in_loop(lambda: setattr(self._server, "accepting", False))
        deadline = time.monotonic() + SECONDS_TO_STOP
        while self._busy() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        self._server.task_dispatcher.shutdown()
        self._in_loop(self._close)
        self._thread.join(SECONDS_TO_STOP)

    def _busy(self) -> bool:
        """Whether a request is being answered, or an answer has not left."""
        channels = list(self._server.active_channels.values())
        return any(channel.requests or channel.total_outbufs_len for channel in channels)

    def _in_loop(self, work: Callable[[], None]) -> None:
        """Let the thread of the server do something, and wait until it is done."""
        pulled, done = threading.Event(), threading.Event()

        def run() -> None:
            pulled.wait()  # an earlier pull may wake the thread; then this one could write to a closed trigger
            work()
            done.set()

        self._server.trigger.pull_trigger(run)
        pulled.set()
        done.wait(SECONDS_TO_STOP)

    def _close_stale(self, now: float) -> None:
        """Close at once: waitress would wait until the client can take more, which one that does not read never can."""
        for channel in list(self._server.active_channels.values()):
            if channel.stale(now):
                channel.handle_close()

    def _close(self) -> None:
        for channel in list(self._server.active_channels.values()):
            channel.handle_close()
        self._server.close()


def _bound(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _for_pages(answer: EventHandler, failed: Callable[[dict[str, Any]], None], cors: Cors) -> EventHandler:
    """An answer that never fails, and that tells a browser which pages may read it."""

    def answer_page(event: dict[str, Any]) -> dict[str, Any]:
        headers = event["headers"]
        preflight = cors.preflight(event["requestContext"]["http"]["method"], headers)
        if preflight is not None:
            return {"statusCode": 204, "headers": preflight}
        if cors.refuses(headers):
            return _result(FOREIGN_PAGE)
        try:
            result = answer(event)
        except Exception as error:  # noqa: BLE001, waitress would log it with the path
            failed(kind_and_place(error))
            result = _result(UNFORESEEN)
        return {**result, "headers": _both(result.get("headers") or {}, cors.answer(headers))}

    return answer_page


def _both(own: dict[str, str], of_pages: dict[str, str]) -> dict[str, str]:
    """The headers of an answer and those for pages. It may vary by the headers that either names."""
    varied = [headers["Vary"] for headers in (own, of_pages) if "Vary" in headers]
    return own | of_pages | ({"Vary": ", ".join(varied)} if varied else {})


def _result(answer: ErrorAnswer) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    return {"statusCode": answer.error.code, "headers": headers, "body": answer.model_dump_json()}


def _application(answer: EventHandler) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        status, headers, body = _response(answer(event_of(environ)))
        headers["Content-Length"] = str(len(body))
        start_response(_status_line(status), list(headers.items()))
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    return application


def _status_line(status: int) -> str:
    return f"{status} {http.client.responses.get(status, 'Unknown')}"


def event_of(environ: dict[str, Any]) -> dict[str, Any]:
    """The event of API Gateway (format 2.0) for a WSGI request, as far as a resolver reads it."""
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
    headers = {key[5:].replace("_", "-").lower(): value for key, value in environ.items() if key.startswith("HTTP_")}
    headers |= {"content-type": environ.get("CONTENT_TYPE", "")}
    event: dict[str, Any] = {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": environ["QUERY_STRING"],
        "queryStringParameters": _parameters(environ["QUERY_STRING"]),
        "headers": headers,
        "requestContext": {"stage": "$default", "http": {"method": method, "path": path}},
        "isBase64Encoded": False,
    }
    content = environ["wsgi.input"].read(MOST_BODY_BYTES + 1)
    if content:
        event["body"], event["isBase64Encoded"] = _text_of(content)
    return event


def _parameters(query: str) -> dict[str, str]:
    """The parameters of a query; the values of a repeated one are joined with commas, as API Gateway does."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _text_of(content: bytes) -> tuple[str, bool]:
    """A body as text, and whether it is in base64 because it is not UTF-8."""
    try:
        return content.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(content).decode(), True


def _response(result: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a result."""
    headers = {str(name): str(value) for name, value in (result.get("headers") or {}).items()}
    body = result.get("body") or ""
    content = base64.b64decode(body) if result.get("isBase64Encoded") else body.encode()
    return int(result["statusCode"]), headers, content
