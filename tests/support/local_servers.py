"""A check whether a local server answers."""

from __future__ import annotations

from instep.local import server


def answers(one: server.Server) -> bool:
    """Return whether the server answers now. The check itself is short."""
    try:
        return one.answers()
    except OSError:
        return False
