"""Test how small files are joined, and that the writer never waits for it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep import settings
from instep.archive import compaction, compaction_thread
from instep.archive.files import DataFile
from tests.support.archives import archive, archived, created, opened, record, writer
from tests.support.waiting import wait_until

TODAY = "2026-11-18"
SIZE = 1_000

files = st.lists(
    st.builds(
        DataFile,
        path=st.uuids().map(str),
        size=st.integers(1, 2 * SIZE),
        day=st.sampled_from([None, "2026-11-17", TODAY]),
        rows=st.just(1),
        modified_ms=st.just(0),
        partitions=st.just((0, 0)),
        offsets=st.integers(0, 100).map(lambda first: (first, first + 9)),
        timestamps=st.just((0, 0)),
    ),
    max_size=80,
    unique_by=lambda file: file.path,
)


@given(files)
def test_a_plan_joins_small_files_of_one_day_once(found: list[DataFile]) -> None:
    joins = compaction.plan(found, SIZE, TODAY)
    joined = [file.path for part in joins for file in part]
    assert len(joined) == len(set(joined))
    for part in joins:
        assert len(part) > 1
        assert len({file.day for file in part}) == 1
        assert sum(file.size for file in part) <= SIZE
        assert all(file.size < SIZE * compaction.SMALL_SHARE for file in part)


def one_file(path: int, size: int, minute: int) -> DataFile:
    return DataFile(str(path), size, TODAY, 0, 0, (0, 0), (minute, minute), (0, 0))


@pytest.mark.parametrize("tasks", [2, 8, 16])
@pytest.mark.parametrize("event_bytes", [25, 150])
def test_a_day_with_1000_events_per_second_has_at_most_300_files(
    event_bytes: int, tasks: int
) -> None:
    """Count the files while a day is written, with a commit of each task per minute."""
    size, found, paths = 64_000_000, list[DataFile](), itertools.count()
    for minute in range(24 * 60):
        file_bytes = 60 * 1_000 * event_bytes // tasks
        found += [one_file(next(paths), file_bytes, minute) for _ in range(tasks)]
        assert len(found) <= 300
        for part in compaction.plan(found, size, TODAY):
            joined = {file.path for file in part}
            found = [file for file in found if file.path not in joined]
            found.append(one_file(next(paths), sum(file.size for file in part), minute))


def test_joining_keeps_rows_and_sorts_them(tmp_path: Path) -> None:
    created(tmp_path, partitions=2)
    archive(tmp_path, record(4), record(5), partition=1)
    archive(tmp_path, record(0), record(2), partition=0)
    archive(tmp_path, record(7), partition=1)
    table = opened(tmp_path)
    assert compaction.compact(table, 1, table.files())
    [file] = opened(tmp_path).files()
    assert (file.rows, file.partitions, file.offsets) == (5, (0, 1), (0, 7))
    assert (archived(tmp_path, 0), archived(tmp_path, 1)) == ([0, 2], [4, 5, 7])


def test_the_writer_wins_and_joining_is_tried_again(tmp_path: Path) -> None:
    created(tmp_path)
    for offset in range(3):
        archive(tmp_path, record(offset))
    table = opened(tmp_path)
    joined, late = table.files(), writer(tmp_path)
    late.add(0, [record(3)])
    late.commit()  # the table that compaction has read is no longer the newest
    assert compaction.compact(table, 1, joined)
    assert len(opened(tmp_path).files()) == 2
    assert archived(tmp_path) == [0, 1, 2, 3]


def test_a_writer_that_is_overtaken_by_joining_commits_on_top_of_it(tmp_path: Path) -> None:
    created(tmp_path)
    for offset in range(3):
        archive(tmp_path, record(offset))
    late = writer(tmp_path)
    late.add(0, [record(3)])
    table = opened(tmp_path)
    compaction.compact(table, 1, table.files())
    assert late.commit() == {0: 4}
    assert archived(tmp_path) == [0, 1, 2, 3]


def test_files_that_others_have_joined_are_left_alone(tmp_path: Path) -> None:
    created(tmp_path)
    for offset in range(3):
        archive(tmp_path, record(offset))
    first, second = opened(tmp_path), opened(tmp_path)
    joined = second.files()
    assert compaction.compact(first, 1, joined)
    assert not compaction.compact(second, 1, joined)
    assert archived(tmp_path) == [0, 1, 2]
    assert len(opened(tmp_path).files()) == 1


def test_the_thread_joins_files_beside_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_thread, "INTERVAL_S", 0.01)
    created(tmp_path)
    declared = settings.Archive(topic="print-status", path=str(tmp_path))
    thread = compaction_thread.CompactionThread("a", declared, lambda: 1)
    thread.start()
    offsets = itertools.count()
    writing = writer(tmp_path)

    def commit_until(joined: int) -> None:
        def enough() -> bool:
            writing.add(0, [record(next(offsets))])
            writing.commit()
            return thread.joined >= joined

        wait_until(enough, f"{joined} files to be joined")

    try:
        commit_until(2)
        commit_until(thread.joined + 10)
    finally:
        thread.end()
    written = next(offsets)
    assert thread.failure is None
    assert archived(tmp_path) == list(range(written))
    assert len(opened(tmp_path).files()) < written


def test_half_written_files_are_removed_after_the_retention(tmp_path: Path) -> None:
    created(tmp_path)
    archive(tmp_path, record(0))
    half = tmp_path / "day=2025-11-18" / "half.parquet"
    half.write_bytes(b"PAR1")
    table = opened(tmp_path)
    assert table.vacuum(168, execute=True) == []
    assert half.exists()
    assert table.vacuum(0, execute=True) == ["day=2025-11-18/half.parquet"]
    assert not half.exists()
    assert archived(tmp_path) == [0]
