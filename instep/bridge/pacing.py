"""The pace of requests: at most `rate_per_s`, and none while the source asks for a pause.

Slots are handed out at equal distances. In any period there are therefore at most as many requests
as the rate allows in it, and one more. There is no burst after a quiet time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TROUBLE_AFTER = 5  # failures in a row that mean trouble of the source, not of a document
PAUSE_S = 1.0
PAUSE_MAX_S = 60.0


class Pacer:
    """Hands out the slots of one bridge; all its requests need one."""

    def __init__(self, rate_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._distance_s = 1.0 / rate_per_s
        self._clock = clock
        self._free_at = clock()
        self._paused_until = 0.0
        self._failures = 0
        self.pauses = 0  # in a row, because the source failed

    async def slot(self) -> float:
        """Wait for the next free slot and return its time."""
        while True:
            # A pause may begin, or be prolonged, while this request waits.
            wait_s = max(self._free_at, self._paused_until) - self._clock()
            if wait_s <= 0:
                break
            await asyncio.sleep(wait_s)
        # No await from the check to here: two requests cannot take the same slot.
        now = self._clock()
        self._free_at = now + self._distance_s
        return now

    @property
    def paused_s(self) -> float:
        """Return how long the pause will last."""
        return max(0.0, self._paused_until - self._clock())

    def pause(self, seconds: float) -> None:
        """Make no request for this time, as the source demands."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def succeeded(self) -> None:
        """Count an answer: the source works."""
        self._failures = self.pauses = 0

    def failed(self, started: float) -> bool:
        """Count a failure of a request that got its slot at this time.

        Return whether a pause begins: the source itself seems to be in trouble. Requests that
        were open when a pause began say nothing new.
        """
        self._failures += 1
        if self._failures < TROUBLE_AFTER or started < self._paused_until:
            return False
        self.pause(min(PAUSE_S * 2.0**self.pauses, PAUSE_MAX_S))
        self.pauses += 1
        return True
