"""Test the workload's model: it matches the records, and each partition ends with a sentinel."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from instep import errors
from instep.document.partition import partition_of
from instep_bench import load

PARTITIONS = 4
MIXED = load.Load(events=3_000, documents=500, stale=0.1, repeated=0.05, bad=0.02)


def test_documents_take_turns() -> None:
    plain = load.Load(events=7, documents=3)
    events = [json.loads(sent.value) for sent in load.records(plain)]
    assert [(one["doc_id"][-1], one["version"]) for one in events] == [
        ("0", 1),
        ("1", 1),
        ("2", 1),
        ("0", 2),
        ("1", 2),
        ("2", 2),
        ("0", 3),
    ]


def test_values_have_about_the_requested_size() -> None:
    sizes = {
        len(sent.value) for sent in load.records(load.Load(events=1_000, documents=100, size=150))
    }
    assert sizes == {150}


def test_the_same_seed_sends_the_same_records() -> None:
    assert list(load.records(MIXED)) == list(load.records(MIXED))


def test_the_expected_state_equals_applying_the_records_one_by_one() -> None:
    """Count in another way: apply one record after the other to the current state."""
    stands: dict[str, tuple[str, int]] = {}
    found: Counter[str] = Counter()
    for sent in load.records(MIXED):
        try:
            event = json.loads(sent.value)
            document, version = event["doc_id"], int(event["version"])
        except (ValueError, KeyError, TypeError):
            found["bad"] += 1
            continue
        assert sent.key == document.encode()
        before = stands.get(document, ("", 0))[1]
        if version > before:
            found["applied"] += 1
            stands[document] = (event["status"], version)
        elif version == before:
            found["repeated"] += 1
        else:
            found["stale"] += 1
    expected = load.expected_state(MIXED, PARTITIONS)
    assert {name: (row.status, row.version) for name, row in expected.rows.items()} == stands
    assert dict(found) == {
        name: getattr(expected, name) for name in ("applied", "repeated", "stale", "bad")
    }
    assert min(found.values()) > 0
    assert expected.records == sum(found.values()) == MIXED.events


def test_a_sentinel_is_the_last_record_of_its_partition() -> None:
    last = {partition_of(sent.key, PARTITIONS): sent for sent in load.records(MIXED)}
    expected = load.expected_state(MIXED, PARTITIONS)
    assert {sent.key.decode() for sent in last.values()} == set(expected.sentinels)
    for sent in last.values():
        assert json.loads(sent.value)["version"] == expected.sentinels[sent.key.decode()].version


@pytest.mark.parametrize(
    "wrong",
    [
        {"stale": -0.1},
        {"bad": 1.1},
        {"repeated": 0.5, "stale": 0.5},
        {"events": 9},
        {"documents": 0},
        {"size": 20},
    ],
    ids=str,
)
def test_an_invalid_load_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(errors.SettingsError):
        load.Load(**{"events": 100, "documents": 10, **wrong})  # type: ignore[arg-type]
