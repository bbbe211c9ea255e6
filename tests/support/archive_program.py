"""An archiver without Spark, which the tests kill: python -m tests.support.archive_program.

Its arguments are the brokers, the topic, the folder of the table, the number of partitions, and the
place where it kills itself: a name and how often it is passed before. It ends at the log's end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

from instep import settings
from instep.archive import compaction, files, table
from instep.archive.files import locate
from instep.archive.table import ArchivedTopic, ArchiveTable
from instep.archive.writer import ArchiveWriter
from instep.kafka.connection import Cluster
from instep.kafka.partition_reader import PartitionReader

PLACES = ("written", "half", "committing", "committed", "compacted", "epoch")
READ_RECORDS = 40


class Killer:
    """Kills this process when a place is passed for the n-th time."""

    def __init__(self, place: str, times: int) -> None:
        self._place, self._left = place, times

    def passed(self, place: str) -> None:
        """Note that a place is passed."""
        if place == self._place:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def before(self, place: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that passes a place before it calls another one."""

        def replaced(*args: Any, **options: Any) -> Any:
            self.passed(place)
            return call(*args, **options)

        return replaced

    def after(self, place: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that passes a place after it has called another one."""

        def replaced(*args: Any, **options: Any) -> Any:
            result = call(*args, **options)
            self.passed(place)
            return result

        return replaced


def install(killer: Killer) -> None:
    """Let every step of a commit pass a place."""
    files._sync = killer.before("half", files._sync)
    files.write = killer.after("written", files.write)
    ArchiveTable._commit = killer.before("committing", ArchiveTable._commit)  # type: ignore[method-assign]
    ArchiveTable.append = killer.after("committed", ArchiveTable.append)  # type: ignore[method-assign]
    ArchiveTable.take_epoch = killer.after("epoch", ArchiveTable.take_epoch)  # type: ignore[method-assign]
    compaction.compact = killer.after("compacted", compaction.compact)


def main() -> None:
    bootstrap, topic, folder, partitions, place, times = sys.argv[1:]
    install(Killer(place, int(times)))
    everything = range(int(partitions))
    location = locate(folder)
    opened = table.find("a", location) or table.create(
        "a", location, ArchivedTopic(topic, "id", "cluster")
    )
    epoch = opened.take_epoch(dict.fromkeys(everything, 0))
    writer = ArchiveWriter(opened, epoch)
    starts = writer.positions(everything)
    writer.take(starts)
    with Cluster(settings.Kafka(), bootstrap) as cluster:
        reader = PartitionReader(cluster, topic, headers=True, once=True)
        reader.add(starts)
        left = set(everything)
        while left:
            read = reader.read(5.0, 0.0, random.randint(1, READ_RECORDS), 1_000_000)
            for partition, records in read.items():
                writer.add(partition, records)
            left -= reader.ended.keys()
            if random.random() < 0.3 or not left:
                writer.commit()
            if random.random() < 0.1:
                other = table.require("a", location)
                for joined in compaction.plan(other.files(), 50_000, "no day"):
                    compaction.compact(other, epoch, joined)
        reader.close()


if __name__ == "__main__":
    main()
