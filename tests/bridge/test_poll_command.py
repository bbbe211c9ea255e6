"""Test `instep poll` in its own process: a real broker, kill -9, signals, a terminal."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from instep import settings
from instep.kafka import connection, reading, topics
from instep.local import ports
from instep.local.broker import LocalCluster
from tests.support.cli import instep
from tests.support.query_service import QueryService, Reply, Request
from tests.support.terminals import HIDE_CURSOR, SHOW_CURSOR, OnTerminal
from tests.support.waiting import wait_until

PARTITIONS = 2
SETTINGS = """
[kafka]
bootstrap = "{bootstrap}"

[bridges.print]
topic = "{topic}"
url = "{service}/documents/{{document}}"
status = "status"
ids_file = "ids.txt"
rate_per_s = 500
interval_min_s = 0.02
interval_max_s = 0.2

[bridges.print.headers]
Authorization = "Bearer ${{TOKEN}}"
"""


class Place:
    """A folder with settings, the service that they name, and the topic."""

    def __init__(self, folder: Path, broker: LocalCluster, service: QueryService) -> None:
        self.folder, self.service = folder, service
        self._cluster = connection.Cluster(settings.Kafka(), broker.bootstrap)
        self.topic = f"poll-{uuid.uuid4().hex[:8]}"
        topics.create(self._cluster, self.topic, PARTITIONS)
        text = SETTINGS.format(bootstrap=broker.bootstrap, topic=self.topic, service=service.url)
        (folder / "instep.toml").write_text(text, encoding="utf-8")
        self.environment = {**os.environ, "TOKEN": "hush", "NO_PROXY": "*"}

    def ids(self, *ids: str) -> None:
        """Write the ids."""
        (self.folder / "ids.txt").write_text("\n".join(ids), encoding="utf-8")

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start a bridge that runs until it is stopped."""
        return subprocess.Popen(
            [sys.executable, "-m", "instep", "poll", *options],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def records(self) -> dict[str, list[dict[str, Any]]]:
        """Return the values of the topic by document, in the order of the log."""
        ranges = dict.fromkeys(range(PARTITIONS), (0, 1 << 60))
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for record in reading.read(self._cluster, self.topic, ranges):
            found[(record.key or b"").decode()].append(json.loads(record.value or b"null"))
        return found

    def close(self) -> None:
        self._cluster.close()


@pytest.fixture
def place(tmp_path: Path, broker: LocalCluster) -> Iterator[Place]:
    with QueryService() as service:
        made = Place(tmp_path, broker, service)
        yield made
        made.close()


def test_a_pass_ends_with_a_summary_and_fails_with_a_document(place: Place) -> None:
    place.ids("C-1", "C-2")
    place.service.documents = {"C-1": {"status": "PRINTED"}, "C-2": {}}
    environment = {"TOKEN": "hush", "NO_PROXY": "*"}
    done = instep(place.folder, "poll", "--once", "--json", **environment)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    counts = {key: result[key] for key in ("polled", "changed", "unchanged", "failed", "published")}
    assert counts == {"polled": 2, "changed": 1, "unchanged": 0, "failed": 1, "published": 1}
    assert result["failures"] == {"STATUS_MISSING": 1}
    assert "document 'C-2': STATUS_MISSING" in done.stderr
    assert place.service.requests[0].headers["authorization"] == "Bearer hush"
    assert "hush" not in done.stdout + done.stderr
    place.service.documents["C-2"] = {"status": "QUEUED"}
    done = instep(place.folder, "poll", "print", "--once", **environment)
    assert (done.returncode, done.stdout) == (0, "")
    assert "2 polled, 1 changed, 1 unchanged, 0 failed, 1 published" in done.stderr
    records = place.records()
    assert {name: [one["status"] for one in values] for name, values in records.items()} == {
        "C-1": ["PRINTED"],
        "C-2": ["QUEUED"],
    }


def test_wrong_names_and_a_missing_topic_are_explained(place: Place) -> None:
    environment = {"TOKEN": "hush", "NO_PROXY": "*"}
    place.ids("C-1")
    other = instep(place.folder, "poll", "prnt", **environment)
    assert (other.returncode, "did you mean 'print'" in other.stderr) == (2, True)
    missing = instep(
        place.folder, "poll", INSTEP__BRIDGES__PRINT__TOPIC=f"no-{place.topic}", **environment
    )
    assert missing.returncode == 2
    assert "does not exist" in missing.stderr
    unset = instep(place.folder, "poll", NO_PROXY="*", TOKEN="a\r\nb")
    assert (unset.returncode, "headers.Authorization" in unset.stderr) == (2, True)


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_kills_lose_no_change_and_give_no_version_twice(place: Place, kills: int) -> None:
    """Change documents as they are polled, kill the bridge again and again, and compare."""
    documents = [f"C-{number}" for number in range(40)]
    place.ids(*documents)
    numbers: dict[str, int] = dict.fromkeys(documents, 0)
    lock, changing = threading.Lock(), threading.Event()
    changing.set()
    turns = itertools.count()

    def reply(request: Request) -> Reply:
        document = request.path.rpartition("/")[2]
        with lock:
            if changing.is_set() and next(turns) % 2:
                numbers[document] += 1
            status = f"S{numbers[document]}"
        return Reply(200, json.dumps({"status": status}).encode())

    for document in documents:
        place.service.replies[f"/documents/{document}"] = reply
    for kill in range(kills):
        asked = len(place.service.requests)
        bridge = place.start()
        try:
            # at another point of the work each time
            wait_until(
                lambda: len(place.service.requests) > asked + 60 + 37 * (kill % 7),  # noqa: B023
                "requests",
            )
        finally:
            bridge.kill()
            bridge.communicate()
    changing.clear()
    done = instep(place.folder, "poll", "--once", TOKEN="hush", NO_PROXY="*")
    assert done.returncode == 0, done.stderr
    records = place.records()
    assert records.keys() == set(documents)
    for document, values in records.items():
        versions = [value["version"] for value in values]
        assert versions == sorted(versions), document
        statuses: dict[int, set[str]] = defaultdict(set)
        for value in values:
            statuses[value["version"]].add(value["status"])
        assert all(len(found) == 1 for found in statuses.values()), document
        assert values[-1]["status"] == f"S{numbers[document]}", document


def test_a_signal_ends_it_and_only_one_process_polls(place: Place) -> None:
    place.ids("C-1")
    place.service.documents["C-1"] = {"status": "PRINTED"}
    port = ports.free(1)[0]
    bridge = place.start("--metrics", str(port))
    try:
        wait_until(lambda: len(place.service.requests) > 2, "requests")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as metrics:
            assert b'instep_bridge_published_total{bridge="print"} 1.0' in metrics.read()
        second = instep(place.folder, "poll", TOKEN="hush", NO_PROXY="*")
        assert second.returncode == 2
        assert f"another process (process {bridge.pid}) already polls" in second.stderr
        bridge.send_signal(signal.SIGTERM)
        _, said = bridge.communicate(timeout=20)
    finally:
        bridge.kill()
        bridge.communicate()
    assert bridge.returncode == 0, said
    assert "1 published" in said
    assert "Traceback" not in said


def test_a_terminal_shows_one_line_and_gets_its_cursor_back(place: Place) -> None:
    place.ids("C-1", "C-2")
    place.service.documents["C-1"] = {"status": "PRINTED"}
    place.service.documents["C-2"] = {"status": "\x1b[31mPRINTED"}
    with OnTerminal(place.folder, "poll", TOKEN="hush", NO_PROXY="*", columns=160) as shown:
        shown.wait_for(r"print: [\d.]+ requests/s, 2 documents \(0 final\), .* 2 published")
        assert shown.end(signal.SIGINT) == 0
    assert HIDE_CURSOR in shown.drawn
    assert shown.drawn.rindex(SHOW_CURSOR) > shown.drawn.rindex(HIDE_CURSOR)
    assert "\x1b[31mPRINTED" not in shown.drawn
