"""Ports of this machine's loopback: free ones, and whether a given one is taken."""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from instep import errors

HOST = "127.0.0.1"


def free(count: int = 1) -> list[int]:
    """Ports that nobody listens on, all different. Another process may still be quicker: be ready to ask again."""
    candidates = _quiet_range()
    chosen: list[int] = []
    while len(chosen) < count:
        port = random.choice(candidates)  # noqa: S311 - nothing secret
        if port not in chosen and not taken(port):
            chosen.append(port)
    return chosen


def taken(port: int) -> bool:
    """Whether someone listens on the port already."""
    with socket.socket() as one:
        # As the servers do it themselves: connections that are only fading out do not count.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, port))
        except PermissionError as error:
            raise errors.SettingsError(
                f"port {port} may not be used by this user", "choose one above 1023"
            ) from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False


def refusal(port: int, server: str) -> errors.SettingsError:
    return errors.SettingsError(
        f"port {port}, wanted for {server}, is taken by another program",
        "stop that program, or choose another port (leave the port out for a free one)",
    )


def _quiet_range() -> range:
    """Ports that the kernel gives to no outgoing connection: such a one could take a server's port while it is down."""
    try:
        first_outgoing = int(
            Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0]
        )
    except (OSError, ValueError):
        first_outgoing = 49152
    return range(15000, first_outgoing) if first_outgoing > 16000 else range(15000, 65536)
