"""Test `instep reconcile --kpi`: the rows against a recomputation, and counting again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from instep import errors
from instep.kafka import configs, topics
from instep.kafka.connection import Cluster
from instep.kpis.definition import KpiDefinition
from instep.reconcile import kpi
from instep.reconcile.kpi import KpiReport, KpiRequest
from instep.reconcile.report import ReconcileVerdict
from tests.support import kpis
from tests.support.databases import run_sql
from tests.support.kpis import KpiRecord, KpiRuns
from tests.support.pipelines import drained
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATER = "SELECT max(minute_ms) FROM print_kpis WHERE kind = 'status' AND count > 0"


@pytest.fixture
def prove_kpi(spark: SparkSession, cluster: Cluster) -> Callable[..., KpiReport]:
    """Return a function that reconciles a KPI."""

    def do(definition: KpiDefinition, **options: Any) -> KpiReport:
        return kpi.reconcile(spark, cluster, definition, KpiRequest(**{"wait_s": 0.0, **options}))

    return do


Prove = Callable[..., KpiReport]


def published(
    cluster: Cluster, topic: str, seed: int, documents: int = 25, *, wrong_clocks: bool = False
) -> list[KpiRecord]:
    records = kpis.log(
        seed, documents=documents, begin_ms=kpis.recent_ms(), wrong_clocks=wrong_clocks
    )
    kpis.publish(cluster, topic, records)
    return records


def test_rows_equal_a_recomputation_and_are_corrected(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    kpi_runs: KpiRuns,
    prove_kpi: Prove,
) -> None:
    url = new_database("sqlite")
    configs.alter_topic(cluster, topic, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    records = published(cluster, topic, seed=11, wrong_clocks=True)
    definition = kpis.define(url, topic)
    drained(kpi_runs.start(definition, once=True))
    found = prove_kpi(definition)
    assert (found.verdict, found.differences) == (ReconcileVerdict.IN_STEP, [])
    assert found.rows == found.rows_in_step == len(kpis.table(url))

    right = kpis.table(url)
    run_sql(url, f"UPDATE print_kpis SET count = count + 1 WHERE minute_ms = ({LATER})")
    run_sql(url, "DELETE FROM print_kpis WHERE kind = 'too_late'")
    run_sql(
        url,
        "INSERT INTO print_kpis (minute_ms, kind, name, minute, count)"
        " VALUES (0, 'status', 'X', '1970-01-01 00:00:00.000000', 3)",
    )
    found = prove_kpi(definition)
    assert found.verdict is ReconcileVerdict.NOT_IN_STEP
    assert found.missing
    assert found.different
    assert found.extra == 1
    assert prove_kpi(definition, fix=True).verdict is ReconcileVerdict.NOT_IN_STEP  # the plan
    assert prove_kpi(definition, fix=True, execute=True).in_step
    assert kpis.table(url) == right
    assert prove_kpi(definition).in_step
    kpis.assert_same(right, kpis.model(records))

    # A jump that waits for the next record still waits for it after counting again.
    records += jump(cluster, topic, records)
    drained(kpi_runs.start(definition, once=True))
    assert prove_kpi(definition, fix=True, execute=True).in_step
    records += jump(cluster, topic, records)
    drained(kpi_runs.start(definition, once=True))
    assert prove_kpi(definition).in_step
    kpis.assert_same(kpis.table(url), kpis.model(records))


def jump(cluster: Cluster, topic: str, records: Sequence[KpiRecord]) -> list[KpiRecord]:
    """Publish an event that is too late only if the next record has the same timestamp."""
    at_ms = max(one.timestamp_ms for one in records if one.timestamp_ms < kpis.YEAR_2060_MS)
    event = {"status": "QUEUED", "version": 77, "updated_at": at_ms}
    jumping = [kpis.record(0, kpis.YEAR_2060_MS, "D-0", **event)]
    kpis.publish(cluster, topic, jumping)
    return jumping


def test_counting_again_under_a_running_kpi_and_with_other_settings(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    kpi_runs: KpiRuns,
    prove_kpi: Prove,
) -> None:
    url, records = new_database("postgres"), published(cluster, topic, seed=12)
    definition = kpis.define(url, topic)
    running = kpi_runs.start(definition)
    wait_until(lambda: running.progress.totals["records"] == len(records), "the first events")
    run_sql(url, "DELETE FROM instep_kpi_documents")
    run_sql(url, "UPDATE print_kpis SET count = 0")
    assert prove_kpi(definition, fix=True, execute=True).fixed
    records += published(cluster, topic, seed=13)
    wait_until(lambda: running.progress.totals["records"] >= len(records), "the later events")
    kpis.assert_same(kpis.table(url), kpis.model(records))
    running.stop(patience_s=60)

    changed = kpis.define(url, topic, durations={"all": ["QUEUED", "DELIVERED"]})
    with pytest.raises(errors.KpiChanged):
        prove_kpi(changed)
    assert prove_kpi(changed, fix=True, execute=True).fixed
    records += published(cluster, topic, seed=14)
    drained(kpi_runs.start(changed, once=True))
    assert prove_kpi(changed).in_step
    kpis.assert_same(
        kpis.table(url), kpis.model(records, durations={"all": ["QUEUED", "DELIVERED"]})
    )


def test_records_that_wait_are_not_in_step(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    kpi_runs: KpiRuns,
    prove_kpi: Prove,
) -> None:
    url, records = new_database("sqlite"), published(cluster, topic, seed=15, documents=3)
    definition = kpis.define(url, topic)
    drained(kpi_runs.start(definition, once=True))
    kpis.publish(cluster, topic, records[:2])
    found = prove_kpi(definition)
    assert (found.verdict, found.behind.records) == (ReconcileVerdict.NOT_IN_STEP, 2)
    assert found.differences == []


@pytest.mark.long
def test_only_what_the_log_still_explains_is_compared(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    kpi_runs: KpiRuns,
    prove_kpi: Prove,
) -> None:
    url, records = new_database("sqlite"), published(cluster, topic, seed=16, documents=60)
    definition = kpis.define(url, topic)
    drained(kpi_runs.start(definition, once=True))
    before = kpis.table(url)
    half = sum(one.partition == 0 for one in records) // 2
    topics.trim(cluster, topic, {0: half})

    found = prove_kpi(definition)
    assert (found.verdict, found.differences) == (ReconcileVerdict.IN_STEP, [])
    assert found.rows
    assert found.not_compared
    assert "does not hold the beginning" in found.notes[0]
    run_sql(url, f"UPDATE print_kpis SET count = count + 1 WHERE minute_ms = ({LATER})")
    assert prove_kpi(definition).different
    assert prove_kpi(definition, fix=True, execute=True).in_step
    assert kpis.table(url) == before
    kpis.publish(cluster, topic, more := kpis.log(17, begin_ms=kpis.recent_ms() + 3_600_000))
    drained(kpi_runs.start(definition, once=True))
    kpis.assert_same(kpis.table(url), kpis.model([*records, *more]))


@pytest.mark.long
def test_a_replaced_topic_is_counted_again(
    new_database: Callable[[str], str],
    topic: str,
    cluster: Cluster,
    kpi_runs: KpiRuns,
    prove_kpi: Prove,
) -> None:
    url = new_database("sqlite")
    published(cluster, topic, seed=18, documents=3)
    definition = kpis.define(url, topic)
    drained(kpi_runs.start(definition, once=True))
    topics.delete(cluster, topic)
    topics.create(cluster, topic, 3)
    stopped = kpi_runs.start(definition, once=True)
    wait_until(lambda: stopped.error is not None, "the stop")
    with pytest.raises(errors.TopicReplaced, match="instep reconcile --kpi print_kpis --fix"):
        raise stopped.error or AssertionError
    assert prove_kpi(definition, fix=True, execute=True).fixed
    published(cluster, topic, seed=19, documents=3)
    drained(kpi_runs.start(definition, once=True))
    assert prove_kpi(definition).in_step
