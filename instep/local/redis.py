"""A local Redis on the loopback: the program on the PATH, else one that is fetched.

A durable one answers when a change is on disk (appendonly, fsync always); the other keeps data in
memory only.
"""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

from instep import errors
from instep.local import artifacts, keeper_client, libraries, paths, ports, server

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
IN_MEMORY = ("--appendonly", "no")


class Redis(server.Server):
    """A Redis server."""

    name = "redis"

    def __init__(
        self, *, port: int | None = None, root: Path | None = None, durable: bool = True
    ) -> None:
        super().__init__(port=port, root=root)
        self.durable = durable

    @property
    def address(self) -> str:
        return f"redis://{ports.HOST}:{self.port}"

    @property
    def user(self) -> keeper_client.User | None:
        # Every user of this machine can connect, and could make it write files as its user.
        return paths.database_user()

    def prepare(self) -> None:
        libraries.check(_program())

    def command(self) -> list[str]:
        where = ["--bind", ports.HOST, "--port", str(self.port), "--dir", str(self.root)]
        return [str(_program()), *where, "--save", "", *(DURABLE if self.durable else IN_MEMORY)]

    def answers(self) -> bool:
        """Return whether this process has loaded its data. Another server has another pid."""
        with socket.create_connection((ports.HOST, self.port), timeout=1) as connection:
            connection.sendall(b"INFO\r\n")
            answer = connection.recv(65536).decode(errors="replace")
        info = dict(re.findall(r"^(process_id|loading):(\d+)", answer, re.MULTILINE))
        return info.get("process_id") == str(self.pid) and info.get("loading") == "0"


def _program() -> Path:
    if found := shutil.which("redis-server"):
        return Path(found)
    try:
        return artifacts.unpacked("redis") / "bin" / "redis-server"
    except errors.MissingPart as error:
        raise errors.MissingPart(error.what, "install it: apt-get install redis-server") from error
