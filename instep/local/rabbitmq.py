"""A local RabbitMQ on the loopback, for user `guest`, separate from any node that the machine runs.

Its programs come from the machine's package. What nodes share by default, it has for itself: data,
settings, cookie, ports, and epmd, the daemon by which Erlang nodes find each other.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from instep import errors
from instep.local import keeper_client, paths, ports, server

# Debian's program on the PATH is a wrapper for its own node, which changes the user and the folder.
DEBIAN_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
UP = "Server startup complete"
# setpriv ends epmd together with the node. `exec` makes the node the keeper's own child.
START = (
    'setpriv --pdeathsig KILL epmd -port "$ERL_EPMD_PORT" -address "$ERL_EPMD_ADDRESS" & exec "$0"'
)


class RabbitMQ(server.Server):
    """A RabbitMQ node."""

    name = "rabbitmq"

    def __init__(self, *, port: int | None = None, root: Path | None = None) -> None:
        super().__init__(port=port, root=root)
        self._distribution_port = self._epmd_port = 0

    @property
    def address(self) -> str:
        return f"amqp://guest:guest@{ports.HOST}:{self.port}/%2f"

    @property
    def user(self) -> keeper_client.User | None:
        return paths.database_user()

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.root),
            "detached": "1",  # makes its script replace itself by the node
            "ERL_EPMD_ADDRESS": ports.HOST,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": "instep@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.root / "data"),
            "RABBITMQ_LOG_BASE": str(self.root),
            "RABBITMQ_CONFIG_FILE": str(self.root / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.root / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(self.root / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.root / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-kernel inet_dist_use_interface {{{ports.HOST.replace('.', ',')}}}"
            ),
        }

    def choose_ports(self) -> None:
        super().choose_ports()
        self._distribution_port, self._epmd_port = ports.free(2)

    def prepare(self) -> None:
        find()
        files = {
            "rabbitmq.conf": (
                f"listeners.tcp.1 = {ports.HOST}:{self.port}\n"
                "log.console = true\nlog.file = false\n"
            ),
            "rabbitmq-env.conf": "",
            "enabled_plugins": "[].\n",
        }
        for name, text in files.items():
            (self.root / name).write_text(text, encoding="utf-8")
            (self.root / name).chmod(0o644)

    def command(self) -> list[str]:
        return ["/bin/sh", "-c", START, str(find())]

    def answers(self) -> bool:
        with socket.create_connection((ports.HOST, self.port), timeout=1):
            return UP in self.read_log()


def find() -> Path:
    """Return the program that starts a node."""
    found = shutil.which("rabbitmq-server", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is None or shutil.which("epmd") is None:
        raise errors.MissingPart(
            "RabbitMQ is missing: no `rabbitmq-server` on the PATH",
            "install it: apt-get install rabbitmq-server",
        )
    return DEBIAN_PROGRAM if DEBIAN_PROGRAM.exists() else Path(found)
