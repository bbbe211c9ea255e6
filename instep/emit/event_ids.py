"""Unique event ids at little cost: 74 random bits for each process, then a counter.

They have the form of a random UUID. A separate UUID for each event would need a system call.
"""

from __future__ import annotations

import itertools
import os
import uuid

COUNTER_DIGITS = 12  # the last group of a UUID, in hexadecimal


class EventIds:
    """Makes the ids of one process. Thread-safe: the counter is atomic."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Draw new random bits: another process must not repeat these ids."""
        self._prefix = str(uuid.uuid4())[:-COUNTER_DIGITS].encode()
        self._numbers = itertools.count()

    def next(self) -> bytes:
        """Return an id that no other event has."""
        return b"%b%012x" % (self._prefix, next(self._numbers))


IDS = EventIds()
os.register_at_fork(after_in_child=IDS.renew)
