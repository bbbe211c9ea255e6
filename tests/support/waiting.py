"""Waiting for a condition, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    reached: Callable[[], bool], what: str = "the condition", patience_s: float = 90.0
) -> None:
    """Return once the condition is met. Fail if that takes too long."""
    deadline = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s for {what}"
        time.sleep(0.02)
