"""A histogram of durations whose parts can be added and subtracted in any order.

A duration below 128 ms has its own bucket. Above, each power of two is divided into 64 buckets
of the same width, so the middle of a bucket differs from each of its durations by less than 0.8 %.
Buckets hold whole numbers: however the durations arrive, the same ones make the same histogram, and
therefore the same quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping

PRECISION_BITS = 6  # 64 buckets for each power of two
EXACT_BELOW = 2 ** (PRECISION_BITS + 1)


def bucket(duration_ms: int) -> int:
    """Return the bucket of a duration: the smallest duration in it."""
    if duration_ms < EXACT_BELOW:
        return duration_ms
    shift = duration_ms.bit_length() - PRECISION_BITS - 1
    return duration_ms >> shift << shift


def middle(lowest_ms: int) -> int:
    """Return the middle of a bucket, in whole milliseconds."""
    if lowest_ms < EXACT_BELOW:
        return lowest_ms
    return lowest_ms + (1 << (lowest_ms.bit_length() - PRECISION_BITS - 1)) // 2


def quantile(buckets: Mapping[int, int], percent: int) -> int | None:
    """Return the middle of the bucket with the duration that `percent` of them do not exceed."""
    wanted = -(-sum(buckets.values()) * percent // 100)  # rounded up
    seen = 0
    for lowest_ms, count in sorted(buckets.items()):
        seen += count
        if wanted and seen >= wanted:
            return middle(lowest_ms)
    return None
