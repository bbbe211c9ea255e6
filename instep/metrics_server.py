"""The HTTP server of metrics in the Prometheus format, on this machine only."""

from __future__ import annotations

import prometheus_client
from prometheus_client.registry import Collector, CollectorRegistry

from instep import errors

HOST = "127.0.0.1"


class MetricsServer:
    """The HTTP server that Prometheus scrapes. Port 0 takes a free one."""

    def __init__(self, port: int, collector: Collector) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                port, addr=HOST, registry=registry
            )
        except OSError as error:
            raise errors.SettingsError(
                f"metrics cannot be served on port {port}: {error.strerror}",
                "give --metrics another port",
            ) from error
        self.address = f"http://{HOST}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
