"""The consumer loop that many teams write first: default settings, and the last event wins.

The demo compares the pipeline with it. Offsets are committed in the background whether or not
their rows were written, versions are not compared, and malformed events are ignored. The table
`seen` tells the demo how far the loop has read; the loop itself never reads it.

    python -m instep.demo.naive_loop BOOTSTRAP TOPIC FILE
"""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import sys
from pathlib import Path

from confluent_kafka import Consumer, Message

from instep.local import keeper_client

# A killed member keeps its partitions for this long; Kafka's default is 45 s.
SESSION_TIMEOUT_MS = 6_000
BATCH = 500
TABLES = (
    "CREATE TABLE IF NOT EXISTS document"
    " (doc_no TEXT PRIMARY KEY, print_status TEXT, print_version INTEGER)",
    "CREATE TABLE IF NOT EXISTS seen (part INTEGER PRIMARY KEY, next INTEGER)",
)
WRITE = (
    "INSERT INTO document VALUES (?, ?, ?) ON CONFLICT (doc_no) DO UPDATE"
    " SET print_status = excluded.print_status, print_version = excluded.print_version"
)

Row = tuple[str, int]


class NaiveLoop:
    """The loop in its own process, which can be killed and started again."""

    def __init__(self, bootstrap: str, topic: str, file: Path) -> None:
        self.file = file
        self._argv = [sys.executable, "-m", __name__, bootstrap, topic, str(file)]
        self._keeper: keeper_client.KeeperClient | None = None

    def start(self) -> None:
        self._keeper = keeper_client.KeeperClient(end_signal=signal.SIGKILL)
        self._keeper.launch(self._argv, log=self.file.with_suffix(".log"))

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._keeper:
            self._keeper.kill()
            self.close()

    def close(self) -> None:
        if self._keeper:
            self._keeper.close()
            self._keeper = None

    def read_count(self) -> int:
        """Return how many records the loop has read."""
        with contextlib.closing(_open(self.file)) as database:
            return int(database.execute("SELECT coalesce(sum(next), 0) FROM seen").fetchone()[0])

    def rows(self) -> dict[str, Row]:
        """Return the status and version of every document in the loop's table."""
        with contextlib.closing(_open(self.file)) as database:
            found = database.execute("SELECT doc_no, print_status, print_version FROM document")
            return {name: (status, version) for name, status, version in found}


def consume(bootstrap: str, topic: str, file: Path) -> None:
    """Run until killed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-naive",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
        }
    )
    consumer.subscribe([topic])
    with contextlib.closing(_open(file)) as database:
        while True:
            for message in consumer.consume(BATCH, timeout=0.2):
                if message.error() is None:
                    _apply(database, message)
            database.commit()


def _apply(database: sqlite3.Connection, message: Message) -> None:
    with contextlib.suppress(ValueError, KeyError, TypeError):  # ignore malformed events
        event = json.loads(message.value() or b"")
        database.execute(WRITE, (event["doc_id"], event["status"], event["version"]))
    database.execute(
        "REPLACE INTO seen VALUES (?, ?)", (message.partition(), (message.offset() or 0) + 1)
    )


def _open(file: Path) -> sqlite3.Connection:
    database = sqlite3.connect(file, timeout=30)
    database.execute("PRAGMA journal_mode = WAL")
    for statement in TABLES:
        database.execute(statement)
    database.commit()
    return database


if __name__ == "__main__":
    consume(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
