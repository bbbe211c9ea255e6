"""Test how rows of a transformation become results of records, whatever batches they come in."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep.document import results
from instep.document.decoding import Record
from instep.document.results import SLOTS, Result
from instep.pipeline.micro_batch import arrow_records
from instep.pipeline.transformed import collector
from instep.pipeline.transformed.collector import ResultCollector

SCHEMA = pa.schema(
    [*arrow_records.schema(headers=True), ("event", pa.binary()), ("deleted", pa.binary())]
)


def row(
    offset: int, event: bytes | None = b"{}", partition: int = 0, **more: Any
) -> dict[str, Any]:
    """Return one result of a record, as Spark passes it to a task."""
    record = {"timestamp_ms": offset + 5, "key": b"key %d" % offset, "value": b"value %d" % offset}
    return {"partition": partition, "offset": offset, "event": event, **record, **more}


def batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def collected(batches: Iterable[Sequence[dict[str, Any]]], *, taken: bool = False) -> list[Result]:
    """Return the results of a partition; with `taken`, what is complete is taken in between."""
    found = ResultCollector()
    results: list[Result] = []
    for rows in batches:
        found.add(batch(rows))
        if taken:
            results += itertools.chain.from_iterable(one for _, one in found.take_complete())
    return [*results, *found.take_rest(0)]


def test_every_row_without_headers_has_none() -> None:
    column = pa.nulls(3, arrow_records.HEADERS_TYPE)
    assert collector.headers_of(column) == [(), (), ()]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
    st.booleans(),
)
def test_results_are_numbered_across_batches(
    places: list[tuple[int, int]], cuts: list[int], taken: bool
) -> None:
    """The rows of a partition come in the order of offsets, mixed with those of others."""
    rows = [
        row(offset, b"%d" % number, partition)
        for number, (partition, offset) in enumerate(sorted(places, key=lambda one: one[1]))
    ]
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    found = ResultCollector()
    complete: dict[int, list[Result]] = {0: [], 1: [], 2: []}
    for start, end in itertools.pairwise(edges):
        found.add(batch(rows[start:end]))
        if taken:
            for partition, some in found.take_complete():
                complete[partition] += some
                assert {one.offset // SLOTS for one in some}.isdisjoint(
                    later["offset"] for later in rows[end:] if later["partition"] == partition
                )
    for partition, had in complete.items():
        own = [one for one in rows if one["partition"] == partition]
        had += found.take_rest(partition)
        assert [one.value for one in had] == [one["event"] for one in own]
        assert [one.offset // SLOTS for one in had] == [one["offset"] for one in own]
        assert len({one.offset for one in had}) == len(had)
        assert [one.offset for one in had] == sorted(one.offset for one in had)
        assert {one.partition for one in had} <= {partition}
        assert sum(one.records for one in had) == len({one["offset"] for one in own})
        assert found.records(partition) == len({one["offset"] for one in own})


def test_a_result_has_the_bytes_of_its_record() -> None:
    [first, second] = collected([[row(3, b"a"), row(3, b"b")]])
    for one, event, records in ((first, b"a", 1), (second, b"b", 0)):
        assert (one.key, one.value, one.timestamp_ms) == (b"key 3", event, 8)
        assert results.in_log(one) == (b"key 3", b"value 3")
        assert (one.records, one.is_empty, one.failure) == (records, False, None)


def test_a_delete_names_the_document_and_keeps_its_record() -> None:
    rows = [
        row(1),
        row(1, None, deleted=b"document"),
        row(2, None, deleted=None),
        row(3, value=None),
    ]
    found = collected([rows])
    assert [one.key for one in found] == [b"key 1", b"document", None, b"key 3"]
    assert [one.value for one in found] == [b"{}", None, None, b"{}"]
    assert [results.in_log(one) for one in found] == [
        (b"key 1", b"value 1"),
        (b"key 1", b"value 1"),
        (b"key 2", b"value 2"),
        (b"key 3", None),
    ]


def test_headers_stay_with_their_record() -> None:
    pairs = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    rows = [row(1), row(2, headers=[]), row(3, headers=pairs)]
    assert [one.headers for one in collected([rows])] == [(), (), (("a", b"1"), ("a", None))]
    assert [one.headers for one in collected([rows[:2]])] == [(), ()]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 20])
@pytest.mark.parametrize("taken", [False, True])
def test_a_record_with_too_many_results_fails_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch, size: int, taken: bool
) -> None:
    monkeypatch.setattr(results, "SLOTS", 3)
    monkeypatch.setattr(collector, "SLOTS", 3)
    rows = [row(1), row(1), row(1), *[row(2)] * 8, row(3), row(3), row(4)]
    batches = [rows[start : start + size] for start in range(0, len(rows), size)]
    found = collected(batches, taken=taken)
    assert [one.offset for one in found] == [3, 4, 5, 6, 9, 10, 12]
    assert [one.failure for one in found if one.failure] == ["it yields more than 3 rows"]
    assert found[3].failure is not None
    assert results.in_log(found[3]) == (b"key 2", b"value 2")
    assert [one.records for one in found] == [1, 0, 0, 1, 1, 0, 1]


def test_the_end_of_a_range_counts_for_the_records_without_a_result() -> None:
    last = Record(9, 14, b"key 9", b"value 9", 0)
    found = collector.closed(collected([[row(3), row(3)]]), last, 5)
    assert [one.offset for one in found] == [3 * SLOTS, 3 * SLOTS + 1, 9 * SLOTS]
    assert (found[-1].is_empty, found[-1].records) == (True, 5)
    assert results.in_log(found[-1]) == (b"key 9", b"value 9")
    assert results.records_of(found) == 6
    found = collector.closed(collected([[row(9), row(9)]]), last, 5)
    assert [(one.offset - 9 * SLOTS, one.is_empty, one.records) for one in found] == [
        (0, False, 1),
        (1, False, 5),
    ]
