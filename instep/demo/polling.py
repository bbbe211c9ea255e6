"""Polling: a stand-in for the print system's query service, called once per document."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import quote, unquote

CALL_S = 0.3


class QueryService:
    """A real HTTP server that delays each response."""

    def __init__(self, statuses: Mapping[str, str], call_s: float = CALL_S) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Send head and body in one packet; as two, the second waits for an acknowledgement.
            wbufsize = -1

            def do_GET(self) -> None:
                time.sleep(call_s)
                document = unquote(self.path.removeprefix("/documents/"))
                body = json.dumps({"doc_id": document, "status": statuses.get(document)}).encode()
                self.send_response(200 if document in statuses else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Log nothing."""

        class PollingServer(ThreadingHTTPServer):
            # With the default backlog of 5, a client's connection may be delayed by a second.
            request_queue_size = 1024

        self._server = PollingServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def poll(
    port: int, documents: Sequence[str], begin: Callable[[], object] = lambda: None
) -> tuple[dict[str, str], float]:
    """Query these documents one by one; return their statuses and the seconds it took.

    The connection is opened first; the clock starts when `begin` returns.
    """
    connection = HTTPConnection("127.0.0.1", port)
    connection.connect()
    begin()
    started = time.monotonic()
    found = {}
    for document in documents:
        connection.request("GET", f"/documents/{quote(document, safe='')}")
        found[document] = json.loads(connection.getresponse().read())["status"]
    seconds = time.monotonic() - started
    connection.close()
    return found, seconds


def poll_at_once(
    port: int, documents: Sequence[str], connections: int
) -> tuple[dict[str, str], float]:
    """Query these documents over several connections at once.

    Return their statuses and the seconds of the slowest connection.
    """
    found: dict[str, str] = {}
    slowest_s = 0.0
    together = threading.Barrier(connections)
    with futures.ThreadPoolExecutor(connections) as pool:
        shares = [documents[first::connections] for first in range(connections)]
        for statuses, seconds in pool.map(lambda share: poll(port, share, together.wait), shares):
            found.update(statuses)
            slowest_s = max(slowest_s, seconds)
    return found, slowest_s


class Poller(threading.Thread):
    """Queries one document after another in the background until stopped or finished."""

    def __init__(self, port: int, documents: Sequence[str]) -> None:
        super().__init__(name="poller", daemon=True)
        self._port, self._documents = port, documents
        self._stopped = threading.Event()
        self.count = 0
        self.seconds = 0.0

    def run(self) -> None:
        for document in self._documents:
            if self._stopped.is_set():
                return
            _, seconds = poll(self._port, [document])
            self.count, self.seconds = self.count + 1, self.seconds + seconds

    def stop(self) -> None:
        """Stop after the current call."""
        self._stopped.set()
        self.join()

    def round_s(self) -> float:
        """Return the seconds of a whole round, extrapolated from the calls so far."""
        return self.seconds / self.count * len(self._documents) if self.count else 0.0
