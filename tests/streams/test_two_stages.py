"""Test streams as users run them: the example, the commands, and a stream beside a pipeline."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from instep import settings
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.local.broker import LocalCluster
from tests.support.cli import instep, refused, reported
from tests.support.databases import run_sql
from tests.support.runs import event, send
from tests.support.streams import Copy, declare, log, same, wait_same
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "two_stage"


def test_the_guide_shows_the_settings_of_the_example() -> None:
    guide = (ROOT / "docs" / "guides" / "process-in-two-stages.md").read_text(encoding="utf-8")
    first, *_ = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    assert first == (EXAMPLE / "instep.toml").read_text(encoding="utf-8")


@pytest.mark.own_spark
def test_the_example_brings_events_through_both_stages(
    broker: LocalCluster, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), "--folder", str(tmp_path)],
        env={**os.environ, "INSTEP__KAFKA__BOOTSTRAP": broker.bootstrap},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"C-{number} PRINTED 4" for number in range(5)]
    assert "print-etl: 20 records waiting" in done.stderr


@pytest.mark.own_spark
def test_one_run_has_streams_and_pipelines_until_it_is_stopped(
    cluster: Cluster, tmp_path: Path
) -> None:
    name, stream = declare(cluster)
    _write_settings(tmp_path, cluster, name, stream)
    assert instep(tmp_path, "init").returncode == 0
    with (tmp_path / "log").open("w") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "instep", "run"], cwd=tmp_path, stderr=log_file
        )
    try:
        send(cluster, stream.source, *(event(f"job-{n}", 1) for n in range(20)))
        count = "SELECT count(*) FROM contract_document"
        url = f"sqlite:///{tmp_path}/contracts.db"
        wait_until(lambda: run_sql(url, count) == [(20,)], "both stages", patience_s=180)
        assert same(cluster, stream)
        [found] = reported(tmp_path, "status")["streams"]
        assert (found["published"], found["lag_records"], found["error"]) == (20, 0, None)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    said = (tmp_path / "log").read_text(encoding="utf-8")
    assert f"{name}: 20 records: 20 published" in said
    assert "contracts: 20 records: 20 applied" in said


def test_a_reset_publishes_again_from_a_place_and_ends_a_run(
    cluster: Cluster, copy: Copy, tmp_path: Path
) -> None:
    name, stream = declare(cluster)
    _write_settings(tmp_path, cluster, name, stream)
    send(cluster, stream.source, *(event(f"job-{n}", 1) for n in range(20)))
    copy(name, stream)
    wait_same(cluster, stream)
    plan = reported(tmp_path, "stream", "reset", name, "--to", "start")
    assert [one["then"] for one in plan["plan"]["partitions"]] == [0, 0, 0]
    assert reported(tmp_path, "status", name)["streams"][0]["lag_records"] == 0
    reported(tmp_path, "stream", "reset", name, "--to", "start", "-p", "0", "--execute")
    [found] = reported(tmp_path, "status", name)["streams"]
    assert found["partitions"][0]["next_offset"] == 0
    assert found["partitions"][1]["lag_records"] == 0
    again = copy(name, stream, once=True)
    again.join(60)
    assert again.error is None
    in_first = [one for one in log(cluster, stream.source) if one.partition == 0]
    assert len(log(cluster, stream.target)) == 20 + len(in_first)


def test_a_reset_to_current_accepts_an_output_topic_that_grew(
    cluster: Cluster, copy: Copy, tmp_path: Path
) -> None:
    name, stream = declare(cluster)
    _write_settings(tmp_path, cluster, name, stream)
    send(cluster, stream.source, event("job-1", 1))
    copy(name, stream, once=True).join(60)
    topics.grow(cluster, stream.target, 4)
    done = instep(tmp_path, "status", name)
    assert done.returncode == 1
    assert "OUTPUT_TOPIC_CHANGED" in done.stderr
    reported(tmp_path, "stream", "reset", name, "--to", "current", "--execute")
    send(cluster, stream.source, event("job-1", 2))
    run = copy(name, stream, once=True)
    run.join(60)
    assert (run.error, run.progress.totals["applied"]) == (None, 1)


def test_a_reset_of_what_does_not_exist_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    name, stream = declare(cluster)
    _write_settings(tmp_path, cluster, name, stream)
    assert "has no partition 7" in refused(
        tmp_path, "stream", "reset", name, "--to", "end", "-p", "7"
    )
    assert "no position in topic" in refused(tmp_path, "stream", "reset", name, "--to", "current")
    assert "is not a place" in refused(tmp_path, "stream", "reset", name, "--to", "yesterday")
    assert "no stream 'x'" in refused(tmp_path, "stream", "reset", "x", "--to", "end")


def _write_settings(folder: Path, cluster: Cluster, name: str, stream: settings.Stream) -> None:
    text = (EXAMPLE / "instep.toml").read_text(encoding="utf-8")
    text = text.replace("print-etl", name).replace("mrp-web-etl", stream.source)
    text = text.replace("mrp-web-analyze", stream.target).replace("two_stage.db", "contracts.db")
    text = text.replace('dead_letters = "mrp-web-dead"\n', "")
    (folder / "instep.toml").write_text(
        f'[kafka]\nbootstrap = "{cluster.bootstrap}"\n\n{text}', encoding="utf-8"
    )
