"""Whether a local server answers."""

from __future__ import annotations

from instep.local import server


def answers(one: server.Server) -> bool:
    """Whether it answers now; the look itself is short."""
    try:
        return one.answers()
    except OSError:
        return False
