"""Kill pipelines with a transformation at every step of the transaction: nothing lost or repeated.

One filters records, the other splits them. Neither has an order, so the guard hides nothing: an
event that is applied twice raises its document's counter, by a trigger of the table.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w
from confluent_kafka import Producer

from instep import settings
from instep.demo.pipeline_process import PipelineProcess
from instep.kafka import offsets
from instep.kafka.connection import Cluster
from instep.pipeline.runner import Runner
from instep.sinks import preparation
from instep.waiting import wait_until
from tests.support import probes
from tests.support.databases import run_sql
from tests.support.pipelines import drained
from tests.support.producing import IN_ORDER

PATIENCE_S = 180.0
STEPS = (1, 4, 6, 7, 8, 9)  # 2, 3 and 5 only compute: the database does not see them
PARTITIONS = 3
RECORDS = 60  # of a round and partition
DOCUMENTS = 7
SCHEMA = "'no INT, wanted BOOLEAN, items ARRAY<STRUCT<doc STRING, state STRING>>'"
PARSED = f"(SELECT from_json(value, {SCHEMA}) AS o FROM records)"
TRANSFORMATIONS = {
    "filtering": f"SELECT o.items[0].doc AS doc, o.items[0].state AS state FROM {PARSED}"
    " WHERE o.wanted",
    "splitting": f"SELECT item.doc, item.state FROM {PARSED}"
    " LATERAL VIEW explode(o.items) AS item WHERE o.no % 10 <> 9",
}
COUNTER = (
    "ALTER TABLE {name} ADD COLUMN writes INTEGER NOT NULL DEFAULT 0",
    "CREATE TRIGGER count_{name} AFTER UPDATE OF state ON {name} BEGIN"
    " UPDATE {name} SET writes = writes + 1 WHERE doc_no = NEW.doc_no; END",
)


class TransformedRun:
    """Both pipelines, each with a database of its own, and the events that must be applied."""

    def __init__(self, folder: Path, cluster: Cluster, topic: str) -> None:
        self.folder, self.cluster, self.topic = folder, cluster, topic
        self.urls = {name: f"sqlite:///{folder}/{name}.db" for name in TRANSFORMATIONS}
        self.config = folder / "instep.toml"
        pipelines = {
            name: {
                "topic": topic,
                "target": self.urls[name],
                "table": name,
                "key": "doc_no",
                "event": {"document": "doc", "status": "state"},
                "columns": {"state": "state"},
                "transform": {"sql": sql},
            }
            for name, sql in TRANSFORMATIONS.items()
        }
        kafka = {"bootstrap": cluster.bootstrap}
        self.config.write_text(tomli_w.dumps({"kafka": kafka, "pipelines": pipelines}))
        self.declared = settings.load(self.config)
        self.expected: dict[str, list[tuple[str, str]]] = {name: [] for name in TRANSFORMATIONS}
        self._number = 0
        for name, pipeline in self.declared.pipelines.items():
            preparation.prepare(pipeline)
            run_sql(self.urls[name], *(one.format(name=name) for one in COUNTER))

    def publish(self) -> None:
        """Publish records of which some have no result, and some several."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, **IN_ORDER})
        for partition in range(PARTITIONS):
            for _ in range(RECORDS):
                number, self._number = self._number, self._number + 1
                items = [
                    {"doc": f"{partition}-{(number + one) % DOCUMENTS}", "state": f"{number}.{one}"}
                    for one in range(number % 4 + 1)
                ]
                value = {"no": number, "wanted": number % 3 == 0, "items": items}
                producer.produce(self.topic, json.dumps(value), "k", partition=partition)
                if value["wanted"]:
                    self.expected["filtering"].append((items[0]["doc"], items[0]["state"]))
                if number % 10 != 9:
                    self.expected["splitting"] += [(one["doc"], one["state"]) for one in items]
        assert producer.flush(30) == 0

    def kill_at(self, number: int, steps: dict[str, int]) -> None:
        """Run until each pipeline has reached its step, then kill -9: the driver, or all."""
        folder = self.folder / f"round-{number}"
        folder.mkdir()
        self.publish()
        environment = {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "INSTEP_PROBE": "tests.support.probes:hold",
            probes.FOLDER: str(folder),
            probes.STEPS: json.dumps(steps),
        }
        log = self.folder / "run.log"
        arguments = ("--master", "local[6]")
        with PipelineProcess(self.config, *arguments, log=log, environment=environment) as process:

            def reached() -> bool:
                assert process.poll() is None, process.tail()
                return {entry.name for entry in folder.iterdir()} >= steps.keys()

            assert wait_until(reached, PATIENCE_S), process.tail()
            if number % 2:
                process.kill()
            else:
                process.signal(signal.SIGKILL)

    def check(self) -> None:
        """Compare tables, counters, history and ledger with what was published."""
        ends = offsets.latest(self.cluster, self.topic, range(PARTITIONS))
        for name, expected in self.expected.items():
            url = self.urls[name]
            events = Counter(document for document, _ in expected)
            rows = run_sql(url, f"SELECT doc_no, state FROM {name}")
            assert dict(rows) == dict(expected), name
            history = run_sql(url, "SELECT document, verdict FROM instep_history")
            assert Counter(history) == Counter((one, "applied") for one in events.elements()), name
            positions = run_sql(url, "SELECT partition, next_offset FROM instep_ledger")
            assert dict(positions) == ends, name
            totals = run_sql(url, "SELECT totals FROM instep_ledger")
            assert sum(json.loads(one)["applied"] for (one,) in totals) == len(expected), name
            assert sum(json.loads(one)["records"] for (one,) in totals) == self._number, name
            assert run_sql(url, "SELECT count(*) FROM instep_dead_letters") == [(0,)]


def rounds(count: int) -> list[dict[str, int]]:
    """Return the step at which each pipeline is killed, in each round."""
    return [
        {"filtering": STEPS[number % len(STEPS)], "splitting": STEPS[(number + 2) % len(STEPS)]}
        for number in range(count)
    ]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "kills", [pytest.param(1, id="short"), pytest.param(24, id="complete", marks=pytest.mark.long)]
)
def test_kills_lose_and_repeat_no_result(
    tmp_path: Path,
    cluster: Cluster,
    topic: str,
    runner: Callable[..., Runner],
    kills: int,
) -> None:
    run = TransformedRun(tmp_path, cluster, topic)
    for number, steps in enumerate(rounds(kills)):
        run.kill_at(number, steps)
    for name, pipeline in run.declared.pipelines.items():
        drained(runner(pipeline, name, once=True))
    run.check()
