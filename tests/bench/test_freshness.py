"""Test one short run on real servers, and its report."""

from __future__ import annotations

import pytest

from instep import errors
from instep.local import broker as kafka
from instep.report import plots
from instep_bench import freshness, freshness_report
from instep_bench.latency_join import EventTiming


def timing(due_ms: int, *parts: float, late_ms: float = 0.0) -> EventTiming:
    publish, wait, batch, write = parts
    return EventTiming(
        due_ms * 1_000_000,
        int((due_ms + sum(parts)) * 1_000_000),
        late_ms,
        publish,
        wait,
        batch,
        write,
    )


def example_run(**changed: object) -> freshness_report.FreshnessRun:
    timings = [timing(10 * number, 5, 50, 20, 10 + number) for number in range(300)]
    complete = {
        "starts_s": {"fresh": 7.5, "after kill -9": 8.25},
        "loads": [
            freshness_report.RateResult(
                100, timings, {"driver": 0.01, "jvm": 0.2, "workers": 0.1, "broker": 0.05}
            )
        ],
        "idle": freshness_report.Idle(
            300,
            timing(0, 1, 2, 3, 4),
            10,
            [timing(0, 1, 1, 1, 1)],
            {"jvm": 0.03, "workers": 0.01, "broker": 0.5},
        ),
        "faults": [
            freshness_report.FaultEffect(
                "kill -9", 100, 500_000_000, None, timings, timings[50:60], 1.5
            )
        ],
        "memory": {
            "driver": [(0.0, 100.0)],
            "jvm": [(0.0, 500.0)],
            "workers": [(0.0, 200.0)],
            "broker": [(0.0, 300.0)],
        },
        "own_broker": True,
    }
    return freshness_report.FreshnessRun(**{**complete, **changed})  # type: ignore[arg-type]


def value(found: freshness_report.FreshnessRun, name: str, **labels: str) -> list[float]:
    [figure] = [
        one for one in freshness_report.figures(found) if (one.name, one.labels) == (name, labels)
    ]
    return figure.values


def test_figures_report_the_observations() -> None:
    found = example_run()
    assert value(found, "freshness", rate="100", part="whole", percentile="p50") == [234.5]
    assert value(found, "freshness", rate="100", part="wait", percentile="p99") == [50]
    assert value(found, "freshness in each third", rate="100", percentile="p50") == [
        134.5,
        234.5,
        334.5,
    ]
    assert value(found, "process start to first commit", start="after kill -9") == [8.25]
    assert value(found, "CPU when idle", role="pipeline") == [4]
    assert value(found, "first event after a pause", pause="300 s") == [10]
    assert value(found, "back in step", fault="kill -9") == [1.5]
    assert value(found, "peak memory", role="pipeline") == [800]
    keys = [figure.key for figure in freshness_report.figures(found)]
    assert len(keys) == len(set(keys))


def test_every_plot_can_be_drawn() -> None:
    drawn = freshness_report.plots(example_run())
    assert [plot.title.partition(":")[0] for plot in drawn] == [
        "How late the latest are",
        "Where the time goes",
        "Where the time goes",
        "Through faults",
        "Memory over time",
    ]
    assert all("no values" not in plots.svg(plot) for plot in drawn)


def test_a_late_sender_is_reported() -> None:
    late = [timing(0, 20, 1, 1, 1, late_ms=12.0)]
    reported = freshness_report.notes(
        example_run(loads=[freshness_report.RateResult(5_000, late, {})])
    )
    assert any(
        "5,000 events/s the sender itself was late: p99 12.0 ms" in note for note in reported
    )
    assert not any("late" in note for note in freshness_report.notes(example_run(faults=[])))


def test_a_users_broker_is_not_killed() -> None:
    assert any(
        "was not killed" in note for note in freshness_report.notes(example_run(own_broker=False))
    )


def test_the_oldest_event_of_each_half_second_is_kept() -> None:
    timings = [
        timing(900, 1, 1, 1, 1),
        timing(1_100, 5, 0, 0, 0),
        timing(1_200, 9, 0, 0, 0),
        timing(1_700, 2, 0, 0, 0),
    ]
    assert freshness_report.timeline(timings, 1_000_000_000) == [(-0.5, 4), (0.0, 9), (0.5, 2)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "sqlit"},
        {"rates": ()},
        {"rates": (0,)},
        {"seconds": 0},
        {"documents": 0},
        {"idle_s": -1},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.SettingsError):
        freshness.run(freshness.FreshnessOptions(**wrong), print, "instep bench freshness")  # type: ignore[arg-type]


def test_a_short_run_has_a_result(broker: kafka.LocalCluster) -> None:
    options = freshness.FreshnessOptions(
        target="sqlite",
        rates=(200,),
        seconds=2,
        warm_up_s=0,
        idle_s=0,
        faults=False,
        documents=70,
        history=True,
        bootstrap=broker.bootstrap,
    )
    messages: list[str] = []
    result = freshness.run(options, messages.append, "instep bench freshness")
    [p50] = [
        one
        for one in result.figures
        if one.labels == {"rate": "200", "part": "whole", "percentile": "p50"}
    ]
    assert p50.median > 0
    assert result.tables[0].rows[0][:2] == [200, 400]
    assert result.options["rates"] == "200"
    assert messages[-1] == "200 events/s for 2 s"
