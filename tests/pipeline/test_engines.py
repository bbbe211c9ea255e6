"""Test runs with pipelines of both engines, and the slots that they share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from instep import settings
from instep.demo.pipeline_process import PipelineProcess
from instep.kafka.connection import Cluster
from instep.pipeline import session
from instep.sinks import preparation
from tests.support.databases import BASE
from tests.support.runs import event, rows, send


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", "local[2]"),
        ("local[1]", "local[2]"),
        ("local[3,7]", "local[6,7]"),
        ("local[*]", f"local[{2 * (os.cpu_count() or 1)}]"),
        ("spark://h:7077", "spark://h:7077"),
    ],
)
def test_a_local_master_has_slots_for_both_engines(master: str, expected: str) -> None:
    assert session.with_slots_for(master, users=2) == expected


@pytest.mark.timeout(300)
def test_both_engines_run_beside_each_other_on_one_core(
    cluster: Cluster, topic: str, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    send(cluster, topic, *(event(f"d{number}", 1) for number in range(50)))
    urls = {engine: new_database("sqlite") for engine in ("resident", "micro-batch")}
    pipelines = {
        engine: {**BASE, "topic": topic, "target": url, "engine": engine}
        for engine, url in urls.items()
    }
    config = tmp_path / "instep.toml"
    tree = {
        "kafka": {"bootstrap": cluster.bootstrap},
        "spark": {"master": "local[1]"},
        "pipelines": pipelines,
    }
    config.write_text(tomli_w.dumps(tree), encoding="utf-8")
    for pipeline in settings.load(config).pipelines.values():
        preparation.prepare(pipeline, add_columns=True)
    with PipelineProcess(config, "--once", log=tmp_path / "run.log") as process:
        assert process.wait(200) == 0, process.tail()
    for url in urls.values():
        assert len(rows(url)) == 50
