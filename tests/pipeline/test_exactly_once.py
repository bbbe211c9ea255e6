"""Test exactly-once: kill the driver at every step of the transaction, and the servers too.

Five pipelines read one topic: exactly-once into SQLite, PostgreSQL and MariaDB, and the two weaker
guarantees. None has an order, so the guard hides nothing: an event that is applied twice raises its
document's counter, by a trigger of the target table. The weaker guarantees must be seen to repeat
and to lose events; otherwise the test could not detect a fault.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
PAUSE_S = 0.1  # between two rounds of publishing, so that the five pipelines can keep up
STEPS = (1, 4, 6, 7, 8, 9)  # 2, 3 and 5 only compute: the database does not see them
# 8 exists only in a single transaction; at 7 one guarantee repeats and the other loses
WEAK_STEPS = (7, 1, 9, 4, 6)
EXACT = ("exact-sqlite", "exact-postgres", "exact-mariadb")
WEAK = ("least", "most")
# In each round every pipeline stops at a different step. Two rounds reach each step; six reach
# each step on each database.
ROUNDS = 2
RANDOM_KILLS = 1

COUNTERS = {
    "sqlite": [
        "ALTER TABLE document ADD COLUMN writes INTEGER NOT NULL DEFAULT 0",
        "CREATE TRIGGER count_writes AFTER UPDATE OF status ON document BEGIN"
        " UPDATE document SET writes = writes + 1 WHERE doc_no = NEW.doc_no; END",
    ],
    "postgresql": [
        "ALTER TABLE document ADD COLUMN writes INTEGER NOT NULL DEFAULT 0",
        (
            "CREATE FUNCTION count_writes() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN NEW.writes = OLD.writes + 1; RETURN NEW; END'"
        ),
        (
            "CREATE TRIGGER count_writes BEFORE UPDATE ON document FOR EACH ROW"
            " EXECUTE FUNCTION count_writes()"
        ),
    ],
    "mariadb": [
        "ALTER TABLE document ADD COLUMN writes INTEGER NOT NULL DEFAULT 0",
        (
            "CREATE TRIGGER count_writes BEFORE UPDATE ON document FOR EACH ROW"
            " SET NEW.writes = OLD.writes + 1"
        ),
    ],
}


class Harness:
    """The servers, the settings, what was published, and the expected result."""

    def __init__(
        self,
        folder: Path,
        engine: settings.EngineName,
        brokers: kafka.LocalCluster,
        postgres: Postgres,
        mariadb: MariaDB,
    ) -> None:
        self.engine = engine
        self.folder, self.brokers, self.postgres, self.mariadb = folder, brokers, postgres, mariadb
        self.urls = {
            "exact-sqlite": f"sqlite:///{folder}/exact.db",
            "exact-postgres": postgres.url,
            "exact-mariadb": mariadb.url,
            "least": f"sqlite:///{folder}/least.db",
            "most": f"sqlite:///{folder}/most.db",
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
            run_sql(self.urls[name], *COUNTERS[self.urls[name].partition(":")[0]])

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
        return int(
            run_sql(self.urls[name], "SELECT COALESCE(SUM(next_offset), 0) FROM instep_ledger")[0][
                0
            ]
        )

    def rows(self, name: str) -> dict[str, tuple[str, int]]:
        return {
            row[0]: (row[1], row[2])
            for row in run_sql(self.urls[name], "SELECT doc_no, status, writes FROM document")
        }

    def expected(self) -> dict[str, str]:
        singles = {f"single-{number:06}": "S" for number in range(self.singles)}
        return singles | {
            f"traveller-{number}": f"S{self.versions}" for number in range(TRAVELLERS)
        }

    def _settings(self) -> str:
        guarantees = {"least": "at-least-once", "most": "at-most-once"}
        pipelines = {
            name: {
                "topic": "status",
                "engine": self.engine,
                "target": url,
                "table": "document",
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


def wait(reached: Callable[[], bool], process: PipelineProcess) -> None:
    def is_reached() -> bool:
        if reached():
            return True
        assert process.poll() is None, f"the pipeline ended:\n{process.tail()}"
        return False

    assert wait_until(is_reached, PATIENCE_S), f"nothing happened:\n{process.tail()}"


@pytest.fixture(params=["resident", "micro-batch"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    with kafka.LocalCluster() as brokers, Postgres() as postgres, MariaDB() as mariadb:
        made = Harness(tmp_path, request.param, brokers, postgres, mariadb)
        made.prepare()
        yield made


def steps_of(number: int, rounds: int) -> dict[str, int]:
    """Return the step at which each pipeline is killed in one of the rounds."""
    first = number * (len(STEPS) // rounds)
    exact = {name: STEPS[(first + index) % len(STEPS)] for index, name in enumerate(EXACT)}
    return exact | dict.fromkeys(WEAK, WEAK_STEPS[number % len(WEAK_STEPS)])


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
    before = harness.applied("exact-sqlite")
    with flow(harness), harness.process() as process:
        wait(lambda: harness.applied("exact-sqlite") > before, process)
        moment = time.monotonic() + 3 * dice.random()
        wait(lambda: time.monotonic() > moment, process)
        process.kill()


def kill_servers(harness: Harness) -> None:
    """Kill and restart each database, then the broker, while one pipeline process survives."""
    with harness.process() as process:
        with flow(harness):
            for server, name in (
                (harness.postgres, "exact-postgres"),
                (harness.mariadb, "exact-mariadb"),
                (harness.brokers, "exact-sqlite"),
            ):
                before = harness.applied(name)
                wait(lambda name=name, before=before: harness.applied(name) > before, process)  # type: ignore[misc]
                server.kill()
                server.start()
                back = harness.applied(name)
                wait(lambda name=name, back=back: harness.applied(name) > back, process)  # type: ignore[misc]
        wait(lambda: all(harness.applied(name) == harness.events for name in harness.urls), process)
        assert process.stop(60) == 0


@pytest.mark.timeout(900)
def test_kills_at_every_step_lose_and_repeat_nothing(harness: Harness) -> None:
    dice = random.Random(1)
    rounds = [steps_of(number, ROUNDS) for number in range(ROUNDS)]
    assert {steps[name] for steps in rounds for name in EXACT} == set(STEPS)
    for number, steps in enumerate(rounds):
        kill_at(harness, number, steps)
    for _ in range(RANDOM_KILLS):
        kill_at_random(harness, dice)
    kill_servers(harness)

    expected = harness.expected()
    with Cluster(settings.Kafka(), harness.brokers.bootstrap) as cluster:
        ends = offsets.latest(cluster, "status", range(PARTITIONS))
    for name in EXACT:
        found = harness.rows(name)
        assert {document: row[0] for document, row in found.items()} == expected, name
        assert (
            sum(row[1] for document, row in found.items() if document.startswith("single")) == 0
        ), f"{name} repeated events"
        assert history(harness, name) == {
            (partition, offset) for partition, end in ends.items() for offset in range(end)
        }
        assert ledger(harness, name) == ends
        waiting = run_sql(
            harness.urls[name],
            "SELECT document, count(*) FROM instep_parked GROUP BY document ORDER BY document",
        )
        assert waiting == [(f"parked-{number}", harness.versions) for number in range(PARKED)], name
    least, most = harness.rows("least"), harness.rows("most")
    assert least.keys() == expected.keys(), "at-least-once lost events"
    assert sum(row[1] for document, row in least.items() if document.startswith("single")) > 0, (
        "no repetition was provoked"
    )
    assert sum(row[1] for document, row in most.items() if document.startswith("single")) == 0, (
        "at-most-once repeated events"
    )
    assert most.keys() < expected.keys(), "no loss was provoked"


def history(harness: Harness, name: str) -> set[tuple[int, int]]:
    places = [
        tuple(row)
        for row in run_sql(
            harness.urls[name], f"SELECT {quoted(harness, name)} FROM instep_history"
        )
    ]
    assert len(places) == len(set(places))
    return set(places)


def ledger(harness: Harness, name: str) -> dict[int, int]:
    partition = quoted(harness, name).partition(",")[0]
    return {
        row[0]: row[1]
        for row in run_sql(
            harness.urls[name], f"SELECT {partition}, next_offset FROM instep_ledger"
        )
    }


def quoted(harness: Harness, name: str) -> Any:
    return (
        "`partition`, `offset`"
        if harness.urls[name].startswith("mariadb")
        else 'partition, "offset"'
    )
