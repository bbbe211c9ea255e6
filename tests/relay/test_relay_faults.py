"""Kill and freeze everything between a source and a target at random: they agree at the end.

Two processes of a relay publish the outbox of the source, and `instep run` applies the topic to the
target. Relays, run, brokers and database fail, and a third relay ignores the lease. A MySQL server
of the tests belongs to somebody else, so its connections are killed in its place.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from instep import errors, settings
from instep.demo.pipeline_process import PipelineProcess
from instep.kafka.connection import Cluster
from instep.local.broker import LocalCluster
from instep.local.mariadb import MariaDB
from instep.local.postgres import Postgres
from instep.local.server import Server
from instep.sinks import preparation
from instep.sources.connection import SourceConnection
from tests.support import databases, lawless_relay
from tests.support.databases import run_sql
from tests.support.print_shop import PrintShop, agrees, difference, published
from tests.support.relays import RelayProcess, declare
from tests.support.waiting import wait_until

SEED = int(os.environ.get("INSTEP_TEST_RELAY_SEED", "7"))
FAULTS_S = float(os.environ.get("INSTEP_TEST_RELAY_SECONDS", "60"))
LATE_S = float(os.environ.get("INSTEP_TEST_RELAY_LATE_S", "10"))  # of the long transactions
PATIENCE_S = 180.0
PIPELINE: dict[str, Any] = {
    "table": "contract_document",
    "key": "doc_no",
    "event": {"document": "doc_id", "status": "status", "order": "version"},
    "columns": {"print_status": "status", "print_version": "version"},
}


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


class Stage:
    """Relays, a pipeline, three brokers and a database, all of which may fail."""

    def __init__(
        self,
        folder: Path,
        shop: PrintShop,
        brokers: LocalCluster,
        database: Server | None,
        run: PipelineProcess,
    ) -> None:
        self.dice = random.Random(SEED)
        self.brokers, self.database, self.run = brokers, database, run
        self.source = shop.relay.source

        def start(module: str = "instep") -> RelayProcess:
            return RelayProcess(folder, shop.name, shop.relay, brokers.bootstrap, module=module)

        self._start = start
        self.relays = [start(), start()]
        self.done: Counter[str] = Counter()

    def fail(self) -> None:
        """Inject one fault, and heal it."""
        faults: list[Callable[[], None]] = [
            self._kill_relay,
            self._kill_relay,
            self._freeze_relay,
            self._ignore_lease,
            self._kill_broker,
            self._freeze_broker,
            self._kill_run,
        ]
        if self.database is not None:
            faults += [self._kill_database, self._freeze_database]
        elif not self.source.startswith("sqlite"):
            faults += [self._kill_connections, self._kill_connections]
        fault = self.dice.choice(faults)
        self.done[fault.__name__.removeprefix("_")] += 1
        fault()
        self.supervise()

    def supervise(self) -> None:
        """Start a run again that found no server at its start. Nothing else may end by itself."""
        for relay in self.relays:
            assert relay.process.poll() is None, relay.log.read_text(encoding="utf-8")[-3000:]
        status = self.run.poll()
        if status is not None:
            assert status == errors.Unreachable.exit_status, self.run.tail()
            self.done["run ended at its start"] += 1
            self.run.kill()
            self.run.start()

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

    def _ignore_lease(self) -> None:
        """Let a third process publish beside the active one, then kill it."""
        relay = self._start(lawless_relay.MODULE)
        try:
            self._wait(12)  # it takes a second or more to start
            assert relay.process.poll() is None, relay.log.read_text(encoding="utf-8")[-3000:]
        finally:
            relay.end(signal.SIGKILL)

    def _kill_run(self) -> None:
        self.run.kill()
        self._wait(2)
        self.run.start()

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

    def _kill_connections(self) -> None:
        """Kill all connections of MySQL to the database."""
        with SourceConnection(self.source) as opened:
            found = opened.select(
                "SELECT id FROM information_schema.processlist"
                " WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            )
            for (number,) in found:
                with suppress(errors.InstepError):  # it has ended meanwhile
                    opened.run(f"KILL CONNECTION {number}")
        self._wait(2)

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


def _pipeline(folder: Path, bootstrap: str, topic: str, target: str) -> PipelineProcess:
    """Prepare the target; return the process that follows the topic. It is not started."""
    declared = {**PIPELINE, "topic": topic, "target": target}
    preparation.prepare(databases.declare(target, topic=topic, **PIPELINE), add_columns=True)
    folder.mkdir()
    config = folder / "instep.toml"
    text = tomli_w.dumps({"kafka": {"bootstrap": bootstrap}, "pipelines": {"contracts": declared}})
    config.write_text(text, encoding="utf-8")
    return PipelineProcess(config, "contracts", log=folder / "run.log")


def _applied(target: str) -> dict[str, int]:
    """Return the version of each document in the target."""
    return dict(run_sql(target, "SELECT doc_no, print_version FROM contract_document"))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "mysql"])
def test_source_and_target_agree_after_faults_everywhere(
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
        # SQLite has one writer at a time, which would be the source's or the pipeline.
        target = f"sqlite:///{tmp_path}/contracts.db" if kind == "sqlite" else url
        cluster = resources.enter_context(Cluster(settings.Kafka(), three_brokers.bootstrap))
        name, relay = declare(url, cluster)
        shop = PrintShop(relay, name)
        shop.add_documents("late-0", "late-1", "late-2")
        run = _pipeline(tmp_path / "run", three_brokers.bootstrap, relay.topic, target)
        resources.callback(run.kill)
        run.start()
        stage = Stage(tmp_path, shop, three_brokers, server, run)
        resources.callback(stage.close)
        ended = threading.Event()
        pool = resources.enter_context(ThreadPoolExecutor(4))
        resources.callback(ended.set)
        writers = [pool.submit(_work, shop, ended, 1_000 * SEED + number) for number in range(3)]
        if kind != "sqlite":  # one writer at a time
            writers.append(pool.submit(_work_late, shop, ended))
        wait_until(lambda: bool(published(cluster, relay.topic)), "the first records")
        wait_until(lambda: bool(_applied(target)), "the first rows of the target", PATIENCE_S)
        until = time.monotonic() + FAULTS_S
        while time.monotonic() < until:
            stage.fail()
        ended.set()
        for writer in writers:
            writer.result()  # a writer that ended early would make the test easier
        healed_at = time.monotonic()
        wait_until(agrees(shop, cluster, relay.topic), "all records", PATIENCE_S)
        counts = shop.counts()

        def is_applied() -> bool:
            stage.supervise()
            return _applied(target) == counts

        wait_until(is_applied, "all rows of the target", PATIENCE_S)
        settled_s = time.monotonic() - healed_at
        rows = sum(counts.values())
        print(f"{kind}, seed {SEED}: {rows} events; {stage.done}; settled in {settled_s:.1f} s")  # noqa: T201
        assert not difference(shop, cluster, relay.topic)
        verdicts = run_sql(target, "SELECT verdict, count(*) FROM instep_history GROUP BY verdict")
        assert verdicts == [("applied", rows)]
