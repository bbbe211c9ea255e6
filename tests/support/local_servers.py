"""Checks of a local server: whether it answers, and where it listens."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from instep.local import server

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def answers(one: server.Server) -> bool:
    """Return whether the server answers now. The check itself is short."""
    try:
        return one.answers()
    except OSError:
        return False


def listening_addresses(pids: Iterable[int]) -> set[str]:
    """Return the addresses on which these processes listen."""
    return {
        connection.laddr.ip
        for pid in pids
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
