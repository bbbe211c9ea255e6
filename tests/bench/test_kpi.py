"""Test `instep bench kpi`: how far a minute is behind, and a small run."""

from __future__ import annotations

import pytest

from instep import errors
from instep_bench import kpi
from instep_bench.kpi import KpiOptions, TableReading

END_S = 60.0


def readings(*counts: tuple[float, int]) -> list[TableReading]:
    return [TableReading(at_s, {0: count}) for at_s, count in counts]


def test_a_minute_is_behind_until_its_last_event_is_counted() -> None:
    read = readings((59.0, 5), (60.5, 8), (61.5, 9), (62.5, 9))
    assert kpi.behind_s(read, 0, sent=9) == 1.5


def test_a_minute_that_was_complete_at_its_end_is_not_behind() -> None:
    assert kpi.behind_s(readings((59.9, 9)), 0, sent=9) == 0


@pytest.mark.parametrize(("count", "what"), [(10, "but 9 were sent"), (8, "never counted all")])
def test_lost_and_repeated_events_are_errors(count: int, what: str) -> None:
    with pytest.raises(errors.InstepError, match=what):
        kpi.behind_s(readings((70.0, count)), 0, sent=9)


@pytest.mark.parametrize("given", [{"rate": 0}, {"minutes": 0}, {"target": "oracle"}])
def test_wrong_options_are_refused(given: dict[str, int | str]) -> None:
    with pytest.raises(errors.SettingsError):
        kpi.run(KpiOptions(**given), lambda _: None, "bench kpi")  # type: ignore[arg-type]


@pytest.mark.long
def test_a_small_run_counts_every_event() -> None:
    options = KpiOptions(target="sqlite", rate=50, minutes=1, documents=100)
    result = kpi.run(options, lambda _: None, "bench kpi")
    assert len(result.figures[0].values) == 1
