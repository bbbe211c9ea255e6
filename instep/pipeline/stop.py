"""The request to end a run: by a signal, or by an event that a caller from Python sets."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from instep import waiting

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """Set when the run must end.

    With `exits`, the process ends if Spark does not end in time.
    """

    def __init__(self, event: threading.Event | None = None, *, exits: bool = False) -> None:
        self._event = event or threading.Event()
        self._by_signal = event is None
        self._set = waiting.setter(self._event) if event is None else self._event.set
        self._is_signalled = False
        self._is_starting = False
        self._previous: dict[int, signal._HANDLER] = {}
        self.exits = exits
        self.requested_at = 0.0

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle signals from now on: while Spark starts, they interrupt the start.

        Afterwards, restore the previous handlers.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._previous = {number: signal.getsignal(number) for number in SIGNALS}
        self._is_starting = True
        try:
            self._install()
            yield
        finally:
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def started(self) -> None:
        """Let signals only set the request. Call this after Spark's start installs a handler."""
        self._is_starting = False
        self._install()

    def _install(self) -> None:
        if not self._by_signal:
            return
        for number in SIGNALS:
            if number == signal.SIGHUP and self._previous.get(number) is signal.SIG_IGN:
                continue  # nohup ignores it
            signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.is_requested():
            self.requested_at = time.monotonic()
        # Python ignores exceptions in finalizers, and PySpark has many: the request must not
        # depend on the exception.
        self._is_signalled = True
        self._set()
        if self._is_starting:
            previous = self._previous[number]
            if callable(previous):
                previous(number, frame)
            raise SystemExit(128 + number)

    def is_requested(self) -> bool:
        return self._is_signalled or self._event.is_set()

    def wait(self, seconds: float) -> bool:
        return self.is_requested() or self._event.wait(seconds)
