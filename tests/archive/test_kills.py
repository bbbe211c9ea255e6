"""Kill archivers at every step, two at a time, and compare the archive with its topic."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from instep.archive.reader import ArchiveReader
from instep.kafka import reading, topics
from instep.kafka.connection import Cluster
from tests.support.archive_program import PLACES
from tests.support.archives import opened
from tests.support.runs import send

PARTITIONS = 3
RECORDS = 3_000  # that are sent at once
KILLS = int(os.environ.get("INSTEP_TEST_ARCHIVE_KILLS", "120"))
NEVER = 1_000_000


class Archivers:
    """Starts archivers, and counts how they end."""

    def __init__(self, cluster: Cluster, topic: str, folder: Path) -> None:
        self._cluster, self._topic, self.folder = cluster, topic, folder
        self._records = 0
        self.ends: Counter[str] = Counter()

    def send(self) -> None:
        """Publish more records."""
        events = [
            (f"k{n}".encode(), {"n": self._records + n, "x": "x" * 50}) for n in range(RECORDS)
        ]
        send(self._cluster, self._topic, *events)
        self._records += RECORDS

    def start(self, place: str = "nowhere", times: int = NEVER) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.support.archive_program", self._cluster.bootstrap]
        command += [self._topic, str(self.folder), str(PARTITIONS), place, str(times)]
        return subprocess.Popen(command, stderr=subprocess.PIPE)

    def end(self, process: subprocess.Popen[bytes]) -> str:
        _, said = process.communicate(timeout=120)
        last = said.decode().strip().splitlines()[-2:] if process.returncode == 1 else []
        kind = next((line.partition(":")[0] for line in last if "Error" in line or ":" in line), "")
        end = {0: "complete", -9: "killed"}.get(process.returncode, kind)
        self.ends[end] += 1
        return end

    def anomalies(self) -> list[str]:
        """Return the records that the archive lacks, repeats or has with another content."""
        ranges = dict.fromkeys(range(PARTITIONS), (0, self._records))
        wanted = sorted(
            reading.read(self._cluster, self._topic, ranges),
            key=lambda record: (record.partition, record.offset),
        )
        assert len(wanted) == self._records
        found = list(ArchiveReader(opened(self.folder)).records(ranges))
        return [str(pair) for pair in zip(wanted, found, strict=False) if pair[0] != pair[1]] + [
            f"{len(found)} records in place of {len(wanted)}"
        ] * (len(found) != len(wanted))


@pytest.fixture
def archivers(cluster: Cluster, tmp_path: Path) -> Archivers:
    topic = f"status-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, PARTITIONS)
    folder = tmp_path / "archive"
    folder.mkdir()
    started = Archivers(cluster, topic, folder)
    started.send()
    return started


def test_an_archiver_that_is_killed_continues_at_its_position(archivers: Archivers) -> None:
    for place in ("written", "committing", "committed"):
        assert archivers.end(archivers.start(place, 2)) == "killed"
    assert archivers.end(archivers.start()) == "complete"
    assert archivers.anomalies() == []


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_archivers_that_are_killed_at_every_step_and_work_beside_each_other(
    archivers: Archivers, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(1)
    while archivers.ends["killed"] < KILLS:
        both = [
            archivers.start(chance.choice(PLACES), chance.randint(0, 6))
            for _ in range(chance.choice((1, 1, 2)))
        ]
        if "complete" in [archivers.end(process) for process in both]:
            archivers.send()
    assert archivers.end(archivers.start()) == "complete"
    for end, count in archivers.ends.items():
        record_property(end, count)
    assert archivers.anomalies() == []
    assert archivers.ends.keys() <= {
        "killed",
        "complete",
        "instep.errors.Fenced",
        "instep.errors.StartAgain",
    }, archivers.ends
