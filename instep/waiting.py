"""Wait for a condition, and retry what may succeed later."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

PAUSES_PER_CHECK = 4.0
LONGEST_PAUSE_S = 0.25

Result = TypeVar("Result")


def wait_until(
    condition: Callable[[], bool], timeout_s: float, *, interval_s: float = 0.02
) -> bool:
    """Return True as soon as the condition holds, or False if it does not within the time.

    A condition that is slow to check, such as a query on a new connection, is checked less often:
    the one that waits must not slow down what it waits for.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if condition():
            return True
        now = time.monotonic()
        if now > deadline:
            return False
        time.sleep(min(max(interval_s, PAUSES_PER_CHECK * (now - began)), LONGEST_PAUSE_S))


def retrying(
    attempt: Callable[[], Result],
    may_retry: Callable[[Exception], bool],
    *,
    timeout_s: float = math.inf,
    tries_max: float = math.inf,
    pause_s: float = 0.05,
    longest_pause_s: float = 1.0,
) -> Result:
    """Return the result of the attempt; repeat it, with growing pauses, if it raises an error.

    Raise the error if `may_retry` returns False for it, if the time is over, or after `tries_max`
    attempts.
    """
    deadline, tries = time.monotonic() + timeout_s, 0
    while True:
        try:
            return attempt()
        except Exception as error:
            tries += 1
            is_last = tries >= tries_max or time.monotonic() > deadline
            if is_last or not may_retry(error):
                raise
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, longest_pause_s)


def setter(event: threading.Event) -> Callable[[], None]:
    """Return a function that sets the event soon, for handlers of signals.

    A handler interrupts the main thread anywhere, also where it holds the event's lock to begin or
    end a wait. To set the event there would wait for that lock for ever.
    """
    requests: queue.SimpleQueue[None] = queue.SimpleQueue()

    def serve() -> None:
        while True:
            requests.get()
            event.set()

    threading.Thread(target=serve, name="instep-signals", daemon=True).start()
    return lambda: requests.put(None)
