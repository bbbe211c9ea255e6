"""Kill and freeze relays, brokers and the source at random: nothing is lost or repeated."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from instep import errors, settings
from instep.kafka.connection import Cluster
from instep.local.broker import LocalCluster
from instep.local.mariadb import MariaDB
from instep.local.postgres import Postgres
from instep.local.server import Server
from instep.sources.connection import SourceConnection
from tests.relay.support import RelayProcess, declare
from tests.support.print_shop import PrintShop, agrees, difference, published
from tests.support.waiting import wait_until

FAULTS_S = float(os.environ.get("INSTEP_RELAY_FAULTS_S", "60"))
LATE_S = 10.0  # how long the long transactions stay open
PATIENCE_S = 180.0


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


class Stage:
    """Two processes of a relay, three brokers and a database, all of which may fail."""

    def __init__(
        self,
        folder: Path,
        name: str,
        relay: settings.Relay,
        brokers: LocalCluster,
        database: Server | None,
        seed: int,
    ) -> None:
        self.dice = random.Random(seed)
        self.brokers, self.database = brokers, database
        self._start: Callable[[], RelayProcess] = lambda: RelayProcess(
            folder, name, relay, brokers.bootstrap
        )
        self.relays = [self._start(), self._start()]
        self.done: list[str] = []

    def fail(self) -> None:
        """Inject one fault, and heal it."""
        faults: list[Callable[[], None]] = [
            self._kill_relay,
            self._kill_relay,
            self._freeze_relay,
            self._kill_broker,
            self._freeze_broker,
        ]
        if self.database is not None:
            faults += [self._kill_database, self._freeze_database]
        fault = self.dice.choice(faults)
        self.done.append(fault.__name__)
        fault()

    def close(self) -> None:
        for relay in self.relays:
            relay.process.send_signal(signal.SIGCONT)
            relay.process.kill()
            relay.process.wait()

    def _kill_relay(self) -> None:
        number = self.dice.randrange(2)
        self.relays[number].end(signal.SIGKILL)
        self.relays[number] = self._start()

    def _freeze_relay(self) -> None:
        """Freeze one until the other has taken over, then let it wake up as a zombie."""
        process = self.dice.choice(self.relays).process
        process.send_signal(signal.SIGSTOP)
        self._wait(6)
        process.send_signal(signal.SIGCONT)

    def _kill_broker(self) -> None:
        node = self.dice.choice(self.brokers.nodes)
        node.kill()
        self._wait(3)
        node.start()

    def _freeze_broker(self) -> None:
        node = self.dice.choice(self.brokers.nodes)
        node.pause()
        self._wait(8)
        node.resume()

    def _kill_database(self) -> None:
        assert self.database is not None
        self.database.kill()
        self._wait(2)
        self.database.start()

    def _freeze_database(self) -> None:
        assert self.database is not None
        self.database.pause()
        self._wait(5)
        self.database.resume()

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds * self.dice.random())


def _work(shop: PrintShop, ended: threading.Event, seed: int) -> None:
    """Work until the end, whatever happens to the database. The table knows what was committed."""
    while not ended.is_set():
        try:
            shop.work(20, seed=seed)
        except errors.InstepError:
            ended.wait(0.2)
        seed += 100


def _work_late(shop: PrintShop, ended: threading.Event) -> None:
    """Keep transactions open while many others commit."""
    number = 0
    while not ended.is_set():
        number += 1
        try:
            with SourceConnection(shop.relay.source) as opened, opened.transaction():
                shop.change(opened, f"late-{number % 3}")
                ended.wait(LATE_S)
        except errors.InstepError:
            ended.wait(0.2)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "mysql"])
def test_faults_lose_and_repeat_nothing(
    kind: str,
    three_brokers: LocalCluster,
    tmp_path: Path,
    new_database: Callable[[str], str],
) -> None:
    with ExitStack() as resources:
        server: Server | None = None
        if kind == "postgres":
            server = resources.enter_context(Postgres())
        elif kind == "mariadb":
            server = resources.enter_context(MariaDB())
        url = server.url if isinstance(server, Postgres | MariaDB) else new_database(kind)
        cluster = resources.enter_context(Cluster(settings.Kafka(), three_brokers.bootstrap))
        name, relay = declare(url, cluster)
        shop = PrintShop(relay, name)
        shop.add_documents("late-0", "late-1", "late-2")
        stage = Stage(tmp_path, name, relay, three_brokers, server, seed=7)
        resources.callback(stage.close)
        ended = threading.Event()
        pool = resources.enter_context(ThreadPoolExecutor(4))
        resources.callback(ended.set)
        for number in range(3):
            pool.submit(_work, shop, ended, number)
        if kind != "sqlite":  # one writer at a time
            pool.submit(_work_late, shop, ended)
        wait_until(lambda: bool(published(cluster, relay.topic)), "the first records")
        until = time.monotonic() + FAULTS_S
        while time.monotonic() < until:
            stage.fail()
        ended.set()
        pool.shutdown()
        wait_until(agrees(shop, cluster, relay.topic), "all records", PATIENCE_S)
        rows = sum(shop.counts().values())
        print(kind, rows, "rows;", len(stage.done), "faults:", stage.done)  # noqa: T201
        assert not difference(shop, cluster, relay.topic)
