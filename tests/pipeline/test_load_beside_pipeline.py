"""Test `instep load` beside a running pipeline, with a real broker: events keep flowing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from instep.demo.pipeline_process import PipelineProcess
from instep.kafka.connection import Cluster
from instep.operate.row_source import RowSource
from instep.pipeline.runner import Runner
from instep.sinks import preparation
from tests.support.cli import settings_text
from tests.support.databases import run_sql
from tests.support.loading import counts, history, loaded, row, write_lines
from tests.support.pipelines import Prove, following
from tests.support.reconciling import found
from tests.support.runs import event, rows, send
from tests.support.waiting import wait_until

Run = Callable[..., Runner]
NewDatabase = Callable[[str], str]

DOCUMENTS = 600
FOLLOWED = 300  # of these, events bring version 2
LOADED_VERSION = 5
# A million takes a quarter of an hour: INSTEP_TEST_LOAD_ROWS=1000000
LONG_DOCUMENTS = int(os.environ.get("INSTEP_TEST_LOAD_ROWS", "100000"))
LONG_PATIENCE_S = 600.0
KILLS = 8  # of the load; after every second one, the run is killed too


def has_ledger(url: str) -> bool:
    return run_sql(url, "SELECT count(*) FROM instep_ledger") != [(0,)]


def event_count(url: str) -> int:
    """Return how many events of the topic are in the history."""
    [(count,)] = run_sql(url, "SELECT count(*) FROM instep_history WHERE topic NOT LIKE 'load:%'")
    return int(count)


def test_the_newest_wins_beside_a_running_pipeline(
    both_engines: str,
    new_database: NewDatabase,
    topic: str,
    cluster: Cluster,
    runner: Run,
    tmp_path: Path,
) -> None:
    url = new_database("postgres")
    pipeline = following(url, topic)
    runner(pipeline)
    wait_until(lambda: has_ledger(url), "the ledger")
    names = [f"d{n:03}" for n in range(DOCUMENTS)]
    versions = {name: 3 if n % 3 == 0 else 1 for n, name in enumerate(names)}
    file = write_lines(tmp_path / "x.jsonl", [row(name, v) for name, v in versions.items()])
    followed = random.Random(1).sample(names, FOLLOWED)

    def publish() -> None:
        for start in range(0, FOLLOWED, 30):
            send(cluster, topic, *(event(name, 2) for name in followed[start : start + 30]))

    publisher = threading.Thread(target=publish)
    publisher.start()
    report = loaded(pipeline, file, batch_rows=20)
    publisher.join()
    wait_until(lambda: event_count(url) == FOLLOWED, "all events")
    late = set(followed)
    assert rows(url) == [
        (name, "PRINTED", 2)
        if name in late and versions[name] < 2
        else (name, "LOADED", versions[name])
        for name in names
    ]
    assert report.totals["records"] == DOCUMENTS
    assert len(history(url)) == DOCUMENTS


def loaded_rows(url: str) -> int:
    """Return how many rows the load has committed; unlike a count, this is cheap."""
    [(next_offset,)] = run_sql(
        url, "SELECT max(next_offset) FROM instep_ledger WHERE topic LIKE 'load:%'"
    )
    return int(next_offset or 0)


class LiveEvents:
    """Publishes events of some documents until stopped, and knows what the table must hold.

    A document has one event at most, with a version that is lower or higher than the loaded one;
    a few documents have a delete afterwards.
    """

    def __init__(self, cluster: Cluster, topic: str, names: list[str]) -> None:
        self._cluster, self._topic, self._names = cluster, topic, names
        self._dice, self._ended = random.Random(2), threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self.sent = 0
        self.newest: dict[str, int] = {}
        self.deleted: set[str] = set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def expected(self, name: str) -> tuple[str, int]:
        version = self.newest.get(name, 0)
        return ("PRINTED", version) if version > LOADED_VERSION else ("LOADED", LOADED_VERSION)

    def _publish(self) -> None:
        while not self._ended.is_set():
            batch: list[tuple[bytes | None, Any]] = []
            for _ in range(100):
                name = self._dice.choice(self._names)
                if self._dice.random() < 0.02:
                    batch.append((name.encode(), None))
                    self.deleted.add(name)
                elif name not in self.newest and name not in self.deleted:
                    self.newest[name] = self._dice.choice((1, 2, 3, 4, 6, 7, 8, 9))
                    batch.append(event(name, self.newest[name]))
            send(self._cluster, self._topic, *batch)
            self.sent += len(batch)
            time.sleep(0.02)


def offset_counts(url: str, *, of_loads: bool) -> tuple[int, int]:
    """Return how many rows the history has, and how many different places in their sources."""
    quoted = "`offset`" if url.startswith("m") else '"offset"'
    quoted_partition = "`partition`" if url.startswith("m") else '"partition"'
    condition = "LIKE" if of_loads else "NOT LIKE"
    [(count, different)] = run_sql(
        url,
        "SELECT (SELECT count(*) FROM instep_history"
        f" WHERE topic {condition} 'load:%'), (SELECT count(*) FROM (SELECT DISTINCT topic,"
        f" {quoted_partition}, {quoted} FROM instep_history"
        f" WHERE topic {condition} 'load:%') AS places)",
    )
    return int(count), int(different)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["postgres", "mariadb", "sqlite"])
def test_a_large_load_with_live_events_and_kills(
    kind: str,
    new_database: NewDatabase,
    topic: str,
    cluster: Cluster,
    prove: Prove,
    tmp_path: Path,
) -> None:
    """Kill the load and the run at random, while events bring older and newer versions."""
    url = new_database(kind)
    pipeline = following(url, topic)
    preparation.prepare(pipeline, add_columns=True)
    text = settings_text(bootstrap=cluster.bootstrap, topic=topic, target=url)
    config = tmp_path / "instep.toml"
    config.write_text(text, encoding="utf-8")
    names = [f"d{n:07}" for n in range(LONG_DOCUMENTS)]
    file = write_lines(tmp_path / "x.jsonl", (row(name, LOADED_VERSION) for name in names))
    command = [sys.executable, "-m", "instep", "load", "contracts", "--from", str(file)]
    command += ["--execute", "--no-reconcile", "--batch-rows", "500"]
    events = LiveEvents(cluster, topic, names)
    with PipelineProcess(config, "contracts", log=tmp_path / "run.log") as run:
        run.start()
        events.start()
        try:
            wait_until(lambda: event_count(url) > 0, "the first event")
            for number in range(KILLS):
                before = loaded_rows(url) + LONG_DOCUMENTS // (2 * KILLS)
                process = subprocess.Popen(command, cwd=tmp_path, env=dict(os.environ))
                wait_until(
                    lambda before=before, process=process: (  # type: ignore[misc]
                        process.poll() is not None or loaded_rows(url) > before
                    ),
                    "rows of the load",
                    LONG_PATIENCE_S,
                )
                process.kill()
                process.wait()
                if number % 2:
                    run.kill()
                    run.start()
            report = loaded(pipeline, file)
        finally:
            events.stop()
        wait_until(lambda: event_count(url) == events.sent, "all events", LONG_PATIENCE_S)
        assert run.stop(60) == 0
    assert counts(report)["records"] == LONG_DOCUMENTS
    assert offset_counts(url, of_loads=True) == (LONG_DOCUMENTS, LONG_DOCUMENTS)
    assert offset_counts(url, of_loads=False) == (events.sent, events.sent)
    held = {document: (status, version) for document, status, version in rows(url)}
    wrong = [
        name
        for name in names
        if name not in events.deleted and held.get(name) != events.expected(name)
    ]
    assert wrong == []
    assert held.keys() <= set(names)
    compared, listed = prove(pipeline, source=RowSource(file=str(file)), loaded=True, wait_s=60.0)
    assert (found(listed), compared.in_step) == ([], True)
    compared, listed = prove(pipeline, wait_s=60.0)
    assert (found(listed), compared.in_step) == ([], True)
