"""Where the partitioners of the clients put a key, as the lab computes it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

from instep.document import partition

MURMUR2, CRC32 = "murmur2", "CRC32"
PARTITION_OF: Mapping[str, Callable[[bytes, int], int]] = {
    MURMUR2: partition.partition_of,
    CRC32: lambda key, partitions: zlib.crc32(key) % partitions,
}
