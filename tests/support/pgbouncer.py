"""A real PgBouncer in front of a local PostgreSQL, on a free port, ended with the tests."""

from __future__ import annotations

import shutil
import socket
import struct
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlparse, urlunparse

from instep.local import keeper_client, paths, ports, server
from instep.local.postgres import Postgres

Mode = Literal["session", "transaction", "statement"]

PROGRAM = shutil.which(
    "pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
) or shutil.which("pgbouncer")

# two server sessions for all clients: consecutive transactions of one client often get different
# sessions
SETTINGS = """\
[databases]
* = host={host} port={server_port} user={role}

[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
server_round_robin = 1
ignore_startup_parameters = extra_float_digits
"""


class PgBouncer(server.Server):
    """One pooler. `size` is the number of server sessions that all of its clients share."""

    name = "pgbouncer"

    def __init__(self, behind: Postgres, mode: Mode = "transaction", *, size: int = 2) -> None:
        super().__init__()
        self.behind, self.mode, self.size = behind, mode, size

    @property
    def address(self) -> str:
        return f"{ports.HOST}:{self.port}"

    def through(self, url: str) -> str:
        """Return the URL of a database of the server behind, through the pooler."""
        parts = urlparse(url)
        return urlunparse(parts._replace(netloc=f"{parts.username}@{self.address}"))

    @property
    def user(self) -> keeper_client.User | None:
        return paths.database_user()

    @property
    def environment(self) -> Mapping[str, str]:
        return {"LC_ALL": "C", "TZ": "UTC"}

    def prepare(self) -> None:
        text = SETTINGS.format(
            host=ports.HOST,
            port=self.port,
            server_port=self.behind.port,
            role=urlparse(self.behind.url).username,
            mode=self.mode,
            size=self.size,
        )
        (self.root / "pgbouncer.ini").write_text(text, encoding="utf-8")
        (self.root / "pgbouncer.ini").chmod(0o644)

    def command(self) -> list[str]:
        assert PROGRAM is not None
        return [PROGRAM, str(self.root / "pgbouncer.ini")]

    def answers(self) -> bool:
        """Log in and check that the pooler answers ReadyForQuery."""
        parts = urlparse(self.behind.url)
        names = f"user\0{parts.username}\0database\0{parts.path[1:]}\0\0".encode()
        with (
            socket.create_connection((ports.HOST, self.port), timeout=1) as connection,
            connection.makefile("rb") as stream,
        ):
            connection.sendall(struct.pack(">ii", 8 + len(names), 196608) + names)
            while header := stream.read(5):
                kind, size = struct.unpack(">ci", header)
                stream.read(size - 4)
                if kind == b"Z":
                    connection.sendall(b"X\0\0\0\4")
                    return True
                if kind == b"E":
                    return False
        return False
