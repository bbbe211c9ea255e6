"""Which local servers run: written in the state folder, each with its process's start mark.

So a stranger who got the pid of a server that is gone (the machine was started anew, say) is never taken for it. Light to
import, as every command that needs the local broker looks here first.
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
    """A server that was started by up: where it answers, and which process it is."""

    name: str
    address: str
    log: str
    pid: int
    mark: str
    port: int
    stop_signal: int
    node: int = 0
    controller_port: int = 0
    killed: bool = False  # on purpose

    @property
    def alive(self) -> bool:
        return processes.alive(self.pid, self.mark)

    @property
    def state(self) -> State:
        if not self.alive:
            return "dead"
        return "paused" if processes.paused(self.pid) else "running"


def known() -> list[LocalServer]:
    """What up has started and down has not stopped, also when it is dead."""
    try:
        return [
            LocalServer(**fields)
            for fields in json.loads((paths.state() / "up.json").read_text(encoding="utf-8"))
        ]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise errors.InstepError(
            f"{paths.state() / 'up.json'}, which lists the local servers, cannot be understood: {error}",
            "end the local servers yourself if any run (`ps`), and remove the file",
        ) from error


def running() -> list[LocalServer]:
    """What up has started and still runs."""
    return [one for one in known() if one.alive]


def bootstrap() -> str | None:
    """The addresses of the local Kafka, when any of it runs or was killed on purpose."""
    nodes = [one for one in known() if one.node]
    return (
        ",".join(one.address for one in nodes)
        if any(one.alive or one.killed for one in nodes)
        else None
    )


def write(lent: Sequence[LocalServer]) -> None:
    file = paths.state() / "up.json"
    with paths.explained(file.parent):
        aside = file.with_suffix(".new")
        aside.write_text(json.dumps([asdict(one) for one in lent], indent=1), encoding="utf-8")
        aside.replace(file)
