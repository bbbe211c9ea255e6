"""Test when a document is overdue: since when it has its status, and what comes next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep import durations
from instep.document import due
from instep.document.due import AppliedStatus, OverdueCount, OverdueCounter, StatusAge

START = datetime(2026, 11, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def at(hours: float) -> datetime:
    return START + hours * HOUR


@given(st.lists(st.sampled_from(["QUEUED", "PRINTED", None, "delete"]), max_size=8))
def test_an_event_that_repeats_the_status_does_not_change_it(statuses: list[str | None]) -> None:
    events = [
        AppliedStatus(None if status == "delete" else status, at(hour), status == "delete")
        for hour, status in enumerate(statuses)
    ]
    current, changed_at = None, None
    for event in events:  # forwards, while the code under test goes backwards
        if event.is_delete:
            current, changed_at = None, None
        elif event.status is not None and event.status != current:
            current, changed_at = event.status, event.at
    if current is not None:
        assert due.status_since(events, current) == changed_at
    other = "PRINTED" if current == "QUEUED" else "QUEUED"
    assert due.status_since(events, other) is None


@given(
    st.lists(st.integers(0, 100), max_size=60),
    st.integers(0, 100),
    st.integers(1, 20),
)
def test_a_counter_finds_each_document_at_its_time(
    hours: list[int], horizon: int, kept_max: int
) -> None:
    """Compare with a scan at every hour that the counter covers, whatever it had to forget."""
    limits = {"QUEUED": HOUR}
    ages = [StatusAge(f"d{number}", "QUEUED", at(hour)) for number, hour in enumerate(hours)]
    counter = OverdueCounter(limits, START, horizon * HOUR, kept_max)
    for age in ages:
        counter.add([age], START)
    by_name = {age.document: age for age in ages}
    now = START
    while now < counter.covered_until:
        counter.add([by_name[name] for name in counter.take_due(now)], now)
        overdue = [age for age in ages if age.since is not None and age.since + HOUR <= now]
        assert counter.summary(now).total == len(overdue)
        now += HOUR


def test_documents_of_which_no_time_is_known_are_counted_apart() -> None:
    limits = {"QUEUED": HOUR, "FAILED": 3 * HOUR}
    counter = OverdueCounter(limits, at(2), HOUR, 10)
    counter.add(
        [
            StatusAge("a", "QUEUED", at(0)),
            StatusAge("b", "QUEUED", at(-70)),
            StatusAge("c", "QUEUED", None),
            StatusAge("d", "FAILED", at(0)),
        ],
        at(2),
    )
    summary = counter.summary(at(2))
    assert summary.statuses == {"QUEUED": OverdueCount(2, at(-70))}
    assert (summary.total, summary.unknown) == (2, 1)
    sentence = due.describe(summary, {"QUEUED": "1h", "FAILED": "3h"})
    assert sentence == "2 documents overdue: 2 QUEUED (longer than 1h, the first for 3d)"
    assert due.describe(OverdueCounter(limits, START, HOUR, 1).summary(START), {}) is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("90m", 5_400), ("3d", 259_200), ("PT1H30M", 5_400)]
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert durations.parse(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2 h", "2H", "1h30m", "999999999999d", "P"])
def test_other_texts_are_no_durations(text: str) -> None:
    assert durations.parse(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (3_600, "1h"), (3_661, "1h 1m"), (86_400 * 3 + 30, "3d")],
)
def test_durations_are_shown_with_two_units(seconds: float, text: str) -> None:
    assert durations.shown(timedelta(seconds=seconds)) == text
