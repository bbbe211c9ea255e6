"""A local Redis, reached from this machine only: the one on the PATH, else one that is fetched.

Durable, it answers when a change is on disk (appendonly, fsync always); otherwise it keeps nothing beyond its memory.
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
        # Every user of this machine can connect, and could have it write files as whoever started it.
        return paths.database_user()

    def prepare(self) -> None:
        libraries.check(_program())

    def command(self) -> list[str]:
        where = ["--bind", ports.HOST, "--port", str(self.port), "--dir", str(self.root)]
        return [str(_program()), *where, "--save", "", *(DURABLE if self.durable else IN_MEMORY)]

    def answers(self) -> bool:
        """Whether this very process is up with its data loaded; a stranger on the port has another pid."""
        with socket.create_connection((ports.HOST, self.port), timeout=1) as connection:
            connection.sendall(b"INFO\r\n")
            told = connection.recv(65536).decode(errors="replace")
        found = dict(re.findall(r"^(process_id|loading):(\d+)", told, re.MULTILINE))
        return found.get("process_id") == str(self.pid) and found.get("loading") == "0"


def _program() -> Path:
    if found := shutil.which("redis-server"):
        return Path(found)
    try:
        return artifacts.unpacked("redis") / "bin" / "redis-server"
    except errors.MissingPart as error:
        raise errors.MissingPart(error.what, "install it: apt-get install redis-server") from error
