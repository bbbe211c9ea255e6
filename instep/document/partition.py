"""Which partition a key belongs to: murmur2 as Java's producer computes it.

All publishers of a topic must agree on this. Otherwise the events of one document are in two
partitions and lose their order.
"""

from __future__ import annotations

import math

SEED = 0x9747B28C
MIX = 0x5BD1E995
WORD = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the hash as an unsigned 32-bit number."""
    tail_at = len(key) & ~3
    result = SEED ^ len(key)
    for start in range(0, tail_at, 4):
        word = int.from_bytes(key[start : start + 4], "little") * MIX & WORD
        word = (word ^ word >> 24) * MIX & WORD
        result = result * MIX & WORD ^ word
    if tail_at < len(key):
        result = (result ^ int.from_bytes(key[tail_at:], "little")) * MIX & WORD
    result = (result ^ result >> 13) * MIX & WORD
    return result ^ result >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key in a topic with this number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def moved_share(old: int, new: int) -> float:
    """Return the share of keys that change their partition from `old` to `new` partitions.

    Of lcm(old, new) consecutive hashes, exactly min(old, new) keep their partition.
    """
    return 1 - min(old, new) / math.lcm(old, new)
