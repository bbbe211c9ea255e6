"""Test `instep bench load`: its report, and one small run on real servers."""

from __future__ import annotations

from typing import Any

import pytest

from instep import errors
from instep.local import broker as kafka
from instep_bench import bulk_load, compared_delays, row_check


def example_run(late_ms: float = 0.0) -> bulk_load.BulkLoadRun:
    return bulk_load.BulkLoadRun(
        rate=1_000,
        freshness={
            bulk_load.BEFORE: [10.0] * 100,
            bulk_load.BESIDE: [25.0] * 100,
            bulk_load.AFTER: [10.0] * 100,
        },
        rows=100_000,
        load_s=2.0,
        command_s=3.0,
        cores={"driver": 0.1, "jvm": 0.2, "workers": 0.7},
        late_ms=late_ms,
    )


def test_the_report_compares_the_freshness_with_the_usual_one() -> None:
    run = example_run()
    load, freshness = bulk_load.report_tables(run)
    assert load.rows[1] == ["speed", 50_000, "rows/s", "at least 40,000"]
    assert load.rows[-1] == ["p99 beside the load / before it", 2.5, "times", "at most 1.5"]
    assert [row[0] for row in freshness.rows] == list(run.freshness)
    assert len(bulk_load.notes(run)) == 2
    assert "late, at most 9.0 ms" in bulk_load.notes(example_run(9.0))[-1]


def test_nothing_to_compare_gives_no_ratio() -> None:
    assert compared_delays.ratio({"a": [], "b": [1.0]}, "a", "b") is None


def test_loaded_documents_are_expected_beside_those_of_events() -> None:
    found = row_check.expected(events=3, documents=2, loaded=3)
    assert [version for _, version in found.values()] == [2, 1, 1]


@pytest.mark.parametrize("given", [{"rows": 0}, {"rate": 0}, {"seconds": 0}, {"target": "oracle"}])
def test_wrong_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(errors.SettingsError):
        bulk_load.run(bulk_load.BulkLoadOptions(**given), lambda _: None, "")


@pytest.mark.long
def test_a_small_run_measures_the_load_and_the_events(broker: kafka.LocalCluster) -> None:
    options = bulk_load.BulkLoadOptions(
        target="sqlite",
        rows=2_000,
        rate=50,
        seconds=1,
        warm_up_s=0,
        documents=300,
        history=True,
        bootstrap=broker.bootstrap,
    )
    result = bulk_load.run(options, lambda _: None, "instep bench load")
    names = {figure.name for figure in result.figures}
    assert {"loaded", "freshness", "CPU beside the load"} <= names
    assert all(value > 0 for one in result.figures[:2] for value in one.values)
