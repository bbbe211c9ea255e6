"""Test the benchmark of the console with tiny numbers."""

from __future__ import annotations

import pytest

from instep import errors
from instep.local.broker import LocalCluster
from instep_bench import console, console_costs
from instep_bench.console import ConsoleBenchOptions


@pytest.mark.parametrize("costs", [False, pytest.param(True, marks=pytest.mark.long)])
def test_every_page_is_measured(
    broker: LocalCluster, monkeypatch: pytest.MonkeyPatch, costs: bool
) -> None:
    options = ConsoleBenchOptions(
        target="sqlite",
        history=2_000,
        dead_letters=300,
        parked=30,
        decisions=700,
        topics=3,
        groups=2,
        requests=2,
        tabs=2,
        seconds=0.2,
        costs=costs,
        cost_rounds=1,
        bootstrap=broker.bootstrap,
    )
    monkeypatch.setattr(console, "OVERDUE_DOCUMENTS", 2)
    monkeypatch.setattr(console_costs, "SETTLE_S", 0.1)
    result = console.run(options, lambda _text: None, "instep bench console")
    [pages] = result.tables
    assert [row[0] for row in pages.rows][:3] == ["overview", "pipeline", "document"]
    assert {"overdue", "topic", "records", "group", "rewind", "settings"} <= {
        row[0] for row in pages.rows
    }
    measured = {figure.name: figure for figure in result.figures}
    assert measured["slowest page, p95"].median > 0
    assert 5 < measured["first page"].median < 150
    assert "--browser" in " ".join(result.notes)
    if not costs:
        return
    assert measured["overdue found after, longest"].median > 0
    labelled = {(one.name, label) for one in result.figures for label in one.labels.values()}
    for name, labels in (
        ("pipeline at rest with its database", (console_costs.LIMITS, console_costs.NO_LIMITS)),
        ("a dead letter and a decision", (console_costs.INDEXED, console_costs.NOT_INDEXED)),
    ):
        assert {(name, label) for label in labels} <= labelled


def test_a_wrong_number_is_refused() -> None:
    with pytest.raises(errors.SettingsError, match="must be above 0"):
        console.run(
            ConsoleBenchOptions(target="sqlite", history=0), lambda _text: None, "instep bench"
        )
