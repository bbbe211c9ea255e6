"""Test reading the files of a partition without the broker."""

from __future__ import annotations

import struct
from pathlib import Path

from instep_lab import log_files


def batch(base: int, records: int, payload: bytes = b"") -> bytes:
    rest = struct.pack(">ibIhi", 0, 2, 0, 0, records - 1) + bytes(34) + payload
    return struct.pack(">qi", base, len(rest)) + rest


def test_the_end_of_a_log_is_one_more_than_its_last_offset(tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.log").write_bytes(batch(0, 5))
    (tmp_path / f"{5:020}.log").write_bytes(batch(5, 1, b"x" * 100) + batch(6, 3))
    assert log_files.end(tmp_path) == 9
    assert [log_files.first_offset(file) for file in log_files.segments(tmp_path)] == [0, 5]


def test_a_batch_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.log").write_bytes(batch(0, 5) + batch(5, 1)[:30])
    assert log_files.end(tmp_path) == 5


def test_an_empty_segment_ends_where_its_name_says(tmp_path: Path) -> None:
    assert log_files.end(tmp_path) == 0
    (tmp_path / f"{7:020}.log").write_bytes(b"")
    assert log_files.end(tmp_path) == 7
    assert log_files.first_offset(tmp_path / f"{7:020}.log") is None
