"""Wait for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], bool], timeout_s: float, *, interval_s: float = 0.02
) -> bool:
    """Return True as soon as the condition holds, or False if it does not within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True
