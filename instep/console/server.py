"""Serve the console until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvicorn

from instep import errors, settings
from instep.console import access, application
from instep.console.access import Doorkeeper, Sessions
from instep.console.workspace import ConsoleOptions, Workspace

GRACE_S = 2
# A plan's URL names what is selected: a page of ids with 255 characters of four bytes each, which
# are percent-encoded twice if they have line breaks.
REQUEST_BYTES_MAX = 1 << 20
LOCALHOST = "127.0.0.1"


class ServerOptions(msgspec.Struct, frozen=True):
    """Where the console listens, and who may use it."""

    user: str  # whoever has the token acts as this user
    host: str = LOCALHOST
    port: int = 8080
    auth: Path | None = None


class ConsoleServer:
    """A console that listens, and serves when `run` is called."""

    def __init__(
        self, loaded: settings.Loaded, options: ConsoleOptions, where: ServerOptions
    ) -> None:
        """Listen on the port; raise PortTaken if another program does."""
        users = access.DeclaredUsers(where.auth) if where.auth else None
        if where.host not in access.LOOPBACK and users is None:
            raise errors.SettingsError(
                f"--host {where.host} lets other machines connect, so people have to sign in",
                "add --auth FILE (see the guide: Use the console), or leave out --host",
            )
        self.workspace = Workspace(loaded, options)
        self._socket = _listen(where.host, where.port)
        self.port: int = self._socket.getsockname()[1]
        self.address = f"http://{_in_url(where.host)}:{self.port}/"
        # A cookie belongs to all ports of a host: two consoles must not share one.
        self.door = Doorkeeper(
            Sessions(f"instep_console_{self.port}"), token_user=where.user, users=users
        )
        hosts = {*access.LOOPBACK, where.host, *(users.read().hosts if users else ())}
        app = application.build(self.workspace, self.door, sorted(hosts))
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                http="h11",
                h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
                timeout_graceful_shutdown=GRACE_S,
            )
        )

    @property
    def start_url(self) -> str:
        """Return the URL that opens the console."""
        if self.door.users is not None:
            return self.address
        return f"{self.address}start?token={self.door.token}"

    def one_time_url(self) -> str:
        """Return a URL that opens the console once, for the arguments of a browser."""
        if self.door.users is not None:
            return self.address
        return f"{self.address}start?token={self.door.one_time_token()}"

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until a signal or `stop`. `ready` is called when pages are answered."""
        asyncio.run(self._serve(ready))

    def stop(self) -> None:
        """End `run`, from any thread."""
        self.workspace.closing.set()
        self._server.should_exit = True

    async def _serve(self, ready: Callable[[], None]) -> None:
        async def announce() -> None:
            while not self._server.started:
                await asyncio.sleep(0.01)
            ready()
            # a stream would keep the server waiting: it ends when `closing` is set
            while not self._server.should_exit:
                await asyncio.sleep(0.1)
            self.workspace.closing.set()

        announcing = asyncio.create_task(announce())
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            announcing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await announcing


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(128)
    except OSError as error:
        opened.close()
        raise errors.PortTaken(
            f"the console cannot listen on {host} port {port}: {error.strerror}",
            "choose another with --port, or --port 0 for a free one",
        ) from error
    return opened


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
