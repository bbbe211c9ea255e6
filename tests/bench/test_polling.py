"""Test polling beside events on real servers with a few documents. No figures are asserted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from instep import errors
from instep.local.broker import LocalCluster
from instep_bench import polling
from instep_bench.polling import PollingOptions
from tests.support.databases import run_sql


def test_polling_and_events_are_measured_and_nothing_is_left(
    broker: LocalCluster, new_database: Callable[[str], str]
) -> None:
    url = new_database("postgres")
    messages: list[str] = []
    options = PollingOptions(
        documents=40,
        call_s=0.002,
        sample=10,
        connections=(1, 5),
        rounds=2,
        target=url,
        bootstrap=broker.bootstrap,
    )
    result = polling.run(options, messages.append, "instep bench polling")
    rounds = {figure.labels["way"]: figure for figure in result.figures if figure.name == "a round"}
    assert {method: figure.labels["seconds are"] for method, figure in rounds.items()} == {
        "polling, 1 connection": "extrapolated",
        "polling, 5 connections": "extrapolated",
        "events": "measured",
    }
    assert all(len(figure.values) == 2 and figure.low > 0 for figure in rounds.values())
    ages = [figure for figure in result.figures if figure.name == "age of a status"]
    assert len(ages) == 6
    assert {one.unit for one in result.figures if one.name == "sent a round"} == {
        "calls",
        "messages",
    }
    assert "extrapolated from 10 calls" in str(result.tables)
    assert any(note.startswith("Extrapolated") for note in result.notes)
    assert result.options["connections"] == "1,5"
    assert run_sql(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == []


def test_a_polled_status_is_half_a_round_old() -> None:
    assert polling.polled(100.0) == polling.Round(100.0, 50.0, 99.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"documents": 0},
        {"sample": 0},
        {"rounds": 0},
        {"call_s": -1.0},
        {"call_s": float("nan")},
        {"connections": ()},
        {"connections": (1, 0)},
        {"connections": (10_000,)},
        {"target": "oracle"},
        {"target": "oracle://x"},
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.SettingsError):
        polling.run(PollingOptions(**wrong), lambda _: None, "")  # type: ignore[arg-type]
