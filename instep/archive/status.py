"""The state of an archive, from its table and the log. It changes nothing."""

from __future__ import annotations

from datetime import datetime

import msgspec

from instep import errors, settings
from instep.archive import checks, table
from instep.archive.files import locate
from instep.kafka import backlog, topics
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.connection import Cluster


class ArchiveStatus(msgspec.Struct, frozen=True):
    """The state of one archive, or the error that kept it from being read."""

    archive: str
    topic: str
    path: str
    lag_records: int | None = None
    committed_at: datetime | None = None
    files: int | None = None
    bytes: int | None = None
    records: int | None = None
    positions: dict[int, int] = {}
    error: str | None = None


def read(cluster: Cluster | None, name: str, archive: settings.Archive) -> ArchiveStatus:
    """Return the status. An error is part of it, so that it does not hide others."""
    status = ArchiveStatus(name, archive.topic, archive.path)
    try:
        found = table.find(name, locate(archive.path))
        if found is not None:
            files = found.files()
            status = msgspec.structs.replace(
                status,
                committed_at=found.committed_at(),
                files=len(files),
                bytes=sum(file.size for file in files),
                records=sum(file.rows for file in files),
            )
        if cluster is None:
            return msgspec.structs.replace(status, error="the local Kafka is not running")
        backlogs = ahead(cluster, name, archive)
    except errors.InstepError as error:
        return msgspec.structs.replace(status, error=str(error))
    return msgspec.structs.replace(
        status,
        lag_records=sum(one.records for one in backlogs.values()),
        positions={part: one.position for part, one in backlogs.items()},
    )


def ahead(cluster: Cluster, name: str, archive: settings.Archive) -> dict[int, PartitionBacklog]:
    """Return what a run of this archive would find in each partition."""
    topic = topics.describe(cluster, archive.topic)
    found = table.find(name, locate(archive.path))
    known = found.positions(topic.partitions) if found is not None else {}
    begins = checks.begins(cluster, topic, archive.start, known)
    return backlog.read(cluster, topic.name, known | begins)
