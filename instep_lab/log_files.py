"""The files of a partition on a broker's disk, read without the broker.

A partition is a folder of segments. A segment is a sequence of batches, each with a header:

    offset of the first record    8 bytes
    length of the rest            4 bytes
    leader epoch, format, CRC     9 bytes
    attributes                    2 bytes
    offset of the last record     4 bytes, relative to the first
"""

from __future__ import annotations

import struct
from pathlib import Path

SUFFIX = ".log"
_START = struct.Struct(">qi")
_LAST_OFFSET = struct.Struct(">i")
_LAST_OFFSET_AT = 23
_HEADER_BYTES = 61


def segments(folder: Path) -> list[Path]:
    """Return the segment files of a partition, oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def first_offset(segment: Path) -> int | None:
    """Return the offset of the first batch in a segment; None if it has none."""
    with segment.open("rb") as file:
        start = file.read(_START.size)
    if len(start) < _START.size:
        return None
    return int(_START.unpack(start)[0])


def end(folder: Path) -> int:
    """Return the log end offset of a replica: one more than the last offset in its files."""
    found = segments(folder)
    if not found:
        return 0
    data, position, after = found[-1].read_bytes(), 0, int(found[-1].stem)
    while position + _HEADER_BYTES <= len(data):
        base, length = _START.unpack_from(data, position)
        after = base + _LAST_OFFSET.unpack_from(data, position + _LAST_OFFSET_AT)[0] + 1
        position += _START.size + length
    return int(after)
