"""Test what an archive writes: bytes, timestamps and days, and positions in the same commit."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from instep import errors
from instep.archive import table
from instep.archive.files import locate
from instep.archive.reader import ArchiveReader
from instep.archive.table import ArchiveTable
from instep.kafka.offsets import LogRecord
from tests.support.archives import (
    DAY_MS,
    NOON_MS,
    archive,
    archived,
    created,
    opened,
    record,
    writer,
)

DAYS = [
    (-1, None),
    (0, "1970-01-01"),
    (NOON_MS, "2025-11-18"),
    (253_402_300_799_999, "9999-12-31"),
    (253_402_300_800_000, None),
    (NOON_MS * 1_000, None),  # microseconds
    (9_223_372_036_854_775_807, None),  # the year 294,247 and later
    (-9_223_372_036_854_775_808, None),
]


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    created(tmp_path)
    records = [
        record(3, -1, key=None, value=None),
        record(5, key=b"", value=b"", headers=(("h", b"\xff"), ("h", None), ("", b""))),
        record(6, 7, key=b"\x00\xff", value=b"\xfe" * 9, timestamp_type=0),
    ]
    archive(tmp_path, *records)
    assert list(ArchiveReader(opened(tmp_path)).records({0: (0, 10)})) == [
        LogRecord(0, 3, -1, None, None),
        LogRecord(0, 5, NOON_MS, b"", b"", (("h", b"\xff"), ("h", None), ("", b""))),
        LogRecord(0, 6, 7, b"\x00\xff", b"\xfe" * 9),
    ]


@pytest.mark.parametrize(("timestamp_ms", "day"), DAYS)
def test_every_timestamp_has_a_day_or_none(
    tmp_path: Path, timestamp_ms: int, day: str | None
) -> None:
    created(tmp_path)
    archive(tmp_path, record(0, timestamp_ms))
    [file] = opened(tmp_path).files()
    assert file.day == day
    [found] = ArchiveReader(opened(tmp_path)).records({0: (0, 1)})
    assert found.timestamp_ms == timestamp_ms


def test_one_commit_has_a_file_per_day_and_all_positions(tmp_path: Path) -> None:
    before = created(tmp_path, partitions=2).version
    two = writer(tmp_path, [0, 1])
    two.add(1, [record(0, NOON_MS), record(4, NOON_MS + DAY_MS)])
    two.add(0, [record(0, NOON_MS - DAY_MS)])
    assert two.commit() == {0: 1, 1: 5}
    after = opened(tmp_path)
    assert after.version == before + 1
    assert after.positions([0, 1, 2]) == {0: 1, 1: 5}
    assert sorted(file.day or "" for file in after.files()) == [
        "2025-11-17",
        "2025-11-18",
        "2025-11-19",
    ]


def test_without_records_nothing_is_committed(tmp_path: Path) -> None:
    before = created(tmp_path).version
    assert writer(tmp_path).commit() == {}
    assert opened(tmp_path).version == before


def test_a_second_writer_is_refused_and_repeats_nothing(tmp_path: Path) -> None:
    created(tmp_path)
    first, second = writer(tmp_path), writer(tmp_path)
    for one in (first, second):
        one.add(0, [record(0), record(1)])
    first.commit()
    second.add(0, [record(2)])
    with pytest.raises(errors.StartAgain):
        second.commit()
    assert archived(tmp_path) == [0, 1]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1, "the refused file is still there"


def test_an_older_epoch_is_fenced(tmp_path: Path) -> None:
    created(tmp_path)
    old = writer(tmp_path)
    old.add(0, [record(0)])
    opened(tmp_path).take_epoch({0: 0})
    with pytest.raises(errors.Fenced, match="epoch 2 is newer than 1"):
        old.commit()
    assert archived(tmp_path) == []


def test_a_vacuum_of_everything_loses_no_row_of_a_running_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs when the file is written and not yet committed."""
    created(tmp_path)
    archive(tmp_path, record(0))
    one = writer(tmp_path)
    one.add(0, [record(1)])
    append = ArchiveTable.append

    def vacuumed(self: ArchiveTable, *arguments: Any) -> None:
        assert len(opened(tmp_path).vacuum(0, execute=True)) == 1
        append(self, *arguments)

    monkeypatch.setattr(ArchiveTable, "append", vacuumed)
    with pytest.raises(errors.Fenced):
        one.commit()
    monkeypatch.undo()
    archive(tmp_path, record(1))
    assert archived(tmp_path) == [0, 1]


def test_a_vacuum_of_everything_leaves_what_is_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(tmp_path)
    (tmp_path / "day=2025-11-18").mkdir()
    (tmp_path / "day=2025-11-18/half.parquet").write_bytes(b"half")
    take_epoch = ArchiveTable.take_epoch

    def taken(self: ArchiveTable, *arguments: Any) -> int:
        epoch = take_epoch(self, *arguments)
        newer = writer(tmp_path)
        newer._epoch = take_epoch(opened(tmp_path), {})
        newer.add(0, [record(0)])
        newer.commit()
        (tmp_path / "day=2025-11-18/newer.parquet").write_bytes(b"not committed yet")
        return epoch

    monkeypatch.setattr(ArchiveTable, "take_epoch", taken)
    assert opened(tmp_path).vacuum(0, execute=True) == ["day=2025-11-18/half.parquet"]
    assert archived(tmp_path) == [0]
    assert (tmp_path / "day=2025-11-18/newer.parquet").exists()


def test_a_commit_whose_answer_was_lost_is_not_repeated(tmp_path: Path) -> None:
    created(tmp_path)
    one = writer(tmp_path)
    one.add(0, [record(0)])
    again = dict(one._rows)
    one.commit()
    one._rows, one._starts = again, {0: 0}
    assert one.commit() == {0: 1}
    assert archived(tmp_path) == [0]


def test_writers_of_other_partitions_wait_for_nobody(tmp_path: Path) -> None:
    created(tmp_path, partitions=2)
    first, second = writer(tmp_path, [0]), writer(tmp_path, [1])
    first.add(0, [record(0)])
    second.add(1, [record(0)])
    first.commit()
    second.commit()
    assert archived(tmp_path, 0) == archived(tmp_path, 1) == [0]


def test_a_table_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    created(tmp_path)
    one = opened(tmp_path)
    one._delta.alter.set_table_properties(
        {table.RETENTION_OF_POSITIONS: "interval 1 days"}, raise_if_not_exists=False
    )
    one.refresh()
    with pytest.raises(errors.ArchiveChanged, match="removes positions"):
        one.refuse_changed()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    created(tmp_path)
    one = writer(tmp_path)
    one.add(0, [record(0)])
    (tmp_path / "day=2025-11-18").write_text("a file in place of the folder")
    with pytest.raises(errors.ArchiveUnusable, match="cannot write to"):
        one.commit()
    (tmp_path / "day=2025-11-18").unlink()
    assert one.commit() == {0: 1}, "what was collected is kept"


def test_a_location_has_the_credentials_of_the_environment_and_does_not_show_them() -> None:
    location = locate("s3://bucket/archive", {"AWS_SECRET_ACCESS_KEY": "hush-hush", "HOME": "/"})
    assert location.options == {"AWS_SECRET_ACCESS_KEY": "hush-hush"}
    shown = table._unusable("a", location, OSError("refused: hush-hush"))
    assert "hush" not in str(shown)


def test_a_file_that_cannot_be_completed_leaves_nothing_behind(tmp_path: Path) -> None:
    """Limit the size of files, as a full disk does."""
    created(tmp_path)
    one = writer(tmp_path)
    one.add(0, [record(number, value=os.urandom(2_000)) for number in range(200)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(errors.ArchiveUnusable, match="File too large"):
            one.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.rglob("*.parquet")) == []
    assert one.commit() == {0: 200}


def test_a_commit_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    created(tmp_path)
    one = writer(tmp_path)
    one.add(0, [record(0)])
    obstacle = tmp_path / "_delta_log" / f"{opened(tmp_path).version + 1:020}.json"
    obstacle.mkdir()
    with pytest.raises(errors.ArchiveUnusable):
        one.commit()
    obstacle.rmdir()
    assert list(tmp_path.rglob("*.parquet")) == []
    assert one.commit() == {0: 1}
