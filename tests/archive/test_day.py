"""Write a day of a busy topic with the real writer, in less time, and count the files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from instep.archive import compaction
from instep.archive.reader import ArchiveReader
from tests.support.archives import DAY_MS, NOON_MS, created, opened, record, writer

RATE = int(os.environ.get("INSTEP_TEST_ARCHIVE_RATE", "10"))  # events per second, of 1,000
MIDNIGHT_MS = NOON_MS - DAY_MS // 2
TODAY = "2025-11-18"
MINUTES, TASKS, FILES_MAX = 24 * 60, 2, 300
FILE_BYTES = 64_000_000 * RATE // 1_000


def event(offset: int) -> bytes:
    body = {"doc_id": f"job-{offset % 5_000}", "status": "PRINTED", "version": offset}
    return json.dumps(body | {"note": f"{offset * 2654435761 % 2**64:016x}" * 4}).encode()


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_day_with_1000_events_per_second_is_in_at_most_300_files(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Scale events and file size by the same factor. Commits and joins are those of a whole day.

    Each task commits once a minute of the log, and files are joined twice a minute, as in a run.
    """
    created(tmp_path, partitions=TASKS)
    writers = [writer(tmp_path, [task]) for task in range(TASKS)]
    per_commit = 60 * RATE // TASKS
    most, joins = 0, 0
    for minute in range(MINUTES):
        at_ms = MIDNIGHT_MS + minute * 60_000
        offsets = range(minute * per_commit, (minute + 1) * per_commit)
        for task, one in enumerate(writers):
            one.add(task, [record(at, at_ms, key=b"k", value=event(at)) for at in offsets])
            one.commit()
            table = opened(tmp_path)
            found = table.files()
            most = max(most, len(found))
            for joined in compaction.plan(found, FILE_BYTES, TODAY):
                joins += compaction.compact(table, 1, joined)

    during = len(opened(tmp_path).files())
    table = opened(tmp_path)
    for joined in compaction.plan(table.files(), FILE_BYTES, None):  # the next day
        joins += compaction.compact(table, 1, joined)
    table = opened(tmp_path)
    files = table.files()
    text = f"{MINUTES * TASKS} commits, {joins} joins; files: at most {most}, {during} at"
    print(f"{text} midnight, {len(files)} on the next day")  # noqa: T201
    record_property("files_max", most)
    assert most <= FILES_MAX
    assert sum(file.rows for file in files) == MINUTES * TASKS * per_commit
    for task in range(TASKS):
        end = MINUTES * per_commit
        assert ArchiveReader(table).count(task, 0, end) == (end, 0)
