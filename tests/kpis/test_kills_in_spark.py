"""Kill `instep run` and its workers at every step while it counts a KPI, and compare the rows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from instep.kafka.connection import Cluster
from tests.support import kpis, probes
from tests.support.spark_sessions import ROOT

pytestmark = [pytest.mark.own_spark, pytest.mark.long, pytest.mark.timeout(7_200)]

KILLS = int(os.environ.get("INSTEP_TEST_KPI_SPARK_KILLS", "30"))
SETTINGS = """
[kafka]
bootstrap = "{bootstrap}"
[spark]
master = "local[2]"
[kpis.print_kpis]
topic = "{topic}"
target = "{url}"
table = "print_kpis"
watermark_s = 600
batch_rows_max = 40
durations.printing = ["QUEUED", "PRINTED"]
durations.delivery = ["PRINTED", "DELIVERED"]
[kpis.print_kpis.event]
document = "doc_id"
status = "status"
order = "version"
at = "updated_at"
"""


def instep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "INSTEP_PROBE": "tests.support.probes:kill_once",
        probes.FOLDER: str(folder),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "instep", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=False,
        timeout=300,
        capture_output=True,
        text=True,
    )


def test_a_run_whose_processes_are_killed_at_every_step(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = new_database("postgres")
    text = SETTINGS.format(bootstrap=cluster.bootstrap, topic=topic, url=url)
    (tmp_path / "instep.toml").write_text(text, encoding="utf-8")
    assert instep(tmp_path, "init").returncode == 0
    records = kpis.log(seed=21, documents=20 * KILLS, begin_ms=kpis.recent_ms())
    share = len(records) // KILLS
    ends: Counter[str] = Counter()
    for number in range(KILLS):
        step = number % 10
        kpis.publish(cluster, topic, records[number * share : (number + 1) * share])
        (tmp_path / "kill").write_text(f"{step} 0")
        done = instep(tmp_path, "run", "--once")
        # Step 0 is in a worker, which Spark replaces; the others are in the driver.
        assert done.returncode == (0 if step == 0 else -signal.SIGKILL), done.stderr
        (tmp_path / "killed").unlink()
        ends["worker" if step == 0 else "driver"] += 1
    kpis.publish(cluster, topic, records[KILLS * share :])
    assert instep(tmp_path, "run", "--once").returncode == 0

    kpis.assert_same(kpis.table(url), kpis.model(records))
    compared = instep(tmp_path, "reconcile", "--kpi", "print_kpis", "--json")
    assert compared.returncode == 0, compared.stderr
    assert json.loads(compared.stdout)["kpis"][0]["in_step"]
    with capsys.disabled():
        print(f"KILLS in Spark {dict(ends)}")  # noqa: T201
