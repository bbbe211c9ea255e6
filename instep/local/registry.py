"""The registry of local servers: a file in the state folder.

It holds the start mark of each server's process, so that another process with the same pid, for
example after a reboot, is never mistaken for the server. Every command that needs the local broker
reads it, so the module is quick to import.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from instep import errors
from instep.local import paths, processes

State = Literal["running", "paused", "dead"]


@dataclass(frozen=True)
class LocalServer:
    """A server that `instep up` has started: its address and its process."""

    name: str
    address: str
    log: str
    pid: int
    mark: str
    port: int
    stop_signal: int
    node: int = 0
    controller_port: int = 0
    killed: bool = False  # by `instep up kill`

    @property
    def alive(self) -> bool:
        """Return whether its process is alive."""
        return processes.alive(self.pid, self.mark)

    @property
    def state(self) -> State:
        """Return whether it is running, paused or dead."""
        if not self.alive:
            return "dead"
        return "paused" if processes.paused(self.pid) else "running"


def known() -> list[LocalServer]:
    """Return the servers that were started and not stopped, including dead ones."""
    file = paths.state() / "up.json"
    try:
        return [LocalServer(**fields) for fields in json.loads(file.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise errors.InstepError(
            f"{file}, which lists the local servers, is damaged: {error}",
            "end the local servers yourself if any run (`ps`), and remove the file",
        ) from error


def running() -> list[LocalServer]:
    """Return the servers whose processes are alive."""
    return [server for server in known() if server.alive]


def bootstrap() -> str | None:
    """Return the addresses of the local Kafka, if a node runs or was killed on purpose."""
    nodes = [server for server in known() if server.node]
    if not any(node.alive or node.killed for node in nodes):
        return None
    return ",".join(node.address for node in nodes)


def write(servers: Sequence[LocalServer]) -> None:
    """Write the registry, replacing the file at once."""
    file = paths.state() / "up.json"
    with paths.explained(file.parent):
        new = file.with_suffix(".new")
        new.write_text(json.dumps([asdict(one) for one in servers], indent=1), encoding="utf-8")
        new.replace(file)
