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

from instep.kafka.connection import Cluster
from instep.operate.row_source import RowSource
from instep.pipeline.runner import Runner
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
LONG_DOCUMENTS = 100_000
KILLS = 8


def has_ledger(url: str) -> bool:
    return run_sql(url, "SELECT count(*) FROM instep_ledger") != [(0,)]


def read_count(url: str, *, of_loads: bool) -> int:
    """Return how many rows of loads, or events of the topic, are in the history."""
    condition = "LIKE" if of_loads else "NOT LIKE"
    [(count,)] = run_sql(
        url, f"SELECT count(*) FROM instep_history WHERE topic {condition} 'load:%'"
    )
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
    wait_until(lambda: read_count(url, of_loads=False) == FOLLOWED, "all events")
    late = set(followed)
    assert rows(url) == [
        (name, "PRINTED", 2)
        if name in late and versions[name] < 2
        else (name, "LOADED", versions[name])
        for name in names
    ]
    assert report.totals["records"] == DOCUMENTS
    assert len(history(url)) == DOCUMENTS


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["postgres", "mariadb", "sqlite"])
def test_a_large_load_with_live_events_and_kills(
    kind: str,
    new_database: NewDatabase,
    topic: str,
    cluster: Cluster,
    runner: Run,
    prove: Prove,
    tmp_path: Path,
) -> None:
    """Kill the load at random, while events bring newer versions, partial values and deletes."""
    url = new_database(kind)
    pipeline = following(url, topic)
    runner(pipeline)
    wait_until(lambda: has_ledger(url), "the ledger")
    text = settings_text(bootstrap=cluster.bootstrap, topic=topic, target=url)
    (tmp_path / "instep.toml").write_text(text, encoding="utf-8")
    names = [f"d{n:06}" for n in range(LONG_DOCUMENTS)]
    file = write_lines(tmp_path / "x.jsonl", (row(name, 5) for name in names))
    dice, ended = random.Random(2), threading.Event()
    newest: dict[str, int | None] = {}

    def publish() -> None:
        while not ended.is_set():
            batch: list[tuple[bytes | None, Any]] = []
            for _ in range(100):
                name, version = dice.choice(names), dice.choice((1, 2, 3, 4, 6, 7, 8, 9))
                if dice.random() < 0.02:
                    batch.append((name.encode(), None))
                    newest[name] = None
                elif name not in newest:
                    batch.append(event(name, version))
                    newest[name] = version
            send(cluster, topic, *batch)
            time.sleep(0.02)

    command = [sys.executable, "-m", "instep", "load", "contracts", "--from", str(file)]
    command += ["--execute", "--no-reconcile", "--batch-rows", "500"]
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for _ in range(KILLS):
            before = read_count(url, of_loads=True)
            process = subprocess.Popen(command, cwd=tmp_path, env=dict(os.environ))
            wait_until(
                lambda before=before, process=process: (  # type: ignore[misc]
                    process.poll() is not None or read_count(url, of_loads=True) > before + 3_000
                ),
                "rows of the load",
            )
            process.kill()
            process.wait()
        report = loaded(pipeline, file)
    finally:
        ended.set()
        publisher.join()
    assert counts(report)["records"] == LONG_DOCUMENTS
    numbers = [number for _, number, _ in history(url)]
    assert sorted(numbers) == list(range(1, LONG_DOCUMENTS + 1))
    compared, listed = prove(pipeline, source=RowSource(file=str(file)), loaded=True, wait_s=60.0)
    assert (found(listed), compared.in_step) == ([], True)
    compared, listed = prove(pipeline, wait_s=60.0)
    assert (found(listed), compared.in_step) == ([], True)
    versions = {document: version for document, _, version in rows(url)}
    for name, version in newest.items():
        if version is not None:
            assert versions[name] == max(5, version)
