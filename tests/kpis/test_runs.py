"""Test KPIs with a real broker, a real Spark session and real databases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from instep import errors
from instep.kafka.connection import Cluster
from instep.pipeline.runner import RunnerState
from tests.support import cli, kpis
from tests.support.kpis import KpiRuns
from tests.support.pipelines import drained
from tests.support.waiting import wait_until

SETTINGS = """
[kafka]
bootstrap = "{bootstrap}"

[kpis.print_kpis]
topic = "{topic}"
target = "{url}"
table = "print_kpis"
durations = {{ printing = ["QUEUED", "PRINTED"], delivery = ["PRINTED", "DELIVERED"] }}
watermark_s = 600
event = {{ document = "doc_id", status = "status", order = "version", at = "updated_at" }}
"""


def test_events_are_counted_as_they_are_published(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, kpi_runs: KpiRuns
) -> None:
    url, records = new_database("postgres"), kpis.log(seed=5, begin_ms=kpis.recent_ms())
    half = len(records) // 2
    kpis.publish(cluster, topic, records[:half])
    kpi = kpis.define(url, topic)
    running = kpi_runs.start(kpi)
    wait_until(lambda: running.progress.totals["records"] == half, "the first half")
    kpis.publish(cluster, topic, records[half:])
    wait_until(lambda: running.progress.totals["records"] == len(records), "the second half")
    kpis.assert_same(kpis.table(url), kpis.model(records))
    assert "counted, " in running.totals_text()


def test_a_run_to_the_end_and_one_with_nothing_to_do(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, kpi_runs: KpiRuns
) -> None:
    url, records = new_database("sqlite"), kpis.log(seed=6, begin_ms=kpis.recent_ms())
    kpis.publish(cluster, topic, records)
    kpi = kpis.define(url, topic)
    assert drained(kpi_runs.start(kpi, once=True)).progress.totals["records"] == len(records)
    assert drained(kpi_runs.start(kpi, once=True)).progress.totals["records"] == 0
    kpis.assert_same(kpis.table(url), kpis.model(records))


def test_changed_settings_stop_a_kpi_by_name(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, kpi_runs: KpiRuns
) -> None:
    url = new_database("sqlite")
    kpis.publish(cluster, topic, kpis.log(seed=7, documents=3, begin_ms=kpis.recent_ms()))
    drained(kpi_runs.start(kpis.define(url, topic), once=True))
    changed = kpi_runs.start(kpis.define(url, topic, durations={}), once=True)
    wait_until(lambda: changed.state is RunnerState.ENDED, "the KPI to end")
    assert isinstance(changed.error, errors.KpiChanged)


def test_the_status_of_a_kpi_is_its_lag_and_what_it_has_counted(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    kpi_runs: KpiRuns,
    tmp_path: Path,
) -> None:
    url, records = new_database("sqlite"), kpis.log(seed=8, begin_ms=kpis.recent_ms())
    text = SETTINGS.format(bootstrap=cluster.bootstrap, topic=topic, url=url)
    (tmp_path / "instep.toml").write_text(text, encoding="utf-8")
    half = len(records) // 2
    kpis.publish(cluster, topic, records[:half])
    drained(kpi_runs.start(kpis.define(url, topic), once=True))
    kpis.publish(cluster, topic, records[half:])

    [found] = cli.reported(tmp_path, "status", "print_kpis")["pipelines"]

    assert (found["pipeline"], found["topic"], found["error"]) == ("print_kpis", topic, None)
    assert found["lag_records"] == len(records) - half
    assert "print_kpis" in cli.instep(tmp_path, "status").stdout
