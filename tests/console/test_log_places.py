"""Test places of records in URLs."""

from __future__ import annotations

import pytest

from instep import errors
from instep.console.log_places import place_of, position_at
from instep.sinks.journal_entries import RecordPosition


def test_a_place_is_read_back() -> None:
    place = RecordPosition("a-topic#2", 2**31 - 1, 2**63 - 1)
    assert position_at(place_of(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t",
        "t 1",
        "t 1 ",
        "t -1 0",
        "t 1 x",
        "t ² 0",
        f"t {2**31} 0",
        f"t 0 {2**63}",
        f"t 0 {'9' * 5_000}",
        "t\0 0 0",
        f"{'t' * 1_000} 0 0",
    ],
)
def test_a_place_that_no_record_can_have_is_refused(text: str) -> None:
    with pytest.raises(errors.SettingsError, match="is not a place"):
        position_at(text)
