"""Notice a signal whose exception is lost.

A signal's handler raises an exception in the middle of whatever runs. Inside the C code of a Kafka
client, another exception takes its place (`TypeError: expected header key to be unicode string`),
and the experiment would count as one that failed instead of one that was interrupted.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Notes the signals that arrive in a `with` block, and passes them on to their handlers."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._noted: int | None = None

    def __enter__(self) -> Self:
        for number in NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number
        self._handlers[number](number, frame)

    def raise_noted(self) -> None:
        """Raise SystemExit if a signal has arrived, whatever became of its exception."""
        if self._noted is not None:
            raise SystemExit(128 + self._noted)
