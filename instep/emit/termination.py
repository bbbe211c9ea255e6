"""SIGTERM for one publisher: records sent before the signal are settled first.

A signal handler may interrupt any line of the main thread, perhaps one that holds a lock, so it
must not wait. Therefore:

1. the handler records what was sent so far and returns; if the process will end, sends are blocked
2. the publisher's thread waits until those records are settled, or the timeout, and signals again
3. the handler, called again, calls the previous handler, or lets the signal end the process
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
    """The handler of SIGTERM. Python allows installing it only in the main thread."""

    def __init__(
        self, mark: Callable[[], int], timeout_s: float, on_fatal: Callable[[], None]
    ) -> None:
        self._mark = mark
        self._timeout_s = timeout_s
        self._on_fatal = on_fatal
        self._received: tuple[int, float] | None = None
        self._settled = False
        self._over = False
        self._previous: Any = None

    def install(self, *, only_default: bool = False) -> None:
        """Install the handler, if this is the main thread.

        With `only_default`, leave the handler alone that somebody else has installed.
        """
        previous = signal.getsignal(signal.SIGTERM)
        if only_default and previous != signal.SIG_DFL:
            return
        # a handler that was not set from Python cannot be called
        if threading.current_thread() is threading.main_thread() and previous is not None:
            self._previous = previous
            signal.signal(signal.SIGTERM, self._handle)

    @property
    def is_fatal(self) -> bool:
        """Return whether a signal was received that ends the process."""
        return self._received is not None and self._previous is signal.SIG_DFL

    def is_due(self, is_settled: Callable[[int], bool]) -> bool:
        """Return whether the records sent before the signal are settled, or the time is over."""
        if self._received is None or self._settled:
            return False
        mark, deadline = self._received
        return is_settled(mark) or time.monotonic() > deadline

    def resume(self) -> None:
        """Signal again, to the thread in which Python runs handlers."""
        self._settled = True
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)

    def end(self) -> None:
        """Restore the previous handler, which gets a received signal that was not handled yet."""
        waiting = self._received is not None and not self._settled
        self._over = True
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) == self._handle
        ):
            signal.signal(signal.SIGTERM, self._previous)
        if waiting:
            self.resume()

    def abandon(self) -> None:
        """Restore the previous handler in a process that inherited this one by a fork."""
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)
        self._received, self._over = None, True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._over or self._settled:
            self._received, self._settled = None, False
            self._call_previous(number, frame)
        elif self._received is None:
            self._received = (self._mark(), time.monotonic() + self._timeout_s)
            if self.is_fatal:
                self._on_fatal()

    def _call_previous(self, number: int, frame: FrameType | None) -> None:
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
