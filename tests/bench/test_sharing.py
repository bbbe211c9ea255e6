"""Test what counts while a pipeline catches up, and one small run on real servers."""

from __future__ import annotations

import pytest

from instep import errors
from instep.local import broker as kafka
from instep.report import plots
from instep_bench import sharing, sharing_report
from instep_bench.commit_log import CommitTimes
from instep_bench.latency_join import EventTiming

MS = 1_000_000


def timing(due_ms: int, age_ms: float, late_ms: float = 0.0) -> EventTiming:
    return EventTiming(
        due_ms * MS, int((due_ms + age_ms) * MS), late_ms, age_ms, wait=0, batch=0, write=0
    )


def commit(first: int, last: int, committed_ms: int, partition: int = 0) -> CommitTimes:
    return CommitTimes(partition, first, last, 0, 0, committed_ms * MS)


def example_run(seconds: int = 10, late_ms: float = 0.0) -> sharing_report.SharingRun:
    return sharing_report.SharingRun(
        rate=100,
        alone=[
            [timing(10 * number, 10) for number in range(100)],
            [timing(10 * number, 20) for number in range(100)],
        ],
        shared=[
            [timing(10 * number, 30 + number, late_ms) for number in range(101)],
            [timing(10 * number, 40, late_ms) for number in range(101)],
        ],
        catch_up=sharing_report.CatchUpPeriod(0, seconds * 1000 * MS, 12_000, 10_000),
        cores={"driver": 0.1, "jvm": 0.2, "workers": 0.7, "broker": 0.5},
        memory={
            "driver": [(0.0, 100.0), (1.0, 100.0)],
            "jvm": [(0.0, 300.0), (1.0, 200.0)],
            "workers": [(0.0, 100.0), (1.0, 250.0)],
        },
    )


def values(run: sharing_report.SharingRun, name: str, **labels: str) -> list[float]:
    [found] = [
        figure.values
        for figure in sharing_report.figures(run)
        if (figure.name, figure.labels) == (name, labels)
    ]
    return found


def test_the_period_is_from_the_first_to_the_last_commit() -> None:
    commits = [commit(0, 999, 500), commit(0, 499, 600, partition=1), commit(1_000, 4_499, 2_500)]
    found = sharing_report.period_of(commits, 5_000)
    assert (found.seconds, found.events, found.events_per_s) == (2, 4_000, 2_000)
    due = (499, 500, 1_000, 2_500, 2_501)
    counted = sharing_report.during(found, [timing(due_ms, 5_000) for due_ms in due])
    assert [one.due_ns // MS for one in counted] == [500, 1_000, 2_500]


def test_a_single_commit_has_no_speed() -> None:
    found = sharing_report.period_of([commit(0, 9, 500)], 10)
    assert (found.seconds, found.events, found.events_per_s) == (0, 0, None)


def test_figures_report_each_pipeline_and_all() -> None:
    run = example_run()
    alone, shared = sharing_report.ALONE, sharing_report.SHARED
    assert values(run, "freshness", pipeline="1", when=alone, percentile="p99") == [10]
    assert values(run, "freshness", pipeline="1", when=shared, percentile="p50") == [80]
    assert values(run, "freshness", pipeline="1", when=shared, percentile="max") == [130]
    assert values(run, "freshness", pipeline="2", when=shared, percentile="max") == [40]
    assert values(run, "freshness", pipeline="all", when=alone, percentile="p50") == [15]
    assert values(run, "freshness", pipeline="all", when=shared, percentile="max") == [130]
    assert values(run, "catching up") == [1_000]
    assert values(run, "CPU while catching up", role="pipeline") == [100]
    assert values(run, "peak memory", role="pipeline") == [550]
    keys = [figure.key for figure in sharing_report.figures(run)]
    assert len(keys) == len(set(keys))


def test_tables_and_plot_show_both_times() -> None:
    freshness, catching_up = sharing_report.tables(example_run())
    assert [row[:3] for row in freshness.rows] == [
        ["1", "alone", 100],
        ["1", "while another catches up", 101],
        ["2", "alone", 100],
        ["2", "while another catches up", 101],
        ["all", "alone", 200],
        ["all", "while another catches up", 202],
    ]
    assert ["speed", 1_000, "events/s"] in catching_up.rows
    assert ["peak memory: driver, jvm and workers", 550, "MB"] in catching_up.rows
    [plot] = sharing_report.plots(example_run())
    assert [series.name for series in plot.series] == [
        "all, alone",
        "1, while another catches up",
        "2, while another catches up",
    ]
    assert plot.series[1].points == [(0.0, 79), (0.5, 129), (1.0, 130)]
    assert "no values" not in plots.svg(plot)


def test_a_catch_up_without_events_of_others_is_reported_without_figures() -> None:
    run = sharing_report.SharingRun(
        rate=1,
        alone=[[timing(0, 10)]],
        shared=[[]],
        catch_up=sharing_report.CatchUpPeriod(5, 5, 10, 0),
        cores={},
        memory={},
    )
    whens = {figure.labels.get("when") for figure in sharing_report.figures(run)}
    assert sharing_report.SHARED not in whens
    assert sharing_report.tables(run)[0].rows[1] == ["1", sharing_report.SHARED, 0, *[None] * 5]
    assert [series.name for series in sharing_report.plots(run)[0].series] == ["all, alone"]


def test_a_short_catch_up_and_late_senders_are_noted() -> None:
    assert any("12,000 events is too small" in note for note in notes(seconds=4))
    assert not any("too small" in note for note in notes(seconds=5))
    assert any("senders themselves were late: p99 8.0 ms" in note for note in notes(late_ms=8.0))
    assert not any("late" in note for note in notes())


def notes(seconds: int = 10, late_ms: float = 0.0) -> list[str]:
    return sharing_report.notes(example_run(seconds, late_ms))


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "postgre"},
        {"backlog": 0},
        {"others": 0},
        {"rate": 0},
        {"seconds": 0},
        {"warm_up_s": -1},
        {"documents": 0},
        {"partitions": 0},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.SettingsError) as refused:
        sharing.run(sharing.SharingOptions(**wrong), print, "instep bench sharing")  # type: ignore[arg-type]
    assert refused.value.remedy


@pytest.mark.long  # test_freshness runs the same monitor and sender
def test_a_small_run_has_a_result(
    broker: kafka.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "PUBLISHED_AT_ONCE", 15_000)
    options = sharing.SharingOptions(
        target="sqlite",
        backlog=20_000,
        others=2,
        rate=100,
        seconds=1,
        warm_up_s=0.5,
        documents=700,
        history=True,
        bootstrap=broker.bootstrap,
    )
    messages: list[str] = []
    result = sharing.run(options, messages.append, "instep bench sharing")
    freshness, catching_up = result.tables
    assert [row[2] for row in freshness.rows if row[1] == sharing_report.ALONE] == [100, 100, 200]
    assert catching_up.rows[0] == ["events to catch up with", 20_000, "events"]
    memory = {
        figure.labels["role"]: figure.median
        for figure in result.figures
        if figure.name == "peak memory"
    }
    assert memory["workers"] > 0
    assert result.bench == "sharing"
    assert any("too small" in note for note in result.notes)
    assert messages == [
        "starting 2 pipelines",
        "100 events/s each, alone: 0.5 s to warm up, then 1 s",
        "publishing 20,000 events to catch up with",
        "published 15,000 of 20,000 events",
        "starting 3 pipelines, one of them to catch up",
        "100 events/s each, while another catches up",
    ]
