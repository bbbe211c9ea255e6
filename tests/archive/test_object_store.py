"""Test archives in an object store: a server of its own, which knows conditional writes."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from instep import errors
from instep.archive import compaction, table
from instep.archive.files import Location, locate
from instep.archive.reader import ArchiveReader
from instep.archive.table import ArchiveTable
from instep.archive.writer import ArchiveWriter
from tests.support.archives import IDENTITY, record
from tests.support.object_store import BUCKET, object_store

WRITERS = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with object_store(tmp_path_factory.mktemp("store") / "store.log") as environ:
        yield environ


@pytest.fixture
def location(store: dict[str, str]) -> Location:
    """Return the place of a new archive in the store."""
    place = locate(f"s3://{BUCKET}/{uuid.uuid4().hex}/print-status", store)
    table.create("a", place, IDENTITY).take_epoch({0: 0})
    return place


def opened(location: Location) -> ArchiveTable:
    return table.require("a", location)


def archive(location: Location, *offsets: int) -> None:
    """Archive records in one commit."""
    found = opened(location)
    writer = ArchiveWriter(found, found.epoch())
    writer.take(writer.positions([0]))
    writer.add(0, [record(offset) for offset in offsets])
    writer.commit()


def archived(location: Location) -> list[int]:
    return [one.offset for one in ArchiveReader(opened(location)).records({0: (0, 2**40)})]


def test_an_archive_is_written_read_and_tidied(location: Location) -> None:
    archive(location, 0, 1)
    archive(location, 2)
    assert archived(location) == [0, 1, 2]
    found = opened(location)
    assert (found.positions([0]), found.rows([0])) == ({0: 3}, {0: 3})
    assert compaction.compact(found, 1, found.files())
    assert len(opened(location).files()) == 1
    assert len(opened(location).vacuum(0, execute=True)) == 2
    assert archived(location) == [0, 1, 2]


def test_a_version_is_written_once_however_many_write_it(location: Location) -> None:
    """The store accepts one of the conditional writes, and refuses the others."""
    tables = [opened(location) for _ in range(WRITERS)]
    version, begin = tables[0].version, threading.Barrier(WRITERS)
    accepted: list[int] = []

    def commit(number: int) -> None:
        begin.wait()
        try:
            tables[number]._commit([], {f"writer/{number}": 1})
        except Exception:
            return
        accepted.append(number)

    threads = [threading.Thread(target=commit, args=[number]) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(accepted) == 1
    after = opened(location)
    assert after.version == version + 1
    assert after._versions("writer/", range(WRITERS)) == dict.fromkeys(accepted, 1)


def test_an_older_epoch_is_fenced(location: Location) -> None:
    old = ArchiveWriter(opened(location), 1)
    old.take({0: 0})
    old.add(0, [record(0)])
    opened(location).take_epoch({})
    with pytest.raises(errors.Fenced):
        old.commit()
    assert archived(location) == []


def test_unconditional_writes_are_refused_by_name(store: dict[str, str]) -> None:
    with pytest.raises(errors.SettingsError, match="AWS_S3_ALLOW_UNSAFE_RENAME"):
        locate(f"s3://{BUCKET}/x", store | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})
    assert locate("archive", {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}).is_local


def test_a_bucket_that_is_missing_is_an_error_without_secrets(store: dict[str, str]) -> None:
    with pytest.raises(errors.ArchiveUnusable) as caught:
        table.create("a", locate("s3://no-such-bucket/x", store), IDENTITY)
    assert "archive-secret" not in str(caught.value)
