"""Test exactly-once: kill the driver at every step of the transaction, and the servers too.

Up to five pipelines of each engine read one topic in one run: exactly-once into SQLite, PostgreSQL
and MariaDB, and the two weaker guarantees. None has an order, so the guard hides nothing: an event
that is applied twice raises its document's counter, by a trigger of the target table. The weaker
guarantees must be seen to repeat and to lose events; otherwise the test could not detect a fault.
The steps and the guarantees lie behind the applier: in short runs, the resident engine shows all of
them, and micro-batches write to one database only.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w

from instep import errors, settings
from instep.demo.pipeline_process import PipelineProcess
from instep.emit import Publisher, StatusEvent
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.local import broker as kafka
from instep.local.mariadb import MariaDB
from instep.local.postgres import Postgres
from instep.sinks import preparation
from instep.waiting import wait_until
from tests.support import probes
from tests.support.databases import run_sql

PARTITIONS = 2
SINGLES = 40
TRAVELLERS = 10
PARKED = 5
TOO_LONG = "S" * 256
PATIENCE_S = 120.0
PAUSE_S = 1.0  # between two rounds of publishing: each costs every micro-batch query a batch
STEPS = (1, 4, 6, 7, 8, 9)  # 2, 3 and 5 only compute: the database does not see them
# 8 exists only in a single transaction; at 7 one guarantee repeats and the other loses
WEAK_STEPS = (7, 1, 9, 4, 6)
ENGINES = ("resident", "micro-batch")
DATABASES = ("sqlite", "postgresql", "mariadb")
EXACT = tuple(f"{engine}-{database}" for engine in ENGINES for database in DATABASES)
# In each round every pipeline of an engine stops at a different step. Two rounds reach each step;
# six reach each step on each database.
ROUNDS = 2


@dataclass(frozen=True)
class Extent:
    """Where micro-batches write, and which engines run the weaker guarantees too.

    And how often the run is killed at random.
    """

    micro_batch: tuple[str, ...]
    weak_engines: tuple[str, ...]
    random_kills: int

    @property
    def exact(self) -> tuple[str, ...]:
        """Return the pipelines that are exactly-once."""
        databases = {"resident": DATABASES, "micro-batch": self.micro_batch}
        return tuple(name for name in EXACT if _database(name) in databases[_engine(name)])

    @property
    def least(self) -> tuple[str, ...]:
        return tuple(f"{engine}-least" for engine in self.weak_engines)

    @property
    def most(self) -> tuple[str, ...]:
        return tuple(f"{engine}-most" for engine in self.weak_engines)


def _engine(name: str) -> str:
    return name.rpartition("-")[0]


def _database(name: str) -> str:
    return name.rpartition("-")[2]


# MariaDB, since micro-batches into it are killed in the middle of the transaction, and after it
SHORT = Extent(micro_batch=("mariadb",), weak_engines=("resident",), random_kills=0)
COMPLETE = Extent(micro_batch=DATABASES, weak_engines=ENGINES, random_kills=1)

# every pipeline has its own table, with this name
COUNTERS = {
    "sqlite": [
        "ALTER TABLE {table} ADD COLUMN writes INTEGER NOT NULL DEFAULT 0",
        "CREATE TRIGGER count_{table} AFTER UPDATE OF status ON {table} BEGIN"
        " UPDATE {table} SET writes = writes + 1 WHERE doc_no = NEW.doc_no; END",
    ],
    "postgresql": [
        "ALTER TABLE {table} ADD COLUMN writes INTEGER NOT NULL DEFAULT 0",
        (
            "CREATE OR REPLACE FUNCTION count_writes() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN NEW.writes = OLD.writes + 1; RETURN NEW; END'"
        ),
        (
            "CREATE TRIGGER count_writes BEFORE UPDATE ON {table} FOR EACH ROW"
            " EXECUTE FUNCTION count_writes()"
        ),
    ],
    "mariadb": [
        "ALTER TABLE {table} ADD COLUMN writes INTEGER NOT NULL DEFAULT 0",
        (
            "CREATE TRIGGER count_{table} BEFORE UPDATE ON {table} FOR EACH ROW"
            " SET NEW.writes = OLD.writes + 1"
        ),
    ],
}


class Harness:
    """The servers, the settings, what was published, and the expected result."""

    def __init__(
        self,
        folder: Path,
        brokers: kafka.LocalCluster,
        postgres: Postgres,
        mariadb: MariaDB,
        extent: Extent,
    ) -> None:
        self.extent = extent
        self.folder, self.brokers, self.postgres, self.mariadb = folder, brokers, postgres, mariadb
        servers = {"postgresql": postgres.url, "mariadb": mariadb.url}
        self.urls = {
            name: servers.get(_database(name), f"sqlite:///{folder}/{name}.db")
            for name in (*extent.exact, *extent.least, *extent.most)
        }
        self.config = folder / "instep.toml"
        self.config.write_text(self._settings(), encoding="utf-8")
        self.declared = settings.load(self.config)
        self.singles = 0
        self.versions = 0
        self.events = 0

    def prepare(self) -> None:
        with Cluster(settings.Kafka(), self.brokers.bootstrap) as cluster:
            topics.create(cluster, "status", PARTITIONS)
        for name, pipeline in self.declared.pipelines.items():
            preparation.prepare(pipeline)
            statements = COUNTERS[self.urls[name].partition(":")[0]]
            run_sql(self.urls[name], *(one.format(table=table(name)) for one in statements))

    def publish(self) -> None:
        """Publish new documents with one event each, and one more event for the others.

        The others are the travellers and the parked documents.
        """
        # the broker may be killed and restarted
        with Publisher(self.brokers.bootstrap, "status", flush_timeout_s=PATIENCE_S) as publisher:
            self.versions += 1
            for _ in range(SINGLES):
                publisher.send(StatusEvent(document=f"single-{self.singles:06}", status="S"))
                self.singles += 1
            for number in range(TRAVELLERS):
                publisher.send(
                    StatusEvent(document=f"traveller-{number}", status=f"S{self.versions}")
                )
            for number in range(PARKED):
                publisher.send(StatusEvent(document=f"parked-{number}", status=TOO_LONG))
        self.events += SINGLES + TRAVELLERS + PARKED

    def process(self, **environment: str) -> PipelineProcess:
        return PipelineProcess(
            self.config,
            "--master",
            "local[10]",
            log=self.folder / "run.log",
            environment=environment,
        )

    def applied(self, name: str) -> int:
        positions = run_sql(
            self.urls[name], f"SELECT next_offset FROM instep_ledger WHERE pipeline = '{name}'"
        )
        return sum(int(row[0]) for row in positions)

    def rows(self, name: str) -> dict[str, tuple[str, int]]:
        return {
            row[0]: (row[1], row[2])
            for row in run_sql(self.urls[name], f"SELECT doc_no, status, writes FROM {table(name)}")
        }

    def expected(self) -> dict[str, str]:
        singles = {f"single-{number:06}": "S" for number in range(self.singles)}
        return singles | {
            f"traveller-{number}": f"S{self.versions}" for number in range(TRAVELLERS)
        }

    def _settings(self) -> str:
        guarantees = dict.fromkeys(self.extent.least, "at-least-once")
        guarantees |= dict.fromkeys(self.extent.most, "at-most-once")
        pipelines = {
            name: {
                "topic": "status",
                "engine": _engine(name),
                "target": url,
                "table": table(name),
                "key": "doc_no",
                "guarantee": guarantees.get(name, "exactly-once"),
                "event": {"status": "status"},
                "columns": {"status": "status"},
            }
            for name, url in self.urls.items()
        }
        return tomli_w.dumps(
            {"kafka": {"bootstrap": self.brokers.bootstrap}, "pipelines": pipelines}
        )


def table(name: str) -> str:
    return name.replace("-", "_")


def wait(reached: Callable[[], bool], process: PipelineProcess) -> None:
    def is_reached() -> bool:
        if reached():
            return True
        assert process.poll() is None, f"the pipeline ended:\n{process.tail()}"
        return False

    # checked seldom: it asks every database
    assert wait_until(is_reached, PATIENCE_S, interval_s=0.25), (
        f"nothing happened:\n{process.tail()}"
    )


@pytest.fixture(
    params=[
        pytest.param(SHORT, id="short"),
        pytest.param(COMPLETE, id="complete", marks=pytest.mark.long),
    ]
)
def harness(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Harness]:
    with kafka.LocalCluster() as brokers, Postgres() as postgres, MariaDB() as mariadb:
        made = Harness(tmp_path, brokers, postgres, mariadb, request.param)
        made.prepare()
        yield made


def steps_of(number: int, rounds: int, extent: Extent) -> dict[str, int]:
    """Return the step at which each pipeline is killed in one of the rounds."""
    weak = (*extent.least, *extent.most)
    first = number * (len(STEPS) // rounds)
    exact = {
        name: STEPS[(first + index) % len(STEPS)]
        for index, name in enumerate(EXACT)
        if name in extent.exact
    }
    return exact | dict.fromkeys(weak, WEAK_STEPS[number % len(WEAK_STEPS)])


def kill_at(harness: Harness, number: int, steps: dict[str, int]) -> None:
    """Run until every pipeline has reached its step, then kill -9.

    Kill the driver alone in some rounds, and the driver and all its processes in the others.
    """
    folder = harness.folder / f"round-{number}"
    folder.mkdir()
    harness.publish()
    variables = {
        "INSTEP_PROBE": "tests.support.probes:hold",
        probes.FOLDER: str(folder),
        probes.STEPS: json.dumps(steps),
    }
    with harness.process(PYTHONPATH=str(Path(__file__).parents[2]), **variables) as process:
        wait(lambda: {entry.name for entry in folder.iterdir()} >= set(steps), process)
        if number % 2:
            process.kill()
        else:
            process.signal(signal.SIGKILL)


@contextmanager
def flow(harness: Harness) -> Iterator[None]:
    """Publish repeatedly until the block ends."""
    over = threading.Event()

    def publish() -> None:
        while not over.wait(PAUSE_S):
            # while the broker is down, nothing is sent and nothing counted
            with contextlib.suppress(errors.BrokerUnreachable):
                harness.publish()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def kill_at_random(harness: Harness, dice: random.Random) -> None:
    """Kill -9 in the middle of the flow, at a random moment."""
    before = {name: harness.applied(name) for name in harness.urls}
    with flow(harness), harness.process() as process:
        wait(lambda: all(harness.applied(name) > before[name] for name in before), process)
        moment = time.monotonic() + 3 * dice.random()
        wait(lambda: time.monotonic() > moment, process)
        process.kill()


def kill_servers(harness: Harness) -> None:
    """Kill and restart each database, then the broker, while one pipeline process survives."""
    with harness.process() as process:
        with flow(harness):
            for server, database in (
                (harness.postgres, "postgresql"),
                (harness.mariadb, "mariadb"),
                (harness.brokers, "sqlite"),
            ):
                names = [name for name in harness.extent.exact if _database(name) == database]
                wait_for_more(harness, names, process)
                server.kill()
                server.start()
                wait_for_more(harness, names, process)
        wait(lambda: all(harness.applied(name) == harness.events for name in harness.urls), process)
        assert process.stop(60) == 0


def wait_for_more(harness: Harness, names: Sequence[str], process: PipelineProcess) -> None:
    before = {name: harness.applied(name) for name in names}
    wait(lambda: all(harness.applied(name) > before[name] for name in names), process)


@pytest.mark.timeout(900)
def test_kills_at_every_step_lose_and_repeat_nothing(harness: Harness) -> None:
    dice = random.Random(1)
    extent = harness.extent
    rounds = [steps_of(number, ROUNDS, extent) for number in range(ROUNDS)]
    for engine in ENGINES if extent is COMPLETE else ENGINES[:1]:
        reached = {steps[f"{engine}-{name}"] for steps in rounds for name in DATABASES}
        assert reached == set(STEPS)
    for number, steps in enumerate(rounds):
        kill_at(harness, number, steps)
    for _ in range(extent.random_kills):
        kill_at_random(harness, dice)
    kill_servers(harness)

    expected = harness.expected()
    with Cluster(settings.Kafka(), harness.brokers.bootstrap) as cluster:
        ends = offsets.latest(cluster, "status", range(PARTITIONS))
    for name in extent.exact:
        found = harness.rows(name)
        assert {document: row[0] for document, row in found.items()} == expected, name
        assert repetitions(found) == 0, f"{name} repeated events"
        assert history(harness, name) == {
            (partition, offset) for partition, end in ends.items() for offset in range(end)
        }
        assert ledger(harness, name) == ends
        waiting = run_sql(
            harness.urls[name],
            f"SELECT document, count(*) FROM instep_parked WHERE pipeline = '{name}'"
            " GROUP BY document ORDER BY document",
        )
        assert waiting == [(f"parked-{number}", harness.versions) for number in range(PARKED)], name
    for name in extent.least:
        found = harness.rows(name)
        assert found.keys() == expected.keys(), f"{name} lost events"
        assert repetitions(found) > 0, f"{name}: no repetition was provoked"
    for name in extent.most:
        found = harness.rows(name)
        assert repetitions(found) == 0, f"{name} repeated events"
        assert found.keys() < expected.keys(), f"{name}: no loss was provoked"


def repetitions(found: dict[str, tuple[str, int]]) -> int:
    """Return how often documents with one event were written again."""
    return sum(writes for document, (_, writes) in found.items() if document.startswith("single"))


def history(harness: Harness, name: str) -> set[tuple[int, int]]:
    places = [
        tuple(row)
        for row in run_sql(
            harness.urls[name],
            f"SELECT {quoted(name)} FROM instep_history WHERE pipeline = '{name}'",
        )
    ]
    assert len(places) == len(set(places))
    return set(places)


def ledger(harness: Harness, name: str) -> dict[int, int]:
    partition = quoted(name).partition(",")[0]
    return {
        row[0]: row[1]
        for row in run_sql(
            harness.urls[name],
            f"SELECT {partition}, next_offset FROM instep_ledger WHERE pipeline = '{name}'",
        )
    }


def quoted(name: str) -> str:
    if name.endswith("mariadb"):
        return "`partition`, `offset`"
    return 'partition, "offset"'
