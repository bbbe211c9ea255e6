"""When a document is polled again. Pure: the caller has the clock and the random numbers.

A document that changed is polled again after half its interval, one that did not after one and a
half times, within the bounds of the settings. A failure waits longer each time.
"""

from __future__ import annotations

import math

import msgspec

from instep import settings

FASTER = 0.5
SLOWER = 1.5
SPREAD = 0.1  # documents that became due together drift apart by this share
RETRY_S = 1.0
RETRY_MAX_S = 60.0
EXPONENT_MAX = 30


class Intervals(msgspec.Struct, frozen=True):
    """The limits of a schedule, in seconds. Without `final_s`, final documents are never polled."""

    least_s: float
    most_s: float
    final_s: float | None = None

    @property
    def first_s(self) -> float:
        """Return the interval of a new document, between the limits."""
        return math.sqrt(self.least_s * self.most_s)


def intervals(bridge: settings.Bridge) -> Intervals:
    """Return the limits that the settings declare."""
    return Intervals(bridge.interval_min_s, bridge.interval_max_s, bridge.final_interval_s or None)


def next_interval(interval_s: float | None, limits: Intervals, *, changed: bool) -> float:
    """Return the next interval of a document; None is the interval of a new one."""
    if interval_s is None:
        return limits.first_s
    return _within(interval_s * (FASTER if changed else SLOWER), limits)


def delay(interval_s: float, limits: Intervals, chance: float) -> float:
    """Return the seconds until the next request. `chance`, from 0 to 1, spreads the documents."""
    return _within(interval_s * (1 + SPREAD * (2 * chance - 1)), limits)


def failure_delay(failures: int, limits: Intervals, chance: float) -> float:
    """Return the seconds until a document is polled again after this many failures in a row."""
    doubled = limits.least_s * 2.0 ** min(failures - 1, EXPONENT_MAX)
    return delay(_within(doubled, limits), limits, chance)


def retry_delay(attempt: int, chance: float) -> float:
    """Return the seconds between two attempts to poll a document: exponential, with jitter."""
    longest = min(RETRY_S * 2.0 ** min(attempt - 1, EXPONENT_MAX), RETRY_MAX_S)
    return longest * (0.5 + 0.5 * chance)


def _within(seconds: float, limits: Intervals) -> float:
    return min(max(seconds, limits.least_s), limits.most_s)
