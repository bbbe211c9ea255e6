"""Test places in a log: their syntax, their meaning, and their offsets on a real broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import confluent_kafka
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from instep import errors
from instep.kafka import connection, places
from instep.kafka.places import Ago, AtTime, FromEnd, FromStart, Offset, PlaceRange
from tests.support.producing import IN_ORDER

EIGHT = datetime(2026, 11, 1, 8, tzinfo=UTC)
counts = st.integers(0, places.OFFSET_MAX)
times = st.integers(0, 10**13).map(
    lambda ms: AtTime(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms))
)
any_place = st.one_of(
    counts.map(Offset),
    counts.map(FromStart),
    counts.map(FromEnd),
    times,
    st.integers(0, 10**9).map(Ago),
)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("start", FromStart()),
        ("end", FromEnd()),
        ("0", Offset(0)),
        ("1234", Offset(1234)),
        ("-10", FromEnd(10)),
        ("+5", FromStart(5)),
        ("@2026-11-01T08:00", AtTime(EIGHT)),
        ("@2026-11-01 08:00", AtTime(EIGHT)),
        ("@2026-11-01T08:00:00Z", AtTime(EIGHT)),
        ("@2026-11-01T09:00+01:00", AtTime(EIGHT)),
        ("@2026-11-01", AtTime(EIGHT - timedelta(hours=8))),
        ("@1793520000000", AtTime(EIGHT)),
        ("@-1h", Ago(3_600)),
        ("@-90s", Ago(90)),
        ("@-2m", Ago(120)),
        ("@-1d", Ago(86_400)),
    ],
)
def test_places_are_parsed(text: str, place: places.Place) -> None:
    assert places.parse_place(text) == place


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("3:9", Offset(3), Offset(9)),
        ("start:+5", FromStart(), FromStart(5)),
        ("-10:end", FromEnd(10), FromEnd()),
        ("-10", FromEnd(10), FromEnd()),
        ("@2026-11-01T08:00", AtTime(EIGHT), FromEnd()),
        ("@2026-11-01T08:00:00", AtTime(EIGHT), FromEnd()),
        ("@2026-11-01T08:00:2026-11-01T09:00", AtTime(EIGHT), AtTime(EIGHT + timedelta(hours=1))),
        (
            "@2026-11-01T08:00:00:@2026-11-01T09:00:00",
            AtTime(EIGHT),
            AtTime(EIGHT + timedelta(hours=1)),
        ),
        (
            "@2026-11-01T09:00+01:00:2026-11-01T10:00+01:00",
            AtTime(EIGHT),
            AtTime(EIGHT + timedelta(hours=1)),
        ),
        ("@1793520000000:1793523600000", AtTime(EIGHT), AtTime(EIGHT + timedelta(hours=1))),
        ("@-1h:-30m", Ago(3_600), Ago(1_800)),
        ("@-1h:-10", Ago(3_600), FromEnd(10)),
        ("@-1h:end", Ago(3_600), FromEnd()),
        ("3:@2026-11-01T08:00", Offset(3), AtTime(EIGHT)),
    ],
)
def test_ranges_are_parsed(text: str, first: places.Place, last: places.Place) -> None:
    assert places.parse_range(text) == PlaceRange(first, last)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@",
        "@yesterday-ish",
        "beginning",
        "1.5",
        "--3",
        "1e3",
        "@2026-13-01T00:00",
        "@2026-11-01T8:00",
        "@-1",
        "@-1w",
        "@+1h",
        "@9999999999999999999",
        "99999999999999999999",
        "@-999999999d",
        "٣",
        "@٣",
        "END",
        " 1",
    ],
)
def test_an_invalid_place_is_answered_with_the_grammar(text: str) -> None:
    with pytest.raises(errors.SettingsError, match="is not a place") as refused:
        places.parse_place(text)
    assert "@-1h" in refused.value.remedy
    with pytest.raises(errors.SettingsError, match="is not a range"):
        places.parse_range(f"{text}:{text}")


@pytest.mark.parametrize("text", ["9:3", "@2026-11-01T08:00:2026-11-01T07:00", "@-1m:-1h"])
def test_a_range_must_run_forward(text: str) -> None:
    with pytest.raises(errors.SettingsError, match="ends before it begins"):
        places.parse_range(text)


@given(any_place)
def test_a_place_survives_formatting_and_parsing(place: places.Place) -> None:
    assert places.parse_place(str(place)) == place


@given(any_place, any_place)
def test_a_range_survives_formatting_and_parsing(first: places.Place, last: places.Place) -> None:
    """Expect the same text, except that a number after a time is a time."""
    assume(not (isinstance(first, (AtTime, Ago)) and isinstance(last, Offset)))
    written = PlaceRange(first, last)
    found = parsed(places.parse_range, str(written))
    assert found == written or "ends before it begins" in found.what


@given(st.text())
def test_any_text_is_a_place_or_refused(text: str) -> None:
    for parse in (places.parse_place, places.parse_range):
        found = parsed(parse, text)
        assert not isinstance(found, errors.SettingsError) or found.remedy


def parsed(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except errors.SettingsError as refused:
        return refused


def test_offsets_of_places(cluster: connection.Cluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, **IN_ORDER})
    for minute in range(10):
        producer.produce(
            topic,
            b"v",
            partition=0,
            timestamp=int((EIGHT + timedelta(minutes=minute)).timestamp() * 1000),
        )
    assert producer.flush(30) == 0
    cut = confluent_kafka.TopicPartition(topic, 0, 3)
    next(iter(cluster.admin.delete_records([cut]).values())).result(60)

    def at(text: str) -> tuple[dict[int, int], dict[int, int]]:
        found = places.resolve(cluster, topic, (0, 1), places.parse_place(text))
        return dict(found), found.clamped

    assert at("start") == ({0: 3, 1: 0}, {})
    assert at("end") == ({0: 10, 1: 0}, {})
    assert at("5") == ({0: 5, 1: 0}, {1: 5})
    assert at("1") == ({0: 3, 1: 0}, {0: 1, 1: 1})
    assert at("99") == ({0: 10, 1: 0}, {0: 99, 1: 99})
    assert at("+2") == ({0: 5, 1: 0}, {1: 2})
    assert at("-4") == ({0: 6, 1: 0}, {1: -4})
    assert at("-8") == ({0: 3, 1: 0}, {0: 2, 1: -8})
    zone = timezone(timedelta(hours=2))
    assert at(f"@{(EIGHT + timedelta(minutes=7)).astimezone(zone).isoformat()}") == (
        {0: 7, 1: 0},
        {},
    )
    assert at("@1999-01-01") == ({0: 3, 1: 0}, {})
    assert at("@2100-01-01") == ({0: 10, 1: 0}, {})
    assert at("@-1s")[1] == {}
