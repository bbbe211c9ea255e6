"""A source's query service on a free port: answers are set by tests, requests are recorded."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

from instep.local import ports
from tests.support.authority import Pair

PREFIX = "/documents/"


@dataclass(frozen=True)
class Request:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    at: float


@dataclass(frozen=True)
class Reply:
    """A reply to send, once `wait` is set. With `drips`, one byte at a time and without an end."""

    code: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    wait: threading.Event | None = None
    drips: bool = False


class QueryService:
    """Answers `/documents/ID` from `documents`, unless `replies` has something for the path."""

    def __init__(self, *, etags: bool = False, certificate: Pair | None = None) -> None:
        self.documents: dict[str, Any] = {}
        self.replies: dict[str, Callable[[Request], Reply]] = {}
        self.requests: list[Request] = []
        self.ending = threading.Event()
        self._etags = etags
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, time.monotonic())
                service.requests.append(request)
                reply = service.reply(request)
                if reply.wait is not None:
                    reply.wait.wait(60)
                self.send_response(reply.code)
                sent = {"Content-Length": str(len(reply.body)), **reply.headers}
                for name, value in sent.items():
                    self.send_header(name, value)
                self.end_headers()
                while reply.drips and not service.ending.wait(0.02):
                    self.wfile.write(b" ")
                if reply.code != 304:
                    self.wfile.write(reply.body)

            def log_message(self, format: str, *_: Any) -> None:  # noqa: A002
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                """Ignore clients that close their connection."""

        self._server = Server((ports.HOST, 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://{ports.HOST}:{self._server.server_port}"

    def reply(self, request: Request) -> Reply:
        """Return the reply to a request."""
        path = request.path.partition("?")[0]
        if path in self.replies:
            return self.replies[path](request)
        if not path.startswith(PREFIX):
            return Reply(404)
        document = unquote(path.removeprefix(PREFIX))
        if document not in self.documents:
            return Reply(404)
        body = json.dumps(self.documents[document]).encode()
        if not self._etags:
            return Reply(200, body)
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if request.headers.get("if-none-match") == etag:
            return Reply(304, b"", {"ETag": etag})
        return Reply(200, body, {"ETag": etag})

    def paths(self) -> list[str]:
        """Return the paths of all requests."""
        return [request.path for request in self.requests]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
