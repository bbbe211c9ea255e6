"""Test the ranking of contestants, on hand-made runs."""

from __future__ import annotations

from instep_bench import baselines, contest, load, meters, ranking
from instep_bench.ranking import RankedRun, Start

EXPECTED = load.expected_state(load.Load(events=10, documents=5), 2)


def usage(cpu_s: float, *mb: float) -> meters.Usage:
    return meters.Usage(
        cpu_s,
        max(mb),
        max(mb),
        [meters.MemorySample(float(at), one, one) for at, one in enumerate(mb)],
    )


def held(
    contestant: str,
    start: Start,
    row: float,
    last: float,
    differences: int = 0,
) -> RankedRun:
    used = {"driver": usage(1.0, 10, 30), "jvm": usage(2.0, 50, 20), "broker": usage(9.0, 999, 999)}
    run = contest.ContestRun(
        first_row_s=row,
        last_commit_s=last,
        differences=differences,
        usage=used,
    )
    return RankedRun("postgres", contestant, start, run)


def test_throughput_counts_from_the_order_or_the_start_of_the_process() -> None:
    runs = [
        held("instep", "warm", 2.0, 2.5),
        held("instep", "cold", 2.0, 4.0),
        held("instep", "cold", 2.0, 5.0),
    ]
    rates = {
        one.labels["start"]: one.values
        for one in ranking.figures(runs, 100)
        if one.name == ranking.THROUGHPUT
    }
    assert rates == {"warm": [40.0], "cold": [25.0, 20.0]}


def test_the_peak_of_all_processes_is_taken_at_one_moment() -> None:
    found = {
        (one.name, one.labels.get("role")): one.median
        for one in ranking.figures([held("instep", "warm", 2, 3)], 100)
    }
    assert found["peak memory (RSS)", ranking.TOTAL] == 60
    assert found["CPU", ranking.TOTAL] == 3.0
    assert found["peak memory (RSS)", "driver"] == 30
    assert found["CPU", "broker"] == 9.0


def test_the_table_names_guarantees_and_differences() -> None:
    runs = [
        held("instep", "warm", 2, 3),
        held(baselines.CONNECT, "warm", 2, 4),
        held(baselines.CONNECT, "warm", 2, 4, 7),
    ]
    rows = {row[1]: row for row in ranking.table(runs, 100).rows}
    assert rows["instep"][-2:] == [0, ranking.OURS]
    assert rows[baselines.CONNECT][-2:] == [7, baselines.GUARANTEES[baselines.CONNECT]]
    reported = ranking.notes(runs, EXPECTED)
    assert any("connect left up to 7 documents" in note for note in reported)
    assert not any("instep left" in note for note in reported)


def test_plots_show_the_spread() -> None:
    runs = [held("instep", start, 2.0, last) for start in ("warm", "cold") for last in (3.0, 5.0)]
    drawn = ranking.plots(runs, ranking.figures(runs, 100))
    assert [plot.title.partition(",")[0] for plot in drawn] == [
        "Throughput",
        "Throughput",
        "Memory of instep into postgres",
    ]
    assert drawn[0].series[0].spread == [(20.0, 33.333)]
