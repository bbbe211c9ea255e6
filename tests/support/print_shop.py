"""A source system for tests of the relay: it changes documents and adds events in one transaction.

Its own table is the truth: a document with count n has n events, with the versions 1 to n.
"""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from instep import settings
from instep.document.event import StatusEvent
from instep.emit.outbox import Outbox
from instep.kafka import offsets, reading, topics
from instep.kafka.connection import Cluster
from instep.sinks import connecting
from instep.sources import tables
from instep.sources.connection import SourceConnection

DOCUMENTS = 40


class PrintShop:
    """Writers in threads, each with its own connection. 20 % of the transactions roll back."""

    def __init__(self, relay: settings.Relay, name: str = "print") -> None:
        self.relay, self.name = relay, name
        self._stopped = threading.Event()
        self._writers: list[Future[None]] = []
        tables.prepare(relay, name)
        with SourceConnection(relay.source) as opened:
            opened.execute(
                "CREATE TABLE print_job (id varchar(50) PRIMARY KEY, n integer NOT NULL)"
            )
        self.add_documents(*(f"job-{number}" for number in range(DOCUMENTS)))

    def add_documents(self, *documents: str) -> None:
        """Add documents without events."""
        with SourceConnection(self.relay.source) as opened:
            for document in documents:
                opened.execute("INSERT INTO print_job VALUES (?, 0)", (document,))

    def change(self, opened: SourceConnection, document: str, *, size: int = 20) -> None:
        """Change a document and add the event, in the open transaction."""
        opened.execute("UPDATE print_job SET n = n + 1 WHERE id = ?", (document,))
        version = opened.value("SELECT n FROM print_job WHERE id = ?", (document,))
        event = StatusEvent(
            document=document, status="PRINTED", version=version, fields={"pad": "x" * size}
        )
        try:
            Outbox().add(opened.driver, event)
        except Exception as error:  # as the driver raises it
            ours = connecting.translate(opened.url, error)
            if ours is None:
                raise
            raise ours from error

    def work(self, transactions: int, seed: int = 0) -> None:
        """Run transactions of one to three documents; some roll back, some commit late."""
        chance = random.Random(seed)
        with SourceConnection(self.relay.source) as opened:
            begin = "BEGIN IMMEDIATE" if opened.dialect.name == "sqlite" else "BEGIN"
            for _ in range(transactions):
                if self._stopped.is_set():
                    return
                with suppress(_RolledBack), opened.transaction(begin):
                    for document in sorted(
                        chance.sample(range(DOCUMENTS), chance.randint(1, 3)), key=str
                    ):
                        self.change(opened, f"job-{document}")
                        if chance.random() < 0.05 and opened.dialect.name != "sqlite":
                            self._stopped.wait(chance.random() / 20)  # others commit meanwhile
                    if chance.random() < 0.2:
                        raise _RolledBack

    def start(self, writers: int, transactions: int) -> None:
        """Work in threads."""
        pool = ThreadPoolExecutor(writers)
        self._writers = [pool.submit(self.work, transactions, number) for number in range(writers)]
        pool.shutdown(wait=False)

    def join(self) -> None:
        """Wait until all threads have ended; raise their errors."""
        for writer in self._writers:
            writer.result()

    def stop(self) -> None:
        """Let the threads end."""
        self._stopped.set()

    def counts(self) -> dict[str, int]:
        """Return how many events each document has."""
        with SourceConnection(self.relay.source) as opened:
            return dict(opened.select("SELECT id, n FROM print_job WHERE n > 0"))


class _RolledBack(Exception):
    pass


def published(cluster: Cluster, topic: str) -> dict[str, list[int]]:
    """Return the versions of each document, in the order of the log, as committed readers see."""
    partitions = topics.describe(cluster, topic).partitions
    ends = offsets.latest(cluster, topic, partitions)
    found: dict[str, list[int]] = defaultdict(list)
    for record in reading.read(cluster, topic, {part: (0, end) for part, end in ends.items()}):
        body: dict[str, Any] = json.loads(record.value or b"{}")
        found[(record.key or b"").decode()].append(body.get("version", 0))
    return dict(found)


def difference(shop: PrintShop, cluster: Cluster, topic: str) -> list[str]:
    """Return what is lost, repeated or out of order; nothing if all is well."""
    wanted, got = shop.counts(), published(cluster, topic)
    return [
        f"{document}: {got.get(document)} instead of 1..{count}"
        for document, count in wanted.items()
        if got.get(document) != list(range(1, count + 1))
    ] + [f"{document}: not in the source" for document in got.keys() - wanted.keys()]


def agrees(shop: PrintShop, cluster: Cluster, topic: str) -> Callable[[], bool]:
    """Return a condition: Kafka has exactly what the source has."""
    return lambda: not difference(shop, cluster, topic)
