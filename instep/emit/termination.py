"""SIGTERM for one publisher: what was sent before the signal is settled before anything else happens.

A signal handler interrupts any line of the main thread, perhaps one that holds a lock, so it must not wait. Hence:

1. the handler notes what was sent so far and returns; if the process is to die, further sends are held back
2. the publisher's thread finds those records settled, or the time over, and signals again
3. the handler, called again, hands on to the handler that was there before, or lets the process die of the signal
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


class Termination:
    """Installed in the main thread only, where Python allows it; elsewhere SIGTERM stays what it was."""

    def __init__(self, mark: Callable[[], int], patience_s: float) -> None:
        self._mark = mark
        self._patience_s = patience_s
        self._noted: tuple[int, float] | None = None
        self._settled = False
        self._over = False
        self._previous: Any = None

    def install(self) -> None:
        previous = signal.getsignal(signal.SIGTERM)
        # A handler that was not set from Python cannot be handed on to.
        if threading.current_thread() is threading.main_thread() and previous is not None:
            self._previous = previous
            signal.signal(signal.SIGTERM, self._handle)

    @property
    def is_fatal(self) -> bool:
        """A signal was noted, and the process dies when the records sent before it are settled."""
        return self._noted is not None and self._previous is signal.SIG_DFL

    def is_due(self, is_settled: Callable[[int], bool]) -> bool:
        """Whether a noted signal has waited enough."""
        noted = self._noted
        return (
            noted is not None
            and not self._settled
            and (is_settled(noted[0]) or time.monotonic() > noted[1])
        )

    def go_on(self) -> None:
        """Signal again, to the thread in which Python runs handlers."""
        self._settled = True
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)

    def end(self) -> None:
        """Put the former handler back; a signal that was noted and not yet handed on is for that one."""
        waiting = self._noted is not None and not self._settled
        self._over = True
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) == self._handle
        ):
            signal.signal(signal.SIGTERM, self._previous)
        if waiting:
            self.go_on()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._over or self._settled:
            self._noted, self._settled = None, False
            self._hand_on(number, frame)
        elif self._noted is None:
            self._noted = (self._mark(), time.monotonic() + self._patience_s)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
