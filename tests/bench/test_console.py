"""Test the benchmark of the console with tiny numbers."""

from __future__ import annotations

import pytest

from instep import errors
from instep.local.broker import LocalCluster
from instep_bench import console
from instep_bench.console import ConsoleBenchOptions


def test_every_page_is_measured(broker: LocalCluster) -> None:
    options = ConsoleBenchOptions(
        target="sqlite",
        history=2_000,
        dead_letters=300,
        decisions=700,
        topics=3,
        groups=2,
        requests=2,
        tabs=2,
        seconds=0.2,
        bootstrap=broker.bootstrap,
    )
    result = console.run(options, lambda _text: None, "instep bench console")
    [pages] = result.tables
    assert [row[0] for row in pages.rows][:3] == ["overview", "pipeline", "document"]
    assert {"overdue", "topic", "records", "group", "rewind", "settings"} <= {
        row[0] for row in pages.rows
    }
    measured = {figure.name: figure for figure in result.figures}
    assert measured["slowest page, p95"].median > 0
    assert 10 < measured["first page"].median < 150
    assert "--browser" in " ".join(result.notes)


def test_a_wrong_number_is_refused() -> None:
    with pytest.raises(errors.SettingsError, match="must be above 0"):
        console.run(
            ConsoleBenchOptions(target="sqlite", history=0), lambda _text: None, "instep bench"
        )
