"""Ports of this machine's loopback: find free ones, check whether one is taken."""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from instep import errors

HOST = "127.0.0.1"


def free(count: int = 1) -> list[int]:
    """Return distinct ports that are free now. Another process may still take one first."""
    candidates = _quiet_range()
    chosen: list[int] = []
    while len(chosen) < count:
        port = random.choice(candidates)  # noqa: S311 - nothing secret
        if port not in chosen and not taken(port):
            chosen.append(port)
    return chosen


def taken(port: int) -> bool:
    """Return whether a program listens on the port."""
    with socket.socket() as probe:
        # As the servers do: connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError as error:
            raise errors.SettingsError(
                f"this user may not use port {port}", "choose one above 1023"
            ) from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False


def refusal(port: int, server: str) -> errors.PortTaken:
    """Return the error for a port that is taken."""
    return errors.PortTaken(
        f"port {port}, requested for {server}, is taken by another program",
        "stop that program, or choose another port (leave out the port to take a free one)",
    )


def _quiet_range() -> range:
    """Return ports outside the range of outgoing connections.

    Such a connection could take a server's port while the server is down. psutil does not know the
    range.
    """
    try:
        first_outgoing = int(
            Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0]
        )
    except (OSError, ValueError):
        first_outgoing = 49152
    return range(15000, first_outgoing) if first_outgoing > 16000 else range(15000, 65536)
