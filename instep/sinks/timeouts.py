"""How long a connection waits for a database server, the same for sinks and sources.

A server that vanishes without closing its connections is noticed within a minute, whether the
client waits for an answer or sends. A server that is only slow is waited for.
"""

from __future__ import annotations

import socket

CONNECT_S = 5
IDLE_S, INTERVAL_S, PROBES = 20, 10, 3
UNACKNOWLEDGED_MS = 60_000
READ_S = 120  # of one read of a pipeline from MariaDB or MySQL; its statements are short

POSTGRES = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": IDLE_S,
    "keepalives_interval": INTERVAL_S,
    "keepalives_count": PROBES,
    "tcp_user_timeout": UNACKNOWLEDGED_MS,
}
# names of options that an operating system may lack
TCP_OPTIONS = {
    "TCP_KEEPIDLE": IDLE_S,
    "TCP_KEEPINTVL": INTERVAL_S,
    "TCP_KEEPCNT": PROBES,
    "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS,
}


def watch(opened: socket.socket) -> None:
    """Let the system notice that the other end of a TCP connection has vanished."""
    if opened.family not in (socket.AF_INET, socket.AF_INET6):
        return
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in TCP_OPTIONS.items():
        option = getattr(socket, name, None)
        if option is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
