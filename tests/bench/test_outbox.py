"""Test `instep bench outbox`: its report, and one small run on real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from instep import errors
from instep.local.broker import LocalCluster
from instep_bench import outbox
from tests.support.databases import run_sql


def example_run(late_ms: float = 0.0, released: float = 55_000.0) -> outbox.OutboxRun:
    return outbox.OutboxRun(
        rate=1_000,
        hold_s=600,
        delays={outbox.ALONE: [20.0] * 100, outbox.HELD: [30.0] * 100},
        late_ms=[late_ms] * 100,
        backlogs={
            outbox.ALONE: [50_000.0, 60_000.0],
            outbox.HELD: [44_000.0, 55_000.0],
            outbox.RELEASED: [released],
        },
    )


def test_the_slow_down_compares_the_medians() -> None:
    run = example_run()
    assert run.slowdown == pytest.approx(0.1)
    times, backlogs = outbox.report_tables(run)
    assert [row[0] for row in times.rows] == [outbox.ALONE, outbox.HELD]
    assert "held for 600 s slows it by 10.0 %" in backlogs.title
    assert outbox.figures(run)[-1].values == [10.0]
    assert len(outbox.notes(run)) == 2
    assert "p99 9.0 ms" in outbox.notes(example_run(9.0))[-1]


def test_a_note_says_that_the_machine_was_not_quiet() -> None:
    assert "differs by 20%" in outbox.notes(example_run(released=66_000.0))[-1]


@pytest.mark.parametrize("given", [{"rate": 0}, {"seconds": 0}, {"hold_s": -1}, {"source": "x"}])
def test_wrong_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(errors.SettingsError):
        outbox.run(outbox.OutboxOptions(**given), lambda _: None, "")


@pytest.mark.long
def test_a_small_run_measures_both_ways_and_leaves_nothing(
    broker: LocalCluster, tmp_path: Path
) -> None:
    source, target = f"sqlite:///{tmp_path}/source.db", f"sqlite:///{tmp_path}/target.db"
    for url in (source, target):
        run_sql(url, "CREATE TABLE theirs (id integer)")
    options = outbox.OutboxOptions(
        source=source,
        target=target,
        rate=50,
        seconds=1,
        warm_up_s=1,
        hold_s=2,
        backlog=500,
        rounds=1,
        documents=100,
        bootstrap=broker.bootstrap,
    )
    result = outbox.run(options, lambda _: None, "instep bench outbox")
    found = {(one.name, one.labels.get("when")) for one in result.figures}
    assert ("commit to commit", outbox.HELD) in found
    assert ("commit to commit", outbox.RELEASED) in found
    assert ("published", outbox.ALONE) in found
    for url in (source, target):
        left = run_sql(url, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        assert [name for (name,) in left if not name.startswith("sqlite_")] == ["theirs"]
